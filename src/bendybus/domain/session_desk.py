"""The session desk: what is asked of a partition about sessions, and by their holders.

A command under a lock that is lost raises before anything changes. Here is what
each command does; how sessions are kept: sessions.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from bendybus.domain.changes import Changes
from bendybus.domain.commands import ENTROPY_PER_LOCK, Done, Given, Reply
from bendybus.domain.effects import SaveSessionState
from bendybus.domain.intake import Intake
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import (
    AcceptSession,
    FindSessionState,
    ListSessions,
    LockInSession,
    ReleaseSession,
    RenewSession,
    SessionAccepted,
    SessionCommand,
    SessionLock,
    SessionsListed,
    SessionStateFound,
    SetSessionState,
)
from bendybus.domain.sessions import Session, Sessions
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation, MessageSizeExceeded
from bendybus.names import Instant, LockToken, SessionId

__all__ = ["SessionDesk"]


class SessionDesk:
    __slots__ = ("_intake", "_sessions", "_stock")

    def __init__(self, sessions: Sessions, stock: Stock, intake: Intake) -> None:
        self._sessions = sessions
        self._stock = stock
        self._intake = intake

    def restore(self, states: Iterable[tuple[SessionId, int, Instant]]) -> None:
        for session_id, size, updated_at in states:
            self._sessions.restore(session_id, size, updated_at)
            self._stock.shelves[SubQueue.MAIN].size_bytes += size

    def refuse_sessionless(self, messages: Iterable[Message]) -> None:
        if any(message.session_id is None and message.subqueue is SubQueue.MAIN for message in messages):
            raise InvalidOperation(
                f"The SessionId was not set on a message to '{self._stock.description.path}', which requires "
                "sessions and takes only messages that have one."
            )

    def holding(self, lock: SessionLock, at: Instant) -> Session:
        """The session that deferred messages are asked of."""
        return self._sessions.holding(lock, at)

    def fitting(self, lock: SessionLock, count: int, size_max: int) -> int:
        """How many of the oldest `count` in this session have `size_max` bytes; one at least, if any."""
        session = self._sessions.find_held(lock)
        return 0 if session is None else session.waiting.fitting(count, size_max)

    def perform(self, command: SessionCommand, at: Instant, changes: Changes) -> Reply:
        match command:
            case AcceptSession():
                return self._accept(command, at, changes)
            case LockInSession(lock=lock, count=count, entropy=entropy):
                return self._lock_messages(lock, count, entropy, at, changes)
            case RenewSession(lock=lock):
                session = self._sessions.holding(lock, at)
                self._sessions.renew(session, self._stock.lock_end(at))
                return SessionAccepted(lock, session.locked_until)
            case ReleaseSession(lock=lock):
                return self._release(lock, at, changes)
            case SetSessionState(lock=lock, state=state):
                return self._set_state(lock, state, at, changes)
            case FindSessionState(lock=lock):
                session = self._sessions.holding(lock, at)
                return SessionStateFound(session.state_size, session.id)
            case ListSessions(updated_after=updated_after, skip=skip, count=count):
                return SessionsListed(*self._sessions.listed(updated_after, skip, count))

    def _accept(self, command: AcceptSession, at: Instant, changes: Changes) -> SessionAccepted:
        assert len(command.entropy) >= ENTROPY_PER_LOCK, "too little entropy for a lock"
        session_id = command.session_id
        if session_id is not None and command.handover is not None:
            return self._take_over(session_id, command.handover, command.entropy, at, changes)
        if session_id is not None:
            self._sessions.refuse_locked(session_id, at)
        self._stock.end_locks(at, changes)
        if session_id is None:
            session_id = self._next(at, changes)
        if session_id is None:
            return SessionAccepted(None)
        until = self._stock.lock_end(at)
        lock = self._sessions.lock(session_id, command.entropy, until, exclusive=command.exclusive)
        return SessionAccepted(lock, until)

    def _take_over(
        self, session_id: SessionId, handover: LockToken, entropy: bytes, at: Instant, changes: Changes
    ) -> SessionAccepted:
        session = self._sessions.refuse_handover(session_id, handover, at)
        assert session.lock is not None
        changes.sessions.lost.append(session.lock)
        until = self._stock.lock_end(at)
        return SessionAccepted(self._sessions.hand_over(session, session_id, entropy, until), until)

    def _next(self, at: Instant, changes: Changes) -> SessionId | None:
        """The session that has waited longest and has a message that has not expired."""
        while (session := self._sessions.next_offered()) is not None:
            self._stock.drop_expired(session.waiting, at, changes)
            if session.waiting:
                return session.id
            self._sessions.forget_idle(session)
        return None

    def _lock_messages(
        self, lock: SessionLock, count: int, entropy: bytes, at: Instant, changes: Changes
    ) -> Given:
        session = self._sessions.holding(lock, at)
        self._stock.end_locks(at, changes)
        messages = self._stock.take_alive(session.waiting, count, at, changes)
        self._sessions.grant(session, messages, entropy)
        return Given(messages)

    def _release(self, lock: SessionLock, at: Instant, changes: Changes) -> Done:
        # If its time is up it is lost, even when nobody has noticed yet: that counts.
        self._stock.end_locks(at, changes)
        session = self._sessions.find_held(lock)
        if session is not None:
            self._stock.free_session(session, changes, failed=False)
        return Done()

    def _set_state(self, lock: SessionLock, state: bytes | None, at: Instant, changes: Changes) -> Done:
        session = self._sessions.holding(lock, at)
        shelf = self._stock.shelves[SubQueue.MAIN]
        size = 0 if state is None else len(state)
        before = session.state_size or 0
        if more := self.check_state(lock, state, at):
            self._intake.refuse_beyond_quota(self._stock.size_bytes, more)
        shelf.size_bytes += size - before
        session.state_size = None if state is None else size
        session.updated_at = at
        changes.sessions.saved = SaveSessionState(session.id, state, at)
        return Done()

    def check_state(self, lock: SessionLock, state: bytes | None, at: Instant) -> int:
        """How many bytes more a state would take; raises what stands against it."""
        session = self._sessions.holding(lock, at)
        size = 0 if state is None else len(state)
        self._refuse_large_state(size)
        return max(0, size - (session.state_size or 0))

    def _refuse_large_state(self, size: int) -> None:
        description = self._stock.description
        limit = description.max_message_size_kb * 1024
        if size > limit:
            raise MessageSizeExceeded(
                f"The session state has {size} bytes; '{description.path}' keeps at most {limit}, as much as "
                "in a message."
            )
