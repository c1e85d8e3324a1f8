"""Sessions: a partition's available messages, each in the run of its session, and who holds which.

On an entity that requires sessions this stands where others have one run (run.py).
Sessions are found by their keys, so case does not count in their ids
(session_ids.py). A session has one holder at a time, and the messages handed out inside it are
locked as long as it is. A holder that does not insist on being the only one has a
token by which another may take its place. Everything that sets a session's lock lives here. What
becomes of messages whose session was lost: stock.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from operator import attrgetter
from typing import Final

from bendybus.domain.commands import ENTROPY_PER_LOCK
from bendybus.domain.expiry import NEVER
from bendybus.domain.messages import Message
from bendybus.domain.run import Run
from bendybus.domain.session_commands import SessionLock
from bendybus.errors import SessionCannotBeLocked, SessionLockLost
from bendybus.names import Instant, LockToken, PartitionNumber, SequenceNumber, SessionId, SessionKey
from bendybus.session_ids import OneSession, session_key

__all__ = ["Session", "Sessions"]

_number: Final = attrgetter("sequence_number")
_UNSET: Final = Instant(0)


@dataclass(slots=True, eq=False)
class Session:
    """One session that has messages, a holder or a state; of others nothing is known."""

    key: SessionKey
    id: SessionId
    """In the first spelling that was met, which is also the one under which a store has its state."""
    waiting: Run = field(default_factory=Run)
    """Available messages, oldest first."""
    lock: SessionLock | None = None
    locked_until: Instant = _UNSET
    on_loan: dict[LockToken, Message] | None = None
    """Messages handed out to the holder; None while there is none."""
    state_size: int | None = None
    """Of what is remembered for the session. The bytes are on disk."""
    updated_at: Instant = _UNSET
    """When the state was last set."""

    @property
    def listed(self) -> bool:
        return bool(self.waiting or self.on_loan or self.state_size is not None)


class Sessions:
    """The sessions of one partition; also the `Waiting` of its main shelf."""

    __slots__ = ("_by_token", "_earliest_end", "_exact", "_known", "_locked", "_offered", "_path", "_prefix")

    def __init__(self, number: PartitionNumber, path: str, *, exact_keys: bool) -> None:
        self._path = path
        self._exact = exact_keys
        self._prefix = number.to_bytes(2, "big")
        self._known: dict[SessionKey, Session] = {}
        self._offered: OrderedDict[SessionKey, Session] = OrderedDict()
        """Free and with messages. Who was served goes to the end, so that all get their turn."""
        self._locked: dict[SessionKey, Session] = {}
        self._by_token: dict[LockToken, Session] = {}
        """Where each message is that is out on loan."""
        self._earliest_end = NEVER

    # -- as a shelf's waiting messages ---------------------------------------------

    def __len__(self) -> int:
        return sum(len(session.waiting) for session in self._known.values())

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(session.waiting for session in self._known.values())

    def extend(self, messages: Iterable[Message]) -> None:
        for session, share in self._by_session(messages):
            session.waiting.extend(share)
            self._offer(session)

    def insert(self, messages: Iterable[Message]) -> None:
        for session, share in self._by_session(messages):
            session.waiting.insert(share)
            self._offer(session)

    def replace(self, messages: list[Message]) -> None:
        """Of the messages that were here, these are left."""
        left = dict(self._by_session(messages))
        for session in list(self._known.values()):
            session.waiting.replace(left.get(session, []))
            self.forget_idle(session)

    def take(self, count: int) -> list[Message]:
        """The oldest of all sessions, for nobody in particular: to be deleted."""
        taken = self.starting_at(SequenceNumber(0), count)
        for message in taken:
            self.remove(message)
        return taken

    def fitting(self, count: int, size_max: int) -> int:
        return 0

    def starting_at(self, sequence_number: SequenceNumber, count: int) -> list[Message]:
        runs = (session.waiting.starting_at(sequence_number, count) for session in self._known.values())
        return nsmallest(count, chain.from_iterable(runs), key=_number)

    def in_session(self, wanted: OneSession, start: SequenceNumber) -> Iterator[Message]:
        session = self._known.get(wanted.key)
        return iter(()) if session is None else session.waiting.in_session(wanted, start)

    def find(self, sequence_number: SequenceNumber) -> Message | None:
        runs = (session.waiting.find(sequence_number) for session in self._known.values())
        return next(filter(None, runs), None)

    def remove(self, message: Message) -> None:
        session = self._known[self.key_of(message)]
        session.waiting.remove(message)
        self.forget_idle(session)

    def _by_session(self, messages: Iterable[Message]) -> Iterable[tuple[Session, list[Message]]]:
        shares: dict[Session, list[Message]] = {}
        for message in messages:
            assert message.session_id is not None, "messages without a session are refused"
            session = self._find_or_make(message.session_id)
            if message.session_id == session.id:
                # One copy of the id for all messages of a session, but for those that spell it otherwise.
                message.session_id = session.id
            shares.setdefault(session, []).append(message)
        return shares.items()

    # -- sessions ------------------------------------------------------------------

    def restore(self, session_id: SessionId, state_size: int, updated_at: Instant) -> None:
        session = self._find_or_make(session_id)
        session.id, session.state_size, session.updated_at = session_id, state_size, updated_at

    def _find_or_make(self, session_id: SessionId) -> Session:
        key = session_key(session_id, exact=self._exact)
        session = self._known.get(key)
        if session is None:
            session = self._known[key] = Session(key, session_id)
        return session

    def key_of(self, message: Message) -> SessionKey:
        assert message.session_id is not None, "messages without a session are refused"
        return session_key(message.session_id, exact=self._exact)

    def _offer(self, session: Session) -> None:
        if session.lock is None and session.waiting:
            self._offered.setdefault(session.key, session)

    def forget_idle(self, session: Session) -> None:
        """Of a session that has nothing left, nothing is kept."""
        if session.waiting:
            return
        self._offered.pop(session.key, None)
        if session.lock is None and session.state_size is None:
            self._known.pop(session.key, None)

    @property
    def offered(self) -> int:
        """How many sessions are free and have messages."""
        return len(self._offered)

    def held_among(self, messages: Iterable[Message]) -> dict[SessionLock, None]:
        """The locks of those of these messages' sessions that have a holder."""
        found: dict[SessionLock, None] = {}
        if self._locked:
            for key in dict.fromkeys(map(self.key_of, messages)):
                session = self._locked.get(key)
                if session is not None and session.lock is not None:
                    found[session.lock] = None
        return found

    def listed(self, updated_after: Instant | None, skip: int, count: int) -> tuple[list[SessionId], int]:
        """A page of the sessions that have something to show, and how many they are in all."""
        found = [
            session.id
            for session in self._known.values()
            if (
                session.listed
                if updated_after is None
                else session.state_size is not None and session.updated_at > updated_after
            )
        ]
        return found[skip : skip + count], len(found)

    # -- session locks -------------------------------------------------------------

    @property
    def earliest_end(self) -> Instant:
        """No session is lost before this. Not exact: renewals leave it behind."""
        return self._earliest_end

    def refuse_locked(self, session_id: SessionId, at: Instant) -> None:
        session = self._known.get(session_key(session_id, exact=self._exact))
        if session is not None and session.lock is not None and session.locked_until > at:
            raise SessionCannotBeLocked(
                f"The requested session '{session_id}' cannot be accepted. It may be locked by another "
                f"receiver. Entity: '{self._path}'."
            )

    def next_offered(self) -> Session | None:
        """The session that has waited longest; it stays where it is until it is locked."""
        return next(iter(self._offered.values()), None)

    def lock(
        self, session_id: SessionId, entropy: bytes, until: Instant, *, exclusive: bool = True
    ) -> SessionLock:
        """Give a free session, known or new, to a holder."""
        session = self._find_or_make(session_id)
        assert session.lock is None, "ended or refused before"
        self._offered.pop(session.key, None)
        token = LockToken(self._prefix + entropy[:ENTROPY_PER_LOCK])
        session.lock = SessionLock(session_id, token, session.key, None if exclusive else token)
        session.on_loan = {}
        self._locked[session.key] = session
        self._end_at(session, until)
        return session.lock

    def refuse_handover(self, session_id: SessionId, handover: LockToken, at: Instant) -> Session:
        """The session that this token stands for, or `SessionCannotBeLocked`."""
        session = self._locked.get(session_key(session_id, exact=self._exact))
        lock = None if session is None or session.locked_until <= at else session.lock
        if session is None or lock is None or lock.handover is None or lock.handover != handover:
            raise SessionCannotBeLocked(
                f"The session '{session_id}' of '{self._path}' cannot be taken over: nobody holds it under "
                "the lock token that was presented."
            )
        return session

    def hand_over(
        self, session: Session, session_id: SessionId, entropy: bytes, until: Instant
    ) -> SessionLock:
        """Give a session that is held to the next holder, with the messages that are on loan in it."""
        assert session.lock is not None, "nobody holds it"
        token = LockToken(self._prefix + entropy[:ENTROPY_PER_LOCK])
        session.lock = SessionLock(session_id, token, session.key, session.lock.handover)
        self.renew(session, until)
        return session.lock

    def _end_at(self, session: Session, until: Instant) -> None:
        session.locked_until = until
        self._earliest_end = min(self._earliest_end, until)

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
        """The session under this lock, though its time may be up."""
        session = self._locked.get(lock.key)
        return session if session is not None and session.lock == lock else None

    def renew(self, session: Session, until: Instant) -> None:
        self._end_at(session, until)
        for message in (session.on_loan or {}).values():
            message.locked_until = until

    def free(self, session: Session) -> list[Message]:
        """End the lock; gives the messages that were out on loan, in order."""
        messages = sorted((session.on_loan or {}).values(), key=_number)
        for token in session.on_loan or ():
            del self._by_token[token]
        session.lock, session.on_loan = None, None
        del self._locked[session.key]
        self._offer(session)
        return messages

    def overdue(self, at: Instant) -> list[Session]:
        """The sessions whose time is up."""
        if at < self._earliest_end:
            return []
        overdue = [session for session in self._locked.values() if session.locked_until <= at]
        ends = (session.locked_until for session in self._locked.values() if session.locked_until > at)
        self._earliest_end = min(ends, default=NEVER)
        return overdue

    def move_ends(self, by_ms: int) -> None:
        """The clock was set back by so much: locks last as long as they would have."""
        for session in self._locked.values():
            self.renew(session, Instant(session.locked_until - by_ms))

    # -- messages on loan ----------------------------------------------------------

    def grant(self, session: Session, messages: Sequence[Message], entropy: bytes) -> None:
        """Lock each message under a token of its own, for as long as the session is locked."""
        assert len(entropy) >= ENTROPY_PER_LOCK * len(messages), "too little entropy for these locks"
        assert session.on_loan is not None, "only a holder is given messages"
        for place, message in enumerate(messages):
            start = place * ENTROPY_PER_LOCK
            token = LockToken(self._prefix + entropy[start : start + ENTROPY_PER_LOCK])
            message.lock_token, message.locked_until = token, session.locked_until
            session.on_loan[token] = message
            self._by_token[token] = session

    def on_loan(self) -> Iterator[Message]:
        for session in self._locked.values():
            yield from (session.on_loan or {}).values()

    def lent(self, token: LockToken) -> Message | None:
        """The message on loan under this token."""
        session = self._by_token.get(token)
        return None if session is None or session.on_loan is None else session.on_loan[token]

    def release(self, tokens: Sequence[LockToken]) -> tuple[list[Message], list[LockToken]]:
        """End these messages' locks; gives the messages, and the tokens that hold nothing."""
        released: list[Message] = []
        lost: list[LockToken] = []
        for token in tokens:
            session = self._by_token.pop(token, None)
            if session is None or session.on_loan is None:
                lost.append(token)
            else:
                released.append(session.on_loan.pop(token))
        return released, lost
