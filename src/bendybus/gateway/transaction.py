"""One transaction: its operations, kept until it is discharged.

A client's sends and settlements that name a transaction are kept here and change
nothing. A commit passes all of them to the broker at once (broker/transactions.py). A rollback
forgets them: messages that were to be settled are still locked by their receiver.

All of it happens in one partition of one entity (domain/transactions.py). Messages to another entity are put
into the outbox of that partition, in the same commit, and forwarded from there. A topic has no outbox, so the
outbox of a subscription is used: its partitions are in the stores of the topic's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_port import PartitionPort, ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget, Subscription, Topic
from bendybus.broker.topics import RuleChange, with_change
from bendybus.domain.commands import CancelScheduled, Command, Enqueue
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message
from bendybus.domain.session_commands import SetSessionState
from bendybus.domain.transactions import MessageKeys, Scope
from bendybus.errors import BrokerError, InvalidOperation, MessageNotFound, TransactionUnknown
from bendybus.gateway.settlement import lock_lost
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SequenceNumber

__all__ = ["Coordination", "Ended", "Transaction", "unknown_transaction"]

Ended: TypeAlias = Callable[[bool], None]
"""Called when a transaction is over, with whether it was committed."""


@dataclass(slots=True)
class Coordination:
    """What transactions on one AMQP session may reach."""

    spans_entities: bool = False
    via: SendTarget | None = None
    """The first entity that was attached there, if they may span several."""

    def enter(self, entity: SendTarget, *, receives: bool) -> None:
        """A link to this entity is attached. All sends to other entities go through the first such entity."""
        if not self.spans_entities:
            return
        if self.via is None:
            self.via = entity
        elif receives and entity.top_level != self.via.top_level:
            raise InvalidOperation(
                f"A session of transactions that began with '{self.via.path}' cannot receive from "
                f"'{entity.path}' as well."
            )

    def via_for(self, target: SendTarget) -> SendTarget | None:
        via = self.via
        return None if via is None or via.top_level == target.top_level else via


@dataclass(slots=True, eq=False)
class Transaction:
    """What one transaction has been asked to do."""

    id: bytes
    coordination: Coordination = field(default_factory=Coordination)
    scope: Scope = field(default_factory=Scope)
    work: list[tuple[SendTarget, Command]] = field(default_factory=list)
    """Each in the transaction's partition of that entity."""
    began_at: Instant | None = None
    """The time of the first operation, at which the timeout starts."""
    failure: BrokerError | None = None
    """The first refusal. After it the transaction can only be rolled back."""
    rule_changes: list[RuleChange] = field(default_factory=list)
    """The rules of `subscription`; a transaction changes either rules or messages."""
    subscription: Subscription | None = None
    _ended: list[Ended] = field(default_factory=list)
    _is_over: bool = False
    _sent_through: bool = False
    _tokens: set[LockToken] = field(default_factory=set)
    _enqueues: dict[tuple[SendTarget, EntityPath | None], Enqueue] = field(default_factory=dict)
    _scheduled: dict[SequenceNumber, tuple[Enqueue, Message]] = field(default_factory=dict)
    _cancelled: set[SequenceNumber] = field(default_factory=set)

    # -- messages -----------------------------------------------------------------

    def send(
        self,
        target: SendTarget,
        messages: Sequence[Message],
        keys: Sequence[MessageKeys],
        identities: Sequence[str | None] | None,
    ) -> None:
        """Messages to the entity that the transaction is about (P-19 to P-22)."""
        self._begin_work()
        _refuse_without_session(target, messages)
        for each in keys:
            self.scope.send(target.top_level, len(target.hosts), each, crosses=self._crosses)
        self._enqueue(target, messages, identities)

    def send_through(
        self, via: SendTarget, target: SendTarget, messages: Sequence[Message], keys: Sequence[MessageKeys]
    ) -> None:
        """Messages to another entity, which leave from the one that the transaction is about (P-37)."""
        self._begin_work()
        self._sent_through = True
        _refuse_without_session(target, messages)
        for each in keys:
            self.scope.send_through(via.top_level, len(via.hosts), each)
        self._enqueue(via, messages, None, target.path)

    def _enqueue(
        self,
        entity: SendTarget,
        messages: Sequence[Message],
        identities: Sequence[str | None] | None,
        destination: EntityPath | None = None,
    ) -> None:
        enqueue = self._enqueues.get((entity, destination))
        if enqueue is None:
            enqueue = Enqueue([], None if identities is None else [], destination=destination)
            self._enqueues[entity, destination] = enqueue
            self.work.append((entity, enqueue))
        enqueue.messages += messages
        if identities is not None and enqueue.identities is not None:
            enqueue.identities = [*enqueue.identities, *identities]

    def settle(
        self, queue: Queue, host: ReceivingPort, tokens: Sequence[LockToken], command: Command
    ) -> None:
        """Messages that stay locked until the transaction is over."""
        self._begin_work()
        self.scope.decide(queue.top_level, host.number)
        held = host.held_among(tokens, queue.now())
        if not held.issuperset(tokens) or not self._tokens.isdisjoint(held):
            raise lock_lost(queue.path)
        self._tokens.update(tokens)
        self.work.append((queue, command))

    def set_state(self, queue: Queue, host: ReceivingPort, command: SetSessionState) -> None:
        """The state to store for a session that the client's receiver holds."""
        self._begin_work()
        self.scope.decide(queue.top_level, host.number)
        host.check([command], host.now())
        self.work.append((queue, command))

    # -- scheduled messages -------------------------------------------------------

    def placed(self, target: SendTarget, keys: Sequence[MessageKeys]) -> PartitionPort:
        """The partition for messages that are to be scheduled there, which must be known at once."""
        self._begin_work()
        for each in keys:
            is_known = self.scope.partition is not None
            self.scope.send(target.top_level, len(target.hosts), each, crosses=is_known and self._crosses)
        partition = self.scope.partition
        assert partition is not None, "a scope that may not wait for its partition knows it"
        return target.hosts[partition]

    def schedule(
        self,
        target: SendTarget,
        generation: str,
        messages: list[Message],
        identities: Sequence[str | None] | None,
    ) -> None:
        """Scheduled messages that have their numbers, and count against the quota.

        `generation`: of the entity when the numbers were reserved.
        """
        self._begin_work()
        enqueue = Enqueue(messages, identities, numbered=True, generation=generation)
        self._scheduled.update((message.sequence_number, (enqueue, message)) for message in messages)
        self.work.append((target, enqueue))

    def send_scheduled(
        self, target: SendTarget, messages: list[Message], identities: Sequence[str | None] | None
    ) -> None:
        """Messages that are already due: they are active when the transaction is committed."""
        self._begin_work()
        self._enqueue(target, messages, identities)

    async def cancel_scheduled(
        self, entity: SendTarget, host: PartitionPort, numbers: Sequence[SequenceNumber]
    ) -> None:
        """Scheduled messages that the commit removes.

        Messages that this transaction itself has scheduled are removed from it.
        """
        self._begin_work()
        self.scope.enter(entity.top_level, host.number)
        twice = self._cancelled.intersection(numbers)
        if twice:
            raise MessageNotFound(
                f"This transaction has cancelled the message {min(twice)} of '{entity.path}' already."
            )
        older = [number for number in numbers if number not in self._scheduled]
        if older:
            command = CancelScheduled(older, entity.generation)
            await host.commit([(host, command)], only_checks=True)
            # The transaction may have ended meanwhile.
            self._begin_work()
            self.work.append((entity, command))
        for number in numbers:
            if number in self._scheduled:
                self._unschedule(*self._scheduled.pop(number))
        self._cancelled.update(numbers)

    @staticmethod
    def _unschedule(enqueue: Enqueue, message: Message) -> None:
        index = enqueue.messages.index(message)
        enqueue.messages = [*enqueue.messages[:index], *enqueue.messages[index + 1 :]]
        if enqueue.identities is not None:
            enqueue.identities = [*enqueue.identities[:index], *enqueue.identities[index + 1 :]]

    # -- rules --------------------------------------------------------------------

    def change_rule(self, subscription: Subscription, change: RuleChange) -> None:
        """Add or remove a rule, where that can be part of a transaction: not if partitioned (P-24)."""
        self._refuse_over()
        if len(subscription.hosts) > 1:
            raise InvalidOperation(
                f"'{subscription.path}' is partitioned; its rules cannot be changed in a transaction."
            )
        if self.work:
            raise _rules_and_messages()
        if self.subscription not in (None, subscription):
            raise InvalidOperation(
                "A transaction that changes rules changes those of one subscription alone."
            )
        self.scope.enter(subscription.top_level, PartitionNumber(0))
        description = subscription.description
        for each in (*self.rule_changes, change):
            description = with_change(description, each)
        self.subscription = subscription
        self.rule_changes.append(change)

    # -- the end ------------------------------------------------------------------

    def when_over(self, ended: Ended) -> None:
        """Call this when the transaction has been committed or rolled back."""
        self._ended.append(ended)

    def close(self) -> None:
        """The transaction is discharged or has ended: nothing can be added to it."""
        self._is_over = True

    def over(self, *, committed: bool) -> None:
        self.close()
        ended, self._ended = self._ended, []
        for each in ended:
            each(committed)

    def placed_work(self) -> list[tuple[PartitionPort, Command]]:
        """All commands, each with its partition, which is known by now (P-37)."""
        if not self.work:
            return []
        number = self._partition(self.work[0][0])
        outbox: Queue | None = None
        placed: list[tuple[PartitionPort, Command]] = []
        for entity, command in self.work:
            if isinstance(command, Enqueue):
                if not command.messages:
                    continue
                if command.destination is not None and isinstance(entity, Topic):
                    outbox = outbox or self._outbox(entity, number)
                    entity = outbox
            placed.append((entity.hosts[number], command))
        return placed

    def _partition(self, entity: SendTarget) -> PartitionNumber:
        number = self.scope.settle_partition(len(entity.hosts))
        if number is not None:
            return number
        # There are only messages to other entities: any partition will do, but equal keys must keep their
        # order.
        host = entity.host_for(self.scope.first_key)
        if host.availability is Availability.UNAVAILABLE:
            host = entity.host_for(None)
        return host.number

    def _outbox(self, topic: Topic, number: PartitionNumber) -> Queue:
        """The subscription whose outbox keeps messages that are sent through a topic."""
        settled = [entity for entity, _ in self.work if isinstance(entity, Subscription)]
        subscriptions = [*settled, *topic.subscriptions]
        for subscription in subscriptions:
            away = subscription.hosts[number].availability is Availability.UNAVAILABLE
            if not away and not subscription.leaving:
                return subscription
        raise InvalidOperation(
            f"Nothing can be sent through the topic '{topic.path}' to another entity: messages on their way "
            "wait in one of its subscriptions, and it has none."
        )

    @property
    def _crosses(self) -> bool:
        """Whether other entities are or may become part of it."""
        return self._sent_through or self.coordination.via is not None

    def _begin_work(self) -> None:
        self._refuse_over()
        if self.rule_changes:
            raise _rules_and_messages()

    def _refuse_over(self) -> None:
        if self._is_over:
            raise unknown_transaction()


def unknown_transaction() -> TransactionUnknown:
    return TransactionUnknown("Transaction hasn't been declared yet, or has already been discharged")


def _rules_and_messages() -> InvalidOperation:
    return InvalidOperation(
        "A transaction that changes rules neither sends nor settles messages: rules are kept in the catalog "
        "and messages in messaging stores, so they cannot be committed as one. Use two transactions."
    )


def _refuse_without_session(target: SendTarget, messages: Sequence[Message]) -> None:
    """Refuse at once what the entity would refuse at the commit (P-21)."""
    description = target.description
    if not isinstance(description, QueueDescription) or not description.requires_session:
        return
    if any(message.session_id is None for message in messages):
        raise InvalidOperation(
            f"The SessionId was not set on a message to '{target.path}', which requires sessions and "
            "takes only messages that have one."
        )
