"""Channels: which session is at which number, on our side and on the peer's.

Both sides choose their own numbers. Limits: our channel-max, the peer's, and how many
sessions the peer may have at a time. What happens inside a channel: session.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bendybus.amqp.conditions import FRAMING_ERROR, ILLEGAL_STATE, NOT_ALLOWED, RESOURCE_LIMIT_EXCEEDED
from bendybus.amqp.performatives import Begin
from bendybus.engine.session import Session
from bendybus.errors import ProtocolError

if TYPE_CHECKING:
    from bendybus.engine.connection import Connection

__all__ = ["Channels"]

# "If this field is not set, any channel number is supported" [AMQP 2.7.1]
CHANNEL_MAX_DEFAULT: Final = 0xFFFF


class Channels:
    """The sessions of one connection."""

    __slots__ = ("_by_channel", "_connection", "by_remote_channel", "sessions_max")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._by_channel: dict[int, Session] = {}
        # Looked up for every frame.
        self.by_remote_channel: dict[int, Session] = {}
        # How many the peer may have; the application may allow less for a while.
        self.sessions_max = connection.config.channel_max + 1

    @property
    def sessions(self) -> list[Session]:
        return list(self._by_channel.values())

    def begin(self) -> Session:
        """A new session of ours."""
        session = Session(self._connection, self._free_channel(0))
        self._by_channel[session.channel] = session
        return session

    def receive_begin(self, channel: int, begin: Begin) -> None:
        """A new session of the peer's, or its answer to one of ours."""
        channel_max = self._connection.config.channel_max
        if channel > channel_max:
            # "MUST close the connection with the framing-error error-code" [AMQP 2.7.1]
            raise ProtocolError(FRAMING_ERROR, f"channel {channel} is above {channel_max}")
        if channel in self.by_remote_channel:
            raise ProtocolError(ILLEGAL_STATE, f"begin on channel {channel}, which has a session already")
        if begin.remote_channel is None:
            session = self._asked_for(channel)
        else:
            session = self._answered(begin.remote_channel)
        self.by_remote_channel[channel] = session
        session.receive_begin(channel, begin)

    def forget(self, session: Session) -> None:
        """Both sides have ended it; its numbers are free."""
        del self._by_channel[session.channel]
        if session.remote_channel is not None:
            del self.by_remote_channel[session.remote_channel]

    def drop(self) -> None:
        """The connection is gone, and every session with it."""
        for session in self._by_channel.values():
            session.drop()

    def _asked_for(self, channel: int) -> Session:
        if len(self._by_channel) >= self.sessions_max:
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED,
                f"a session on channel {channel} would be one more than the {self.sessions_max} "
                "that this connection may have now",
            )
        session = Session(self._connection, self._free_channel(channel))
        session.remote_channel = channel
        self._by_channel[session.channel] = session
        return session

    def _answered(self, channel: int) -> Session:
        session = self._by_channel.get(channel)
        if session is None or session.remote_channel is not None:
            raise ProtocolError(NOT_ALLOWED, f"begin answers channel {channel}, where nobody asked")
        return session

    def _free_channel(self, wish: int) -> int:
        """The peer's own number for its sessions where we can have it: dumps read more easily."""
        taken = self._by_channel
        channel = wish if wish not in taken else next(n for n in range(len(taken) + 1) if n not in taken)
        remote = self._connection.remote
        assert remote is not None, "sessions begin on an open connection"
        if channel > (CHANNEL_MAX_DEFAULT if remote.channel_max is None else remote.channel_max):
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED, f"a session on channel {channel} is beyond the peer's channel-max"
            )
        return channel
