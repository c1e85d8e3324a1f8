"""Probation: what a connection may do before its client has proved who it is.

A SASL PLAIN login ends it at once; a token that `$cbs` accepts ends it later. Then the ordinary limits
apply. Until then a client needs little, and is allowed little more. What the SDKs open first:

    Python       one session, with a sender to `$cbs` and a receiver from it
    JavaScript   one session with the same pair; sessions of entities follow when the token is accepted
    .NET         the same
    Go           a session with a pair for every token, one after the other, closed before the next is opened
    Java         the sessions of all entities that the application opens at once; one more with the pair; a
                 link to the coordinator of transactions may come without any token
    our own      one session with the pair
    Qpid JMS     logs in by SASL PLAIN

During probation a link to an entity is refused as unauthorized, which the SDKs understand.
"""

from __future__ import annotations

from typing import Final

from bendybus.amqp.conditions import CONNECTION_FORCED, RESOURCE_LIMIT_EXCEEDED
from bendybus.engine.connection import Connection
from bendybus.engine.work import PERFORMATIVE_WORK
from bendybus.errors import ProtocolError

__all__ = ["Probation"]

# Azure gives about 20 s; an SDK may first have to fetch the token from an identity provider.
TOKEN_TIMEOUT_S: Final = 30.0

# Only Java needs more than one: a session for each entity. An empty session takes about 2 KB.
SESSIONS_MAX: Final = 256

# The pair at `$cbs`, a coordinator, and refused links whose detach the client has yet to answer.
LINKS_MAX: Final = 16

# A client sends about ten frames until its token is accepted, and one more for each session. A client whose
# tokens are refused knows that long before. Counted in frames that are not transfers.
WORK_MAX: Final = 1_000 * PERFORMATIVE_WORK
# From here on the client is slowed down.
SLOW_WORK: Final = 250 * PERFORMATIVE_WORK


class Probation:
    """The probation of one connection. Raises the error with which the connection or link is closed."""

    __slots__ = ("_began_at", "_engine", "_work", "over")

    def __init__(self, engine: Connection, began_at: float) -> None:
        self._engine = engine
        self._began_at = began_at
        self._work = 0
        self.over = False
        engine.channels.sessions_max = SESSIONS_MAX
        engine.links_max = LINKS_MAX

    def end(self) -> None:
        """The client has proved who it is."""
        self.over = True
        self._engine.channels.sessions_max = self._engine.config.channel_max + 1
        self._engine.links_max = self._engine.config.links_max

    @property
    def slowed(self) -> bool:
        return self._work > SLOW_WORK

    def charge(self, work: int) -> None:
        """Count work. Any input counts as one frame at least."""
        if self.over:
            return
        self._work += max(work, PERFORMATIVE_WORK)
        if self._work > WORK_MAX:
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED,
                f"The connection has sent more than {WORK_MAX // PERFORMATIVE_WORK} frames "
                "without a token that is accepted.",
            )

    def check_time(self, at: float) -> None:
        if not self.over and at - self._began_at > TOKEN_TIMEOUT_S:
            raise ProtocolError(
                CONNECTION_FORCED, f"No token was accepted within {TOKEN_TIMEOUT_S:g} seconds of connecting."
            )
