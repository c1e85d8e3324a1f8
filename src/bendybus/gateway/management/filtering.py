"""Operations of `$management` on the messages that a filter matches, over all partitions.

A filter consists of states, a session, times and a selector. The server examines the messages in the
order of their sequence numbers, which walks partition after partition, for as long as one answer may take.
The client continues where an answer ends. Nothing of this is in Service Bus: docs/reference/extensions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from bendybus import audit
from bendybus.auth.rights import Right
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.selection import Selection
from bendybus.broker.turns import Turns
from bendybus.domain.filters import Selector
from bendybus.domain.messages import Message, MessageState
from bendybus.domain.range_commands import Browse, Browsed, Purge, Purged
from bendybus.envelope import render_peeked
from bendybus.errors import ArgumentError, Unavailable
from bendybus.gateway.management.fields import (
    Body,
    flag,
    session_id_of,
    states_of,
    time_of,
    whole_number,
)
from bendybus.gateway.management.operation import Answer, Managed, Operation
from bendybus.names import PARTITION_SHIFT, Instant, SequenceNumber, SessionId

__all__ = ["OPERATIONS", "Walk", "Wanted"]

# One answer is one message on the wire, rendered in one go.
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
COUNT_MAX: Final = 5000
# Examined for one answer, however few match: about 100 ms of work, during which other clients are served.
EXAMINED_MAX: Final = 20_000
# Read from a partition at a time.
PAGE_MAX: Final = 200
PAGE_BYTES_MAX: Final = 1024 * 1024
# Removed in one step: about 10 ms, during which other clients wait.
PURGED_PER_COMMAND: Final = 2500
# The number of concurrent steps: while the stores remove messages, the next ones are found.
PURGES_AT_ONCE: Final = 4
# Removed before an answer is given: about a second.
PURGED_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages of an entity a request is about."""

    states: Collection[MessageState]
    session_id: SessionId | None
    enqueued_from: Instant | None
    enqueued_before: Instant | None
    selection: Selection | None

    @classmethod
    def of(cls, body: Body) -> Wanted:
        return cls(
            states_of(body, tuple(MessageState)),
            session_id_of(body),
            time_of(body, "enqueued-from"),
            time_of(body, "enqueued-before"),
            _selection(body),
        )

    def hosts(self, queue: Queue) -> list[ReceivingPort]:
        """The partitions that may have some: the id of a session decides its partition."""
        if self.session_id is None:
            return list(queue.hosts)
        return [queue.host_for(queue.session_key(self.session_id))]


class Walk:
    """A walk over the messages of an entity that pass a filter, from a sequence number on, page by page."""

    def __init__(
        self, managed: Managed, wanted: Wanted, first: int, hosts: Sequence[ReceivingPort] | None = None
    ) -> None:
        """`hosts`: the partitions to look at, if the filter does not decide."""
        self._subqueue = managed.subqueue
        self._wanted = wanted
        self._turns = Turns()
        hosts = wanted.hosts(managed.queue) if hosts is None else hosts
        self._hosts = [host for host in hosts if _last(host) >= first]
        self._examined = 0
        self.unavailable = 0
        """How many partitions could not be looked at."""
        self.next: int | None = None
        """Where to continue; None at the end."""
        if self._hosts:
            self.next = max(first, self._hosts[0].number << PARTITION_SHIFT)

    @property
    def goes_on(self) -> bool:
        """Whether there is a page left, and time for it in this answer."""
        return self.next is not None and self._examined < EXAMINED_MAX

    async def page(self) -> list[tuple[Message, bytes]]:
        """What matches in the next page. `next` is the number behind the page from then on."""
        assert self.next is not None
        host, wanted = self._hosts[0], self._wanted
        command = Browse(
            SequenceNumber(self.next),
            SequenceNumber(_last(host)),
            PAGE_MAX,
            PAGE_BYTES_MAX,
            wanted.states,
            self._subqueue,
            wanted.session_id,
            wanted.enqueued_from,
            wanted.enqueued_before,
        )
        try:
            browsed = await host.ask(command)
            assert isinstance(browsed, Browsed)
            # Copies: while payloads are read, a message may get another number or leave.
            messages = list(map(copy, browsed.messages))
            payloads = await host.payloads(messages)
        except Unavailable:
            # "A slow or dead store delays nobody: the others' messages flow" (P-27)
            self.unavailable += 1
            self._leave_partition()
            return []
        # Where nothing passes, the partition has examined as many as it may at a time.
        self._examined += len(messages) or PAGE_MAX
        if browsed.next is None:
            self._leave_partition()
        else:
            self.next = browsed.next
        await self._turns.next()
        selection = wanted.selection
        return [
            (message, payload)
            for message, payload in zip(messages, payloads, strict=True)
            if payload is not None and (selection is None or selection.matches(message, payload))
        ]

    def _leave_partition(self) -> None:
        del self._hosts[0]
        self.next = self._hosts[0].number << PARTITION_SHIFT if self._hosts else None


