"""Session locks: who holds which session, until when, and which messages are locked in it.

A session has one holder at a time. The messages that its holder receives stay locked as long as the session
is. A lock that is not exclusive has a token with which another receiver may take the session over. Only this
module sets a session's lock. What happens to the messages of a lost session: stock.py. Which messages wait
in a session: sessions.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from bendybus.domain.commands import ENTROPY_PER_LOCK
from bendybus.domain.expiry import NEVER
from bendybus.domain.locks import lock_end_changed, lock_granted, lock_resumed, token_prefix
from bendybus.domain.messages import Message
from bendybus.domain.session_commands import SessionLock
from bendybus.domain.sessions import Session, Sessions
from bendybus.errors import SessionCannotBeLocked, SessionLockLost
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SessionId, SessionKey

__all__ = ["SessionLocks"]

_number: Final = attrgetter("sequence_number")


class SessionLocks:
    """The sessions of one partition that have a holder."""

    __slots__ = ("_by_token", "_earliest_end", "_locked", "_path", "_prefix", "sessions")

    def __init__(self, number: PartitionNumber, path: EntityPath, sessions: Sessions) -> None:
        self.sessions = sessions
        self._path = path
        self._prefix = token_prefix(number)
        self._locked: dict[SessionKey, Session] = {}
        self._by_token: dict[LockToken, Session] = {}
        """The session of each locked message."""
        self._earliest_end = NEVER

    # -- sessions ------------------------------------------------------------------

    @property
    def held(self) -> int:
        """How many sessions have a holder."""
        return len(self._locked)

    @property
    def earliest_end(self) -> Instant:
        """No session is lost before this. It may be too early: a renewal does not move it."""
        return self._earliest_end

    def lock(
        self, session_id: SessionId, entropy: bytes, until: Instant, *, exclusive: bool = True
    ) -> SessionLock:
        """Lock a session, known or new, that has no holder."""
        session = self.sessions.find_or_make(session_id)
        assert session.lock is None, "a lock of this session was ended or the command refused before"
        self.sessions.withdraw(session)
        token = LockToken(self._prefix + entropy[:ENTROPY_PER_LOCK])
        session.lock = SessionLock(session_id, token, session.key, None if exclusive else token)
        session.locked_messages = {}
        self._locked[session.key] = session
        self._end_at(session, until)
        return session.lock

    def resume(
        self,
        session: Session,
        lock: SessionLock,
        until: Instant,
        messages: Sequence[tuple[LockToken, Message]],
    ) -> None:
        """Continue a lock that another broker has granted, and those of the messages in the session."""
        assert session.lock is None, "what another broker had locked is locked once"
        self.sessions.withdraw(session)
        session.lock = lock
        session.locked_messages = dict(messages)
        self._locked[session.key] = session
        self._by_token.update(dict.fromkeys(session.locked_messages, session))
        self._end_at(session, until)
        for token, message in messages:
            lock_resumed(message, token, until)

    def held_sessions(self) -> Iterable[Session]:
        """The sessions that have a holder."""
        return self._locked.values()

    def hand_over(
        self, session: Session, session_id: SessionId, entropy: bytes, until: Instant
    ) -> SessionLock:
        """Pass a session to its next holder, together with the messages that are locked in it."""
        assert session.lock is not None, "only a session that is held can be handed over"
        token = LockToken(self._prefix + entropy[:ENTROPY_PER_LOCK])
        session.lock = SessionLock(session_id, token, session.key, session.lock.handover)
        self.renew(session, until)
        return session.lock

    def renew(self, session: Session, until: Instant) -> None:
        self._end_at(session, until)
        for message in (session.locked_messages or {}).values():
            lock_end_changed(message, until)

    def _end_at(self, session: Session, until: Instant) -> None:
        session.locked_until = until
        self._earliest_end = min(self._earliest_end, until)

    def free(self, session: Session) -> list[Message]:
        """End the lock. Returns the messages that were locked in the session, in order."""
        messages = sorted((session.locked_messages or {}).values(), key=_number)
        for token in session.locked_messages or ():
            del self._by_token[token]
        session.lock, session.locked_messages = None, None
        del self._locked[session.key]
        self.sessions.offer(session)
        return messages

    def overdue(self, at: Instant) -> list[Session]:
        """The sessions whose locks have expired."""
        if at < self._earliest_end:
            return []
        overdue = [session for session in self._locked.values() if session.locked_until <= at]
        ends = (session.locked_until for session in self._locked.values() if session.locked_until > at)
        self._earliest_end = min(ends, default=NEVER)
        return overdue

    def move_ends(self, by_ms: int) -> None:
        """The clock was set back by this much: every lock keeps the time that it has left."""
        for session in self._locked.values():
            self.renew(session, Instant(session.locked_until - by_ms))

    # -- holders -------------------------------------------------------------------

    def refuse_locked(self, session_id: SessionId, at: Instant) -> None:
        session = self._locked.get(self.sessions.key(session_id))
        if session is not None and session.locked_until > at:
            raise SessionCannotBeLocked(
                f"The requested session '{session_id}' cannot be accepted. It may be locked by another "
                f"receiver. Entity: '{self._path}'."
            )

    def refuse_handover(self, session_id: SessionId, handover: LockToken, at: Instant) -> Session:
        """The session that this handover token belongs to, or `SessionCannotBeLocked`."""
        session = self._locked.get(self.sessions.key(session_id))
        lock = None if session is None or session.locked_until <= at else session.lock
        if session is None or lock is None or lock.handover is None or lock.handover != handover:
            raise SessionCannotBeLocked(
                f"The session '{session_id}' of '{self._path}' cannot be taken over: nobody holds it under "
                "the lock token that was presented."
            )
        return session

    def holding(self, lock: SessionLock, at: Instant) -> Session:
        """The session under this lock, or `SessionLockLost`."""
        session = self.find_held(lock)
        if session is None or session.locked_until <= at:
            raise SessionLockLost(
                f"The session lock has expired on the session '{lock.session_id}' of '{self._path}', or was "
                "released. Accept the session again."
            )
        return session

    def find_held(self, lock: SessionLock) -> Session | None:
        """The session under this lock. The lock may have expired."""
        session = self._locked.get(lock.key)
        if session is None or (session.lock is not lock and session.lock != lock):
            return None
        return session

    def rest(self, session: Session, until: Instant) -> None:
        """Hand out nothing of this session before then. It is offered to nobody."""
        session.rests_until = until
        self.sessions.withdraw(session)

    def end_rest(self, session: Session, at: Instant) -> bool:
        """Whether a session whose rest was to end may be handed out now: it may have a new, longer one."""
        if not session.rests_until or session.rests_until > at:
            return False
        session.rests_until = Instant(0)
        self.sessions.offer(session)
        return True

    def arrive(self, messages: Iterable[Message]) -> dict[SessionKey, SessionLock]:
        """Add new messages to their sessions. Returns the locks of the sessions that have a holder."""
        return {
            session.key: session.lock
            for session in self.sessions.arrive(messages)
            if session.lock is not None
        }

    def held_among(self, messages: Iterable[Message]) -> dict[SessionKey, SessionLock]:
        """The locks of the sessions of these messages, for sessions that have a holder."""
        found: dict[SessionKey, SessionLock] = {}
        if self._locked:
            for key in dict.fromkeys(map(self.sessions.key_of, messages)):
                session = self._locked.get(key)
                if session is not None and session.lock is not None:
                    found[key] = session.lock
        return found

    # -- messages ------------------------------------------------------------------

    def grant(self, session: Session, messages: Sequence[Message], entropy: bytes, start: int = 0) -> None:
        """Lock each message under a new token, for as long as the session is locked.

        `start`: where in `entropy` its part for these messages begins.
        """
        assert session.locked_messages is not None, "only a holder is given messages"
        if len(messages) == 1:
            # Often a thousand sessions have one message each.
            assert len(entropy) >= start + ENTROPY_PER_LOCK, "too little entropy for this lock"
            token = LockToken(self._prefix + entropy[start : start + ENTROPY_PER_LOCK])
            lock_resumed(messages[0], token, session.locked_until)
            session.locked_messages[token] = messages[0]
            self._by_token[token] = session
            return
        if start:
            entropy = entropy[start:]
        tokens = lock_granted(messages, self._prefix, entropy, session.locked_until)
        session.locked_messages.update(zip(tokens, messages, strict=True))
        self._by_token.update(dict.fromkeys(tokens, session))

    def locked_messages(self) -> Iterator[Message]:
        for session in self._locked.values():
            yield from (session.locked_messages or {}).values()

    def find(self, token: LockToken) -> Message | None:
        """The message that is locked under this token."""
        session = self._by_token.get(token)
        return None if session is None or session.locked_messages is None else session.locked_messages[token]

    def release(self, tokens: Sequence[LockToken]) -> tuple[list[Message], list[LockToken]]:
        """End the locks of these messages. Returns the messages, and the tokens without a lock."""
        released: list[Message] = []
        lost: list[LockToken] = []
        for token in tokens:
            session = self._by_token.pop(token, None)
            if session is None or session.locked_messages is None:
                lost.append(token)
            else:
                released.append(session.locked_messages.pop(token))
        return released, lost
