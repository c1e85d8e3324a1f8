"""The stock: all durable messages of a partition, on a shelf or locked.

A locked message is in the lock table (locks.py) or with its session (session_locks.py). Every other message
is on the shelf that its sub-queue and state name (shelf.py). Messages move between them through the methods
here, in handlers/ and in outbox.py; schedule.py moves scheduled ones. How messages get here: intake.py.
What each command does: handlers/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from bendybus.domain.changes import Changes
from bendybus.domain.deadletter import TTL_EXPIRED, Cause, delivery_count_exceeded, mark
from bendybus.domain.entities import QueueDescription
from bendybus.domain.expiry import ExpiryWatch, split_expired
from bendybus.domain.locks import LockTable, lock_ended
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.resting import Resting
from bendybus.domain.session_commands import SessionLock
from bendybus.domain.session_locks import SessionLocks
from bendybus.domain.sessions import Session, Sessions
from bendybus.domain.shelf import Shelf, Waiting
from bendybus.domain.tally import Tally
from bendybus.names import Instant, LockToken, PartitionNumber, SessionId, SessionKey

__all__ = ["Stock"]

# Compared for every message. Looking up a member of an enum is slow.
_MAIN: Final = SubQueue.MAIN


class Stock:
    __slots__ = (
        *("_counted", "_expiry", "description", "locks", "number", "resting", "session_locks", "shelves"),
        "tally",
    )

    def __init__(
        self, number: PartitionNumber, description: QueueDescription, expiry: ExpiryWatch, tally: Tally
    ) -> None:
        self.number = number
        self.description = description
        """Replaced when the entity is updated."""
        self.shelves = {subqueue: Shelf() for subqueue in SubQueue}
        self.session_locks: SessionLocks | None = None
        """The session locks, if the entity requires sessions. Its sub-queues have no sessions."""
        if description.requires_session:
            sessions = Sessions(exact_keys=description.exact_keys)
            self.session_locks = SessionLocks(number, description.path, sessions)
            self.shelves[SubQueue.MAIN] = Shelf(sessions)
        self._counted = [shelf for each, shelf in self.shelves.items() if each is not SubQueue.COMPLETED]
        """The shelves that count towards the quota."""
        self.locks = LockTable(number)
        self.resting = Resting()
        """What was abandoned with a delay."""
        self._expiry = expiry
        self.tally = tally

    def __iter__(self) -> Iterator[Message]:
        yield from self.locks
        if self.session_locks is not None:
            yield from self.session_locks.locked_messages()
        yield from self.resting
        for shelf in self.shelves.values():
            yield from shelf

    @property
    def size_bytes(self) -> int:
        """What counts towards the quota: the messages of all sub-queues except those that were completed, and
        the states of sessions."""
        return sum([shelf.size_bytes for shelf in self._counted])

    def restore(
        self, messages: Iterable[Message], sessions: Iterable[tuple[SessionId, int, Instant]]
    ) -> None:
        for message in messages:
            self.shelves[message.subqueue].size_bytes += message.size
        self.put_back(messages, Changes())
        if self.session_locks is not None:
            for session_id, size, updated_at in sessions:
                self.session_locks.sessions.restore(session_id, size, updated_at)
                self.shelves[SubQueue.MAIN].size_bytes += size

    def arrive(self, messages: list[Message], changes: Changes) -> None:
        """Add messages that have just become durable. They are newer than all that are here."""
        changes.offer(_MAIN)
        if self.session_locks is None:
            self.shelves[_MAIN].available.extend(messages)
        else:
            _tell_holders(self.session_locks.arrive(messages), changes)

    def available(self, subqueue: SubQueue) -> int:
        """How many messages can be locked; with sessions, how many sessions with messages can be."""
        if self.session_locks is not None and subqueue is SubQueue.MAIN:
            return self.session_locks.sessions.offered
        return len(self.shelves[subqueue].available)

    # -- handing out --------------------------------------------------------------

    def grant(self, messages: Sequence[Message], entropy: bytes, at: Instant) -> None:
        """Lock messages that were just taken from a shelf."""
        self.locks.grant(messages, entropy, self.lock_end(at))

    @property
    def earliest_lock_end(self) -> Instant:
        """No lock of a message or a session ends before this."""
        end = min(self.locks.earliest_end, self.resting.earliest_end)
        return end if self.session_locks is None else min(end, self.session_locks.earliest_end)

    def lock_end(self, at: Instant) -> Instant:
        return Instant(at + int(self.description.lock_duration_s * 1000))

    def take(self, count: int, subqueue: SubQueue, at: Instant, changes: Changes) -> list[Message]:
        """Up to `count` of the oldest available messages that have not expired (P-26)."""
        available = self.shelves[subqueue].available
        if subqueue is _MAIN:
            return self.take_alive(available, count, at, changes)
        # Dead letters do not expire.
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

    def expire_among(self, messages: list[Message], at: Instant, changes: Changes) -> list[Message]:
        """Of messages that were just taken from a shelf, those that have not expired. Expires the others."""
        if self._expiry.may_have_expired(at):
            messages, expired = split_expired(messages, at)
            if expired:
                self.expire(expired, changes)
        return messages

    def drop_expired(self, waiting: Waiting, at: Instant, changes: Changes) -> None:
        """Expire the waiting messages whose time to live is over."""
        if self._expiry.may_have_expired(at):
            alive, expired = split_expired(waiting, at)
            if expired:
                waiting.replace(alive)
                self.expire(expired, changes)

    def locked_messages(self, subqueue: SubQueue) -> list[Message]:
        messages = [message for message in self.locks if message.subqueue is subqueue]
        if self.session_locks is not None and subqueue is SubQueue.MAIN:
            messages += self.session_locks.locked_messages()
        if subqueue is SubQueue.MAIN:
            messages += self.resting
        return messages

    def locked(self, token: LockToken) -> Message | None:
        """The message that is locked under this token. The lock may have expired."""
        message = self.locks.find(token)
        if message is None and self.session_locks is not None:
            message = self.session_locks.find(token)
        return message

    def held_among(self, tokens: Sequence[LockToken], at: Instant) -> set[LockToken]:
        """Those of these tokens under which a message is locked, and whose locks have not expired."""
        held = self.locks.held_among(tokens, at)
        if self.session_locks is not None:
            found = ((token, self.session_locks.find(token)) for token in tokens)
            held |= {token for token, message in found if message is not None and message.locked_until > at}
        return held

    # -- taking back --------------------------------------------------------------

    def unlock(
        self, tokens: Sequence[LockToken], at: Instant, changes: Changes
    ) -> tuple[list[Message], list[LockToken]]:
        """The messages that were locked under these tokens, and the tokens whose locks are lost."""
        self.end_locks(at, changes)
        messages, lost = self.locks.release(tokens)
        if lost and self.session_locks is not None:
            in_sessions, lost = self.session_locks.release(lost)
            messages += in_sessions
        return messages, lost

    def end_locks(self, at: Instant, changes: Changes) -> None:
        """End the locks that have expired. Each counts as a failed delivery, like an abandoned message."""
        if at >= self.locks.earliest_end:
            ended = self.locks.expire(at)
            if ended:
                self.tally.lost_locks += len(ended)
                self.fail_delivery(ended, changes)
        if self.session_locks is not None:
            for session in self.session_locks.overdue(at):
                assert session.lock is not None
                changes.sessions.lost.append(session.lock)
                self.free_session(session, changes, failed=True)
        if at >= self.resting.earliest_end:
            self._end_rests(at, changes)

    def _end_rests(self, at: Instant, changes: Changes) -> None:
        """Hand out again what has rested long enough."""
        due = self.resting.due(at)
        self.put_back([each for each in due if isinstance(each, Message)], changes)
        for session in due:
            if isinstance(session, Session) and self.session_locks is not None:
                if not self.session_locks.end_rest(session, at):
                    continue
                if session.lock is not None:
                    changes.sessions.ready[session.key] = session.lock
                elif session.waiting:
                    changes.offer(SubQueue.MAIN)

    def move_lock_ends(self, by_ms: int) -> None:
        """The clock was set back by this much."""
        self.locks.move_ends(by_ms)
        self.resting.move_ends(by_ms)
        if self.session_locks is not None:
            self.session_locks.move_ends(by_ms)

    def free_session(self, session: Session, changes: Changes, *, failed: bool) -> None:
        """End the lock of a session. Its locked messages go back; if `failed`, as failed deliveries."""
        assert self.session_locks is not None, "the entity has sessions"
        messages = self.session_locks.free(session)
        if failed:
            self.tally.lost_locks += len(messages)
            self.fail_delivery(messages, changes)
        else:
            self.put_back(messages, changes)
        self.session_locks.sessions.forget_idle(session)
        if session.waiting:
            changes.offer(SubQueue.MAIN)

    def fail_delivery(
        self,
        messages: list[Message],
        changes: Changes,
        rest: Callable[[Message], Instant | None] | None = None,
    ) -> None:
        """Count a failed delivery. The message goes back, or is dead-lettered after the last attempt.

        `rest` says until when a message rests before it is handed out again; None for not at all.
        """
        limit = self.description.max_delivery_count
        for message in messages:
            if message.subqueue is not SubQueue.MAIN:
                # A dead letter keeps its delivery count.
                continue
            message.delivery_count += 1
            if message.delivery_count >= limit:
                self._mark_dead_letter(message, delivery_count_exceeded(message.delivery_count))
        changes.update(messages)
        if rest is not None:
            messages = [message for message in messages if not self._rests(message, rest(message))]
        self.put_back(messages, changes)

    def _rests(self, message: Message, until: Instant | None) -> bool:
        """Let a message rest outside of its shelf. In a session, the session rests instead."""
        if until is None or message.subqueue is not _MAIN:
            return False
        if self.session_locks is None:
            lock_ended(message)
            self.resting.add(message, until)
            return True
        assert message.session_id is not None, "messages without a session are refused"
        session = self.session_locks.sessions.find_or_make(message.session_id)
        until = max(until, session.rests_until)
        self.session_locks.rest(session, until)
        self.resting.add(session, until)
        return False

    def put_back(self, messages: Iterable[Message], changes: Changes) -> None:
        """Put unlocked messages on the shelves of their sub-queues and states."""
        groups: dict[tuple[SubQueue, MessageState], list[Message]] = {}
        for message in messages:
            lock_ended(message)
            groups.setdefault((message.subqueue, message.state), []).append(message)
        for (subqueue, state), group in groups.items():
            self.shelves[subqueue].put(state, group)
            if state is MessageState.ACTIVE:
                changes.offer(subqueue, group)
            # Deferred messages and dead letters do not expire.
            if state is MessageState.ACTIVE and subqueue is SubQueue.MAIN:
                self._expiry.expect_all(group)
                if self.session_locks is not None:
                    _tell_holders(self.session_locks.held_among(group), changes)

    # -- leaving ------------------------------------------------------------------

    def remove(self, messages: list[Message], changes: Changes) -> None:
        sizes = [message.size for message in messages if message.subqueue is _MAIN]
        self.shelves[_MAIN].size_bytes -= sum(sizes)
        if len(sizes) < len(messages):
            for message in messages:
                if message.subqueue is not _MAIN:
                    self.shelves[message.subqueue].size_bytes -= message.size
        changes.removed += messages

    def dead_letter(self, messages: list[Message], cause: Cause, changes: Changes) -> None:
        for message in messages:
            self._mark_dead_letter(message, cause)
        changes.update(messages)
        self.put_back(messages, changes)

    def _mark_dead_letter(self, message: Message, cause: Cause) -> None:
        self.tally.dead_lettered += 1
        self.move(message, SubQueue.DEAD_LETTER)
        mark(message, cause)

    def move(self, message: Message, subqueue: SubQueue) -> None:
        """Assign a message that is on no shelf to another sub-queue. `put_back` then puts it on the shelf."""
        self.shelves[message.subqueue].size_bytes -= message.size
        message.subqueue = subqueue
        self.shelves[subqueue].size_bytes += message.size

    def expire(self, messages: list[Message], changes: Changes) -> None:
        self.tally.expired += len(messages)
        if self.description.dead_letter_on_expiry:
            self.dead_letter(messages, TTL_EXPIRED, changes)
        else:
            self.remove(messages, changes)

    def sweep(self, at: Instant, arriving: Iterable[Message], changes: Changes) -> None:
        """Expire available messages of the main sub-queue. Deferred and locked messages do not expire here.

        `arriving`: messages that are not durable yet. They expire later.
        """
        if at < self._expiry.next_sweep:
            return
        available = self.shelves[SubQueue.MAIN].available
        alive, expired = split_expired(available, at)
        if expired:
            available.replace(alive)
            self.expire(expired, changes)
        self._expiry.swept(at, chain(alive, arriving))


def _tell_holders(ready: dict[SessionKey, SessionLock], changes: Changes) -> None:
    if ready:
        changes.sessions.ready |= ready