def _last(host: ReceivingPort) -> int:
    """The highest sequence number that its partition can give."""
    return (host.number + 1 << PARTITION_SHIFT) - 1


def _selection(body: Body) -> Selection | None:
    text = body.get("selector")
    if text is None:
        return None
    if not isinstance(text, str):
        raise ArgumentError(f"'selector' must be a string, not {text!r}.")
    return Selection([Selector(text)])


async def _peek(managed: Managed, body: Body) -> Answer:
    """Like `com.microsoft:peek-message`, with a filter and with the count that was asked for (B-03)."""
    count = min(max(1, whole_number(body, "message-count", COUNT_MAX)), COUNT_MAX)
    without_body = flag(body, "omit-message-body")
    walk = Walk(managed, Wanted.of(body), whole_number(body, "from-sequence-number", 0))
    found: list[bytes] = []
    size = 0
    while walk.goes_on and len(found) < count:
        for message, payload in await walk.page():
            rendered = render_peeked(message, payload, without_body=without_body)
            size += len(rendered)
            if len(found) == count or (found and size > ANSWER_BYTES_MAX):
                return {"messages": found, "next": int(message.sequence_number)}
            found.append(rendered)
    return {"messages": found, "next": walk.next}


async def _purge(managed: Managed, body: Body) -> Answer:
    """Remove, or dead-letter, everything that a filter matches and that nobody has locked (B-01, B-04)."""
    queue, wanted = managed.queue, Wanted.of(body)
    queue.refuse_receiving(managed.subqueue)
    dead_letters = flag(body, "dead-letter")
    if dead_letters and MessageState.SCHEDULED in wanted.states:
        raise ArgumentError("Scheduled messages cannot be dead-lettered: leave 2 out of 'states'.")
    purge = Purge(
        PURGED_PER_COMMAND,
        wanted.states,
        managed.subqueue,
        wanted.session_id,
        wanted.enqueued_from,
        wanted.enqueued_before,
        None,
        dead_letters,
        _text(body, "deadletter-reason"),
        _text(body, "deadletter-description"),
    )
    purging, first = _Purging(), whole_number(body, "from-sequence-number", 0)
    if wanted.selection is None:
        hosts = [host for host in wanted.hosts(queue) if _last(host) >= first]
        following = await purging.all(hosts, purge)
    else:
        following = await purging.chosen(queue, Walk(managed, wanted, first), purge)
    if purging.count and not dead_letters:
        audit.record("messages-deleted", entity=queue.path, messages=purging.count)
    return {"removed": purging.count, "locked": purging.locked, "next": following}


class _Purging:
    """The progress of one request."""

    def __init__(self) -> None:
        self.count = 0
        self.locked = 0

    async def all(self, hosts: Sequence[ReceivingPort], purge: Purge) -> int | None:
        """Some partitions at a time. Returns where to continue, None at the end."""
        for start in range(0, len(hosts), PURGES_AT_ONCE):
            group = hosts[start : start + PURGES_AT_ONCE]
            lanes = PURGES_AT_ONCE // len(group)
            left = await asyncio.gather(*(self._empty(host, purge, lanes) for host in group))
            for host, locked in zip(group, left, strict=True):
                if locked is None:
                    # Those behind it are asked again, and have nothing more.
                    return host.number << PARTITION_SHIFT
                self.locked += locked
        return None

    async def _empty(self, host: ReceivingPort, purge: Purge, lanes: int) -> int | None:
        """Purge a partition. Returns how many stay because they are locked, None if there may be more.

        With several lanes, it works on the next messages while the store removes the last ones.
        """

        async def lane() -> int | None:
            while self.count < PURGED_MAX:
                purged = await self._ask(host, purge)
                if not purged.more:
                    return purged.locked
            return None

        ended = await asyncio.gather(*(lane() for _ in range(lanes)))
        return None if None in ended else ended[-1]

    async def chosen(self, queue: Queue, walk: Walk, purge: Purge) -> int | None:
        """What the walk finds, page after page."""
        while walk.goes_on:
            numbers = [message.sequence_number for message, _ in await walk.page()]
            if numbers:
                host = queue.host_of_sequence_number(numbers[0])
                assert host is not None, "a page is of one partition"
                self.locked += (await self._ask(host, replace(purge, numbers=numbers))).locked
        return walk.next

    async def _ask(self, host: ReceivingPort, purge: Purge) -> Purged:
        try:
            purged = await host.ask(purge)
        except Unavailable:
            # "A slow or dead store delays nobody" (P-27)
            return Purged(0, 0, more=False)
        assert isinstance(purged, Purged)
        self.count += purged.count
        return purged


def _text(body: Body, name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ArgumentError(f"'{name}' must be a string, not {value!r}.")
    return value


OPERATIONS: Final[Mapping[str, Operation]] = {
    "bendybus:peek": Operation(Right.LISTEN, _peek),
    "bendybus:purge": Operation(Right.LISTEN, _purge),
}
