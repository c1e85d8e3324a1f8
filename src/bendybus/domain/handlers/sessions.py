"""Commands of session receivers: accept a session, receive in it, renew it, set its state, release it.

A command under a lost lock raises `SessionLockLost` before anything changes. How sessions are kept:
sessions.py. Their holders: session_locks.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from bendybus.domain.changes import Changes
from bendybus.domain.commands import ENTROPY_PER_LOCK, Done, Given
from bendybus.domain.effects import SaveSessionState
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.parts import Parts
from bendybus.domain.session_commands import (
    AcceptSession,
    FindSessionState,
    GivenInSessions,
    ListSessions,
    LockInSession,
    LockInSessions,
    ReleaseSession,
    RenewSession,
    SessionAccepted,
    SessionLock,
    SessionsListed,
    SessionStateFound,
    SetSessionState,
)
from bendybus.domain.session_locks import SessionLocks
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation, MessageSizeExceeded
from bendybus.names import Instant, LockToken, SessionId

__all__ = [
    "accept",
    "check_state",
    "find_state",
    "list_sessions",
    "lock_in_sessions",
    "lock_messages",
    "refuse_sessionless",
    "release",
    "renew",
    "set_state",
]


def _locks_of(stock: Stock) -> SessionLocks:
    if stock.session_locks is None:
        raise InvalidOperation(
            "A sessionful message receiver cannot be created on an entity that does not require sessions. "
            f"Entity: '{stock.description.path}'."
        )
    return stock.session_locks


def refuse_sessionless(stock: Stock, messages: Iterable[Message]) -> None:
    if any(message.session_id is None and message.subqueue is SubQueue.MAIN for message in messages):
        raise InvalidOperation(
            f"The SessionId was not set on a message to '{stock.description.path}', which requires sessions "
            "and takes only messages that have one."
        )


# -- accepting --------------------------------------------------------------------


def accept(parts: Parts, command: AcceptSession, at: Instant, changes: Changes) -> SessionAccepted:
    assert len(command.entropy) >= ENTROPY_PER_LOCK, "too little entropy for a lock"
    stock, session_id = parts.stock, command.session_id
    locks = _locks_of(stock)
    if session_id is not None and command.handover is not None:
        return _take_over(stock, session_id, command.handover, command.entropy, at, changes)
    if session_id is not None:
        locks.refuse_locked(session_id, at)
    stock.end_locks(at, changes)
    if session_id is None:
        session_id = _next_session(stock, at, changes)
    if session_id is None:
        return SessionAccepted(None)
    until = stock.lock_end(at)
    lock = locks.lock(session_id, command.entropy, until, exclusive=command.exclusive)
    return SessionAccepted(lock, until)


def _take_over(
    stock: Stock, session_id: SessionId, handover: LockToken, entropy: bytes, at: Instant, changes: Changes
) -> SessionAccepted:
    locks = _locks_of(stock)
    session = locks.refuse_handover(session_id, handover, at)
    assert session.lock is not None
    changes.sessions.lost.append(session.lock)
    until = stock.lock_end(at)
    return SessionAccepted(locks.hand_over(session, session_id, entropy, until), until)


def _next_session(stock: Stock, at: Instant, changes: Changes) -> SessionId | None:
    """The session that has waited longest and has a message that has not expired."""
    sessions = _locks_of(stock).sessions
    while (session := sessions.next_offered()) is not None:
        stock.drop_expired(session.waiting, at, changes)
        if session.waiting:
            return session.id
        sessions.forget_idle(session)
    return None


def renew(parts: Parts, command: RenewSession, at: Instant, changes: Changes) -> SessionAccepted:
    locks = _locks_of(parts.stock)
    session = locks.holding(command.lock, at)
    locks.renew(session, parts.stock.lock_end(at))
    return SessionAccepted(command.lock, session.locked_until)


def release(parts: Parts, command: ReleaseSession, at: Instant, changes: Changes) -> Done:
    locks = _locks_of(parts.stock)
    # An expired lock is lost, even if no other command has ended it yet. That counts as a failed delivery.
    parts.stock.end_locks(at, changes)
    session = locks.find_held(command.lock)
    if session is not None:
        parts.stock.free_session(session, changes, failed=False)
    return Done()


# -- commands of a holder -----------------------------------------------------------


def lock_messages(parts: Parts, command: LockInSession, at: Instant, changes: Changes) -> Given:
    stock = parts.stock
    locks = _locks_of(stock)
    session = locks.holding(command.lock, at)
    stock.end_locks(at, changes)
    if session.rests_until:
        return Given([])
    messages = stock.take_alive(session.waiting, command.count, at, changes)
    locks.grant(session, messages, command.entropy)
    stock.tally.give(messages, at)
    return Given(messages)


def lock_in_sessions(parts: Parts, command: LockInSessions, at: Instant, changes: Changes) -> GivenInSessions:
    stock, entropy = parts.stock, command.entropy
    locks = _locks_of(stock)
    stock.end_locks(at, changes)
    given: list[tuple[SessionLock, list[Message], bool]] = []
    together: list[Message] = []
    for lock, count in command.wanted:
        session = locks.find_held(lock)
        if session is None or session.rests_until:
            continue
        messages = stock.take_alive(session.waiting, count, at, changes)
        if messages:
            locks.grant(session, messages, entropy, len(together) * ENTROPY_PER_LOCK)
            together += messages
        given.append((lock, messages, len(session.waiting) > 0))
    stock.tally.give(together, at)
    return GivenInSessions(given)


def find_state(parts: Parts, command: FindSessionState, at: Instant, changes: Changes) -> SessionStateFound:
    session = _locks_of(parts.stock).holding(command.lock, at)
    return SessionStateFound(session.state_size, session.id)


def set_state(parts: Parts, command: SetSessionState, at: Instant, changes: Changes) -> Done:
    stock, state = parts.stock, command.state
    session = _locks_of(stock).holding(command.lock, at)
    if more := check_state(stock, command.lock, state, at):
        parts.intake.refuse_beyond_quota(stock.size_bytes, more)
    size = None if state is None else len(state)
    stock.shelves[SubQueue.MAIN].size_bytes += (size or 0) - (session.state_size or 0)
    session.state_size = size
    session.updated_at = at
    changes.sessions.saved = SaveSessionState(session.id, state, at)
    return Done()


def check_state(stock: Stock, lock: SessionLock, state: bytes | None, at: Instant) -> int:
    """How many more bytes the partition would hold with this state. Raises if it cannot be set."""
    session = _locks_of(stock).holding(lock, at)
    size = 0 if state is None else len(state)
    limit = stock.description.max_message_bytes
    if size > limit:
        raise MessageSizeExceeded(
            f"The session state has {size} bytes; '{stock.description.path}' keeps at most {limit}, as much "
            "as in a message."
        )
    return max(0, size - (session.state_size or 0))


# -- commands without a lock --------------------------------------------------------


def list_sessions(parts: Parts, command: ListSessions, at: Instant, changes: Changes) -> SessionsListed:
    sessions = _locks_of(parts.stock).sessions
    return SessionsListed(*sessions.listed(command.updated_after, command.skip, command.count))
