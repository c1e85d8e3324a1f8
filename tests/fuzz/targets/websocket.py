"""WebSockets: frames of a peer after its upgrade, up to the bytes that AMQP gets (`server/websocket*.py`)."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from wsproto.connection import Connection, ConnectionType

from bendybus.server.websocket import serve_amqp
from fuzz.still_loop import answers_to
from fuzz.target import Target

UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
HANG_UP = b"\xff"


class Echo(asyncio.Protocol):
    """In the place of AMQP: sends back what comes, and hangs up at a byte that says so."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        assert data
        assert isinstance(self._transport, asyncio.Transport)
        self._transport.write(data)
        if data.startswith(HANG_UP):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        assert exc is None, exc


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await serve_amqp(WebSocket(scope, receive, send), Echo)


def check(data: bytes) -> None:
    _check_answers(answers_to(app, data, upgrade=UPGRADE))


def _check_answers(written: bytes) -> None:
    """What the peer reads is a WebSocket's."""
    head, _, frames = written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    peer = Connection(ConnectionType.CLIENT)
    peer.receive_data(frames)
    list(peer.events())


TARGET = Target(
    name="websocket",
    parses="WebSocket frames, up to the bytes that AMQP gets",
    check=check,
    may_raise=(),
    share=6,
    words=(
        *(b"\x82\x80\0\0\0\0", b"\x82\x81\0\0\0\0x", b"\x02\x81\0\0\0\0x", b"\x80\x81\0\0\0\0x"),
        *(b"\x89\x80\0\0\0\0", b"\x88\x82\0\0\0\0\x03\xe8", b"\x82\xfe\x00\x80\0\0\0\0"),
        *(b"\x81\x81\0\0\0\0x", HANG_UP),
    ),
)
