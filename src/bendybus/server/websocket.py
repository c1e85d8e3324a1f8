"""AMQP over WebSocket: makes a WebSocket look like the transport of a TCP connection.

The bytes inside are one stream, and message boundaries mean nothing: an AMQP frame may be
spread over several messages, and a message may hold several frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from bendybus.namespaces import CALLED_HOST

__all__ = ["SUBPROTOCOLS", "WebSocketTransport", "serve_amqp"]

logger = logging.getLogger(__name__)

# Service Bus's own name first, which most SDKs offer; then the standard's, the only one that .NET and go
# offer. The same bytes flow under either.
SUBPROTOCOLS: Final = ("AMQPWSB10", "amqp")

# The longest message sent. Some WebSocket libraries refuse to read more than 32 KB unless told to.
MESSAGE_BYTES_MAX: Final = 32 * 1024

# As for asyncio's sockets: above the high mark the protocol is asked to stop writing.
HIGH_WATER: Final = 64 * 1024

# How long a peer that does not read may delay the end of its connection.
CLOSE_GRACE_S: Final = 5.0

# Close codes [RFC 6455 7.4.1].
NORMAL_CLOSURE: Final = 1000
UNACCEPTABLE_DATA: Final = 1003
INTERNAL_ERROR: Final = 1011


async def serve_amqp(websocket: WebSocket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
    """Accept a WebSocket and run an AMQP protocol over it until either side ends it."""
    offered = websocket.scope["subprotocols"]
    chosen = next((each for each in SUBPROTOCOLS if each in offered), None)
    if chosen is None:
        spoken = " or ".join(SUBPROTOCOLS)
        refusal = {"error": f"this WebSocket speaks the sub-protocol {spoken} and no other"}
        await websocket.send_denial_response(JSONResponse(refusal, status_code=400))
        return
    # Every client checks that its sub-protocol comes back.
    await websocket.accept(subprotocol=chosen)
    protocol = make_protocol()
    await WebSocketTransport(websocket, protocol).run()


class WebSocketTransport(asyncio.Transport):
    """What an AMQP protocol writes to when its peer came through a WebSocket."""

    def __init__(self, websocket: WebSocket, protocol: asyncio.Protocol) -> None:
        headers: dict[bytes, bytes] = dict(websocket.scope.get("headers", ()))
        super().__init__(
            {
                "peername": websocket.scope.get("client"),
                "sockname": websocket.scope.get("server"),
                "websocket": True,
                CALLED_HOST: headers.get(b"host", b"").decode("latin-1"),
            }
        )
        self._websocket = websocket
        self._protocol = protocol
        self._outgoing = bytearray()
        self._something_to_do = asyncio.Event()
        """For the writer: there are bytes to write, or the connection ends."""
        self._reading = asyncio.Event()
        self._reading.set()
        self._closing = False
        self._aborted = asyncio.Event()
        self._peer_left = False
        self._close_code = NORMAL_CLOSURE
        self._writing_paused = False
        self.set_write_buffer_limits()

    async def run(self) -> None:
        """Carry bytes both ways until the peer or the protocol ends the connection."""
        failure: Exception | None = None
        self._protocol.connection_made(self)
        writer = asyncio.create_task(self._write_out())
        reader = asyncio.create_task(self._read_in())
        aborted = asyncio.create_task(self._aborted.wait())
        try:
            await asyncio.wait((reader, writer, aborted), return_when=asyncio.FIRST_COMPLETED)
            if not self._peer_left and not writer.done():
                self.close()
                # What the protocol wrote last, such as its reason for closing, still goes out.
                await asyncio.wait((writer,), timeout=CLOSE_GRACE_S)
        finally:
            self._closing = True
            for task in (reader, writer, aborted):
                task.cancel()
            for ended in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(ended, Exception) and not isinstance(ended, WebSocketDisconnect | OSError):
                    failure = ended
                    logger.error("a connection over WebSocket failed", exc_info=ended)
            self._outgoing.clear()
            self._protocol.connection_lost(failure)

    async def _read_in(self) -> None:
        while not self._closing:
            await self._reading.wait()
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._peer_left = True
                return
            data = message.get("bytes")
            if data is None:
                self._close_code = UNACCEPTABLE_DATA
                return
            # An empty message is legal, and to a protocol empty data would mean the end of the stream.
            if data:
                try:
                    self._protocol.data_received(data)
                except Exception:
                    self._close_code = INTERNAL_ERROR
                    raise

    async def _write_out(self) -> None:
        while True:
            await self._something_to_do.wait()
            while self._outgoing:
                piece = bytes(self._outgoing[:MESSAGE_BYTES_MAX])
                # Returns when the socket below has room: the back-pressure starts here.
                await self._websocket.send_bytes(piece)
                del self._outgoing[: len(piece)]
                self._resume_protocol()
            self._something_to_do.clear()
            if self._closing:
                await self._websocket.close(self._close_code)
                return

    # -- the protocol's side --------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not data:
            return
        self._outgoing += data
        self._something_to_do.set()
        if len(self._outgoing) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """Send what has been written, then end the WebSocket."""
        self._closing = True
        self._something_to_do.set()

    def abort(self) -> None:
        """End the WebSocket, even if the peer does not read; what has not been sent is lost."""
        self._outgoing.clear()
        self._aborted.set()
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_reading(self) -> bool:
        return self._reading.is_set() and not self._closing

    def pause_reading(self) -> None:
        # uvicorn reads the next message from the socket only when this one has been asked for.
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self._high, self._low = high, low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing)

    def can_write_eof(self) -> bool:
        return False

    def _resume_protocol(self) -> None:
        if self._writing_paused and len(self._outgoing) <= self._low:
            self._writing_paused = False
            self._protocol.resume_writing()
