"""The forwarder of a queue: takes what is in its outbox to where it is going.

Whatever is to leave a queue (its messages with ForwardTo, its dead letters with
ForwardDeadLetteredMessagesTo) is first posted into the outbox of its partition,
and what a transaction sends through the queue is there already. The forwarder
walks each outbox from the front and enqueues at the destination; how that comes
to be exactly once stands in domain/outbox.py. One partition of a destination that
is away holds up what goes there and nothing else: while one message to it waits,
none that was posted later is sent to it, so the order of numbers is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bendybus.broker.host import Host
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Target
from bendybus.broker.topic_host import TopicHost
from bendybus.domain.commands import Enqueue, Given, Peek, Post, Transfer, Transferred, Undeliverable
from bendybus.domain.deadletter import SESSION_ID_MISSING, Cause
from bendybus.domain.duplicates import Identities
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.envelope import readmit
from bendybus.errors import BrokerError, EntityNotFound, MessageSizeExceeded, QuotaExceeded, Unavailable
from bendybus.names import EntityPath, SequenceNumber

__all__ = ["Forwarder"]

logger = logging.getLogger(__name__)

# One commit at the source and one at each destination for so many messages.
PAGE_MAX: Final = 500
# How long to leave a destination alone that is away.
RETRY_AFTER_S: Final = 1.0


@dataclass(slots=True)
class _Load:
    """What goes from one outbox to one partition, in the order of its numbers."""

    numbers: list[SequenceNumber] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    identities: list[str | None] = field(default_factory=list)
    """As many as messages, or none at all without duplicate detection."""

    def add(self, number: SequenceNumber, message: Message, identities: Identities | None) -> None:
        self.numbers.append(number)
        self.messages.append(message)
        if identities is not None:
            self.identities += identities.found

    def singly(self) -> Iterator[_Load]:
        for place in range(len(self.numbers)):
            one = slice(place, place + 1)
            yield _Load(self.numbers[one], self.messages[one], self.identities[one])

    def command(self, source: str) -> Enqueue:
        return Enqueue(self.messages, self.identities or None, Transfer(source, self.numbers))


class Forwarder:
    """`Waiter` of its queue."""

    def __init__(self, queue: Queue, find: Callable[[str], Target]) -> None:
        self._queue = queue
        self._find = find
        self._moving: dict[PartitionHost, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Something may be waiting to be moved, or the queue forwards from now on."""
        for host in self._queue.hosts:
            if host not in self._moving and self._has_work(host):
                self._moving[host] = asyncio.get_running_loop().create_task(self._move(host))
        self._queue.wait(self, SubQueue.OUTBOX)
        for subqueue, _ in self._routes():
            self._queue.wait(self, subqueue)

    def close(self) -> None:
        """The queue is gone, or the broker stops."""
        for task in self._moving.values():
            task.cancel()

    def drop(self) -> None:
        """What is under way is to be forgotten, at both ends; go on with what comes later."""
        moving, self._moving = self._moving, {}
        for task in moving.values():
            task.cancel()

    async def settled(self) -> None:
        """Return when nothing is being moved, or only waits for a destination that is away."""
        while moving := [task for task in self._moving.values() if not task.done()]:
            await asyncio.wait(moving)

    def _routes(self) -> Iterator[tuple[SubQueue, EntityPath]]:
        description = self._queue.description
        if description.forward_to is not None:
            yield SubQueue.MAIN, description.forward_to
        if description.forward_dead_lettered_to is not None:
            yield SubQueue.DEAD_LETTER, description.forward_dead_lettered_to

    def _has_work(self, host: PartitionHost) -> bool:
        if host.available(SubQueue.OUTBOX):
            return True
        return any(host.available(subqueue) for subqueue, _ in self._routes())

    # -- one partition's outbox ---------------------------------------------------

    async def _move(self, host: PartitionHost) -> None:
        """Until nothing is left that can be moved now."""
        try:
            while self._has_work(host):
                for subqueue, destination in self._routes():
                    if host.available(subqueue):
                        await host.ask(Post(PAGE_MAX, destination, subqueue))
                await self._walk(host)
        except Unavailable as reason:
            logger.debug("%s: forwarding pauses: %s", host, reason)
            asyncio.get_running_loop().call_later(RETRY_AFTER_S, self._resume, host)
            return
        except EntityNotFound:
            logger.debug("%s: deleted while it was forwarding", host)
        except BrokerError:
            logger.exception("%s: forwarding stops", host)
        del self._moving[host]

    def _resume(self, host: PartitionHost) -> None:
        self._moving.pop(host, None)
        if not self._queue.deleted:
            self.wake()

    async def _walk(self, host: PartitionHost) -> None:
        """Send everything in the outbox; `Unavailable` when some of it has to wait."""
        start = SequenceNumber(0)
        away: dict[Host[Any], Unavailable] = {}
        while True:
            page = await host.ask(Peek(start, PAGE_MAX, SubQueue.OUTBOX))
            assert isinstance(page, Given)
            if not page.messages:
                break
            start = SequenceNumber(page.messages[-1].sequence_number + 1)
            loads = await self._sort(host, page.messages)
            sending = [self._send(host, target, load, away) for target, load in loads.items()]
            await asyncio.gather(*sending)
        for reason in away.values():
            raise reason

    async def _sort(
        self, host: PartitionHost, messages: Sequence[Message]
    ) -> dict[PartitionHost | TopicHost, _Load]:
        """What goes where; what cannot go at all is set aside."""
        loads: dict[PartitionHost | TopicHost, _Load] = {}
        for message, payload in zip(messages, await host.payloads(messages), strict=True):
            if payload is None:
                continue
            number = message.sequence_number
            try:
                target, forwarded, identities = self._address(message, payload)
            except Unavailable:
                raise
            except BrokerError as refusal:
                self._give_up(host, [number], _cause(refusal))
                continue
            if target is None:
                self._give_up(host, [number], SESSION_ID_MISSING)
                continue
            loads.setdefault(target, _Load()).add(number, forwarded, identities)
        return loads

    def _address(
        self, message: Message, payload: bytes
    ) -> tuple[PartitionHost | TopicHost | None, Message, Identities | None]:
        """The partition that this message goes to, always the same one, and what is stored there."""
        assert message.amendment is not None and message.amendment.posting is not None
        destination = self._find(message.amendment.posting.destination)
        destination.refuse_sending()
        description, partitioned = destination.description, len(destination.hosts) > 1
        detects = description.requires_duplicate_detection
        identities = Identities(partitioned=partitioned) if detects else None
        forwarded, key = readmit(
            message, payload, destination.now(), description, identities, source=self._queue.description.path
        )
        limit = description.max_message_size_kb * 1024
        if forwarded.size > limit:
            raise MessageSizeExceeded(
                f"The message exceeds the limit of {limit} bytes that '{description.path}' accepts."
            )
        requires_session = isinstance(description, QueueDescription) and description.requires_session
        if requires_session and forwarded.session_id is None:
            return None, forwarded, identities
        return destination.place_numbered(key, message.sequence_number), forwarded, identities

    async def _send(
        self, host: PartitionHost, target: Host[Any], load: _Load, away: dict[Host[Any], Unavailable]
    ) -> None:
        if target in away:
            return
        try:
            await target.ask(load.command(f"{self._queue.generation}/{host.number}"))
        except Unavailable as reason:
            away[target] = reason
        except BrokerError as refusal:
            if isinstance(refusal, QuotaExceeded) and len(load.numbers) > 1:
                # Together they are too much; some of them may still fit.
                for one in load.singly():
                    await self._send(host, target, one, away)
            else:
                self._give_up(host, load.numbers, _cause(refusal))
        else:
            # Nobody waits for this: should it be lost, they are sent again and dropped there.
            host.submit(Transferred(load.numbers), _ignore)

    def _give_up(self, host: PartitionHost, numbers: Sequence[SequenceNumber], cause: Cause) -> None:
        logger.warning("%s: %d messages cannot be forwarded: %s", host, len(numbers), cause.description)
        host.submit(Undeliverable(numbers, cause), _ignore)


def _cause(refusal: BrokerError) -> Cause:
    return Cause(type(refusal).__name__, refusal.description)


def _ignore(_: object) -> None:
    """Nobody waits for the answer."""
