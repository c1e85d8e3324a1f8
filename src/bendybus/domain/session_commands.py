"""Commands of session receivers, and the replies.

A receiver that has accepted a session names its lock in all further commands. Once that lock is lost, they
raise `SessionLockLost` and change nothing; only `ReleaseSession` raises no error. All other commands:
commands.py. What a session is: sessions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bendybus.domain.messages import Message
from bendybus.names import Instant, LockToken, SessionId, SessionKey

__all__ = [
    "AcceptSession",
    "FindSessionState",
    "GivenInSessions",
    "ListSessions",
    "LockInSession",
    "LockInSessions",
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
    """The right to a session's messages and state. The token distinguishes one holder from the next."""

    session_id: SessionId
    """In the spelling of the holder, or else of the session's first message."""
    token: LockToken = field(repr=False)
    key: SessionKey
    handover: LockToken | None = field(default=None, repr=False)
    """A receiver that presents this token takes the session over. None if the lock is exclusive."""


@dataclass(slots=True)
class AcceptSession:
    """Lock this session. With None, lock the session with messages that has waited longest.

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
class LockInSessions:
    """`LockInSession` for several sessions: each with its lock and how many messages. `entropy`: for all.

    A session whose lock is lost is given nothing, and raises no error.
    """

    wanted: Sequence[tuple[SessionLock, int]]
    entropy: bytes


@dataclass(slots=True)
class RenewSession:
    """Restart the lock duration for the session and its locked messages."""

    lock: SessionLock


@dataclass(slots=True)
class ReleaseSession:
    """Release the session. Its locked messages go back without counting. No error if the lock is lost."""

    lock: SessionLock


@dataclass(slots=True)
class SetSessionState:
    """Store this state for the session; None deletes the state."""

    lock: SessionLock
    state: bytes | None


@dataclass(slots=True)
class FindSessionState:
    """Ask whether the session has a state. Only the store has its content."""

    lock: SessionLock


@dataclass(slots=True)
class ListSessions:
    """List the sessions with active messages or a state, or those whose state was set after a given time.

    `skip` and `count` select a page. The order is arbitrary but stable.
    """

    updated_after: Instant | None
    skip: int
    count: int


SessionCommand: TypeAlias = (
    AcceptSession
    | LockInSession
    | LockInSessions
    | RenewSession
    | ReleaseSession
    | SetSessionState
    | FindSessionState
    | ListSessions
)


@dataclass(slots=True)
class SessionAccepted:
    """The lock, new or renewed, and its end. None if no free session has messages."""

    lock: SessionLock | None
    locked_until: Instant = _UNSET


@dataclass(slots=True)
class GivenInSessions:
    """The messages handed out in each session, oldest first, and whether it has more that wait."""

    given: list[tuple[SessionLock, list[Message], bool]]


@dataclass(slots=True)
class SessionStateFound:
    """The size of the state, or None if there is none; and the id under which the store has it."""

    size: int | None
    session_id: SessionId


@dataclass(slots=True)
class SessionsListed:
    """`matching`: the number of all matching sessions, including those not on this page."""

    session_ids: list[SessionId]
    matching: int


SessionReply: TypeAlias = SessionAccepted | GivenInSessions | SessionStateFound | SessionsListed
