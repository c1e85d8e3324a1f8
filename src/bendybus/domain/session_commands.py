"""What may be asked of a partition whose messages come in sessions, and what it answers.

A receiver that has accepted a session names its lock in all further commands. Once that lock is lost, they
raise `SessionLockLost` and change nothing; only `ReleaseSession` raises no error. All other commands:
commands.py. What a session is: sessions.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bendybus.names import Instant, LockToken, SessionId, SessionKey

__all__ = [
    "AcceptSession",
    "FindSessionState",
    "ListSessions",
    "LockInSession",
    "ReleaseSession",
    "RenewSession",
    "SessionAccepted",
    "SessionCommand",
    "SessionLock",
    "SessionReply",
    "SessionStateFound",
    "SessionsListed",
    "SetSessionState",
]

_UNSET: Final = Instant(0)


@dataclass(frozen=True, slots=True)
class SessionLock:
    """The right to a session's messages and state. The token tells one holder from the next."""

    session_id: SessionId
    """As the holder wrote it, else as the session's first message had it."""
    token: LockToken = field(repr=False)
    key: SessionKey
    handover: LockToken | None = field(default=None, repr=False)
    """Whoever presents this takes the session over from its holder; None if the lock is exclusive."""


@dataclass(slots=True)
class AcceptSession:
    """Lock this session, or with None the one among those with messages that has waited longest.

    `entropy`: 14 bytes for the lock. With `handover` the session is taken over from its holder, together with
    the messages that are locked in it.
    """

    session_id: SessionId | None
    entropy: bytes
    exclusive: bool = True
    handover: LockToken | None = None


@dataclass(slots=True)
class LockInSession:
    """Peek-lock up to `count` of the session's oldest available messages (`entropy`: 14 bytes for each).

    They stay locked as long as the session is.
    """

    lock: SessionLock
    count: int
    entropy: bytes


@dataclass(slots=True)
class RenewSession:
    """Start the lock duration anew, for the session and its locked messages."""

    lock: SessionLock


@dataclass(slots=True)
class ReleaseSession:
    """Done with the session; its locked messages are given back uncounted. No error if the lock is lost."""

    lock: SessionLock


@dataclass(slots=True)
class SetSessionState:
    """Remember this for the session; None to forget what was remembered."""

    lock: SessionLock
    state: bytes | None


@dataclass(slots=True)
class FindSessionState:
    """Whether something is remembered; what it is, only the store knows."""

    lock: SessionLock


@dataclass(slots=True)
class ListSessions:
    """The sessions with active messages or a state, or those whose state was set after a given time.

    `skip` and `count` page through them, in an order that is arbitrary but stays.
    """

    updated_after: Instant | None
    skip: int
    count: int


SessionCommand: TypeAlias = (
    AcceptSession
    | LockInSession
    | RenewSession
    | ReleaseSession
    | SetSessionState
    | FindSessionState
    | ListSessions
)


@dataclass(frozen=True, slots=True)
class SessionAccepted:
    """The lock, new or renewed, and its end; None when no session is free that has messages."""

    lock: SessionLock | None
    locked_until: Instant = _UNSET


@dataclass(frozen=True, slots=True)
class SessionStateFound:
    """The size of the state, None when there is none; and the id under which the store has it."""

    size: int | None
    session_id: SessionId


@dataclass(frozen=True, slots=True)
class SessionsListed:
    """`matching`: how many there are in all, the skipped ones and those left off included."""

    session_ids: list[SessionId]
    matching: int


SessionReply: TypeAlias = SessionAccepted | SessionStateFound | SessionsListed
