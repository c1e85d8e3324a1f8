"""A client's sending link: from transfers to partitions, and back to dispositions.

All deliveries of one socket read are routed together. A key decides the partition. Messages
without a key go to one partition together, and those of the next read to the next (P-16): a
commit and a disposition cost the same for one message as for a hundred. An answer is sent
only when its messages are durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from bendybus.amqp.performatives import ACCEPTED, Accepted, DeliveryState, Target, TransactionalState
from bendybus.amqp.types import ULong
from bendybus.broker.entity_faults import EntityFaults
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget
from bendybus.domain.commands import Enqueue, EnqueuedApart, Reply
from bendybus.domain.duplicates import Identities
from bendybus.domain.messages import Message
from bendybus.domain.routing import partition_of
from bendybus.engine.deliveries import Delivery
from bendybus.engine.receiving import ReceivingLink
from bendybus.envelope import BATCH_FORMAT, admit, admit_batch, admit_enlisted, admit_together, batched
from bendybus.errors import (
    BrokerError,
    InvalidOperation,
    MessageSizeExceeded,
    QuotaExceeded,
    ServerBusy,
    Unavailable,
)
from bendybus.gateway.joined_answers import JoinedAnswers
from bendybus.gateway.link_ports import InboundLink
from bendybus.gateway.observer import OnReply
from bendybus.gateway.settlement import rejection
from bendybus.names import Instant, PartitionNumber, RoutingKey

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["SENDER_CREDIT", "Sender", "accept_sender"]

BATCH_SIZE_MAX: Final = "com.microsoft:max-message-batch-size"
# The limit of a batch, as on Azure. Single messages of a Premium entity may be 100 times as large.
BATCH_BYTES_MAX: Final = 1024 * 1024

# Deliveries a client may have in flight on one link: several round trips' worth for the fastest client.
SENDER_CREDIT: Final = 2000

# After a message that is not usual, the next ones may not be usual either. So this many are looked at
# together, then twice as many, and so on. If it were always all that follow, each message of a read in which
# none is usual would take time for all others.
FEW_AGAIN: Final = 4


def accept_sender(
    link: ReceivingLink,
    target: SendTarget,
    properties: dict[str, object] | None = None,
    answer: Target | None = None,
) -> None:
    """Accept with the largest message that the target takes, and the largest batch that SDKs should make."""
    size_max = target.description.max_message_bytes
    batch = {BATCH_SIZE_MAX: ULong(min(size_max, BATCH_BYTES_MAX))}
    link.accept(target=answer, max_message_size=size_max, properties={**(properties or {}), **batch})


@dataclass(slots=True)
class _Run:
    """What one partition gets out of one socket read."""

    host: PartitionPort
    keyless: bool
    deliveries: list[Delivery] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """How many of the messages each delivery carries."""
    identities: list[str | None] = field(default_factory=list)
    """As many as messages, or none at all without duplicate detection."""
    size: int = 0
    """Of the deliveries' payloads, in bytes."""
    joined: JoinedAnswers | None = None
    """With the answers of the read's other runs, if there are any."""

    def add(self, delivery: Delivery, message: Message, size: int) -> None:
        """A delivery of one message, without duplicate detection."""
        self.deliveries.append(delivery)
        self.messages.append(message)
        self.counts.append(1)
        self.size += size

    def extend(self, deliveries: Sequence[Delivery], messages: Sequence[Message], size: int) -> None:
        """`add` for many."""
        self.deliveries += deliveries
        self.messages += messages
        self.counts += [1] * len(messages)
        self.size += size

    def apart(self) -> Iterator[_Run]:
        """A run for each delivery."""
        start = 0
        for delivery, count in zip(self.deliveries, self.counts, strict=True):
            own = slice(start, start + count)
            start += count
            alone = _Run(
                self.host, self.keyless, [delivery], self.messages[own], [count], self.identities[own]
            )
            alone.size = len(delivery.payload)
            yield alone


class _Runs:
    """What each partition gets out of one socket read."""

    __slots__ = ("_by_number", "_keyless", "_target", "all", "keys_matter")

    def __init__(self, target: SendTarget) -> None:
        self._target = target
        self.all: list[_Run] = []
        # An unpartitioned entity keeps the order in which things were sent, whatever their keys.
        self.keys_matter = len(target.hosts) > 1
        self._by_number: dict[PartitionNumber, _Run] = {}
        self._keyless: _Run | None = None
        """Messages without a key stay together, apart from the others: they may go to another partition."""

    def find(self, key: RoutingKey | None) -> _Run:
        """The run of messages with this key. Without one, raises Unavailable if there is no partition."""
        if key is None:
            if self._keyless is None:
                self._keyless = self._add(self._target.host_for(None), keyless=True)
            return self._keyless
        hosts = self._target.hosts
        number = partition_of(key, len(hosts))
        run = self._by_number.get(number)
        if run is None:
            run = self._by_number[number] = self._add(hosts[number], keyless=False)
        return run

    def _add(self, host: PartitionPort, *, keyless: bool) -> _Run:
        run = _Run(host, keyless)
        self.all.append(run)
        return run


