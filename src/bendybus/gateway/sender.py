"""A client's sending link: from transfers to partitions, and back to dispositions.

All deliveries of one socket read are routed together. A key decides the partition. Messages
without a key go to one partition together, and those of the next read to the next (P-16): a
commit and a disposition cost the same for one message as for a hundred. An answer is sent
only when its messages are durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from bendybus.amqp.performatives import ACCEPTED, Accepted, DeliveryState, Target, TransactionalState
from bendybus.amqp.types import ULong
from bendybus.broker.entity_faults import EntityFaults
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget
from bendybus.domain.commands import Enqueue, Reply
from bendybus.domain.duplicates import Identities
from bendybus.domain.messages import Message
from bendybus.domain.routing import partition_of
from bendybus.engine.deliveries import Delivery
from bendybus.engine.receiving import ReceivingLink
from bendybus.envelope import BATCH_FORMAT, admit, admit_batch, admit_enlisted, admit_plain, batched
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
        keyed: dict[PartitionNumber, _Run] = {}
        target = self._outbox or self._target
        at = target.now()
        target.accessed_at = at
        # An unpartitioned entity keeps the order in which things were sent, whatever their keys.
        hosts = target.hosts
        partition_count = len(hosts)
        keys_matter = partition_count > 1
        identities: Identities | None = None
        description = self._target.description
        detects_duplicates = self._detects_duplicates
        messages: Sequence[Message]
        keyless = None if description.requires_duplicate_detection else self._plain_run(deliveries, target)
        for delivery in deliveries[len(keyless.deliveries) :] if keyless else deliveries:
            # Taken apart at once: that is faster than to ask a named tuple for its fields.
            _, _, message_format, _, state, payload, oversize = delivery
            try:
                if state is not None:
                    self._enlist(delivery, at)
                    continue
                if detects_duplicates:
                    identities = Identities(partitioned=keys_matter)
                if message_format or oversize:
                    messages, key = self._admit(delivery, at, identities)
                else:
                    message, key = admit(payload, at, description, identities)
                    messages = (message,)
                if key is not None and keys_matter:
                    number = partition_of(key, partition_count)
                    run = keyed.get(number)
                    if run is None:
                        run = keyed[number] = _Run(hosts[number], keyless=False)
                elif keyless is None:
                    run = keyless = _Run(target.host_for(None), keyless=True)
                else:
                    run = keyless
            except BrokerError as error:
                self._target.count_refused(error)
                self._link.settle((delivery,), rejection(error))
                continue
            run.deliveries.append(delivery)
            run.messages += messages
            run.counts.append(len(messages))
            run.size += len(payload)
            if identities is not None:
                run.identities += identities.found
        self._link.top_up(SENDER_CREDIT)
        runs = [*keyed.values(), *([keyless] if keyless else ())]
        joined = JoinedAnswers(len(runs)) if len(runs) > 1 else None
        for run in runs:
            run.joined = joined
        self._connection.holdings.admitted(sum([run.size for run in runs]))
        for run in runs:
            self._enqueue(run, attempts=partition_count)

    def _plain_run(self, deliveries: Sequence[Delivery], target: SendTarget) -> _Run | None:
        """The first deliveries, as far as nothing has to be decided about them. Most reads have only such."""
        payloads: list[bytes] = []
        for _, _, message_format, _, state, payload, oversize in deliveries:
            if state is not None or message_format or oversize:
                break
            payloads.append(payload)
        messages = admit_plain(payloads)
        if not messages:
            return None
        try:
            host = target.host_for(None)
        except BrokerError:
            # Each is refused on its own.
            return None
        count = len(messages)
        size = sum(map(len, payloads[:count]))
        return _Run(host, True, list(deliveries[:count]), messages, [1] * count, size=size)

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
        command = Enqueue(run.messages, run.identities or None, destination=destination)
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
        else:
            self._answer(run, ACCEPTED)

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
            start = 0
            for delivery, count in zip(run.deliveries, run.counts, strict=True):
                own = slice(start, start + count)
                start += count
                alone = _Run(
                    run.host, run.keyless, [delivery], run.messages[own], [count], run.identities[own]
                )
                alone.size = len(delivery.payload)
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
