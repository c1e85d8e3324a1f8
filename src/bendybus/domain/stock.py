"""The stock: a partition's durable messages, on a shelf or out on loan, and what settling does to them.

A message handed out under a lock is in the lock table (locks.py), or with the
session it belongs to (sessions.py); every other is on the shelf that its
sub-queue and state name (shelf.py). How messages get here: intake.py. What
session holders may do: session_desk.py. Which command does what: partition.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from bendybus.domain.changes import Changes
from bendybus.domain.deadletter import TTL_EXPIRED, Cause, delivery_count_exceeded, mark
from bendybus.domain.entities import QueueDescription
from bendybus.domain.expiry import ExpiryWatch, split_expired
from bendybus.domain.locks import LockTable
from bendybus.domain.messages import Amendment, Message, MessageState, SubQueue
from bendybus.domain.run import Run
from bendybus.domain.sessions import Session, Sessions
from bendybus.domain.shelf import Shelf, Waiting
from bendybus.errors import ArgumentError, InvalidOperation, MessageLockLost, MessageNotFound
from bendybus.names import Instant, LockToken, PartitionNumber, SequenceNumber, SessionId
from bendybus.session_ids import OneSession

__all__ = ["AMENDMENT_BYTES_MAX", "Stock"]

# "Maximum message header size 64 KB": as much for what settlements add to a message's properties.
AMENDMENT_BYTES_MAX: Final = 64 * 1024

# Looked at for every message, and a member of an enum is slow to look up.
_MAIN: Final = SubQueue.MAIN


class Stock:
    __slots__ = ("_expiry", "_number", "description", "locks", "sessions", "shelves")

    def __init__(self, number: PartitionNumber, description: QueueDescription, expiry: ExpiryWatch) -> None:
        self._number = number
        self.description = description
        """Replaced when the entity is updated."""
        self.shelves = {subqueue: Shelf() for subqueue in SubQueue}
        self.sessions = (
            Sessions(number, description.path, exact_keys=description.exact_keys)
            if description.requires_session
            else None
        )
        """Of the entity's own messages; its sub-queues have none."""
        if self.sessions is not None:
            self.shelves[SubQueue.MAIN] = Shelf(self.sessions)
        self.locks = LockTable(number)
        self._expiry = expiry

    def __iter__(self) -> Iterator[Message]:
        yield from self.locks
        if self.sessions is not None:
            yield from self.sessions.on_loan()
        for shelf in self.shelves.values():
            yield from shelf

    @property
    def size_bytes(self) -> int:
        """What counts towards the quota: every message of every sub-queue, every session's state."""
        return sum(shelf.size_bytes for shelf in self.shelves.values())

    def restore(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.shelves[message.subqueue].size_bytes += message.size
        self.put_back(messages, Changes())

    def count_shelved(self, arriving: Iterable[Message], subqueue: SubQueue) -> int:
        """Of messages that the intake has counted as the main sub-queue's, move this sub-queue's share."""
        shelved = [message for message in arriving if message.subqueue is subqueue]
        size_bytes = sum(message.size for message in shelved)
        self.shelves[SubQueue.MAIN].size_bytes -= size_bytes
        self.shelves[subqueue].size_bytes += size_bytes
        return len(shelved)

    def arrive(self, messages: list[Message], changes: Changes) -> None:
        """Take in messages that have just become durable, newer than all that are here."""
        self.shelves[SubQueue.MAIN].available.extend(messages)
        changes.offer(SubQueue.MAIN)
        if self.sessions is not None:
            self._tell_holders(self.sessions, messages, changes)

    @staticmethod
    def _tell_holders(sessions: Sessions, messages: list[Message], changes: Changes) -> None:
        ready = sessions.held_among(messages)
        if ready:
            changes.sessions.ready |= ready

    def available(self, subqueue: SubQueue) -> int:
        """How many messages could be locked, or how many sessions that have some."""
        if self.sessions is not None and subqueue is SubQueue.MAIN:
            return self.sessions.offered
        return len(self.shelves[subqueue].available)

    # -- handing out --------------------------------------------------------------

    def grant(self, messages: Sequence[Message], entropy: bytes, at: Instant) -> None:
        """Messages just taken are on loan from now on."""
        self.locks.grant(messages, entropy, self.lock_end(at))

    def grant_in_session(self, session: Session, messages: Sequence[Message], entropy: bytes) -> None:
        assert self.sessions is not None, "there is no session without"
        self.sessions.grant(session, messages, entropy)

    def lock_end(self, at: Instant) -> Instant:
        return Instant(at + int(self.description.lock_duration_s * 1000))

    def take(self, count: int, subqueue: SubQueue, at: Instant, changes: Changes) -> list[Message]:
        """Up to `count` of the oldest available ones (P-26), none of them expired."""
        available = self.shelves[subqueue].available
        if subqueue is SubQueue.MAIN:
            return self.take_alive(available, count, at, changes)
        # Time to live is not observed among the dead letters.
        return available.take(count)

    def take_alive(self, waiting: Waiting, count: int, at: Instant, changes: Changes) -> list[Message]:
        messages = waiting.take(count)
        if self._expiry.may_have_expired(at):
            messages, expired = split_expired(messages, at)
            while expired:
                self.expire(expired, changes)
                alive, expired = split_expired(waiting.take(count - len(messages)), at)
                messages += alive
        return messages

    def take_these(
        self, numbers: Sequence[SequenceNumber], subqueue: SubQueue, at: Instant, changes: Changes
    ) -> list[Message]:
        """Those of these that are available, oldest first, none of them expired."""
        available = self.shelves[subqueue].available
        assert isinstance(available, Run), "messages of a session are for its holder"
        messages = available.take_these(numbers)
        if subqueue is SubQueue.MAIN and self._expiry.may_have_expired(at):
            messages, expired = split_expired(messages, at)
            if expired:
                self.expire(expired, changes)
        return messages

    def take_older(
        self, count: int, enqueued_before: Instant, subqueue: SubQueue, at: Instant, changes: Changes
    ) -> list[Message]:
        """Up to `count` of the oldest available ones that were enqueued before then."""
        taken = self.take(count, subqueue, at, changes)
        younger = [message for message in taken if message.enqueued_at >= enqueued_before]
        if younger:
            self.shelves[subqueue].put(MessageState.ACTIVE, younger)
        return [message for message in taken if message.enqueued_at < enqueued_before]

    def take_older_in_session(
        self, wanted: OneSession, count: int, enqueued_before: Instant, subqueue: SubQueue
    ) -> list[Message]:
        """The same of one session's messages."""
        available = self.shelves[subqueue].available
        concerned = (
            message
            for message in available
            if message.enqueued_at < enqueued_before and wanted.includes(message.session_id)
        )
        taken = list(islice(concerned, max(0, count)))
        for message in taken:
            available.remove(message)
        return taken

    def drop_expired(self, waiting: Waiting, at: Instant, changes: Changes) -> None:
        """Expire what waits here and is due to."""
        if self._expiry.may_have_expired(at):
            alive, expired = split_expired(waiting, at)
            if expired:
                waiting.replace(alive)
                self.expire(expired, changes)

    def take_deferred(
        self, numbers: Sequence[SequenceNumber], subqueue: SubQueue, session: Session | None = None
    ) -> list[Message]:
        """All of them, in the order asked, or none; with a session, only from among its own.

        A lock that has run out but not yet been ended still counts, since ending
        it here and then refusing would be a change that no effect tells of.
        """
        deferred = self.shelves[subqueue].deferred
        found = {number: deferred.find(number) for number in numbers}
        missing = [
            number
            for number, message in found.items()
            if message is None or (session is not None and not self._is_of(session, message))
        ]
        if missing:
            listed = ", ".join(map(str, missing))
            raise MessageNotFound(
                f"Not deferred, or locked, in partition {self._number} of '{self.description.path}': "
                f"{listed}."
            )
        messages = [message for message in found.values() if message is not None]
        for message in messages:
            deferred.remove(message)
        return messages

    def _is_of(self, session: Session, message: Message) -> bool:
        assert self.sessions is not None, "there is no session without"
        return self.sessions.key_of(message) == session.key

    def one_session(self, session_id: SessionId) -> OneSession:
        return OneSession(session_id, exact=self.description.exact_keys)

    def on_loan(self, subqueue: SubQueue) -> list[Message]:
        messages = [message for message in self.locks if message.subqueue is subqueue]
        if self.sessions is not None and subqueue is SubQueue.MAIN:
            messages += self.sessions.on_loan()
        return messages

    def locked(self, token: LockToken) -> Message | None:
        """The message held under this token, though its time may be up."""
        message = self.locks.find(token)
        if message is None and self.sessions is not None:
            message = self.sessions.lent(token)
        return message

    # -- taking back --------------------------------------------------------------

    def unlock(
        self, tokens: Sequence[LockToken], at: Instant, changes: Changes
    ) -> tuple[list[Message], list[LockToken]]:
        """The messages held under these tokens, and the tokens that are lost."""
        self.end_locks(at, changes)
        messages, lost = self.locks.release(tokens)
        if lost and self.sessions is not None:
            in_sessions, lost = self.sessions.release(lost)
            messages += in_sessions
        return messages, lost

    def renew(self, tokens: Sequence[LockToken], at: Instant) -> list[Instant | None]:
        """The new end of each lock; of a message in a session the end it has, which is the session's."""
        ends = self.locks.renew(tokens, self.lock_end(at))
        if self.sessions is not None:
            for place, token in enumerate(tokens):
                message = self.sessions.lent(token)
                if message is not None:
                    ends[place] = message.locked_until
        return ends

    def end_locks(self, at: Instant, changes: Changes) -> None:
        """A lock that runs out is a failed delivery, just as an abandoned one."""
        ended = self.locks.expire(at)
        if ended:
            self.fail_delivery(ended, changes)
        if self.sessions is not None:
            for session in self.sessions.overdue(at):
                assert session.lock is not None
                changes.sessions.lost.append(session.lock)
                self.free_session(session, changes, failed=True)

    def move_lock_ends(self, by_ms: int) -> None:
        """The clock was set back by this much."""
        self.locks.move_ends(by_ms)
        if self.sessions is not None:
            self.sessions.move_ends(by_ms)

    def free_session(self, session: Session, changes: Changes, *, failed: bool) -> None:
        """The session has no holder any more; what it had is given back, as a failed delivery or as none."""
        assert self.sessions is not None, "there is no session without"
        messages = self.sessions.free(session)
        if failed:
            self.fail_delivery(messages, changes)
        else:
            self.put_back(messages, changes)
        self.sessions.forget_idle(session)
        if session.waiting:
            changes.offer(SubQueue.MAIN)

    def fail_delivery(self, messages: list[Message], changes: Changes) -> None:
        """Count the failure; back to the shelf, or to the dead letters when it was the last attempt."""
        limit = self.description.max_delivery_count
        for message in messages:
            if message.subqueue is not SubQueue.MAIN:
                # A dead letter keeps the count that it came with.
                continue
            message.delivery_count += 1
            if message.delivery_count >= limit:
                self._mark_dead_letter(message, delivery_count_exceeded(message.delivery_count))
        changes.update(messages)
        self.put_back(messages, changes)

    def defer(self, messages: list[Message], changes: Changes) -> None:
        """Set aside. That was a delivery, so it is counted, but never one too many."""
        for message in messages:
            message.state = MessageState.DEFERRED
            if message.subqueue is SubQueue.MAIN:
                message.delivery_count += 1
        changes.update(messages)
        self.put_back(messages, changes)

    def put_back(self, messages: Iterable[Message], changes: Changes) -> None:
        """Unlocked again: each goes where its sub-queue and state say."""
        groups: dict[tuple[SubQueue, MessageState], list[Message]] = {}
        for message in messages:
            LockTable.forget(message)
            groups.setdefault((message.subqueue, message.state), []).append(message)
        for (subqueue, state), group in groups.items():
            self.shelves[subqueue].put(state, group)
            if state is MessageState.ACTIVE:
                changes.offer(subqueue, group)
            # Deferred messages outlive their time, and dead letters have none.
            if state is MessageState.ACTIVE and subqueue is SubQueue.MAIN:
                self._expiry.expect_all(group)
                if self.sessions is not None:
                    self._tell_holders(self.sessions, group, changes)

    def refuse_lost(self, tokens: Sequence[LockToken], at: Instant) -> None:
        """For those who settle all of these or none."""
        for token in tokens:
            message = self.locked(token)
            if message is None or message.locked_until <= at:
                raise MessageLockLost(
                    "The lock supplied is invalid. Either the lock expired, or the message has already been "
                    f"removed from the queue '{self.description.path}'."
                )

    # -- amending -----------------------------------------------------------------

    def refuse_large_amendments(self, tokens: Sequence[LockToken], properties: bytes | None) -> None:
        """A message may be deferred any number of times; what is said about it must not grow as often."""
        if not properties:
            return
        for token in tokens:
            message = self.locked(token)
            said = 0 if message is None or message.amendment is None else message.amendment.size
            if said + len(properties) > AMENDMENT_BYTES_MAX:
                raise ArgumentError(
                    f"The properties set while settling a message of '{self.description.path}' have "
                    f"{said + len(properties)} bytes together; at most {AMENDMENT_BYTES_MAX} are kept."
                )

    @staticmethod
    def amend(messages: list[Message], properties: bytes | None) -> None:
        if properties:
            for message in messages:
                message.amendment = (message.amendment or Amendment()).with_properties(properties)

    # -- leaving ------------------------------------------------------------------

    def remove(self, messages: list[Message], changes: Changes) -> None:
        own_bytes = 0
        for message in messages:
            if message.subqueue is _MAIN:
                own_bytes += message.size
            else:
                self.shelves[message.subqueue].size_bytes -= message.size
        self.shelves[_MAIN].size_bytes -= own_bytes
        changes.removed += messages

    def refuse_dead_letters(self, tokens: Sequence[LockToken], at: Instant) -> None:
        """Dead letters cannot be dead-lettered again; asked before anything changes."""
        for token in tokens:
            message = self.locked(token)
            if message and message.subqueue is not SubQueue.MAIN and message.locked_until > at:
                raise InvalidOperation(
                    f"Message {message.sequence_number} of '{self.description.path}' is in the dead-letter "
                    "queue already."
                )

    def dead_letter(self, messages: list[Message], cause: Cause, changes: Changes) -> None:
        for message in messages:
            self._mark_dead_letter(message, cause)
        changes.update(messages)
        self.put_back(messages, changes)

    def _mark_dead_letter(self, message: Message, cause: Cause) -> None:
        self.move(message, SubQueue.DEAD_LETTER)
        mark(message, cause)

    def move(self, message: Message, subqueue: SubQueue) -> None:
        """Let a message that is on no shelf belong to another sub-queue; `put_back` puts it there."""
        self.shelves[message.subqueue].size_bytes -= message.size
        message.subqueue = subqueue
        self.shelves[subqueue].size_bytes += message.size

    def expire(self, messages: list[Message], changes: Changes) -> None:
        if self.description.dead_letter_on_expiry:
            self.dead_letter(messages, TTL_EXPIRED, changes)
        else:
            self.remove(messages, changes)

    def sweep(self, at: Instant, arriving: Iterable[Message], changes: Changes) -> None:
        """Expire what waits in the main sub-queue; deferred and locked messages are left alone.

        `arriving` are those that will be here as soon as they are durable: they expire in their turn.
        """
        if at < self._expiry.next_sweep:
            return
        available = self.shelves[SubQueue.MAIN].available
        alive, expired = split_expired(available, at)
        if expired:
            available.replace(alive)
            self.expire(expired, changes)
        self._expiry.swept(at, chain(alive, arriving))
