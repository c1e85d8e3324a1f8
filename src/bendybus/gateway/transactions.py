"""Transactions of one connection: declared, found by their ids, discharged.

A transaction is rolled back when the link on which it was declared is lost, or when its time is over. The
contents of a transaction: transaction.py.

Messages to other entities go through the entity that the transaction is about, which is called *via*. Either
the sending link names it (`com.microsoft:transfer-destination-address`), or it is the first entity that is
attached on an AMQP session whose first link was the coordinator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from bendybus import audit
from bendybus.amqp.composite import composed
from bendybus.amqp.message import decode_message
from bendybus.amqp.performatives import (
    ACCEPTED,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    TransactionalState,
)
from bendybus.amqp.transaction_codec import read_request
from bendybus.broker.clock import now
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.transactions import commit
from bendybus.domain.commands import Command
from bendybus.domain.transactions import LIFETIME_S
from bendybus.engine.deliveries import Delivery
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.session import Session
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    InvalidOperation,
    TransactionRolledBack,
    TransactionTimedOut,
    WireError,
)
from bendybus.gateway.settlement import rejection
from bendybus.gateway.transaction import Coordination, Transaction, unknown_transaction
from bendybus.names import Instant

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["COORDINATOR_CREDIT", "CoordinatorNode", "Transactions"]

# Declaring and discharging go one after the other; a client may have many transactions open.
COORDINATOR_CREDIT: Final = 100
OPEN_MAX: Final = 1000


class Transactions:
    """The open transactions of one connection."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[Transaction, CoordinatorNode]] = {}
        self._ended: dict[bytes, BrokerError] = {}
        self._numbers = count(1)
        self._sessions: dict[Session, Coordination] = {}

    def coordination(self, session: Session) -> Coordination:
        return self._sessions.setdefault(session, Coordination())

    def coordinator_attached(self, session: Session) -> None:
        """If nothing else was attached on this session before, its transactions may span entities."""
        if session not in self._sessions:
            self._sessions[session] = Coordination(spans_entities=True)

    def session_ended(self, session: Session) -> None:
        """Nothing more is attached there. A long connection may have any number of sessions, in turn."""
        self._sessions.pop(session, None)

    def declare(self, node: CoordinatorNode, session: Session) -> Transaction:
        if len(self._open) >= OPEN_MAX:
            raise InvalidOperation(
                f"{OPEN_MAX} transactions are open on this connection; no more are allowed."
            )
        transaction = Transaction(next(self._numbers).to_bytes(8, "big"), self.coordination(session))
        self._open[transaction.id] = transaction, node
        return transaction

    def find(self, state: DeliveryState | None) -> Transaction:
        """The transaction that a transfer or an outcome names; its time runs from its first operation."""
        if not isinstance(state, TransactionalState):
            raise ArgumentError(f"{type(state).__name__} is not the state of a transfer.")
        transaction = self._find(state.txn_id)
        if transaction.began_at is None:
            transaction.began_at = now()
        return transaction

    def discharge(self, txn_id: bytes) -> Transaction:
        """The transaction is over, committed or rolled back."""
        transaction = self._find(txn_id)
        del self._open[txn_id]
        transaction.close()
        return transaction

    def _find(self, txn_id: bytes) -> Transaction:
        found = self._open.get(txn_id)
        if found is None:
            raise self._ended.pop(txn_id, None) or unknown_transaction()
        return found[0]

    def tick(self, at: Instant) -> None:
        """Roll back transactions that have been open for too long."""
        for transaction, _ in list(self._open.values()):
            if transaction.began_at is not None and at - transaction.began_at > LIFETIME_S * 1000:
                del self._open[transaction.id]
                self._ended[transaction.id] = TransactionTimedOut(
                    f"The transaction was open for more than {LIFETIME_S} seconds and has been rolled back."
                )
                if len(self._ended) > OPEN_MAX:
                    # The client has not asked for the oldest one since, and is told that it is unknown.
                    del self._ended[next(iter(self._ended))]
                transaction.over(committed=False)

    def close(self, node: CoordinatorNode) -> None:
        """The link on which they were declared is gone: roll them back."""
        for transaction, owner in list(self._open.values()):
            if owner is node:
                del self._open[transaction.id]
                transaction.over(committed=False)


class CoordinatorNode:
    """The link on which a client declares and discharges."""

    def __init__(self, connection: AmqpConnection, link: ReceivingLink) -> None:
        self._connection = connection
        self._link = link
        self._transactions = connection.transactions

    def deliveries(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            try:
                request = _decode(delivery)
                if isinstance(request, Declare):
                    declared = self._transactions.declare(self, self._link.session)
                    self._link.settle((delivery,), Declared(declared.id))
                else:
                    self._discharge(delivery, request)
            except BrokerError as error:
                self._link.settle((delivery,), rejection(error))
        self._link.top_up(COORDINATOR_CREDIT)

    def close(self) -> None:
        self._transactions.close(self)

    def _discharge(self, delivery: Delivery, request: Discharge) -> None:
        transaction = self._transactions.discharge(request.txn_id)
        if request.fail:
            transaction.over(committed=False)
            self._link.settle((delivery,), ACCEPTED)
        elif transaction.failure is not None:
            transaction.over(committed=False)
            raise TransactionRolledBack(
                f"The transaction has been rolled back, since part of it was refused: "
                f"{transaction.failure.description}"
            )
        else:
            self._commit(delivery, transaction)

    def _commit(self, delivery: Delivery, transaction: Transaction) -> None:
        """Commit at once if possible: a task costs as much as a part of the transaction."""
        try:
            work = transaction.placed_work()
            if transaction.subscription is None and work:
                first, _ = work[0]
                if first.commit_at_once(work, partial(self._ended, delivery, transaction)):
                    return
        except BrokerError:
            transaction.over(committed=False)
            raise
        # The connection's end cancels it only if it has not started: a submitted transaction is committed.
        self._connection.spawn(self._commit_later(delivery, transaction, work))

    async def _commit_later(
        self, delivery: Delivery, transaction: Transaction, work: list[tuple[PartitionPort, Command]]
    ) -> None:
        try:
            if (subscription := transaction.subscription) is not None:
                topics = self._connection.client.broker.topics
                with audit.acting(self._connection.actor()):
                    await topics.change_rules(
                        subscription.topic_path, subscription.name, transaction.rule_changes
                    )
            await commit(work)
        except BrokerError as error:
            self._ended(delivery, transaction, error)
        else:
            self._ended(delivery, transaction, None)

    def _ended(self, delivery: Delivery, transaction: Transaction, error: BrokerError | None) -> None:
        transaction.over(committed=error is None)
        self._link.settle((delivery,), ACCEPTED if error is None else rejection(error))
        self._connection.flush_soon()


def _decode(delivery: Delivery) -> Declare | Discharge:
    if delivery.settled:
        raise ArgumentError("A declare or discharge must not be settled by the one who sends it.")
    if (usual := read_request(delivery.payload)) is not None:
        return usual
    try:
        request = composed(decode_message(delivery.payload).value)
    except WireError as error:
        raise ArgumentError(f"The request to the coordinator is malformed: {error}") from None
    if not isinstance(request, Declare | Discharge):
        raise ArgumentError("The coordinator understands declare and discharge.")
    return request
