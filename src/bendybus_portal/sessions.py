"""Who is signed in. A session lives in a cookie that only this portal can read, so it survives a restart.

The cookie holds the key or token and the time of its end, encrypted and authenticated. The secret for that is
derived from the server's root key: when the root key is replaced, every session ends. Scripts cannot read the
cookie, and nothing in it is shown. What a session has in memory (its jobs) is found again by the cookie's own
number. A token that is too long for a cookie is in memory only: its session ends with the portal's process.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any, Final, Protocol, runtime_checkable

from cryptography.fernet import Fernet, InvalidToken

from bendybus.auth.connection_strings import ConnectionString, local_connection_string
from bendybus.errors import ArgumentError
from bendybus_portal.access import Access, Rights
from bendybus_portal.jobs import Jobs
from bendybus_portal.tokens import facts_of
from bendybus_portal.undo import Undos

__all__ = ["SESSION_LIFE_S", "Session", "Sessions"]

# A working day. After that the key is asked for again.
SESSION_LIFE_S: Final = 12 * 3600.0

# More than this many people at a time are not expected; the oldest sessions are forgotten first.
SESSIONS_MAX: Final = 1000

# Browsers keep no longer ones, name and attributes included.
COOKIE_MAX: Final = 3900

_PURPOSE: Final = b"bendybus portal sessions"


@runtime_checkable
class Releasable(Protocol):
    """What holds messages or a connection: holding.py."""

    def release(self) -> None: ...


@dataclass(slots=True)
class Session:
    number: str
    access: Access
    rights: Rights
    ends_at: float
    """In seconds since 1970."""
    clock: Callable[[], float] = time
    jobs: Jobs = field(default_factory=Jobs)
    undos: Undos = field(default_factory=Undos)
    memory: dict[str, Any] = field(default_factory=dict)
    """What pages of the session keep between visits: histories, held messages."""
    ended: bool = False

    @property
    def alive(self) -> bool:
        return not self.ended and self.clock() < self.ends_at

    def release(self) -> None:
        """Give back what its pages hold on the server. Blocks."""
        for kept in list(self.memory.values()):
            if isinstance(kept, Releasable):
                kept.release()
        self.access.close()

    @property
    def key_name(self) -> str:
        namespace = self.access.namespace
        return facts_of(namespace.signature).name if namespace.signature else namespace.key_name

    @property
    def entity(self) -> str | None:
        """The only entity that the key opens, if the connection string names one."""
        return self.access.namespace.entity


class Sessions:
    def __init__(
        self, target: ConnectionString, certificate: str | None = None, clock: Callable[[], float] = time
    ) -> None:
        """`target` is where all sessions connect to; its key, if it has one, seals the cookies."""
        self.target = target
        self._certificate = certificate
        self._clock = clock
        seed = target.key.encode() if target.key else secrets.token_bytes(32)
        secret = hmac.new(seed, _PURPOSE, hashlib.sha256).digest()
        self._seal = Fernet(base64.urlsafe_b64encode(secret))
        self._known: dict[str, Session] = {}
        self._ended: dict[str, float] = {}
        """Signed out, and when their cookies would have ended."""

    def access(self, key_name: str, key: str, entity: str | None = None, token: str = "") -> Access:
        """The portal's own server with somebody's key, or with a token in its place."""
        target = self.target
        text = local_connection_string(
            target.host, target.port or 0, None if token else key, key_name, tls=target.tls
        )
        if target.port is None:
            text = text.replace(f"{target.host}:0", target.host)
        text += f";EntityPath={entity}" if entity else ""
        return Access(ConnectionString.parse(text, token), self._certificate)

    def begin(self, access: Access, rights: Rights) -> tuple[Session, str]:
        """The session, and the value of its cookie."""
        number = secrets.token_urlsafe(16)
        ends_at = self._clock() + SESSION_LIFE_S
        token = access.namespace.signature
        token_ends_at = facts_of(token).ends_at if token else None
        if token_ends_at is not None:
            ends_at = min(ends_at, token_ends_at)
        session = Session(number, access, rights, ends_at, self._clock)
        self._remember(session)
        content = {
            "number": number,
            "key_name": access.namespace.key_name,
            "key": access.namespace.key,
            "token": token,
            "entity": access.namespace.entity,
            "ends_at": session.ends_at,
        }
        cookie = self._sealed(content)
        if len(cookie) > COOKIE_MAX:
            cookie = self._sealed({"number": number, "ends_at": session.ends_at})
        return session, cookie

    def _sealed(self, content: Mapping[str, object]) -> str:
        return self._seal.encrypt(json.dumps(content).encode()).decode()

    def find(self, cookie: str | None) -> Session | None:
        """The live session of a cookie that has been used before in this process."""
        number = self._opened(cookie).get("number")
        session = None if number is None else self._known.get(str(number))
        return session if session is not None and session.alive else None

    def reopened(self, cookie: str | None) -> tuple[Access, str, float] | None:
        """The session of a cookie from an earlier process; its rights have to be queried again."""
        content = self._opened(cookie)
        if not content:
            return None
        try:
            entity = None if content["entity"] is None else str(content["entity"])
            token = str(content["token"])
            access = self.access(str(content["key_name"]), str(content["key"]), entity, token)
            return access, str(content["number"]), float(str(content["ends_at"]))
        except (KeyError, ValueError, ArgumentError):
            return None

    def resume(self, number: str, access: Access, rights: Rights, ends_at: float) -> Session:
        # Two requests of one page may both find that the session has to be restored.
        known = self._known.get(number)
        if known is not None:
            return known
        session = Session(number, access, rights, ends_at, self._clock)
        self._remember(session)
        return session

    def end(self, session: Session) -> None:
        session.ended = True
        self._known.pop(session.number, None)
        self._ended[session.number] = session.ends_at

    def _remember(self, session: Session) -> None:
        at = self._clock()
        self._ended = {number: ends_at for number, ends_at in self._ended.items() if ends_at > at}
        while len(self._known) >= SESSIONS_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[session.number] = session

    def _opened(self, cookie: str | None) -> dict[str, object]:
        """What is in a cookie of ours that has not ended; empty otherwise."""
        if not cookie or len(cookie) > COOKIE_MAX:
            return {}
        try:
            content = json.loads(self._seal.decrypt(cookie.encode()))
        except (InvalidToken, ValueError):
            return {}
        if not isinstance(content, dict) or float(content.get("ends_at", 0)) <= self._clock():
            return {}
        return {} if content.get("number") in self._ended else content
