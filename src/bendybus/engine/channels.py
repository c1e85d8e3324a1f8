"""Channels: which session is at which number, on our side and on the peer's; its frames go there.

Both sides choose their own numbers. Limits: our channel-max, the peer's, and the number of
sessions that the peer may have at a time. What happens inside a channel: session.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bendybus.amqp.conditions import FRAMING_ERROR, ILLEGAL_STATE, NOT_ALLOWED, RESOURCE_LIMIT_EXCEEDED
from bendybus.amqp.frames import (
    DISPOSITION_CODE,
    TRANSFER_CODE,
    Frame,
    decode_disposition,
    decode_performative,
    decode_transfer,
    performative_code,
)
from bendybus.amqp.performatives import Begin, Close, Detach, End, Open, Performative
from bendybus.amqp.transfer_run import TransferRun
from bendybus.engine.session import Session
from bendybus.engine.work import BYTES_PER_WORK, PERFORMATIVE_WORK
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
        # How many sessions the peer may have. The application may lower it for a while.
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
        """Both sides have ended it: its numbers are free."""
        del self._by_channel[session.channel]
        if session.remote_channel is not None:
            del self.by_remote_channel[session.remote_channel]

    def drop(self) -> None:
        """The connection is gone, and every session with it."""
        for session in self._by_channel.values():
            session.drop()

    # -- frames ------------------------------------------------------------------------

    def receive_run(self, run: TransferRun) -> bool:
        """Takes a series of transfers on one link. False: nothing was taken, and they come frame by frame."""
        session = self.by_remote_channel.get(run.channel)
        return session is not None and session.receive_run(run)

    def receive(self, frame: Frame) -> None:
        """A frame of an open connection."""
        _, channel, buffer, start, end = frame
        if start == end:
            return  # a heartbeat
        code = performative_code(buffer, start)
        session = self.by_remote_channel.get(channel)
        if session is None or not TRANSFER_CODE <= code <= DISPOSITION_CODE:
            self._connection.frame_bytes = end - start
            self._connection.work += PERFORMATIVE_WORK + (end - start) // BYTES_PER_WORK
            self._receive_performative(channel, session, decode_performative(buffer, start, end)[0])
            return
        try:
            if code == TRANSFER_CODE:
                transfer = decode_transfer(buffer, start, end)
                self._connection.frame_bytes = transfer[9] - start
                self._connection.work += self._connection.frame_bytes // BYTES_PER_WORK
                if not session.discards():
                    session.receive_transfer(transfer, buffer, end)
            else:
                self._connection.work += (end - start) // BYTES_PER_WORK
                disposition = decode_disposition(buffer, start, end)
                if not session.discards():
                    session.receive_disposition(disposition)
        except ProtocolError as error:
            if error.scope == "connection":
                raise
            session.fail(error)

    def _receive_performative(
        self, channel: int, session: Session | None, performative: Performative
    ) -> None:
        match performative:
            case Close():
                self._connection.receive_close(performative)
            case Begin():
                self.receive_begin(channel, performative)
            case Open():
                self._connection.receive_open(performative)
            case Detach() if session is None:
                # The Python SDK ends its session first and then detaches its links: nothing is left to do.
                pass
            case _ if session is None:
                raise ProtocolError(
                    NOT_ALLOWED, f"{type(performative).__name__} on channel {channel}, where no session is"
                )
            case End():
                session.receive_end(performative)
            case _:
                try:
                    session.receive(performative)
                except ProtocolError as error:
                    if error.scope == "connection":
                        raise
                    session.fail(error)

    # -- inside ------------------------------------------------------------------------

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

    def _free_channel(self, preferred: int) -> int:
        """The number that the peer uses, if it is free: that makes dumps easier to read."""
        taken = self._by_channel
        channel = (
            preferred if preferred not in taken else next(n for n in range(len(taken) + 1) if n not in taken)
        )
        remote = self._connection.remote
        assert remote is not None, "sessions begin on an open connection"
        if channel > (CHANNEL_MAX_DEFAULT if remote.channel_max is None else remote.channel_max):
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED, f"a session on channel {channel} is beyond the peer's channel-max"
            )
        return channel
