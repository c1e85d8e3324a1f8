"""A partition: one ordered share of an entity's messages, as a pure state machine.

`apply(command, at)` gives a reply and the effects that must follow. A command
that raises has changed nothing. At any moment a message is in exactly one
place: with the intake until it is durable (intake.py), then in the stock, on a
shelf or under a lock (stock.py). Which partition a message goes to: routing.py.
What a host does with the effects: effects.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bendybus.domain.changes import Changes
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Abandon,
    CancelScheduled,
    Command,
    Complete,
    Confirm,
    DeadLetter,
    Defer,
    Deleted,
    DeleteOldest,
    Done,
    Enqueue,
    Enqueued,
    Given,
    Lock,
    LockDeferred,
    Peek,
    Post,
    Receive,
    ReceiveDeferred,
    Release,
    Renew,
    Renewed,
    Reply,
    Reserve,
    Settled,
    Tick,
    Transferred,
    Undeliverable,
)
from bendybus.domain.deadletter import Cause
from bendybus.domain.effects import Effect
from bendybus.domain.entities import QueueDescription
from bendybus.domain.expiry import NEVER, ExpiryWatch
from bendybus.domain.intake import Intake
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.outbox import Outbox
from bendybus.domain.shelf import Counts
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation
from bendybus.names import Instant, LockToken, PartitionNumber, SequenceNumber

__all__ = ["Partition"]


class Partition:
    __slots__ = ("_expiry", "_intake", "_outbox", "_stock", "number")

    def __init__(
        self,
        number: PartitionNumber,
        description: QueueDescription,
        next_sequence_number: SequenceNumber | None = None,
    ) -> None:
        self.number = number
        self._expiry = ExpiryWatch()
        self._stock = Stock(number, description, self._expiry)
        main = self._stock.shelves[SubQueue.MAIN]
        self._intake = Intake(number, description, next_sequence_number, main, self._expiry)
        self._outbox = Outbox(self._intake, self._stock)

    @property
    def description(self) -> QueueDescription:
        return self._stock.description

    @description.setter
    def description(self, description: QueueDescription) -> None:
        """The entity is updated; what it says holds from the next command on."""
        self._stock.description = self._intake.description = description

    @property
    def next_sequence_number(self) -> SequenceNumber:
        return self._intake.next_sequence_number

    def restore(
        self,
        messages: Iterable[Message],
        identities: Iterable[tuple[Instant, bytes]] = (),
        transferred: Mapping[str, SequenceNumber] | None = None,
    ) -> None:
        """Begin with what a store holds: every one durable, none locked."""
        messages = list(messages)
        self._stock.restore(messages)
        last = max((message.sequence_number for message in messages), default=SequenceNumber(0))
        self._intake.restore(last, identities, transferred or {})

    def next_deadline(self) -> Instant | None:
        """When a `Tick` is next of use; it may turn out to find nothing."""
        deadline = min(self._stock.locks.earliest_end, self._expiry.next_sweep, self._intake.next_deadline())
        return None if deadline >= NEVER else deadline

    @property
    def size_bytes(self) -> int:
        """What counts towards the quota: every message of every sub-queue."""
        return self._stock.size_bytes

    def counts(self, subqueue: SubQueue = SubQueue.MAIN) -> Counts:
        return self._stock.shelves[subqueue].counts(self._stock.on_loan(subqueue))

    def available(self, subqueue: SubQueue = SubQueue.MAIN) -> int:
        """How many messages wait to be locked, those included whose time may be up."""
        return len(self._stock.shelves[subqueue].available)

    def fitting(self, count: int, size_max: int, subqueue: SubQueue = SubQueue.MAIN) -> int:
        """How many of the oldest `count` available have `size_max` bytes together; one at least, if any."""
        return self._stock.shelves[subqueue].available.fitting(count, size_max)

    def locked(self, token: LockToken) -> Message | None:
        """The message held under this token, though its time may be up."""
        return self._stock.locks.find(token)

    def confirmed(self) -> Iterator[Message]:
        """All messages that are durable, wherever they are."""
        yield from self._stock
        yield from self._intake.activated

    def apply(self, command: Command, at: Instant) -> tuple[Reply, list[Effect]]:
        changes = Changes()
        reply = self._perform(command, at, changes)
        return reply, changes.effects()

    def check(self, commands: Sequence[Command], at: Instant) -> None:
        """Raise what stands against any of these: what passes here can be applied, all of it, at this time.

        For the commands that a transaction is made of (P-23).
        """
        stock = self._stock
        arriving_bytes = 0
        for command in commands:
            match command:
                case Enqueue(messages=messages):
                    arriving_bytes += sum(message.size for message in messages)
                case Complete(lock_tokens=tokens):
                    stock.refuse_lost(tokens, at)
                case (
                    Abandon(lock_tokens=tokens, properties=properties)
                    | Defer(lock_tokens=tokens, properties=properties)
                ):
                    stock.refuse_lost(tokens, at)
                    stock.refuse_large_amendments(tokens, properties)
                case DeadLetter(lock_tokens=tokens, properties=properties):
                    stock.refuse_lost(tokens, at)
                    stock.refuse_dead_letters(tokens, at)
                    stock.refuse_large_amendments(tokens, properties)
                case Release(lock_tokens=tokens):
                    stock.refuse_lost(tokens, at)
                case _:
                    raise InvalidOperation(f"{type(command).__name__} cannot be part of a transaction.")
        if arriving_bytes:
            self._intake.refuse_beyond_quota(stock.size_bytes, arriving_bytes)

    def _perform(self, command: Command, at: Instant, changes: Changes) -> Reply:
        stock = self._stock
        match command:
            case Enqueue(messages=messages, destination=destination) if destination is not None:
                return self._outbox.enqueue(messages, destination, at, changes)
            case Enqueue(messages=messages, numbered=True):
                return self._intake.schedule_numbered(messages, stock.size_bytes, changes)
            case Enqueue(messages=messages, identities=identities, transfer=transfer):
                return self._intake.enqueue(messages, identities, stock.size_bytes, at, changes, transfer)
            case Reserve(count=count):
                numbers = self._intake.take_numbers(count)
                return Enqueued(SequenceNumber(numbers.start), count)
            case Confirm(sequence_number=number):
                return self._confirm(number, changes)
            case Lock(count=count, entropy=entropy, subqueue=subqueue):
                assert len(entropy) >= ENTROPY_PER_LOCK * count, "too little entropy for this many locks"
                stock.end_locks(at, changes)
                messages = stock.take(count, subqueue, at, changes)
                stock.grant(messages, entropy, at)
                return Given(messages)
            case Complete(lock_tokens=tokens):
                messages, lost = stock.unlock(tokens, at, changes)
                stock.remove(messages, changes)
                return Settled(lost)
            case Abandon(lock_tokens=tokens, properties=properties):
                stock.refuse_large_amendments(tokens, properties)
                messages, lost = stock.unlock(tokens, at, changes)
                stock.amend(messages, properties)
                stock.fail_delivery(messages, changes)
                return Settled(lost)
            case Release(lock_tokens=tokens):
                messages, lost = stock.unlock(tokens, at, changes)
                stock.put_back(messages, changes)
                return Settled(lost)
            case Defer(lock_tokens=tokens, properties=properties):
                stock.refuse_large_amendments(tokens, properties)
                messages, lost = stock.unlock(tokens, at, changes)
                stock.amend(messages, properties)
                stock.defer(messages, changes)
                return Settled(lost)
            case DeadLetter(lock_tokens=tokens, properties=properties):
                cause = Cause(command.reason, command.description)
                stock.refuse_dead_letters(tokens, at)
                stock.refuse_large_amendments(tokens, properties)
                messages, lost = stock.unlock(tokens, at, changes)
                stock.amend(messages, properties)
                stock.dead_letter(messages, cause, changes)
                return Settled(lost)
            case Receive(count=count, subqueue=subqueue):
                stock.end_locks(at, changes)
                messages = stock.take(count, subqueue, at, changes)
                stock.remove(messages, changes)
                return Given(messages)
            case Renew(lock_tokens=tokens):
                stock.end_locks(at, changes)
                return Renewed(stock.locks.renew(tokens, stock.lock_end(at)))
            case LockDeferred(sequence_numbers=numbers, entropy=entropy, subqueue=subqueue):
                messages = stock.take_deferred(numbers, subqueue)
                stock.grant(messages, entropy, at)
                return Given(messages)
            case ReceiveDeferred(sequence_numbers=numbers, subqueue=subqueue):
                messages = stock.take_deferred(numbers, subqueue)
                stock.remove(messages, changes)
                return Given(messages)
            case Peek(from_sequence_number=start, count=count, subqueue=subqueue):
                return Given(stock.shelves[subqueue].peek(start, count, stock.on_loan(subqueue)))
            case DeleteOldest(count=count, enqueued_before=before, subqueue=subqueue):
                stock.end_locks(at, changes)
                messages = stock.take_older(count, before, subqueue, at, changes)
                stock.remove(messages, changes)
                return Deleted(len(messages))
            case CancelScheduled(sequence_numbers=numbers):
                stock.remove(self._intake.cancel_scheduled(numbers), changes)
                return Done()
            case Post(count=count, destination=destination, subqueue=subqueue):
                return Given(self._outbox.post(count, destination, subqueue, at, changes))
            case Transferred(sequence_numbers=numbers):
                self._outbox.remove(numbers, changes)
                return Done()
            case Undeliverable(sequence_numbers=numbers, cause=cause):
                self._outbox.give_up(numbers, cause, changes)
                return Done()
            case Tick():
                stock.end_locks(at, changes)
                stock.sweep(at, self._intake.awaiting_confirmation(), changes)
                self._intake.forget_identities(at, changes)
                return self._intake.activate(at, changes)

    def _confirm(self, number: SequenceNumber, changes: Changes) -> Done:
        """Only what is durable is ever shown, so what leaves here for a receiver is no phantom."""
        ready = self._intake.confirm(number)
        if self._outbox.arriving:
            posted = [message for message in ready if message.subqueue is SubQueue.OUTBOX]
            ready = [message for message in ready if message.subqueue is not SubQueue.OUTBOX]
            self._outbox.arriving -= len(posted)
            self._stock.put_back(posted, changes)
        if ready:
            self._stock.shelves[SubQueue.MAIN].available.extend(ready)
            changes.available.add(SubQueue.MAIN)
        return Done()
