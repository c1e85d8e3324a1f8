"""The operation of `$management` that puts completed messages back into their queue (B-07).

The partition selects messages by session, time and number (domain/completed.py). A key or a selector is
evaluated here, because it needs payloads; the messages are then named by their numbers. A request may be
repeated. A message that was put back is no longer kept, and `completed-before`, which every answer has,
excludes messages that were completed again later. docs/reference/replay.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from bendybus import audit
from bendybus.amqp.annotations import PARTITION_KEY
from bendybus.auth.rights import Right
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Enqueued
from bendybus.domain.completed import in_times
from bendybus.domain.entities import EntityStatus
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.range_commands import Replay, Replayable
from bendybus.envelope import Stored
from bendybus.errors import ArgumentError, EntityDisabled, InvalidOperation, Unavailable
from bendybus.gateway.management.fields import (
    Body,
    flag,
    sequence_numbers,
    session_id_of,
    time_of,
    whole_number,
)
from bendybus.gateway.management.filtering import Walk, Wanted
from bendybus.gateway.management.operation import Answer, Managed, Operation, by_partition
from bendybus.names import PARTITION_SHIFT, Instant, SequenceNumber, SessionId, SessionKey

__all__ = ["OPERATIONS"]

# Moved in one step, and so in one commit: about 50 ms, during which other clients wait.
REPLAYED_PER_COMMAND: Final = 5000
# Moved before an answer is given: about a second.
REPLAYED_MAX: Final = 50_000


async def _replay(managed: Managed, body: Body) -> Answer:
    queue = managed.queue
    _refuse(queue, managed.subqueue)
    replay = Replay(
        REPLAYED_PER_COMMAND,
        session_id_of(body),
        time_of(body, "completed-from"),
        # A message that is put back and completed again during this request is left out.
        time_of(body, "completed-before") or Instant(queue.now() + 1),
        time_of(body, "enqueued-from"),
        time_of(body, "enqueued-before"),
        dry_run=flag(body, "dry-run"),
    )
    replaying, following = _Replaying(queue, replay), None
    first, key = whole_number(body, "from-sequence-number", 0), _key(queue, body)
    if body.get("sequence-numbers") is not None:
        if key is not None or body.get("selector") is not None:
            raise ArgumentError("'sequence-numbers' cannot be combined with 'key' or 'selector'.")
        await replaying.these(sequence_numbers(body))
    elif key is not None or body.get("selector") is not None:
        following = await replaying.matching(managed, body, first, key)
    else:
        following = await replaying.all(first)
    if replaying.count and not replay.dry_run:
        audit.record("messages-replayed", entity=queue.path, messages=replaying.count)
    return {
        "count": replaying.count,
        "completed-before": replay.completed_before,
        "unavailable": replaying.unavailable,
        "next": following,
    }


def _refuse(queue: Queue, subqueue: SubQueue) -> None:
    if subqueue is not SubQueue.MAIN:
        raise InvalidOperation(f"Messages are put back into '{queue.path}' itself, not into a sub-queue.")
    if queue.description.status is EntityStatus.DISABLED:
        raise EntityDisabled(f"'{queue.path}' is disabled; nothing is put back into it.")


def _key(queue: Queue, body: Body) -> SessionKey | None:
    key = body.get("key")
    if key is not None and not isinstance(key, str):
        raise ArgumentError(f"'key' must be a string, not {key!r}.")
    return None if key is None else queue.session_key(SessionId(key))


class _Replaying:
    """The progress of one request."""

    def __init__(self, queue: Queue, replay: Replay) -> None:
        self._queue = queue
        self._replay = replay
        self.count = 0
        self.unavailable = 0
        """How many partitions could not be asked."""

    async def all(self, first: int) -> int | None:
        """Partition after partition. Returns where to continue, None at the end."""
        queue, session_id = self._queue, self._replay.session_id
        hosts: Sequence[ReceivingPort] = queue.hosts
        if session_id is not None:
            hosts = [queue.host_for(queue.session_key(session_id))]
        for host in hosts:
            if host.number < first >> PARTITION_SHIFT:
                continue
            moved = REPLAYED_PER_COMMAND
            while moved >= REPLAYED_PER_COMMAND:
                if self.count >= REPLAYED_MAX and not self._replay.dry_run:
                    return host.number << PARTITION_SHIFT
                moved = await self._ask(host, self._replay)
                if self._replay.dry_run:
                    break
        return None

    async def these(self, numbers: Sequence[SequenceNumber]) -> None:
        for host, share in by_partition(self._queue, numbers).items():
            await self._ask(host, replace(self._replay, count=len(share), numbers=share))

    async def matching(self, managed: Managed, body: Body, first: int, key: SessionKey | None) -> int | None:
        """What has this key and matches the selector, page after page. Returns where to continue."""
        wanted, queue = Wanted.of(body), self._queue
        hosts = wanted.hosts(queue) if key is None else [queue.host_for(key)]
        walk = Walk(replace(managed, subqueue=SubQueue.COMPLETED), wanted, first, hosts)
        while walk.goes_on:
            numbers = [
                message.sequence_number
                for message, payload in await walk.page()
                if in_times(self._replay, message) and (key is None or self._has_key(message, payload, key))
            ]
            if numbers and self._replay.dry_run:
                self.count += len(numbers)
            elif numbers:
                await self.these(numbers)
        self.unavailable += walk.unavailable
        return walk.next

    def _has_key(self, message: Message, payload: bytes, key: SessionKey) -> bool:
        """Whether this is the message's session id or its partition key, which decide its partition."""
        own: object = message.session_id
        if own is None:
            own = Stored.of(payload).annotations().get(PARTITION_KEY)
        return isinstance(own, str) and self._queue.session_key(SessionId(own)) == key

    async def _ask(self, host: ReceivingPort, replay: Replay) -> int:
        try:
            reply = await host.ask(replay)
        except Unavailable:
            self.unavailable += 1
            return 0
        assert isinstance(reply, Enqueued | Replayable)
        self.count += reply.count
        return reply.count


OPERATIONS: Final[Mapping[str, Operation]] = {"bendybus:replay": Operation(Right.LISTEN, _replay)}
