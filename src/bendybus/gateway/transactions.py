"""Transactions of one connection: declared, filled with work, discharged.

A client's sends and settlements that name a transaction are kept here and change
nothing; committing hands all of them to the broker as one (broker/transactions.py).
Rolling back, or losing the link on which it was declared, is to forget them: the
messages that were to be settled are still locked by their receiver.

Work that goes to another entity than the one the transaction is about is put
into that one's outbox, in the same commit, and forwarded from there. Such an
entity is called *via*: named by the sending link (`com.microsoft:
transfer-destination-address`), or the first entity that is attached on an AMQP
session whose very first link was the coordinator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from bendybus.amqp.composite import composed
from bendybus.amqp.message import decode_message
from bendybus.amqp.performatives import (
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    TransactionalState,
)
from bendybus.broker.clock import now
from bendybus.broker.host import Host
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Subscription, Target
from bendybus.broker.topics import RuleChange
from bendybus.broker.transactions import commit
from bendybus.domain.commands import Command, Enqueue
from bendybus.domain.messages import Message
from bendybus.domain.session_commands import SetSessionState
from bendybus.domain.transactions import LIFETIME_S, Scope
from bendybus.engine.deliveries import Delivery
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.session import Session
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    InvalidOperation,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
    WireError,
)
from bendybus.gateway.settlement import lock_lost, rejection
from bendybus.names import Instant, LockToken, PartitionNumber, RoutingKey

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["COORDINATOR_CREDIT", "Coordination", "CoordinatorNode", "Transaction", "Transactions"]

# Declaring and discharging go one after the other; a client may have many transactions open.
COORDINATOR_CREDIT: Final = 100
OPEN_MAX: Final = 1000


@dataclass(slots=True, eq=False)
class Transaction:
    """What one transaction has been asked to do."""

    id: bytes
    scope: Scope = field(default_factory=Scope)
    work: list[tuple[Host[Any], Command]] = field(default_factory=list)
    began_at: Instant | None = None
    """When the first operation came: its time runs from there."""
    failure: BrokerError | None = None
    """The first thing that was refused; with it the transaction can only be rolled back."""
    rule_changes: list[RuleChange] = field(default_factory=list)
    """Of `subscription`; a transaction is about rules or about messages."""
    subscription: Subscription | None = None
    _tokens: set[LockToken] = field(default_factory=set)
    _enqueues: dict[tuple[Host[Any], str | None], Enqueue] = field(default_factory=dict)

    def send(
        self,
        target: Target,
        messages: Sequence[Message],
        key: RoutingKey | None,
        identities: Sequence[str | None] | None,
        via: Target | None,
        via_key: RoutingKey | None,
    ) -> None:
        """Messages for `target`, straight or through the outbox of another entity (P-19 to P-22)."""
        self._refuse_rule_changes()
        entity = target if via is None else via
        if via is not None and not isinstance(via, Queue):
            raise InvalidOperation(
                f"The transaction began with the topic '{via.path}'; nothing can be sent through it to "
                f"'{target.path}'."
            )
        if len(target.hosts) > 1:
            key = self.scope.check_key(key, target.path)
        elif len(entity.hosts) > 1:
            self.scope.check_key(via_key or key, entity.path)
        host = entity.place((via_key or key) if entity is not target else key)
        self.scope.enter(entity.top_level, host.number)
        self.scope.send(len(messages), key if len(target.hosts) > 1 else None)
        destination = None if via is None else target.path
        enqueue = self._enqueues.get((host, destination))
        if enqueue is None:
            enqueue = Enqueue([], None if identities is None else [], destination=destination)
            self._enqueues[host, destination] = enqueue
            self.work.append((host, enqueue))
        enqueue.messages += messages
        if identities is not None and enqueue.identities is not None:
            enqueue.identities = [*enqueue.identities, *identities]

    def change_rule(self, subscription: Subscription, change: RuleChange) -> None:
        """Add or remove a rule, where that can be part of a transaction: not if partitioned (P-24)."""
        if len(subscription.hosts) > 1:
            raise InvalidOperation(
                f"'{subscription.path}' is partitioned; its rules cannot be changed in a transaction."
            )
        if self.work or self.subscription not in (None, subscription):
            raise InvalidOperation(
                "A transaction that changes rules changes those of one subscription alone."
            )
        self.scope.enter(subscription.top_level, PartitionNumber(0))
        description = subscription.description
        for each in (*self.rule_changes, change):
            description = each(description)
        self.subscription = subscription
        self.rule_changes.append(change)

    def _refuse_rule_changes(self) -> None:
        if self.rule_changes:
            raise InvalidOperation("A transaction that changes rules neither sends nor settles messages.")

    def placed(self, target: Target, key: RoutingKey | None) -> Host[Any]:
        """The partition for messages that are to be scheduled there."""
        self._refuse_rule_changes()
        if len(target.hosts) > 1:
            key = self.scope.check_key(key, target.path)
        host = target.place(key)
        self.scope.enter(target.top_level, host.number)
        return host

    def schedule(self, host: Host[Any], messages: list[Message], key: RoutingKey | None) -> None:
        """Scheduled messages, numbered already."""
        self.scope.send(len(messages), key)
        self.work.append((host, Enqueue(messages, numbered=True)))

    def settle(
        self, queue: Queue, host: PartitionHost, tokens: Sequence[LockToken], command: Command
    ) -> None:
        """Messages that stay locked until the transaction is over."""
        self._refuse_rule_changes()
        self.scope.enter(queue.top_level, host.number)
        partition, at = host.partition, queue.now()
        for token in tokens:
            message = None if partition is None else partition.locked(token)
            if message is None or message.locked_until <= at or token in self._tokens:
                raise lock_lost(queue.path)
        self._tokens.update(tokens)
        self.work.append((host, command))

    def set_state(self, queue: Queue, host: PartitionHost, command: SetSessionState) -> None:
        """What is to be remembered for a session that its receiver holds."""
        self._refuse_rule_changes()
        self.scope.enter(queue.top_level, host.number)
        host.check([command], host.now())
        self.work.append((host, command))


@dataclass(slots=True)
class Coordination:
    """What transactions on one AMQP session may reach."""

    spans_entities: bool = False
    via: Target | None = None

    def enter(self, entity: Target, *, receives: bool) -> None:
        """A link to this entity is attached: the first one's is the entity that all others go through."""
        if not self.spans_entities:
            return
        if self.via is None:
            self.via = entity
        elif receives and entity.top_level != self.via.top_level:
            raise InvalidOperation(
                f"A session of transactions that began with '{self.via.path}' cannot receive from "
                f"'{entity.path}' as well."
            )

    def via_for(self, target: Target) -> Target | None:
        via = self.via
        return None if via is None or via.top_level == target.top_level else via


