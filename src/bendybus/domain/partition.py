"""A partition: one ordered share of an entity's messages, as a pure state machine.

`apply(command, at)` gives a reply and the effects that must follow. A command
that raises has changed nothing. At any moment a message is in exactly one
place: with the intake until it is durable (intake.py), then in the stock, on a
shelf or under a lock (stock.py). Which partition a message goes to: routing.py.
Readers that keep their own place: ranges.py.
What a host does with the effects: effects.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

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
    LockThese,
    Peek,
    Post,
    Publish,
    Reassign,
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
from bendybus.domain.range_commands import Browse, Discard, DiscardThrough, Survey
from bendybus.domain.ranges import perform as perform_on_range
from bendybus.domain.session_commands import SessionLock, SetSessionState
from bendybus.domain.session_desk import SessionDesk
from bendybus.domain.sessions import Session
from bendybus.domain.shelf import Counts
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation
from bendybus.names import Instant, LockToken, PartitionNumber, SequenceNumber, SessionId

__all__ = ["Partition"]


class Partition:
    __slots__ = ("_dead_arriving", "_desk", "_expiry", "_intake", "_outbox", "_stock", "number")

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
        sessions = self._stock.sessions
        self._desk = None if sessions is None else SessionDesk(sessions, self._stock, self._intake)
        """None where messages have no sessions."""
        self._outbox = Outbox(self._intake, self._stock)
        self._dead_arriving = 0
        """How many of the messages not yet confirmed are dead letters already."""

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
        sessions: Iterable[tuple[SessionId, int, Instant]] = (),
    ) -> None:
        """Begin with what a store holds: every one durable, none locked.

        `sessions`: those with a state, by its size and the time when it was set.
        """
        messages = list(messages)
        self._stock.restore(messages)
        if self._desk is not None:
            self._desk.restore(sessions)
        last = max((message.sequence_number for message in messages), default=SequenceNumber(0))
        self._intake.restore(last, identities, transferred or {})

    def next_deadline(self) -> Instant | None:
        """When a `Tick` is next of use; it may turn out to find nothing."""
        deadline = min(self._stock.locks.earliest_end, self._expiry.next_sweep, self._intake.next_deadline())
        if self._stock.sessions is not None:
            deadline = min(deadline, self._stock.sessions.earliest_end)
        return None if deadline >= NEVER else deadline

    def move_lock_ends(self, by_ms: int) -> None:
        """The clock was set back by so much: locks have durations, all other times go by the clock."""
        self._stock.locks.move_ends(by_ms)
        if self._stock.sessions is not None:
            self._stock.sessions.move_ends(by_ms)

    @property
    def size_bytes(self) -> int:
        """What counts towards the quota: every message of every sub-queue, every session's state."""
        return self._stock.size_bytes

    def counts(self, subqueue: SubQueue = SubQueue.MAIN) -> Counts:
        return self._stock.shelves[subqueue].counts(self._stock.on_loan(subqueue))

    @property
    def scheduled_count(self) -> int:
        return len(self._stock.shelves[SubQueue.MAIN].scheduled)

    def available(self, subqueue: SubQueue = SubQueue.MAIN) -> int:
        """How many messages wait to be locked, those included whose time may be up.

        Where messages have sessions: how many sessions are free that have some.
        """
        return self._stock.available(subqueue)

    @property
    def departing(self) -> bool:
        """Whether messages are in the outbox, or in a commit that puts them there."""
        return bool(self._outbox.arriving or self._stock.available(SubQueue.OUTBOX))

    def fitting(self, count: int, size_max: int, subqueue: SubQueue = SubQueue.MAIN) -> int:
        """How many of the oldest `count` available have `size_max` bytes together; one at least, if any."""
        return self._stock.shelves[subqueue].available.fitting(count, size_max)

    def waiting(
        self, start: SequenceNumber, count: int, size_max: int, subqueue: SubQueue = SubQueue.MAIN
    ) -> list[Message]:
        """Up to `count` available messages from this number upwards; they stay, and nobody has locked them.

        They have `size_max` bytes together; one is given however large it is.
        """
        messages = self._stock.shelves[subqueue].available.starting_at(start, count)
        fitting = bisect_right(list(accumulate(message.size for message in messages)), size_max)
        return messages[: max(1, fitting)]

    def find_waiting(
        self, numbers: Iterable[SequenceNumber], subqueue: SubQueue = SubQueue.MAIN
    ) -> list[Message]:
        """Those of these messages that are available; they stay."""
        available = self._stock.shelves[subqueue].available
        return [message for message in map(available.find, numbers) if message is not None]

    def fitting_in_session(self, lock: SessionLock, count: int, size_max: int) -> int:
        """The same of the messages that wait in a session; 0 when the lock is lost."""
        return 0 if self._desk is None else self._desk.fitting(lock, count, size_max)

    def locked(self, token: LockToken) -> Message | None:
        """The message held under this token, though its time may be up."""
        return self._stock.locked(token)

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
                    if self._desk is not None and command.destination is None:
                        self._desk.refuse_sessionless(messages)
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
                case CancelScheduled(sequence_numbers=numbers):
                    self._intake.find_scheduled(numbers)
                case SetSessionState(lock=lock, state=state) if self._desk is not None:
                    arriving_bytes += self._desk.check_state(lock, state, at)
                case _:
                    raise InvalidOperation(f"{type(command).__name__} cannot be part of a transaction.")
        if arriving_bytes:
            self._intake.refuse_beyond_quota(stock.size_bytes, arriving_bytes)

    def _perform(self, command: Command, at: Instant, changes: Changes) -> Reply:
        stock = self._stock
        match command:
            case Enqueue(messages=messages, destination=destination) if destination is not None:
                return self._outbox.enqueue(messages, destination, at, changes)
            case Enqueue(messages=messages, identities=identities, numbered=True):
                if self._desk is not None:
                    self._desk.refuse_sessionless(messages)
                return self._intake.schedule_numbered(messages, identities, stock.size_bytes, at, changes)
            case Enqueue(messages=messages, identities=identities, transfer=transfer):
                if self._desk is not None:
                    self._desk.refuse_sessionless(messages)
                enqueued = self._intake.enqueue(messages, identities, stock.size_bytes, at, changes, transfer)
                if command.shelved:
                    self._dead_arriving += stock.count_shelved(messages, SubQueue.DEAD_LETTER)
                    self._outbox.arriving += stock.count_shelved(messages, SubQueue.OUTBOX)
                return enqueued
            case Reserve(count=count):
                first = self._intake.next_sequence_number
                self._intake.take_numbers(count)
                return Enqueued(first, count)
            case Confirm(sequence_number=number):
                return self._confirm(number, changes)
            case Lock(count=count, entropy=entropy, subqueue=subqueue):
                assert len(entropy) >= ENTROPY_PER_LOCK * count, "too little entropy for this many locks"
                self._refuse_sessionless(subqueue)
                stock.end_locks(at, changes)
                messages = stock.take(count, subqueue, at, changes)
                stock.grant(messages, entropy, at)
                return Given(messages)
            case LockThese(sequence_numbers=numbers, entropy=entropy, subqueue=subqueue):
                self._refuse_sessionless(subqueue)
                stock.end_locks(at, changes)
                messages = stock.take_these(numbers, subqueue, at, changes)
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
                self._refuse_sessionless(subqueue)
                stock.end_locks(at, changes)
                messages = stock.take(count, subqueue, at, changes)
                stock.remove(messages, changes)
                return Given(messages)
            case Renew(lock_tokens=tokens):
                stock.end_locks(at, changes)
                return Renewed(stock.renew(tokens, at))
            case LockDeferred(sequence_numbers=numbers, entropy=entropy, subqueue=subqueue):
                session = self._session_of_deferred(command, at)
                messages = stock.take_deferred(numbers, subqueue, session)
                if session is None:
                    stock.grant(messages, entropy, at)
                else:
                    stock.grant_in_session(session, messages, entropy)
                return Given(messages)
            case ReceiveDeferred(sequence_numbers=numbers, subqueue=subqueue):
                session = self._session_of_deferred(command, at)
                messages = stock.take_deferred(numbers, subqueue, session)
                stock.remove(messages, changes)
                return Given(messages)
            case Peek():
                return self._peek(command)
            case DeleteOldest(count=count, enqueued_before=before, subqueue=subqueue):
                stock.end_locks(at, changes)
                if command.session_id is None:
                    messages = stock.take_older(count, before, subqueue, at, changes)
                else:
                    wanted = stock.one_session(command.session_id)
                    messages = stock.take_older_in_session(wanted, count, before, subqueue)
                stock.remove(messages, changes)
                return Deleted(len(messages))
            case Survey() | Browse() | DiscardThrough() | Discard():
                return perform_on_range(command, stock, self._intake, changes)
            case CancelScheduled(sequence_numbers=numbers):
                stock.remove(self._intake.cancel_scheduled(numbers), changes)
                return Done()
            case Publish():
                raise InvalidOperation(f"'{self.description.path}' is not a topic.")
            case Post(count=count, destination=destination, subqueue=subqueue):
                return Given(self._outbox.post(count, destination, subqueue, at, changes))
            case Reassign(sequence_numbers=numbers, partition=partition):
                self._outbox.reassign(numbers, partition, changes)
                return Done()
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
            case _:
                if self._desk is None:
                    raise InvalidOperation(
                        "A sessionful message receiver cannot be created on an entity that does not require "
                        f"sessions. Entity: '{self.description.path}'."
                    )
                return self._desk.perform(command, at, changes)

    def _confirm(self, number: SequenceNumber, changes: Changes) -> Done:
        """Only what is durable is ever shown, so what leaves here for a receiver is no phantom."""
        ready = self._intake.confirm(number)
        if self._outbox.arriving or self._dead_arriving:
            elsewhere = [message for message in ready if message.subqueue is not SubQueue.MAIN]
            ready = [message for message in ready if message.subqueue is SubQueue.MAIN]
            dead = sum(message.subqueue is SubQueue.DEAD_LETTER for message in elsewhere)
            self._dead_arriving -= dead
            self._outbox.arriving -= len(elsewhere) - dead
            self._stock.put_back(elsewhere, changes)
        if ready:
            self._stock.arrive(ready, changes)
        return Done()

    def _refuse_sessionless(self, subqueue: SubQueue) -> None:
        if self._desk is not None and subqueue is SubQueue.MAIN:
            raise self._sessionless()

    def _sessionless(self) -> InvalidOperation:
        return InvalidOperation(
            f"'{self.description.path}' requires sessions: its messages are received by those who hold "
            "their session."
        )

    def _session_of_deferred(self, command: LockDeferred | ReceiveDeferred, at: Instant) -> Session | None:
        """Where messages have sessions, only their holder gets them, deferred ones too."""
        if self._desk is None or command.subqueue is not SubQueue.MAIN:
            return None
        if command.session is None:
            raise self._sessionless()
        return self._desk.holding(command.session, at)

    def _peek(self, command: Peek) -> Given:
        shelf = self._stock.shelves[command.subqueue]
        start, count, locked = (
            command.from_sequence_number,
            command.count,
            self._stock.on_loan(command.subqueue),
        )
        if command.session_id is None:
            return Given(shelf.peek(start, count, locked))
        wanted = self._stock.one_session(command.session_id)
        return Given(shelf.peek_session(wanted, start, count, locked))
