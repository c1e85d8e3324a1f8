"""A partition of a topic: it numbers messages and passes them on to the subscriptions.

Only scheduled messages stay here, with the duplicate history and the number up to which each outbox has
arrived: the intake of a partition (intake.py) without a stock. Scheduled messages are stored with an
`Origin`, so that their copies can share the payload. Which subscriptions take a copy: fanout.py. What they
do with it: partition.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy

from bendybus.domain.changes import Changes
from bendybus.domain.commands import (
    CancelScheduled,
    Command,
    Confirm,
    Done,
    Enqueue,
    Enqueued,
    Peek,
    Publish,
    Reply,
    Reserve,
    Tick,
)
from bendybus.domain.effects import ActivateMessages, PublishMessages, TopicEffect
from bendybus.domain.expiry import NEVER, ExpiryWatch
from bendybus.domain.intake import Intake
from bendybus.domain.messages import Message, MessageState, Origin
from bendybus.domain.shelf import Shelf
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import InvalidOperation
from bendybus.names import Instant, PartitionNumber, SequenceNumber

__all__ = ["TopicPartition"]


class TopicPartition:
    __slots__ = ("_description", "_intake", "_shelf", "number")

    def __init__(
        self,
        number: PartitionNumber,
        description: TopicDescription,
        next_sequence_number: SequenceNumber | None = None,
        partition_count: int = 1,
    ) -> None:
        self.number = number
        self._description = description
        self._shelf = Shelf()
        # Nothing expires here: the lifetime of a scheduled message begins when it is due.
        self._intake = Intake(
            number, description, next_sequence_number, self._shelf, ExpiryWatch(), partition_count
        )

    @property
    def description(self) -> TopicDescription:
        return self._description

    @description.setter
    def description(self, description: TopicDescription) -> None:
        self._description = self._intake.description = description

    @property
    def next_sequence_number(self) -> SequenceNumber:
        return self._intake.next_sequence_number

    @property
    def scheduled_count(self) -> int:
        return len(self._shelf.scheduled)

    @property
    def size_bytes(self) -> int:
        """The size of the scheduled messages."""
        return self._shelf.size_bytes

    def restore(
        self,
        messages: Iterable[Message],
        identities: Iterable[tuple[Instant, bytes]] = (),
        transferred: Mapping[str, SequenceNumber] | None = None,
    ) -> None:
        """Start with the scheduled messages from a store."""
        messages = list(messages)
        self._shelf.size_bytes += sum(message.size for message in messages)
        self._shelf.put(MessageState.SCHEDULED, messages)
        last = max((message.sequence_number for message in messages), default=SequenceNumber(0))
        self._intake.restore(last, identities, transferred or {})

    def next_deadline(self) -> Instant | None:
        """When a `Tick` may next have something to do."""
        deadline = self._intake.next_deadline()
        return None if deadline >= NEVER else deadline

    def confirmed(self) -> Iterator[Message]:
        """All durable messages that are here."""
        yield from self._shelf
        yield from self._intake.activated

    def expiry_limit(self, at: Instant) -> Instant:
        """The latest expiry time that the topic allows for a message enqueued now, whatever a rule sets."""
        return self._intake.expiry_limit(at)

    def foreseen(self, message: Message, index: int, at: Instant) -> Message:
        """A message as rules will see it if it is accepted now, at this index of its send."""
        seen = copy(message)
        seen.sequence_number = SequenceNumber(self.next_sequence_number + index)
        if seen.expires_at is not None and seen.enqueued_at:
            seen.expires_at = Instant(seen.expires_at - seen.enqueued_at + at)
        seen.enqueued_at = at
        limit = self.expiry_limit(at)
        if seen.expires_at is None or seen.expires_at > limit:
            seen.expires_at = None if limit == NEVER else limit
        return seen

    def apply(self, command: Command, at: Instant) -> tuple[Reply, list[TopicEffect]]:
        changes = Changes()
        match command:
            case Enqueue():
                reply, published = self._enqueue(command, at, changes)
                return reply, [*changes.effects(), *([PublishMessages(published)] if published else ())]
            case Reserve(count=count):
                reserved = self._intake.reserve(count, changes)
                return reserved, [*changes.effects()]
            case Publish(messages=messages):
                self._shelf.size_bytes -= sum(message.size for message in messages)
                changes.removed += messages
                self._intake.leave(messages)
                return Done(), [*changes.effects(), PublishMessages(messages)]
            case Confirm(sequence_number=number):
                self._intake.confirm_arrived(number)
                return Done(), []
            case CancelScheduled(sequence_numbers=numbers):
                cancelled = self._intake.cancel_scheduled(numbers)
                self._shelf.size_bytes -= sum(message.size for message in cancelled)
                changes.removed += cancelled
                return Done(), [*changes.effects()]
            case Tick():
                return Done(), self._tick(at, changes)
            case Peek(count=0):
                return Done(), []
        raise InvalidOperation(f"'{self.description.path}' is a topic; its subscriptions have its messages.")

    def check(self, commands: Sequence[Command]) -> None:
        """Raise if one of these commands of a transaction cannot be applied (P-23)."""
        arriving_bytes = held_elsewhere = 0
        cancelled: set[SequenceNumber] = set()
        for command in commands:
            if isinstance(command, CancelScheduled):
                self._intake.find_scheduled(command.sequence_numbers, cancelled)
                cancelled.update(command.sequence_numbers)
                continue
            if not isinstance(command, Enqueue) or command.destination is not None:
                raise InvalidOperation(
                    f"'{self.description.path}' is a topic: nothing but sending to it, scheduling and "
                    "cancelling can be part of a transaction."
                )
            arriving_bytes += sum(message.size for message in command.messages)
            held_elsewhere = command.held_elsewhere
        self._intake.refuse_beyond_quota(self._shelf.size_bytes + held_elsewhere, arriving_bytes)

    def _enqueue(self, command: Enqueue, at: Instant, changes: Changes) -> tuple[Enqueued, list[Message]]:
        if command.destination is not None:
            raise InvalidOperation(f"'{self.description.path}' is a topic; nothing is sent through it.")
        held_bytes = self._shelf.size_bytes + command.held_elsewhere
        if command.numbered:
            reply = self._intake.schedule_numbered(
                command.messages, command.identities, held_bytes, at, changes
            )
        else:
            reply = self._intake.enqueue(
                command.messages, command.identities, held_bytes, at, changes, command.transfer
            )
        accepted = changes.stored
        if not reply.scheduled:
            changes.stored = []
            published = accepted
        else:
            changes.stored = [each for each in accepted if each.state is MessageState.SCHEDULED]
            published = [each for each in accepted if each.state is not MessageState.SCHEDULED]
            for message in changes.stored:
                # With an origin, the store keeps the body separately. A forwarded message already has one.
                message.origin = message.origin or Origin(message.sequence_number)
        # Messages that are passed on count towards the size of the subscriptions.
        self._shelf.size_bytes -= sum([message.size for message in published])
        return reply, published

    def _tick(self, at: Instant, changes: Changes) -> list[TopicEffect]:
        self._intake.forget_identities(at, changes)
        self._intake.activate(at, changes)
        # The store is told when they are published. Until then it has them as scheduled, under
        # their old numbers, so they become due again after a crash.
        due, changes.updated = list(changes.updated.values()), {}
        return [*changes.effects(), *([ActivateMessages(due)] if due else ())]
