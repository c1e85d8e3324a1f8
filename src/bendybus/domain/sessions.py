"""Sessions: a partition's available messages, each in the run of its session.

On an entity that requires sessions, this replaces the one run that other entities have (run.py).
Sessions are found by their keys, so case is ignored in their ids (session_ids.py). A session is kept
while it has messages, a state or a holder. The holder of each session: session_locks.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain, islice
from operator import attrgetter
from typing import Final

from bendybus.domain.messages import Message
from bendybus.domain.run import Run
from bendybus.domain.session_commands import SessionLock
from bendybus.names import Instant, LockToken, SequenceNumber, SessionId, SessionKey
from bendybus.session_ids import OneSession, session_key

__all__ = ["Session", "Sessions"]

_number: Final = attrgetter("sequence_number")
_UNSET: Final = Instant(0)

# Of each session that is offered, `first_offered` returns at most this many messages.
MESSAGES_NEXT: Final = 8


@dataclass(slots=True, eq=False)
class Session:
    """One session that has messages, a holder or a state. Other sessions are not kept."""

    key: SessionKey
    id: SessionId
    """The first spelling of the id. A store keeps the session's state under this spelling."""
    waiting: Run = field(default_factory=Run)
    """Available messages, oldest first."""
    lock: SessionLock | None = None
    locked_until: Instant = _UNSET
    locked_messages: dict[LockToken, Message] | None = None
    """The messages locked by the holder; None while there is no holder."""
    state_size: int | None = None
    """The size of the session state. The state itself is in the store."""
    updated_at: Instant = _UNSET
    """When the state was last set."""
    rests_until: Instant = _UNSET
    """Its messages are not handed out before this; 0 if they are (resting.py)."""

    @property
    def listed(self) -> bool:
        return bool(self.waiting or self.locked_messages or self.state_size is not None)


class Sessions:
    """The sessions of one partition; also the `Waiting` of its main shelf."""

    __slots__ = ("_exact", "_known", "_offered")

    def __init__(self, *, exact_keys: bool) -> None:
        self._exact = exact_keys
        self._known: dict[SessionKey, Session] = {}
        self._offered: OrderedDict[SessionKey, Session] = OrderedDict()
        """Sessions with messages and without a holder. A session that has been served goes to the end."""

    # -- as a shelf's waiting messages ---------------------------------------------

    def __len__(self) -> int:
        return sum(len(session.waiting) for session in self._known.values())

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(session.waiting for session in self._known.values())

    def extend(self, messages: Iterable[Message]) -> None:
        self.arrive(messages)

    def arrive(self, messages: Iterable[Message]) -> Iterable[Session]:
        """Add messages that are newer than all that are here. Returns their sessions."""
        shares = self._by_session(messages)
        for session, share in shares.items():
            session.waiting.extend(share)
            self.offer(session)
        return shares

    def insert(self, messages: Iterable[Message]) -> None:
        for session, share in self._by_session(messages).items():
            session.waiting.insert(share)
            self.offer(session)

    def replace(self, messages: list[Message]) -> None:
        """Keep only these messages of those that were here."""
        left = self._by_session(messages)
        for session in list(self._known.values()):
            session.waiting.replace(left.get(session, []))
            self.forget_idle(session)

    def take(self, count: int) -> list[Message]:
        """The oldest messages of all sessions, whether or not a session has a holder."""
        taken = self.starting_at(SequenceNumber(0), count)
        for message in taken:
            self.remove(message)
        return taken

    def fitting(self, count: int, size_max: int) -> int:
        """Always 0: only its holder locks the messages of a session."""
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

    def discard(self, messages: list[Message]) -> None:
        """Remove these messages, which are here."""
        for session, share in self._by_session(messages).items():
            session.waiting.discard(share)
            self.forget_idle(session)

    def _by_session(self, messages: Iterable[Message]) -> dict[Session, list[Message]]:
        shares: dict[Session, list[Message]] = {}
        for message in messages:
            assert message.session_id is not None, "messages without a session are refused"
            session = self.find_or_make(message.session_id)
            if message.session_id == session.id:
                # Messages with the same spelling of the id share one string.
                message.session_id = session.id
            shares.setdefault(session, []).append(message)
        return shares

    # -- sessions ------------------------------------------------------------------

    def restore(self, session_id: SessionId, state_size: int, updated_at: Instant) -> None:
        session = self.find_or_make(session_id)
        session.id, session.state_size, session.updated_at = session_id, state_size, updated_at

    def key(self, session_id: SessionId) -> SessionKey:
        return session_key(session_id, exact=self._exact)

    def key_of(self, message: Message) -> SessionKey:
        assert message.session_id is not None, "messages without a session are refused"
        return session_key(message.session_id, exact=self._exact)

    def find_or_make(self, session_id: SessionId) -> Session:
        key = session_key(session_id, exact=self._exact)
        session = self._known.get(key)
        if session is None:
            session = self._known[key] = Session(key, session_id)
        return session

    def forget_idle(self, session: Session) -> None:
        """Drop a session that has no messages, no holder and no state.

        Without a message that waits, there is nothing that a later message could overtake: the rest ends.
        """
        if session.waiting:
            return
        session.rests_until = _UNSET
        self._offered.pop(session.key, None)
        if session.lock is None and session.state_size is None:
            self._known.pop(session.key, None)

    def offer(self, session: Session) -> None:
        """Offer this session to receivers, if it has messages and no holder and does not rest."""
        if session.lock is None and session.waiting and not session.rests_until:
            self._offered.setdefault(session.key, session)

    def withdraw(self, session: Session) -> None:
        """Stop offering this session: it has a holder now."""
        self._offered.pop(session.key, None)

    @property
    def offered(self) -> int:
        """How many sessions have messages and no holder."""
        return len(self._offered)

    def next_offered(self) -> Session | None:
        """The session that has waited longest. It stays offered until it is locked."""
        return next(iter(self._offered.values()), None)

    def first_offered(self, count: int) -> list[Message]:
        """Up to `count` of the first messages of the sessions that are offered next."""
        each = min(count, MESSAGES_NEXT)
        runs = (session.waiting.first(each) for session in self._offered.values())
        return list(islice(chain.from_iterable(runs), count))

    def listed(self, updated_after: Instant | None, skip: int, count: int) -> tuple[list[SessionId], int]:
        """A page of the sessions that have messages or a state, and the total number of such sessions."""
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
