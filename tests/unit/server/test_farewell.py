"""The server's last word reaches a peer that is still sending, and costs the server little."""

from __future__ import annotations

import asyncio
import socket

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bendybus.server.farewell import LINGER_BYTES_MAX
from bendybus.server.http import Health, http_app
from bendybus.server.http_protocol import HttpHost

HEADER = b"AMQP\x03\x01\x00\x00"

# One read of an event loop takes 256 KB at the most: this much is unread when the connection is closed.
READ_BYTES_MAX = 256 * 1024
UNREAD = b"x" * 100_000


class Leaves(asyncio.Protocol):
    """Says a word and closes as soon as it hears something."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.heard_after_close = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self.heard_after_close += len(data)
            return
        self.transport.write(b"farewell")
        self.transport.close()
        assert self.transport.is_closing()
        # As with any transport: nothing is written after the close, and it may be closed twice.
        self.transport.write(b"not this")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Peer:
    """A socket without a transport, which would hide when it is reset."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * READ_BYTES_MAX)
        self.socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._port = port

    async def __aenter__(self) -> Peer:
        await self._loop.sock_connect(self.socket, ("127.0.0.1", self._port))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.socket.close()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def read_all(self) -> bytes:
        """Until the end; raises `ConnectionResetError` where there is none."""
        said = b""
        while data := await self._loop.sock_recv(self.socket, 65_536):
            said += data
        return said


async def test_a_peer_that_is_still_sending_reads_the_farewell_and_an_end_and_no_reset(run_listener) -> None:
    async with run_listener(amqp=Leaves) as running, Peer(running.port) as peer:
        await peer.send(HEADER + b"x" * READ_BYTES_MAX + UNREAD)
        assert await peer.read_all() == b"farewell"
        # It may still send; what comes late is thrown away.
        await peer.send(b"late")
        await asyncio.sleep(0)
        await peer.send(b"later")


async def test_the_protocol_hears_nothing_after_its_close_and_is_told_of_the_end(run_listener) -> None:
    made = []

    def factory() -> Leaves:
        made.append(Leaves())
        return made[-1]

    async with run_listener(amqp=factory) as running, Peer(running.port) as peer:
        await peer.send(HEADER + UNREAD)
        assert await peer.read_all() == b"farewell"
        assert running.listener.open_connections == 1, "it counts as long as it is there"
        await peer.send(b"late")
        peer.socket.close()
        (protocol,) = made
        await protocol.lost
        assert protocol.heard_after_close == 0


@pytest.mark.parametrize("secured", [False, True])
async def test_a_peer_that_does_not_leave_is_closed_after_the_time_to_linger(
    run_listener, client_tls, secured
) -> None:
    made = []

    def factory() -> Leaves:
        made.append(Leaves())
        return made[-1]

    async with run_listener(amqp=factory, linger_s=0.05) as running:
        reader, writer = await running.call(client_tls if secured else None)
        writer.write(HEADER)
        assert await reader.readexactly(8) == b"farewell"
        await made[0].lost


async def test_a_peer_that_floods_after_the_farewell_is_cut_off_at_once(run_listener) -> None:
    async with run_listener(amqp=Leaves, linger_s=3600) as running, Peer(running.port) as peer:
        await peer.send(HEADER)
        sent = 0
        with pytest.raises(ConnectionError):
            while True:
                await peer.send(UNREAD)
                sent += len(UNREAD)
        # What was thrown away, one read, and what the sockets hold.
        assert sent < LINGER_BYTES_MAX + READ_BYTES_MAX + 16 * 1024 * 1024


async def test_a_version_of_amqp_that_is_not_spoken_is_told_which_one_is(run_listener) -> None:
    async with run_listener() as running, Peer(running.port) as peer:
        await peer.send(b"AMQP\x00\x00\x09\x01" + b"x" * READ_BYTES_MAX + UNREAD)
        assert await peer.read_all() == HEADER


# -- HTTP --------------------------------------------------------------------------------------


async def _refuse(request) -> PlainTextResponse:
    return PlainTextResponse("no", 413, {"connection": "close"})


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /\x00 HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"POST /refuse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", b"HTTP/1.1 413 "),
    ],
    ids=["what is not HTTP", "a body that is not read"],
)
async def test_an_http_answer_reaches_a_client_that_is_still_sending(run_listener, head, status) -> None:
    app = http_app(
        amqp=asyncio.Protocol,
        health=lambda: Health(True),
        metrics=_refuse,
        routes=[Route("/refuse", _refuse, methods=["POST"])],
    )
    host = HttpHost(app)
    async with run_listener(http=host.protocol) as running, Peer(running.port) as peer:
        await peer.send(head + b"x" * READ_BYTES_MAX + UNREAD)
        answer = await peer.read_all()
        assert answer.startswith(status)
        assert answer.count(b"HTTP/1.1") == 1
        await host.close(grace_s=1)
