"""A peer that knows AMQP's frames and none of its manners: it sends what a test wants, when it wants.

Unlike the client of fix_client.py it keeps no state: what the server answers is
read frame by frame, and nothing is answered in turn.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from typing import Self, TypeVar

from bendybus.amqp.frames import (
    AMQP_HEADER,
    PROTOCOL_HEADER,
    SASL,
    SASL_HEADER,
    Frame,
    FrameSplitter,
    decode_performative,
    encode_frame,
)
from bendybus.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Error,
    Flow,
    Open,
    Performative,
    SaslInit,
    Source,
    Target,
)
from bendybus.engine.sasl import plain_response
from fix_client import ANSWER_TIMEOUT_S, Endpoint

__all__ = ["BEGIN", "Stranger", "from_node", "to_node"]

Kind = TypeVar("Kind")

BEGIN = Begin(next_outgoing_id=0, incoming_window=5000, outgoing_window=5000)


def to_node(address: str, handle: int = 0, name: str | None = None) -> Attach:
    """A link on which the stranger sends."""
    return Attach(
        name=name or f"to-{address}-{handle}",
        handle=handle,
        role=SENDER,
        source=Source(address="stranger"),
        target=Target(address=address),
        initial_delivery_count=0,
    )


def from_node(address: str, handle: int = 0, name: str | None = None) -> Attach:
    """A link on which the stranger receives."""
    return Attach(
        name=name or f"from-{address}-{handle}",
        handle=handle,
        role=RECEIVER,
        source=Source(address=address),
        target=Target(address="stranger"),
    )


class Stranger:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._splitter = FrameSplitter(1 << 20)
        self._frames: deque[Frame] = deque()

    @classmethod
    async def call(cls, endpoint: Endpoint, local_address: str | None = None) -> Self:
        """Connected, and nothing said."""
        local = None if local_address is None else (local_address, 0)
        return cls(*await asyncio.open_connection(endpoint.host, endpoint.port, local_addr=local))

    @classmethod
    async def call_with_small_buffers(cls, endpoint: Endpoint, size: int) -> Self:
        """Connected through a socket that holds little more than `size` bytes in either direction."""
        # Set before it is connected: the kernel then leaves them as they are.
        calling = socket.socket()
        calling.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        calling.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        calling.setblocking(False)
        await asyncio.get_running_loop().sock_connect(calling, (endpoint.host, endpoint.port))
        return cls(*await asyncio.open_connection(sock=calling))

    @classmethod
    async def open(cls, endpoint: Endpoint, *, max_frame_size: int = 1 << 20) -> Self:
        """Logged in with the root key and opened."""
        stranger = await cls.call(endpoint)
        init = SaslInit("PLAIN", plain_response(endpoint.key_name, endpoint.key), endpoint.host)
        stranger.write(SASL_HEADER + encode_frame(0, init, frame_type=SASL) + AMQP_HEADER)
        stranger.send(0, Open(container_id="stranger", hostname=endpoint.host, max_frame_size=max_frame_size))
        await stranger.expect(Open)
        return stranger

    @classmethod
    async def begin(cls, endpoint: Endpoint) -> Self:
        """Opened, with a session on channel 0."""
        stranger = await cls.open(endpoint)
        stranger.send(0, BEGIN)
        await stranger.expect(Begin)
        return stranger

    @classmethod
    async def attach(cls, endpoint: Endpoint, attach: Attach) -> Self:
        """With one link on channel 0; if it sends, with credit."""
        stranger = await cls.begin(endpoint)
        stranger.send(0, attach)
        await stranger.expect(Attach)
        if attach.role is SENDER:
            await stranger.expect(Flow)
        return stranger

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()

    # -- speaking ----------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        self.write(encode_frame(channel, performative, payload))

    async def drain(self) -> None:
        """Wait while the server takes no more; a server that hung up takes no more either."""
        with suppress(OSError):
            await self.writer.drain()

    # -- listening ---------------------------------------------------------------------

    async def next(self) -> Performative | None:
        """The server's next performative; None when it has hung up."""
        while True:
            while self._frames:
                frame_type, _, buffer, start, end = self._frames.popleft()
                if frame_type != PROTOCOL_HEADER and start != end:
                    return decode_performative(buffer, start, end)[0]
            data = await self.read()
            if not data:
                return None
            self._frames += self._splitter.feed(data)

    async def read(self) -> bytes:
        """Some bytes; none when the server has hung up, however abruptly."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            try:
                return await self.reader.read(1 << 16)
            except ConnectionError:
                return b""

    async def expect(self, kind: type[Kind]) -> Kind:
        """The server's next performative of this kind; what comes before it is passed over."""
        while (performative := await self.next()) is not None:
            if isinstance(performative, kind):
                return performative
        raise AssertionError(f"the server hung up without {kind.__name__}")

    async def farewell(self) -> Error | None:
        """Wait until the server hangs up; the reason that it gave, if it said one."""
        error = None
        while (performative := await self.next()) is not None:
            if isinstance(performative, Close):
                error = performative.error
        return error

    async def hung_up(self) -> bytes:
        """Everything the server still says until it hangs up, as it stands."""
        said = b""
        while data := await self.read():
            said += data
        return said
