"""The handshake: everything before the open frame. Protocol headers, and the SASL layer between them.

A client may send frames before it knows the outcome of SASL. They are kept and read when
the application has decided. The SASL exchange itself: sasl.py. Open and close: connection.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bendybus.amqp.conditions import ILLEGAL_STATE, NOT_IMPLEMENTED, RESOURCE_LIMIT_EXCEEDED
from bendybus.amqp.frames import (
    AMQP_HEADER,
    PROTOCOL_HEADER,
    SASL_HEADER,
    Frame,
    decode_performative,
)
from bendybus.engine.sasl import SASL_FRAME_SIZE_MAX, SaslClient, SaslServer
from bendybus.engine.states import ConnectionInput, ConnectionState, SaslState
from bendybus.errors import ProtocolError

if TYPE_CHECKING:
    from bendybus.engine.connection import Connection

__all__ = ["Handshake"]

# Frames that a client may send while the application checks its credentials.
HELD_FRAMES_MAX: Final = 64


class Handshake:
    """One connection's. `listen` makes it a server's, `start` a client's."""

    __slots__ = ("_connection", "_held", "_sasl")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # None before the start, and after the AMQP header.
        self._sasl: SaslServer | SaslClient | None = None
        self._held: list[Frame] = []

    def listen(self) -> None:
        """Server: waits for the client's first header."""
        connection = self._connection
        self._sasl = SaslServer(connection.config, connection.output)
        connection.splitter.max_frame_size = min(connection.config.max_frame_size, SASL_FRAME_SIZE_MAX)

    def start(self) -> None:
        """Client: sends the first header."""
        connection = self._connection
        if connection.config.sasl_mechanism is None:
            self._start_amqp()
        else:
            self._sasl = sasl = SaslClient(connection.config, connection.output)
            sasl.start()

    @property
    def awaits_outcome(self) -> bool:
        """Whether the application still has to decide about the client's credentials."""
        return self._sasl is not None and self._sasl.state is SaslState.INIT_RECEIVED

    def receive(self, frame: Frame) -> None:
        """A protocol header, a SASL frame, or any frame while the outcome of SASL is open."""
        frame_type, _, buffer, start, end = frame
        sasl = self._sasl
        if self.awaits_outcome:
            self._hold(frame)
        elif frame_type == PROTOCOL_HEADER:
            self._receive_header(buffer[start:end])
        elif sasl is None:
            raise ProtocolError(ILLEGAL_STATE, "a SASL frame after AMQP has started")
        else:
            event = sasl.receive(decode_performative(buffer, start, end)[0])
            if event is not None:
                self._connection.events.add(event)
            elif isinstance(sasl, SaslClient) and sasl.state is SaslState.DONE:
                self._start_amqp()

    def decide(self, *, ok: bool) -> list[Frame]:
        """Server: sends the outcome, and returns the frames that the client sent before it."""
        assert isinstance(self._sasl, SaslServer), "only a server decides"
        self._sasl.decide(ok=ok)
        held, self._held = self._held, []
        return held

    def drop(self) -> None:
        """The connection has ended."""
        self._held.clear()

    def _hold(self, frame: Frame) -> None:
        if len(self._held) == HELD_FRAMES_MAX:
            raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, "too much was sent before the outcome of SASL")
        frame_type, channel, buffer, start, end = frame
        self._held.append((frame_type, channel, buffer[start:end], 0, end - start))

    def _receive_header(self, header: bytes) -> None:
        connection, sasl = self._connection, self._sasl
        if header == SASL_HEADER and sasl is not None:
            sasl.receive_header()
            return
        sasl_first = sasl is not None and sasl.state is not SaslState.DONE
        if sasl is not None and sasl.state is SaslState.START and not connection.config.require_sasl:
            sasl_first = False
        if header != AMQP_HEADER or sasl_first:
            # "it MUST send a protocol header with a supported protocol id and close" [AMQP 2.2]
            wanted = SASL_HEADER if sasl_first else AMQP_HEADER
            if connection.state is ConnectionState.START and isinstance(sasl, SaslServer):
                connection.output.append(wanted)
            raise ProtocolError(
                NOT_IMPLEMENTED, f"protocol header {header.hex(' ')} came where {wanted.hex(' ')} is due"
            )
        connection.advance(ConnectionInput.RECV_HEADER)
        self._sasl = None
        connection.splitter.max_frame_size = connection.config.max_frame_size
        if connection.state is ConnectionState.HEADER_RECEIVED:
            connection.output.append(AMQP_HEADER)
            connection.advance(ConnectionInput.SEND_HEADER)

    def _start_amqp(self) -> None:
        """Client: sends the header and the open together, without waiting for answers."""
        self._connection.output.append(AMQP_HEADER)
        self._connection.advance(ConnectionInput.SEND_HEADER)
        self._connection.send_open()
