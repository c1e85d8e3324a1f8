"""The forwarder of a queue: it sends the messages in the queue's outbox to their destinations.

Messages that leave a queue (with ForwardTo, or dead letters with
ForwardDeadLetteredMessagesTo) are first posted into the outbox of their partition.
Messages that a transaction sends through the queue are there already; so are copies of
a topic's messages if a rule has set the key of another partition of the same
subscription. The forwarder reads each outbox from the front and enqueues at the
destination; domain/outbox.py explains how this happens exactly once. If one
partition of a destination is away, only messages to it are held up:
while a message to it waits, no later one is sent to it, so the
order of numbers is kept. A message without a key that was never sent does not
wait: it is reassigned to another partition first (P-16, attempts.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from bendybus.broker.attempts import Attempts
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget, Subscription
from bendybus.domain.commands import (
    Enqueue,
    Given,
    Peek,
    Post,
    Reassign,
    Transfer,
    Transferred,
    Undeliverable,
)
from bendybus.domain.deadletter import SESSION_ID_MISSING, Cause
from bendybus.domain.duplicates import Identities
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import UNASSIGNED, Message, Posting, SubQueue
from bendybus.envelope import readmit, relocate
from bendybus.errors import (
    BrokerError,
    EntityNotFound,
    MessageSizeExceeded,
    QuotaExceeded,
    StoreUnavailable,
    Unavailable,
)
from bendybus.names import EntityPath, PartitionNumber, SequenceNumber

__all__ = ["Forwarder"]

logger = logging.getLogger(__name__)

# The number of messages for one commit at the source and one at each destination.
PAGE_MAX: Final = 500
# How long to wait before trying again a destination that is away.
RETRY_AFTER_S: Final = 1.0


@dataclass(slots=True)
class _Load:
    """The messages from one outbox to one partition, in the order of their numbers."""

    numbers: list[SequenceNumber] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    identities: list[str | None] = field(default_factory=list)
    """One for each message, or empty without duplicate detection."""

    def add(self, number: SequenceNumber, message: Message, identities: Identities | None) -> None:
        self.numbers.append(number)
        self.messages.append(message)
        if identities is not None:
            self.identities += identities.found

    def singly(self) -> Iterator[_Load]:
        for index in range(len(self.numbers)):
            one = slice(index, index + 1)
            yield _Load(self.numbers[one], self.messages[one], self.identities[one])

    def command(self, source: str) -> Enqueue:
        return Enqueue(self.messages, self.identities or None, Transfer(source, self.numbers))


@dataclass(slots=True)
class _Addressed:
    """A message from an outbox, and the partition that takes it."""

    target: PartitionPort
    message: Message
    identities: Identities | None = None
    anywhere: SendTarget | None = None
    """The entity, if the message has no key and any of its partitions will do."""


class _StandIns:
    """Partitions for messages without a key whose own partition may not answer soon (P-16).

    All such messages of a page to one entity get the same partition, so that one commit reassigns them.
    """

    def __init__(self) -> None:
        self._chosen: dict[SendTarget, PartitionNumber | None] = {}

    def find(self, addressed: _Addressed) -> PartitionNumber | None:
        entity = addressed.anywhere
        if entity is None or entity.is_ready(addressed.target.number):
            return None
        if entity not in self._chosen:
            self._chosen[entity] = entity.next_ready()
        return self._chosen[entity]


# By name: during a walk, another broker may become the owner, and another port stands for the partition.
_Away = dict[tuple[EntityPath, PartitionNumber], Unavailable]


@dataclass(slots=True)
class _Walk:
    """The position in an outbox, and the destinations that did not answer."""

    start: SequenceNumber = UNASSIGNED
    away: _Away = field(default_factory=dict)


class Forwarder:
    """The `Waiter` of its queue."""

    def __init__(self, queue: Queue, find: Callable[[str], SendTarget]) -> None:
        self._queue = queue
        queue.forwarder = self
        self._find = find
        self._moving: dict[PartitionHost, asyncio.Task[None]] = {}
        self._attempts: dict[PartitionHost, Attempts] = {}

    def wake(self) -> None:
        """There may be messages to move, or the queue has started to forward."""
        for host in self._queue.own.values():
            # At once: for messages posted after this call, it is known whether they were sent.
            self._attempts_of(host)
            if host not in self._moving and self._has_work(host):
                self._moving[host] = asyncio.get_running_loop().create_task(self._move(host))
        self._queue.wait(self, SubQueue.OUTBOX)
        for subqueue, _ in self._routes():
            self._queue.wait(self, subqueue)

    def close(self) -> None:
        """The queue is deleted, or the broker stops."""
        for task in self._moving.values():
            task.cancel()

    def drop(self) -> None:
        """Forget the transfers that are under way, at both ends. Continue with later messages."""
        moving, self._moving, self._attempts = self._moving, {}, {}
        for task in moving.values():
            task.cancel()

    async def settled(self) -> None:
        """Return once nothing is being moved, or everything waits for a destination that is away."""
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
        """Run until nothing is left that can be moved now."""
        walk = _Walk()
        try:
            while True:
                for subqueue, destination in self._routes():
                    if host.available(subqueue):
                        await host.ask(Post(PAGE_MAX, destination, subqueue))
                await self._go_on(host, walk)
                if not any(host.available(subqueue) for subqueue, _ in self._routes()):
                    break
            for reason in walk.away.values():
                raise reason
        except Unavailable as reason:
            logger.debug("%s: forwarding is paused: %s", host, reason)
            asyncio.get_running_loop().call_later(RETRY_AFTER_S, self._resume, host)
            return
        except EntityNotFound:
            logger.debug("%s: deleted while forwarding", host)
        except BrokerError:
            logger.exception("%s: forwarding has stopped", host)
        del self._moving[host]

    def _resume(self, host: PartitionHost) -> None:
        paused = self._moving.get(host)
        # After `drop`, another task may be moving the messages of this partition.
        if paused is not None and paused.done():
            del self._moving[host]
        if not self._queue.deleted:
            self.wake()

    async def _go_on(self, host: PartitionHost, walk: _Walk) -> None:
        """Send messages from the current position in the outbox. Note which have to wait."""
        while True:
            page = await host.ask(Peek(walk.start, PAGE_MAX, SubQueue.OUTBOX))
            assert isinstance(page, Given)
            if not page.messages:
                return
            walk.start = SequenceNumber(page.messages[-1].sequence_number + 1)
            loads = await self._sort(host, page.messages)
            sending = [self._send(host, target, load, walk.away) for target, load in loads.items()]
            await asyncio.gather(*sending)

    async def _sort(self, host: PartitionHost, messages: Sequence[Message]) -> dict[PartitionPort, _Load]:
        """Sort messages by destination. Gives up those that cannot go; reassigns those that need not wait."""
        loads: dict[PartitionPort, _Load] = {}
        reassigned: dict[PartitionNumber, list[SequenceNumber]] = {}
        stand_ins = _StandIns()
        payloads = await host.payloads(messages)
        attempts = self._attempts_of(host)
        for message, payload in zip(messages, payloads, strict=True):
            if payload is None:
                continue
            number = message.sequence_number
            try:
                addressed = self._address(message, payload)
            except Unavailable:
                raise
            except BrokerError as refusal:
                self._give_up(host, [number], _cause(refusal))
                continue
            if addressed is None:
                self._give_up(host, [number], SESSION_ID_MISSING)
            elif attempts.never_sent(number) and (instead := stand_ins.find(addressed)) is not None:
                reassigned.setdefault(instead, []).append(number)
            else:
                load = loads.setdefault(addressed.target, _Load())
                load.add(number, addressed.message, addressed.identities)
        for partition, numbers in reassigned.items():
            # The walk reaches them again, under their new numbers.
            await host.ask(Reassign(numbers, partition))
        return loads

    def _attempts_of(self, host: PartitionHost) -> Attempts:
        attempts = self._attempts.setdefault(host, Attempts())
        attempts.look(host.partition)
        return attempts

    def _address(self, message: Message, payload: bytes) -> _Addressed | None:
        """The destination of this message and its stored form; None if it needs a session id and has none."""
        assert message.amendment is not None and message.amendment.posting is not None
        posting = message.amendment.posting
        destination = self._find(posting.destination)
        if destination is self._queue and isinstance(destination, Subscription):
            # Nothing is forwarded to a subscription: this is one of its copies, for another partition.
            assert posting.partition is not None, "a copy that stays where it is is not posted"
            return _Addressed(destination.hosts[posting.partition], relocate(message, payload))
        destination.refuse_sending()
        description, partitioned = destination.description, len(destination.hosts) > 1
        detects = description.requires_duplicate_detection
        identities = Identities(partitioned=partitioned) if detects else None
        forwarded, key = readmit(
            message, payload, destination.now(), description, identities, source=self._queue.description.path
        )
        limit = description.max_message_bytes
        if forwarded.size > limit:
            raise MessageSizeExceeded(
                f"The message exceeds the limit of {limit} bytes that '{description.path}' accepts."
            )
        requires_session = isinstance(description, QueueDescription) and description.requires_session
        if requires_session and forwarded.session_id is None:
            return None
        if key is not None or not partitioned:
            return _Addressed(destination.host_for(key), forwarded, identities)
        target = _place_keyless(destination, posting, message.sequence_number)
        return _Addressed(target, forwarded, identities, anywhere=destination)

    async def _send(self, host: PartitionHost, target: PartitionPort, load: _Load, away: _Away) -> None:
        place = target.path, target.number
        if place in away:
            return
        if target.availability is Availability.UNAVAILABLE:
            # It would refuse them. Because they are not sent, those without a key can still go elsewhere.
            away[place] = StoreUnavailable(f"{target} is unavailable.")
            return
        attempts = self._attempts_of(host)
        attempts.send(load.numbers)
        try:
            await target.ask(load.command(f"{self._queue.generation}/{host.number}"))
        except Unavailable as reason:
            away[place] = reason
        except BrokerError as refusal:
            if isinstance(refusal, QuotaExceeded) and len(load.numbers) > 1:
                # Together they exceed the quota; some of them may still fit.
                for one in load.singly():
                    await self._send(host, target, one, away)
            else:
                self._give_up(host, load.numbers, _cause(refusal))
        else:
            attempts.forget(load.numbers)
            # Nobody waits for this: if it is lost, the messages are sent again and dropped there.
            host.submit(Transferred(load.numbers), _ignore)

    def _give_up(self, host: PartitionHost, numbers: Sequence[SequenceNumber], cause: Cause) -> None:
        logger.warning("%s: %d messages cannot be forwarded: %s", host, len(numbers), cause.description)
        self._attempts_of(host).forget(numbers)
        host.submit(Undeliverable(numbers, cause), _ignore)


def _place_keyless(destination: SendTarget, posting: Posting, number: SequenceNumber) -> PartitionPort:
    """Always the same partition, whatever is away: the assigned one, else the one of the number."""
    decided = posting.partition
    # The destination may have been created again, with fewer partitions.
    if decided is not None and decided < len(destination.hosts):
        return destination.hosts[decided]
    return destination.host_for_numbered(number)


def _cause(refusal: BrokerError) -> Cause:
    return Cause(type(refusal).__name__, refusal.description)


def _ignore(_: object) -> None:
    """Nobody waits for the answer."""
