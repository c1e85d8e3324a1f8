"""A partition: one ordered share of an entity's messages, as a pure state machine.

`apply(command, at)` gives a reply and the effects that must follow. A command
that raises has changed nothing. At any moment a message is in exactly one
place: among the unconfirmed, on a shelf (shelf.py), or in the lock table
(locks.py). When scheduled messages are due: schedule.py. What is a duplicate:
duplicates.py. Which partition a message goes to: routing.py. What a host does
with the effects: effects.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Final

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
    Done,
    Enqueue,
    Enqueued,
    Given,
    Lock,
    LockDeferred,
    Peek,
    Receive,
    ReceiveDeferred,
    Release,
    Renew,
    Renewed,
    Reply,
    Settled,
    Tick,
)
from bendybus.domain.deadletter import TTL_EXPIRED, Cause, delivery_count_exceeded, mark
from bendybus.domain.duplicates import DuplicateHistory
from bendybus.domain.effects import Effect, ForgetIdentities, RememberIdentities
from bendybus.domain.entities import QueueDescription
from bendybus.domain.expiry import NEVER, ExpiryWatch, split_expired
from bendybus.domain.locks import LockTable
from bendybus.domain.messages import Amendment, Message, MessageState, SubQueue
from bendybus.domain.schedule import Schedule
from bendybus.domain.shelf import Counts, Shelf
from bendybus.errors import ArgumentError, InvalidOperation, MessageNotFound, QuotaExceeded
from bendybus.names import PARTITION_SHIFT, Instant, LockToken, PartitionNumber, SequenceNumber

__all__ = ["Partition"]

_MEBIBYTE: Final = 1 << 20

# "Maximum message header size 64 KB": as much for what settlements add to a message's properties.
AMENDMENT_BYTES_MAX: Final = 64 * 1024

_SCHEDULED: Final = MessageState.SCHEDULED


class Partition:
    __slots__ = (
        "_expiry",
        "_history",
        "_locks",
        "_schedule",
        "_shelves",
        "_unconfirmed",
        "description",
        "next_sequence_number",
        "number",
    )

    def __init__(
        self,
        number: PartitionNumber,
        description: QueueDescription,
        next_sequence_number: SequenceNumber | None = None,
    ) -> None:
        self.number = number
        self.description = description
        """Replaced when the entity is updated; what it says holds from the next command on."""
        self.next_sequence_number = next_sequence_number or SequenceNumber(number << PARTITION_SHIFT | 1)
        self._shelves = {subqueue: Shelf() for subqueue in SubQueue}
        self._unconfirmed: list[Message] = []
        self._locks = LockTable(number)
        self._expiry = ExpiryWatch()
        self._schedule = Schedule(self._shelves[SubQueue.MAIN].scheduled)
        self._history = DuplicateHistory() if description.requires_duplicate_detection else None

    def restore(self, messages: Iterable[Message], identities: Iterable[tuple[Instant, bytes]] = ()) -> None:
        """Begin with what a store holds: every one durable, none locked."""
        messages = list(messages)
        last = SequenceNumber(self.next_sequence_number - 1)
        for message in messages:
            self._shelves[message.subqueue].size_bytes += message.size
            last = max(last, message.sequence_number)
        self.next_sequence_number = SequenceNumber(last + 1)
        self._shelve(messages, Changes())
        self._schedule.restore()
        if self._history is not None:
            self._history.restore(identities)

    def next_deadline(self) -> Instant | None:
        """When a `Tick` is next of use; it may turn out to find nothing."""
        deadline = min(self._locks.earliest_end, self._expiry.next_sweep, self._schedule.next_due)
        if self._history is not None:
            deadline = min(deadline, self._history.next_sweep(self._window_ms))
        return None if deadline >= NEVER else deadline

    @property
    def size_bytes(self) -> int:
        """What counts towards the quota: every message of every sub-queue."""
        return sum(shelf.size_bytes for shelf in self._shelves.values())

    def counts(self, subqueue: SubQueue = SubQueue.MAIN) -> Counts:
        return self._shelves[subqueue].counts(self._locked_in(subqueue))

    def available(self, subqueue: SubQueue = SubQueue.MAIN) -> int:
        """How many messages wait to be locked, those included whose time may be up."""
        return len(self._shelves[subqueue].available)

    def fitting(self, count: int, size_max: int, subqueue: SubQueue = SubQueue.MAIN) -> int:
        """How many of the oldest `count` available have `size_max` bytes together; one at least, if any."""
        return self._shelves[subqueue].available.fitting(count, size_max)

    def locked(self, token: LockToken) -> Message | None:
        """The message held under this token, though its time may be up."""
        return self._locks.find(token)

    def confirmed(self) -> Iterator[Message]:
        """All messages that are durable, wherever they are."""
        yield from self._locks
        yield from self._schedule.activated
        for shelf in self._shelves.values():
            yield from shelf

    def apply(self, command: Command, at: Instant) -> tuple[Reply, list[Effect]]:
        changes = Changes()
        reply = self._perform(command, at, changes)
        return reply, changes.effects()

    def _perform(self, command: Command, at: Instant, changes: Changes) -> Reply:
        match command:
            case Enqueue(messages=messages, identities=identities):
                if self._history is not None and identities is not None:
                    return self._enqueue_once(messages, identities, at, changes)
                return self._enqueue(messages, at, changes)
            case Confirm(sequence_number=number):
                return self._confirm(number, changes)
            case Lock(count=count, entropy=entropy, subqueue=subqueue):
                return self._lock(count, entropy, subqueue, at, changes)
            case Complete(lock_tokens=tokens):
                messages, lost = self._unlock(tokens, at, changes)
                self._remove(messages, changes)
                return Settled(lost)
            case Abandon(lock_tokens=tokens, properties=properties):
                self._refuse_large_amendments(tokens, properties)
                messages, lost = self._unlock(tokens, at, changes)
                self._amend(messages, properties)
                self._fail_delivery(messages, changes)
                return Settled(lost)
            case Release(lock_tokens=tokens):
                messages, lost = self._unlock(tokens, at, changes)
                self._shelve(messages, changes)
                return Settled(lost)
            case Defer(lock_tokens=tokens, properties=properties):
                self._refuse_large_amendments(tokens, properties)
                messages, lost = self._unlock(tokens, at, changes)
                self._amend(messages, properties)
                self._defer(messages, changes)
                return Settled(lost)
            case DeadLetter(lock_tokens=tokens, properties=properties):
                cause = Cause(command.reason, command.description)
                self._refuse_dead_letters(tokens, at)
                self._refuse_large_amendments(tokens, properties)
                messages, lost = self._unlock(tokens, at, changes)
                self._amend(messages, properties)
                self._dead_letter(messages, cause, changes)
                return Settled(lost)
            case Receive(count=count, subqueue=subqueue):
                self._end_locks(at, changes)
                messages = self._take(count, subqueue, at, changes)
                self._remove(messages, changes)
                return Given(messages)
            case Renew(lock_tokens=tokens):
                self._end_locks(at, changes)
                return Renewed(self._locks.renew(tokens, self._lock_end(at)))
            case LockDeferred(sequence_numbers=numbers, entropy=entropy, subqueue=subqueue):
                messages = self._take_deferred(numbers, subqueue)
                self._locks.grant(messages, entropy, self._lock_end(at))
                return Given(messages)
            case ReceiveDeferred(sequence_numbers=numbers, subqueue=subqueue):
                messages = self._take_deferred(numbers, subqueue)
                self._remove(messages, changes)
                return Given(messages)
            case Peek(from_sequence_number=start, count=count, subqueue=subqueue):
                return Given(self._shelves[subqueue].peek(start, count, self._locked_in(subqueue)))
            case CancelScheduled(sequence_numbers=numbers):
                return self._cancel_scheduled(numbers, changes)
            case Tick():
                self._end_locks(at, changes)
                self._sweep(at, changes)
                self._forget_identities(at, changes)
                return self._activate(at, changes)

    # -- arriving -------------------------------------------------------------

    def _enqueue(self, messages: list[Message], at: Instant, changes: Changes) -> Enqueued:
        arriving_bytes = sum([message.size for message in messages])
        self._refuse_beyond_quota(arriving_bytes)
        limit = self._expiry_limit(at)
        default = None if limit == NEVER else limit
        first = self.next_sequence_number
        number: int = first
        earliest = NEVER
        scheduled: list[Message] = []
        for message in messages:
            message.sequence_number = SequenceNumber(number)
            if message.state is _SCHEDULED:
                scheduled.append(message)
                number += 1
                continue
            message.enqueued_at = at
            expires_at = message.expires_at
            if expires_at is None or expires_at > limit:
                # The lesser of the sender's time to live and the entity's, with no error for a longer one.
                message.expires_at = expires_at = default
            if expires_at is not None and expires_at < earliest:
                earliest = expires_at
            number += 1
        self.next_sequence_number = SequenceNumber(number)
        self._shelves[SubQueue.MAIN].size_bytes += arriving_bytes
        self._expiry.expect(earliest)
        changes.stored = messages
        if scheduled:
            self._schedule.arrive(scheduled)
            messages = [message for message in messages if message.state is not _SCHEDULED]
        self._unconfirmed += messages
        return Enqueued(first, number - first, scheduled=bool(scheduled))

    def _enqueue_once(
        self, messages: list[Message], identities: Sequence[str | None], at: Instant, changes: Changes
    ) -> Enqueued:
        """Enqueue all but the duplicates, which are accepted and dropped (P-15)."""
        assert self._history is not None, "only entities with duplicate detection ask for it"
        new, duplicates = self._history.sift(identities, Instant(at - self._window_ms))
        if duplicates:
            dropped = set(duplicates)
            messages = [message for place, message in enumerate(messages) if place not in dropped]
        enqueued = self._enqueue(messages, at, changes)
        if new or duplicates:
            self._history.remember(new, at)
            changes.history = RememberIdentities(at, new)
        return replace(enqueued, duplicates=duplicates) if duplicates else enqueued

    @property
    def _window_ms(self) -> int:
        return int(self.description.duplicate_detection_window_s * 1000)

    def _forget_identities(self, at: Instant, changes: Changes) -> None:
        window_ms = self._window_ms
        if self._history is None or at < self._history.next_sweep(window_ms):
            return
        since = Instant(at - window_ms)
        if self._history.forget(at, since):
            changes.history = ForgetIdentities(since)

    def _expiry_limit(self, at: Instant) -> Instant:
        """Until when the entity lets a message live that is enqueued now."""
        ttl_s = self.description.default_message_ttl_s
        return NEVER if ttl_s is None else Instant(at + int(ttl_s * 1000))

    def _refuse_beyond_quota(self, arriving_bytes: int) -> None:
        quota_bytes = self.description.max_size_mb * _MEBIBYTE
        if self.size_bytes + arriving_bytes > quota_bytes:
            raise QuotaExceeded(
                f"Partition {self.number} of '{self.description.path}' holds {self.size_bytes} bytes; "
                f"{arriving_bytes} more would exceed its size of {quota_bytes}."
            )

    def _confirm(self, number: SequenceNumber, changes: Changes) -> Done:
        """Only what is durable is ever shown, so what leaves here for a receiver is no phantom."""
        unconfirmed = self._unconfirmed
        durable = len(unconfirmed)
        while durable and unconfirmed[durable - 1].sequence_number > number:
            durable -= 1
        ready = unconfirmed[:durable]
        if self._schedule.unconfirmed:
            ready += self._schedule.confirm(number)
            ready.sort(key=attrgetter("sequence_number"))
        if ready:
            self._shelves[SubQueue.MAIN].available.extend(ready)
            del unconfirmed[:durable]
            changes.available.add(SubQueue.MAIN)
        return Done()

    # -- scheduled ------------------------------------------------------------

    def _activate(self, at: Instant, changes: Changes) -> Reply:
        """Enqueue what is due, under new numbers; lockable once confirmed, as if it had been sent now."""
        due = self._schedule.take_due(at)
        if not due:
            return Done()
        first = self.next_sequence_number
        limit = self._expiry_limit(at)
        for number, message in enumerate(due, first):
            own = NEVER if message.expires_at is None else message.expires_at - message.enqueued_at + at
            expires_at = Instant(min(own, limit))
            message.expires_at = None if expires_at == NEVER else expires_at
            message.enqueued_at = at
            message.sequence_number = SequenceNumber(number)
            self._expiry.expect(message.expires_at)
        self.next_sequence_number = SequenceNumber(first + len(due))
        changes.update(due)
        return Enqueued(first, len(due))

    def _cancel_scheduled(self, numbers: Sequence[SequenceNumber], changes: Changes) -> Done:
        found = dict(zip(numbers, self._schedule.find(numbers), strict=True))
        missing = [number for number, message in found.items() if message is None]
        if missing:
            listed = ", ".join(map(str, missing))
            raise MessageNotFound(
                f"Not, or no longer, scheduled in partition {self.number} of '{self.description.path}': "
                f"{listed}."
            )
        messages = [message for message in found.values() if message is not None]
        self._schedule.cancel(messages)
        self._remove(messages, changes)
        return Done()

    # -- handing out ----------------------------------------------------------

    def _lock(self, count: int, entropy: bytes, subqueue: SubQueue, at: Instant, changes: Changes) -> Given:
        assert len(entropy) >= ENTROPY_PER_LOCK * count, "too little entropy for this many locks"
        self._end_locks(at, changes)
        messages = self._take(count, subqueue, at, changes)
        self._locks.grant(messages, entropy, self._lock_end(at))
        return Given(messages)

    def _lock_end(self, at: Instant) -> Instant:
        return Instant(at + int(self.description.lock_duration_s * 1000))

    def _take(self, count: int, subqueue: SubQueue, at: Instant, changes: Changes) -> list[Message]:
        """Up to `count` of the oldest available ones (P-26), none of them expired."""
        available = self._shelves[subqueue].available
        messages = available.take(count)
        # Time to live is not observed among the dead letters.
        if subqueue is SubQueue.MAIN and self._expiry.may_have_expired(at):
            messages, expired = split_expired(messages, at)
            while expired:
                self._expire(expired, changes)
                alive, expired = split_expired(available.take(count - len(messages)), at)
                messages += alive
        return messages

    def _take_deferred(self, numbers: Sequence[SequenceNumber], subqueue: SubQueue) -> list[Message]:
        """All of them, in the order asked, or none.

        A lock that has run out but not yet been ended still counts, since ending
        it here and then refusing would be a change that no effect tells of.
        """
        deferred = self._shelves[subqueue].deferred
        found = {number: deferred.find(number) for number in numbers}
        missing = [number for number, message in found.items() if message is None]
        if missing:
            listed = ", ".join(map(str, missing))
            raise MessageNotFound(
                f"Not deferred, or locked, in partition {self.number} of '{self.description.path}': {listed}."
            )
        messages = [message for message in found.values() if message is not None]
        for message in messages:
            deferred.remove(message)
        return messages

    def _locked_in(self, subqueue: SubQueue) -> list[Message]:
        return [message for message in self._locks if message.subqueue is subqueue]

    # -- taking back ----------------------------------------------------------

    def _unlock(
        self, tokens: Sequence[LockToken], at: Instant, changes: Changes
    ) -> tuple[list[Message], list[LockToken]]:
        """The messages held under these tokens, and the tokens that are lost."""
        self._end_locks(at, changes)
        return self._locks.release(tokens)

    def _end_locks(self, at: Instant, changes: Changes) -> None:
        """A lock that runs out is a failed delivery, just as an abandoned one."""
        ended = self._locks.expire(at)
        if ended:
            self._fail_delivery(ended, changes)

    def _fail_delivery(self, messages: list[Message], changes: Changes) -> None:
        """Count the failure; back to the shelf, or to the dead letters when it was the last attempt."""
        limit = self.description.max_delivery_count
        for message in messages:
            message.delivery_count += 1
            if message.delivery_count >= limit and message.subqueue is SubQueue.MAIN:
                self._mark_dead_letter(message, delivery_count_exceeded(message.delivery_count))
        changes.update(messages)
        self._shelve(messages, changes)

    def _defer(self, messages: list[Message], changes: Changes) -> None:
        for message in messages:
            message.state = MessageState.DEFERRED
        changes.update(messages)
        self._shelve(messages, changes)

    def _refuse_large_amendments(self, tokens: Sequence[LockToken], properties: bytes | None) -> None:
        """A message may be deferred any number of times; what is said about it must not grow as often."""
        if not properties:
            return
        for token in tokens:
            message = self._locks.find(token)
            said = 0 if message is None or message.amendment is None else message.amendment.size
            if said + len(properties) > AMENDMENT_BYTES_MAX:
                raise ArgumentError(
                    f"The properties set while settling a message of '{self.description.path}' have "
                    f"{said + len(properties)} bytes together; at most {AMENDMENT_BYTES_MAX} are kept."
                )

    def _amend(self, messages: list[Message], properties: bytes | None) -> None:
        if properties:
            for message in messages:
                message.amendment = (message.amendment or Amendment()).with_properties(properties)

    def _shelve(self, messages: Iterable[Message], changes: Changes) -> None:
        """Unlocked again: each goes where its sub-queue and state say."""
        groups: dict[tuple[SubQueue, MessageState], list[Message]] = {}
        for message in messages:
            LockTable.forget(message)
            groups.setdefault((message.subqueue, message.state), []).append(message)
        for (subqueue, state), group in groups.items():
            self._shelves[subqueue].put(state, group)
            if state is MessageState.ACTIVE:
                changes.available.add(subqueue)
            # Deferred messages outlive their time, and dead letters have none.
            if state is MessageState.ACTIVE and subqueue is SubQueue.MAIN:
                self._expiry.expect_all(group)

    # -- leaving --------------------------------------------------------------

    def _remove(self, messages: list[Message], changes: Changes) -> None:
        shelves = self._shelves
        for message in messages:
            shelves[message.subqueue].size_bytes -= message.size
        changes.removed += messages

    def _refuse_dead_letters(self, tokens: Sequence[LockToken], at: Instant) -> None:
        """Dead letters cannot be dead-lettered again; asked before anything changes."""
        for token in tokens:
            message = self._locks.find(token)
            if message and message.subqueue is not SubQueue.MAIN and message.locked_until > at:
                raise InvalidOperation(
                    f"Message {message.sequence_number} of '{self.description.path}' is in the dead-letter "
                    "queue already."
                )

    def _dead_letter(self, messages: list[Message], cause: Cause, changes: Changes) -> None:
        for message in messages:
            self._mark_dead_letter(message, cause)
        changes.update(messages)
        self._shelve(messages, changes)

    def _mark_dead_letter(self, message: Message, cause: Cause) -> None:
        self._shelves[message.subqueue].size_bytes -= message.size
        mark(message, cause)
        self._shelves[message.subqueue].size_bytes += message.size

    def _expire(self, messages: list[Message], changes: Changes) -> None:
        if self.description.dead_letter_on_expiry:
            self._dead_letter(messages, TTL_EXPIRED, changes)
        else:
            self._remove(messages, changes)

    def _sweep(self, at: Instant, changes: Changes) -> None:
        """Expire what waits in the main sub-queue; deferred and locked messages are left alone."""
        if at < self._expiry.next_sweep:
            return
        available = self._shelves[SubQueue.MAIN].available
        alive, expired = split_expired(available, at)
        if expired:
            available.replace(alive)
            self._expire(expired, changes)
        self._expiry.swept(at, chain(alive, self._unconfirmed, self._schedule.activated))
