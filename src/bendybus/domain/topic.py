"""A partition of a topic: messages come in, get their numbers and go on to the subscriptions.

Only scheduled messages stay here, with what duplicate detection remembers and how far each outbox has
arrived: the intake of a partition (intake.py) without a stock. Scheduled messages are stored with an
`Origin`, so that their copies can take over the payload. Who takes a copy: fanout.py. What the
subscriptions then do with it: partition.py.
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
    ) -> None:
        self.number = number
        self._description = description
        self._shelf = Shelf()
        # Nothing here expires: a scheduled message begins to live when it is due.
        self._intake = Intake(number, description, next_sequence_number, self._shelf, ExpiryWatch())

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
        """Of the messages that wait here for their time."""
        return self._shelf.size_bytes

    def restore(
        self,
        messages: Iterable[Message],
        identities: Iterable[tuple[Instant, bytes]] = (),
        transferred: Mapping[str, SequenceNumber] | None = None,
    ) -> None:
        """Begin with what a store holds: scheduled messages."""
        messages = list(messages)
        self._shelf.size_bytes += sum(message.size for message in messages)
        self._shelf.put(MessageState.SCHEDULED, messages)
        last = max((message.sequence_number for message in messages), default=SequenceNumber(0))
        self._intake.restore(last, identities, transferred or {})

    def next_deadline(self) -> Instant | None:
        """When a `Tick` is next of use."""
        deadline = self._intake.next_deadline()
        return None if deadline >= NEVER else deadline

    def confirmed(self) -> Iterator[Message]:
        """All messages that are durable and here."""
        yield from self._shelf
        yield from self._intake.activated

    def expiry_limit(self, at: Instant) -> Instant:
        """Until when the topic lets a message live that it takes now, whatever a rule says."""
        return self._intake.expiry_limit(at)

    def foreseen(self, message: Message, index: int, at: Instant) -> Message:
        """A message as rules will see it if it is accepted now, as this one of its send."""
        seen = copy(message)
        seen.sequence_number = SequenceNumber(self.next_sequence_number + index)
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
                first = self._intake.next_sequence_number
                self._intake.take_numbers(count)
                return Enqueued(first, count), []
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
        """Raise what stands against any of these commands of a transaction (P-23)."""
        arriving_bytes = held_elsewhere = 0
        for command in commands:
            if isinstance(command, CancelScheduled):
                self._intake.find_scheduled(command.sequence_numbers)
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
                # So that the store keeps its body apart from it; one that was forwarded here has one.
                message.origin = message.origin or Origin(message.sequence_number)
        # What goes on counts where it goes.
        self._shelf.size_bytes -= sum([message.size for message in published])
        return reply, published

    def _tick(self, at: Instant, changes: Changes) -> list[TopicEffect]:
        self._intake.forget_identities(at, changes)
        self._intake.activate(at, changes)
        # The store learns of it when they are published; until then they are scheduled there, under
        # their old numbers, and become due again if the power fails.
        due, changes.updated = list(changes.updated.values()), {}
        return [*changes.effects(), *([ActivateMessages(due)] if due else ())]