class Sender:
    def __init__(
        self,
        connection: AmqpConnection,
        link: InboundLink,
        target: SendTarget,
        via: SendTarget | None = None,
    ) -> None:
        self._connection = connection
        self._link = link
        self._target = target
        self._via = via
        """The entity through which transactions go to the target; None for the target itself."""
        # Outside of a transaction nothing has to be done together: through a topic it goes straight there.
        self._outbox = via if isinstance(via, Queue) else None
        """Where the messages wait to be forwarded to the target, if they do not go straight to it."""
        self._closed = False
        self._detects_duplicates = self._outbox is None and target.description.requires_duplicate_detection

    def deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Everything that one socket read brought on this link."""
        if self._target.faults is None:
            self._take(deliveries)
        else:
            self._take_faulty(self._target.faults, deliveries)

    def _take_faulty(self, faults: EntityFaults, deliveries: Sequence[Delivery]) -> None:
        """`_take` with what a test has asked for."""
        taken: list[Delivery] = []
        for delivery in deliveries:
            try:
                faults.refuse_operation(self._target.path)
                taken.append(delivery)
            except ServerBusy as busy:
                self._target.count_refused(busy)
                self._link.settle((delivery,), rejection(busy))
        self._connection.spawn(self._take_later(faults, taken))

    async def _take_later(self, faults: EntityFaults, deliveries: Sequence[Delivery]) -> None:
        await faults.delay()
        if not self._closed:
            self._take(deliveries)
            self._connection.flush_soon()

    def _take(self, deliveries: Sequence[Delivery]) -> None:
        target = self._outbox or self._target
        at = target.now()
        target.accessed_at = at
        runs = _Runs(target)
        position, at_once = 0, len(deliveries)
        while position < len(deliveries):
            taken = self._take_together(deliveries[position : position + at_once], at, runs)
            position += taken
            if taken == at_once:
                at_once *= 2
            elif position < len(deliveries):
                self._take_one(deliveries[position], at, runs)
                position += 1
                at_once = FEW_AGAIN
        self._link.top_up(SENDER_CREDIT)
        found = runs.all
        joined = JoinedAnswers(len(found)) if len(found) > 1 else None
        for run in found:
            run.joined = joined
        self._connection.holdings.admitted(sum([run.size for run in found]))
        for run in found:
            self._enqueue(run, attempts=len(target.hosts))

    def _take_together(self, deliveries: Sequence[Delivery], at: Instant, runs: _Runs) -> int:
        """Take the first of these messages, as far as they are usual. Returns how many."""
        description = self._target.description
        if description.requires_duplicate_detection:
            return 0
        usual: list[Delivery] = []
        payloads: list[bytes] = []
        for delivery in deliveries:
            # Taken apart at once: that is faster than to ask a named tuple for its fields.
            _, _, message_format, _, state, payload, oversize = delivery
            if state is not None or message_format or oversize:
                break
            usual.append(delivery)
            payloads.append(payload)
        messages, keys = admit_together(payloads, at, description)
        count = len(messages)
        if count < len(usual):
            del usual[count:], payloads[count:]
        if keys and runs.keys_matter:
            for delivery, payload, message, key in zip(usual, payloads, messages, keys, strict=True):
                try:
                    runs.find(key).add(delivery, message, len(payload))
                except Unavailable as none_left:
                    self._refuse((delivery,), none_left)
        elif count:
            try:
                runs.find(None).extend(usual, messages, sum(map(len, payloads)))
            except Unavailable as none_left:
                self._refuse(usual, none_left)
        return count

    def _refuse(self, deliveries: Sequence[Delivery], error: BrokerError) -> None:
        self._target.count_refused(error, len(deliveries))
        self._link.settle(deliveries, rejection(error))

    def _take_one(self, delivery: Delivery, at: Instant, runs: _Runs) -> None:
        """Take any delivery: a batch, a part of a transaction, or a message that may have to be refused."""
        try:
            if delivery.state is not None:
                self._enlist(delivery, at)
                return
            identities = Identities(partitioned=runs.keys_matter) if self._detects_duplicates else None
            messages, key = self._admit(delivery, at, identities)
            run = runs.find(key if runs.keys_matter else None)
        except BrokerError as error:
            self._refuse((delivery,), error)
            return
        run.deliveries.append(delivery)
        run.messages += messages
        run.counts.append(len(messages))
        run.size += len(delivery.payload)
        if identities is not None:
            run.identities += identities.found

    def close(self) -> None:
        """Nothing is held for a sender."""
        self._closed = True

    def _enlist(self, delivery: Delivery, at: Instant) -> None:
        """A part of a transaction: nothing happens before that is committed."""
        transactions = self._connection.transactions
        transaction = transactions.find(delivery.state)
        try:
            target = self._target
            via = self._via or transactions.coordination(self._link.session).via_for(target)
            identities = None
            if via is None and self._detects_duplicates:
                identities = Identities(partitioned=len(target.hosts) > 1)
            payloads = self._payloads(delivery)
            via_exact = (via or target).description.exact_keys
            admitted = [
                admit_enlisted(each, at, target.description, identities, via_exact=via_exact)
                for each in payloads
            ]
            messages = [message for message, _ in admitted]
            keys = [each for _, each in admitted]
            if via is not None:
                transaction.send_through(via, target, messages, keys)
            else:
                found = None if identities is None else identities.found
                transaction.send(target, messages, keys, found)
            self._connection.holdings.enlist(len(delivery.payload))
            transaction.when_over(partial(self._enlisted_no_more, len(delivery.payload)))
        except BrokerError as refusal:
            transaction.failure = transaction.failure or refusal
            raise
        self._link.settle((delivery,), TransactionalState(transaction.id, Accepted()))

    def _enlisted_no_more(self, size: int, _committed: bool) -> None:
        self._connection.holdings.enlist(-size)

    def _admit(
        self, delivery: Delivery, at: Instant, identities: Identities | None
    ) -> tuple[Sequence[Message], RoutingKey | None]:
        """The messages of a delivery and their routing key."""
        self._refuse_oversize(delivery)
        description = self._target.description
        if delivery.message_format == BATCH_FORMAT:
            partitioned = len(self._target.hosts) > 1
            return admit_batch(delivery.payload, at, description, identities, partitioned=partitioned)
        message, key = admit(delivery.payload, at, description, identities)
        return (message,), key

    def _payloads(self, delivery: Delivery) -> Sequence[bytes]:
        """The messages of a delivery, still encoded."""
        self._refuse_oversize(delivery)
        return batched(delivery.payload) if delivery.message_format == BATCH_FORMAT else (delivery.payload,)

    def _refuse_oversize(self, delivery: Delivery) -> None:
        if delivery.oversize:
            limit = self._target.description.max_message_bytes
            raise MessageSizeExceeded(
                f"The received message exceeds the limit of {limit} bytes that '{self._target.path}' accepts."
            )

    def _enqueue(self, run: _Run, attempts: int) -> None:
        destination = None if self._outbox is None else self._target.path
        deliveries = run.counts if len(run.counts) > 1 else ()
        command = Enqueue(
            run.messages, run.identities or None, destination=destination, deliveries=deliveries
        )
        if self._target.faults is not None:
            try:
                self._target.faults.refuse_partition(self._target.path, run.host.number)
            except ServerBusy as busy:
                self._enqueued(run, attempts, busy)
                return
        done: OnReply = partial(self._enqueued, run, attempts)
        if (observer := self._connection.observer) is not None:
            done = observer.sending(self._target.path, run.host.number, run.messages, done)
        run.host.submit(command, done)

    def _enqueued(self, run: _Run, attempts: int, reply: Reply | BrokerError) -> None:
        if isinstance(reply, BrokerError):
            self._not_enqueued(run, attempts, reply)
        elif isinstance(reply, EnqueuedApart):
            self._enqueued_apart(run, reply)
        else:
            self._answer(run, ACCEPTED)

    def _enqueued_apart(self, run: _Run, reply: EnqueuedApart) -> None:
        """Another broker has refused a run, and has tried each of its deliveries alone."""
        for index, alone in enumerate(run.apart()):
            refusal = reply.refused.get(index)
            if refusal is None:
                self._answer(alone, ACCEPTED)
            else:
                self._not_enqueued(alone, 1, refusal)
        if run.joined is not None:
            run.joined.ready(_nothing)

    def _not_enqueued(self, run: _Run, attempts: int, reply: BrokerError) -> None:
        if isinstance(reply, Unavailable) and run.keyless and attempts > 1:
            # "if the chosen one is unavailable another is taken ... and the send succeeds" (P-16)
            try:
                run.host = (self._outbox or self._target).host_for(None)
                run.messages = [message.unsent() for message in run.messages]
                self._enqueue(run, attempts - 1)
                return
            except Unavailable as none_left:
                reply = none_left
        if isinstance(reply, QuotaExceeded | InvalidOperation) and len(run.deliveries) > 1:
            # Together they are too much, or one of them lacks a session; others may still be taken.
            # For a partition of another broker, its owner has done that already, unless it is older.
            for alone in run.apart():
                self._enqueue(alone, attempts=1)
            if run.joined is not None:
                run.joined.ready(_nothing)
            return
        self._target.count_refused(reply, len(run.messages))
        self._answer(run, rejection(reply))

    def _answer(self, run: _Run, outcome: DeliveryState) -> None:
        if run.joined is None:
            self._settle(run, outcome)
        else:
            run.joined.ready(partial(self._settle, run, outcome))

    def _settle(self, run: _Run, outcome: DeliveryState) -> None:
        self._connection.holdings.answered(run.size)
        self._link.settle(run.deliveries, outcome)
        self._connection.flush_soon()


def _nothing() -> None:
    """Others wait for an answer that is given in another way."""