class Transactions:
    """All that are open on one connection."""

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

    def declare(self, node: CoordinatorNode) -> Transaction:
        if len(self._open) >= OPEN_MAX:
            raise InvalidOperation(
                f"{OPEN_MAX} transactions are open on this connection; no more are allowed."
            )
        transaction = Transaction(next(self._numbers).to_bytes(8, "big"))
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
        """The transaction is over, one way or the other."""
        transaction = self._find(txn_id)
        del self._open[txn_id]
        return transaction

    def _find(self, txn_id: bytes) -> Transaction:
        found = self._open.get(txn_id)
        if found is None:
            raise self._ended.pop(txn_id, None) or TransactionUnknown(
                "Transaction hasn't been declared yet, or has already been discharged"
            )
        return found[0]

    def tick(self, at: Instant) -> None:
        """Roll back what has been open for too long."""
        for transaction, _ in list(self._open.values()):
            if transaction.began_at is not None and at - transaction.began_at > LIFETIME_S * 1000:
                del self._open[transaction.id]
                self._ended[transaction.id] = TransactionTimedOut(
                    f"The transaction was open for more than {LIFETIME_S} seconds and has been rolled back."
                )

    def close(self, node: CoordinatorNode) -> None:
        """The link on which they were declared is gone: roll them back."""
        for transaction, owner in list(self._open.values()):
            if owner is node:
                del self._open[transaction.id]


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
                    declared = self._transactions.declare(self)
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
            self._link.settle((delivery,), Accepted())
        elif transaction.failure is not None:
            raise TransactionRolledBack(
                f"The transaction has been rolled back, since part of it was refused: "
                f"{transaction.failure.description}"
            )
        else:
            # It ends with the connection only if it has not begun: what is submitted is committed.
            self._connection.spawn(self._commit(delivery, transaction))

    async def _commit(self, delivery: Delivery, transaction: Transaction) -> None:
        try:
            if (subscription := transaction.subscription) is not None:
                topics = self._connection.broker.topics
                await topics.change_rules(
                    subscription.topic_path, subscription.name, transaction.rule_changes
                )
            await commit(transaction.work)
        except BrokerError as error:
            self._link.settle((delivery,), rejection(error))
        else:
            self._link.settle((delivery,), Accepted())
        self._connection.flush_soon()


def _decode(delivery: Delivery) -> Declare | Discharge:
    if delivery.settled:
        raise ArgumentError("A declare or discharge must not be settled by the one who sends it.")
    try:
        request = composed(decode_message(delivery.payload).value)
    except WireError as error:
        raise ArgumentError(f"The request to the coordinator is malformed: {error}") from None
    if not isinstance(request, Declare | Discharge):
        raise ArgumentError("The coordinator understands declare and discharge.")
    return request
