"""A client's receiving link: fan-in over an entity's partitions, and settlement.

The link asks every partition for as much as it has credit for. A partition whose
payloads are in memory answers at once; one that must read them from its store
answers later, and what has meanwhile been overtaken is *kept* for this link's
next credit (P-25). Nothing waits for a slow store but its own messages (P-27).
A link that receives and deletes does the same, and removes only what it has credit
for; a partition whose store may be slow to remove counts as one that must read.
What is kept when the link goes away is given back uncounted (P-28); what was
sent stays locked until it is settled or its lock runs out, as on Azure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from bendybus.amqp.performatives import TransactionalState
from bendybus.broker.host import ignore
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Abandon, Complete, Reply, Settled
from bendybus.domain.messages import Message, SubQueue
from bendybus.engine.deliveries import SentDelivery
from bendybus.engine.events import OutcomesReceived
from bendybus.engine.sending import SendingLink
from bendybus.envelope import render, render_locked
from bendybus.errors import BrokerError, MessageLockLost, TransactionTimedOut, TransactionUnknown
from bendybus.gateway.settlement import command_for_outcome, echo, lock_lost, refused, rejection
from bendybus.names import Instant, LockToken

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["PAGE_BYTES_MAX", "Receiver"]

# One read from a store: large enough to be worth the trip, small enough not to hoard locks.
PAGE_MAX: Final = 256
# A page of large messages is a short one: every partition may have one on its way to every link.
PAGE_BYTES_MAX: Final = 1024 * 1024

# What is read for one link at a time. All of it may come when the client does not read any more, and is kept.
READING_BYTES_MAX: Final = 2 * 1024 * 1024

# What is kept for a link that asks for no more goes back after half its lock's life, uncounted,
# rather than run out and count as a failed delivery.
KEEP_FRACTION: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Kept:
    """A locked message that waits here for credit. Its host tells by the token whether it is still locked."""

    host: PartitionHost
    message: Message
    token: LockToken
    payload: bytes


class Receiver:
    """`Waiter` of its queue; the application side of one `SendingLink`."""

    def __init__(
        self, connection: AmqpConnection, link: SendingLink, queue: Queue, subqueue: SubQueue
    ) -> None:
        self._connection = connection
        self._link = link
        self._queue = queue
        self.subqueue = subqueue
        self._deletes = link.snd_settle_mode == 1
        self._kept: deque[_Kept] = deque()
        self._reading: set[PartitionHost] = set()
        self._page_bytes: dict[PartitionHost, int] = {}
        self._reading_bytes = 0
        self._expected = 0
        """Messages that are being removed and not answered yet, when deleting on receipt."""
        self._taking = False
        self._crowded = False
        """Out of credit only because too much is unsettled: no flow will tell when to go on."""
        self._closed = False

    # -- delivering ---------------------------------------------------------------

    def flow(self) -> None:
        """The client's credit changed."""
        if self._link.credit > 0:
            self.take()
        else:
            self._stop_waiting()
        self._answer_drain()

    def wake(self) -> None:
        self.take()
        self._answer_drain()
        self._connection.flush_soon()

    def take(self) -> None:
        """Deliver what can be had within the credit; wait for the rest."""
        if self._taking or self._closed:
            return
        self._taking = True
        try:
            self._deliver_kept()
            while self._wanted() > 0 and self._ask_all():
                pass
        finally:
            self._taking = False
        self._crowded = self._link.crowded
        if self._wanted() > 0:
            self._wait()

    def _wanted(self) -> int:
        return self._link.credit - self._expected if self._connection.writable else 0

    def _ask_all(self) -> bool:
        """One page from each partition; whether one of them gave its page at once and may have more."""
        more = False
        wanted = self._wanted()
        for host in self._partitions():
            if wanted <= 0:
                break
            if host in self._reading or self._reads_enough(host):
                continue
            messages = self._lock(host, min(wanted, PAGE_MAX))
            if messages:
                more |= self._hand_out(host, messages)
                wanted = self._wanted()
        return more

    def _reads_enough(self, host: PartitionHost) -> bool:
        """Whether the link waits for so much that the next page of this store can wait, too.

        A page of another store cannot: that one may be quicker (P-27). After each page all are asked again.
        """
        if self._reading_bytes < READING_BYTES_MAX:
            return False
        return any(reading.store is host.store for reading in self._reading)

    def _reads(self, host: PartitionHost, messages: Sequence[Message]) -> None:
        size = sum([message.size for message in messages])
        self._page_bytes[host] = size
        self._reading_bytes += size
        self._connection.holdings.keep(size)

    def _has_read(self, host: PartitionHost) -> None:
        size = self._page_bytes.pop(host)
        self._reading_bytes -= size
        self._connection.holdings.keep(-size)

    def _hand_out(self, host: PartitionHost, messages: list[Message]) -> bool:
        """What has been locked goes to the client; whether that was at once, and there is more."""
        payloads = [message.payload for message in messages if message.payload is not None]
        ready = len(payloads) == len(messages)
        if ready and not self._deletes:
            self._send(messages, payloads)
        elif ready and host.store.writer.prompt:
            self._remove(host, messages, tokens_of(messages), payloads)
        else:
            self._reading.add(host)
            self._reads(host, messages)
            read = host.read_to_remove if self._deletes else host.read
            read(messages, partial(self._page_read, host, messages, tokens_of(messages)))
        return host not in self._reading and self._has_more(host)

    def _page_read(
        self,
        host: PartitionHost,
        messages: list[Message],
        tokens: list[LockToken],
        payloads: list[bytes | None] | BrokerError,
    ) -> None:
        self._reading.discard(host)
        self._has_read(host)
        if self._closed or isinstance(payloads, BrokerError):
            self._give_back(host, tokens)
            return
        page = [
            _Kept(host, message, token, payload)
            for message, token, payload in zip(messages, tokens, payloads, strict=True)
            if payload is not None
        ]
        self._kept.extend(page)
        self._connection.holdings.keep(_kept_size(page))
        self.wake()

    def _give_back(self, host: PartitionHost, tokens: list[LockToken]) -> None:
        """These cannot be read now, or nobody wants them any more."""
        if not self._closed:
            # First: once they are free we might ask for them again, and a drain would wait for that too.
            self._answer_drain()
        host.release(tokens)
        if not self._closed:
            self.wake()

    def _deliver_kept(self) -> None:
        kept = self._kept
        count = min(len(kept), max(self._wanted(), 0))
        if count:
            at = self._queue.now()
            ready = self._unkeep(count)
            held = [one for one in ready if one.host.holds(one.token, at)]
            if self._deletes:
                self._remove_kept(held)
            else:
                self._send([one.message for one in held], [one.payload for one in held])

    def _remove_kept(self, kept: Sequence[_Kept]) -> None:
        by_host: dict[PartitionHost, list[_Kept]] = {}
        for one in kept:
            by_host.setdefault(one.host, []).append(one)
        for host, group in by_host.items():
            self._remove(
                host,
                [one.message for one in group],
                [one.token for one in group],
                [one.payload for one in group],
            )

    def _send(self, messages: Sequence[Message], payloads: Sequence[bytes]) -> None:
        deletes = self._deletes
        self._link.send(
            [
                (message.lock_token or b"", *render(message, payload, locked=False))
                for message, payload in zip(messages, payloads, strict=True)
            ]
            if deletes
            else render_locked(messages, payloads),
            settled=deletes,
            # What has been deleted must go, though the client may have taken its credit back meanwhile.
            overrun=deletes,
        )
        self._connection.sent(sum(map(len, payloads)))

    def _remove(
        self,
        host: PartitionHost,
        messages: Sequence[Message],
        tokens: Sequence[LockToken],
        payloads: Sequence[bytes],
    ) -> None:
        """Remove, then send: a message whose removal is not durable is not sent."""
        self._expected += len(messages)

        def removed(reply: Reply | BrokerError) -> None:
            self._expected -= len(messages)
            if isinstance(reply, Settled) and not self._closed:
                lost = set(reply.lost)
                gone = [
                    (message, payload)
                    for message, token, payload in zip(messages, tokens, payloads, strict=True)
                    if token not in lost
                ]
                self._send([message for message, _ in gone], [payload for _, payload in gone])
            self.wake()

        host.submit(Complete(tokens), removed)

    def _answer_drain(self) -> None:
        """Say that there is no more, once every partition could be asked and has answered."""
        under_way = self._reading or self._expected
        if self._link.drain and not under_way and not self._loading() and self._connection.writable:
            self._stop_waiting()
            self._link.drained()

    # -- whence: a session's receiver has its own (session_receiver.py) -------------

    def _partitions(self) -> Iterable[PartitionHost]:
        return self._queue.in_turn()

    def _lock(self, host: PartitionHost, count: int) -> list[Message]:
        return host.lock(count, PAGE_BYTES_MAX, self.subqueue)

    def _has_more(self, host: PartitionHost) -> bool:
        return host.available(self.subqueue) > 0

    def _wait(self) -> None:
        self._queue.wait(self, self.subqueue)

    def _stop_waiting(self) -> None:
        self._queue.stop_waiting(self, self.subqueue)

    def _loading(self) -> bool:
        return self._queue.loading

    # -- settling -----------------------------------------------------------------

    def outcomes(self, event: OutcomesReceived) -> None:
        """The client settles; the answer leaves when the outcome is durable."""
        try:
            by_host = self._by_partition(event.deliveries)
            if isinstance(event.state, TransactionalState):
                self._enlist(event, event.state, by_host)
                return
            for host, deliveries in by_host:
                command = command_for_outcome(_tokens(deliveries), event.state)
                host.submit(command, partial(self._settled, event, deliveries))
        except (TransactionUnknown, TransactionTimedOut) as error:
            self._refuse_transaction(event, error)
        except BrokerError as error:
            if not event.settled:
                self._link.settle(event.deliveries, rejection(error))
        self._go_on()

    def _enlist(
        self,
        event: OutcomesReceived,
        state: TransactionalState,
        by_host: list[tuple[PartitionHost, list[SentDelivery]]],
    ) -> None:
        """A part of a transaction: the messages stay locked until that is over."""
        transaction = self._connection.transactions.find(state)
        try:
            for host, deliveries in by_host:
                tokens = _tokens(deliveries)
                transaction.settle(self._queue, host, tokens, command_for_outcome(tokens, state.outcome))
        except BrokerError as refusal:
            transaction.failure = transaction.failure or refusal
            if not isinstance(refusal, MessageLockLost):
                # The answer ends the delivery, so the message has to come again, as it does on Azure.
                self._abandon(by_host)
            raise
        answer = TransactionalState(transaction.id, echo(state.outcome))
        if event.settled:
            transaction.when_over(partial(self._abandon_after, by_host))
        else:
            self._link.answer(event.deliveries, answer)
            transaction.when_over(partial(self._settle_after, event.deliveries, answer))

    def _refuse_transaction(self, event: OutcomesReceived, error: BrokerError) -> None:
        """There is no such transaction, so nothing was asked of the messages: they stay the client's."""
        if event.settled:
            self._abandon(self._by_partition(event.deliveries))
        else:
            self._link.answer(event.deliveries, rejection(error))

    def _settle_after(
        self, deliveries: list[SentDelivery], answer: TransactionalState, committed: bool
    ) -> None:
        """The transaction is over: after a rollback the deliveries are still the client's to settle."""
        if committed and not self._closed:
            self._link.settle(deliveries, answer)
            self._go_on()

    def _abandon_after(
        self, by_host: list[tuple[PartitionHost, list[SentDelivery]]], committed: bool
    ) -> None:
        """The same where the client has settled the deliveries, so that it cannot name them any more."""
        if not committed:
            self._abandon(by_host)

    def _abandon(self, by_host: list[tuple[PartitionHost, list[SentDelivery]]]) -> None:
        for host, deliveries in by_host:
            host.submit(Abandon(_tokens(deliveries)), ignore)

    def _go_on(self) -> None:
        """Something was settled: if that made room, use it."""
        if self._crowded and not self._link.crowded:
            self.wake()

    def _by_partition(self, deliveries: list[SentDelivery]) -> list[tuple[PartitionHost, list[SentDelivery]]]:
        hosts = self._queue.hosts
        if len(hosts) == 1:
            return [(hosts[0], deliveries)]
        groups: dict[bytes, list[SentDelivery]] = {}
        for delivery in deliveries:
            number = delivery.tag[:2]
            group = groups.get(number)
            if group is None:
                groups[number] = [delivery]
            else:
                group.append(delivery)
        return [(hosts[int.from_bytes(number, "big")], group) for number, group in groups.items()]

    def _settled(
        self, event: OutcomesReceived, deliveries: list[SentDelivery], reply: Reply | BrokerError
    ) -> None:
        if event.settled or self._closed:
            return
        if isinstance(reply, BrokerError):
            self._link.settle(deliveries, rejection(refused(reply)))
        else:
            assert isinstance(reply, Settled)
            if reply.lost:
                lost = set(reply.lost)
                late = [delivery for delivery in deliveries if delivery.tag in lost]
                deliveries = [delivery for delivery in deliveries if delivery.tag not in lost]
                self._link.settle(late, rejection(lock_lost(self._queue.path)))
            if deliveries:
                self._link.settle(deliveries, echo(event.state))
        self._go_on()
        self._connection.flush_soon()

    # -- the end ------------------------------------------------------------------

    def tick(self, at: Instant) -> None:
        """Give back what has been kept too long; see whether another link made room for this one."""
        self._go_on()
        limit = at + self._queue.description.lock_duration_s * 1000 * KEEP_FRACTION
        while self._kept and self._kept[0].message.locked_until < limit:
            (one,) = self._unkeep(1)
            one.host.release([one.token])

    def close(self) -> None:
        """The link is gone: give back what never left."""
        self._closed = True
        self._stop_waiting()
        for one in self._unkeep(len(self._kept)):
            one.host.release([one.token])

    def _unkeep(self, count: int) -> list[_Kept]:
        """The first of those that are kept, which are not kept any more."""
        kept = [self._kept.popleft() for _ in range(count)]
        self._connection.holdings.keep(-_kept_size(kept))
        return kept


def _tokens(deliveries: Sequence[SentDelivery]) -> list[LockToken]:
    """What was handed out under a lock bears its token as its tag."""
    return cast(list[LockToken], [delivery.tag for delivery in deliveries])


def _kept_size(kept: Sequence[_Kept]) -> int:
    return sum([len(one.payload) for one in kept])


def tokens_of(messages: Sequence[Message]) -> list[LockToken]:
    """The tokens of messages just locked."""
    return [message.lock_token for message in messages if message.lock_token is not None]
