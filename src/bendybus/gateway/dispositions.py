"""The dispositions of a receiving link: a client settles messages, and is answered when that is durable.

A disposition becomes one command for each partition (settlement.py says which). Completions are joined with
those of the connection's other links (joined_outcomes.py). A disposition that is part of a transaction is
kept there, and the messages stay locked until the transaction is over. Until then they cannot be settled
outside of it: another outcome has to wait, and has no effect after a commit. (The Java SDK releases what it
has settled in a transaction, when its link closes.) Delivering: receiver.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from bendybus.amqp.performatives import Accepted, DeliveryState, Released, Source, TransactionalState
from bendybus.broker.host import ignore
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Abandon, Reply, Settled
from bendybus.engine.deliveries import SentDelivery
from bendybus.engine.events import OutcomesReceived
from bendybus.errors import BrokerError, MessageLockLost, TransactionTimedOut, TransactionUnknown
from bendybus.gateway.link_ports import OutboundLink
from bendybus.gateway.observer import OnReply
from bendybus.gateway.settlement import command_for_outcome, echo, lock_lost, refused, rejection
from bendybus.names import LockToken

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection
    from bendybus.gateway.transaction import Transaction

__all__ = ["Dispositions"]


class Dispositions:
    """One link's dispositions. Calls `go_on` when messages were settled, so that it can deliver more."""

    def __init__(
        self, connection: AmqpConnection, link: OutboundLink, queue: Queue, go_on: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._link = link
        self._queue = queue
        self._joined = connection.joined_outcomes
        self._go_on = go_on
        self._closed = False
        self._enlisted: dict[bytes, Transaction] = {}
        """The transactions that are not over yet, by the tags of the deliveries that they settle."""
        self._outcomes_after: set[bytes] = set()
        """The tags of deliveries that get another outcome if their transaction is rolled back."""

    def outcomes(self, event: OutcomesReceived) -> None:
        """The client settles; the answer is sent when the outcome is durable."""
        if event.state is None and event.settled:
            event = replace(event, state=self._default_outcome())
        if self._enlisted and not isinstance(event.state, TransactionalState):
            event = self._without_enlisted(event)
            if not event.deliveries:
                return
        try:
            observer = self._connection.observer
            by_host = self._by_partition(event.deliveries)
            if observer is None and type(event.state) is Accepted:
                for host, deliveries in by_host:
                    self._joined.complete(self, event, host, deliveries)
                self._go_on()
                return
            self._joined.submit()
            if isinstance(event.state, TransactionalState):
                self._enlist(event, event.state, by_host)
                return
            for host, deliveries in by_host:
                command = command_for_outcome(_tokens(deliveries), event.state)
                done: OnReply = partial(self.settled, event, deliveries)
                if observer is not None:
                    done = observer.settling(self._queue.path, command, done)
                host.submit(command, done)
        except (TransactionUnknown, TransactionTimedOut) as error:
            self._refuse_transaction(event, error)
        except BrokerError as error:
            if not event.settled:
                self._link.settle(event.deliveries, rejection(error))
        self._go_on()

    def _default_outcome(self) -> DeliveryState:
        """Of deliveries that the client settles without an outcome [AMQP 3.5.3]."""
        source = self._link.source
        named = source.default_outcome if isinstance(source, Source) else None
        return Released() if named is None else named

    def _without_enlisted(self, event: OutcomesReceived) -> OutcomesReceived:
        """The event without deliveries that a transaction settles. A rollback leaves them this outcome.

        A client may name outcomes again and again, but the first one is what happens to the message.
        """
        free: list[SentDelivery] = []
        for delivery in event.deliveries:
            transaction = self._enlisted.get(delivery.tag)
            if transaction is None:
                free.append(delivery)
            elif delivery.tag not in self._outcomes_after:
                self._outcomes_after.add(delivery.tag)
                transaction.when_over(partial(self._outcome_after, replace(event, deliveries=[delivery])))
        return event if len(free) == len(event.deliveries) else replace(event, deliveries=free)

    def _outcome_after(self, event: OutcomesReceived, committed: bool) -> None:
        self._outcomes_after.discard(event.deliveries[0].tag)
        if not committed:
            self.outcomes(event)
            self._joined.submit()

    def _enlist(
        self,
        event: OutcomesReceived,
        state: TransactionalState,
        by_host: list[tuple[ReceivingPort, list[SentDelivery]]],
    ) -> None:
        """Part of a transaction: the messages stay locked until it is over."""
        transaction = self._connection.transactions.find(state)
        try:
            for host, deliveries in by_host:
                tokens = _tokens(deliveries)
                transaction.settle(self._queue, host, tokens, command_for_outcome(tokens, state.outcome))
        except BrokerError as refusal:
            transaction.failure = transaction.failure or refusal
            if not isinstance(refusal, MessageLockLost):
                # The answer ends the delivery, so the message has to be delivered again, as on Azure.
                self._abandon(by_host)
            raise
        answer = TransactionalState(transaction.id, echo(state.outcome))
        tags = [delivery.tag for delivery in event.deliveries]
        self._enlisted.update(dict.fromkeys(tags, transaction))
        transaction.when_over(partial(self._forget_enlisted, tags))
        if event.settled:
            transaction.when_over(partial(self._abandon_after, by_host))
        else:
            self._link.answer(event.deliveries, answer)
            transaction.when_over(partial(self._settle_after, event.deliveries, answer))

    def _forget_enlisted(self, tags: Sequence[bytes], _: bool) -> None:
        for tag in tags:
            self._enlisted.pop(tag, None)

    def _refuse_transaction(self, event: OutcomesReceived, error: BrokerError) -> None:
        """There is no such transaction, so nothing happens to the messages: the client still holds them."""
        if event.settled:
            self._abandon(self._by_partition(event.deliveries))
        else:
            self._link.answer(event.deliveries, rejection(error))

    def _settle_after(
        self, deliveries: list[SentDelivery], answer: TransactionalState, committed: bool
    ) -> None:
        """The transaction is over. After a rollback the client may settle the deliveries again."""
        if committed and not self._closed:
            self._link.settle(deliveries, answer)
            self._go_on()

    def _abandon_after(
        self, by_host: list[tuple[ReceivingPort, list[SentDelivery]]], committed: bool
    ) -> None:
        """The same for deliveries that the client has settled, and so cannot name again."""
        if not committed:
            self._abandon(by_host)

    def _abandon(self, by_host: list[tuple[ReceivingPort, list[SentDelivery]]]) -> None:
        for host, deliveries in by_host:
            host.submit(Abandon(_tokens(deliveries)), ignore)

    def _by_partition(self, deliveries: list[SentDelivery]) -> list[tuple[ReceivingPort, list[SentDelivery]]]:
        hosts = self._queue.hosts
        if len(hosts) == 1:
            return [(hosts[0], deliveries)]
        if len(deliveries) == 1:
            return [(hosts[int.from_bytes(deliveries[0].tag[:2], "big")], deliveries)]
        groups: dict[bytes, list[SentDelivery]] = {}
        for delivery in deliveries:
            number = delivery.tag[:2]
            group = groups.get(number)
            if group is None:
                groups[number] = [delivery]
            else:
                group.append(delivery)
        return [(hosts[int.from_bytes(number, "big")], group) for number, group in groups.items()]

    def settled(
        self, event: OutcomesReceived, deliveries: Sequence[SentDelivery], reply: Reply | BrokerError
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

    def close(self) -> None:
        """The link has ended: nothing is answered any more."""
        self._closed = True


def _tokens(deliveries: Sequence[SentDelivery]) -> list[LockToken]:
    """The tag of a delivery is the lock token of its message. A client may name a delivery twice."""
    return cast(list[LockToken], [*dict.fromkeys([delivery.tag for delivery in deliveries])])
