"""A listener on loopback with stub protocols behind it, on both kinds of event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bendybus.server.listener import Listener
from bendybus.server.tls import self_made_certificate, server_context

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo(asyncio.Protocol):
    """Stands in for a real protocol: says who it is, then gives every byte back."""

    def __init__(self, greeting: bytes = b"") -> None:
        self.greeting = greeting
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.greeting:
            self.transport.write(self.greeting)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class RunningListener:
    """A running listener, its port, and the protocols it has made."""

    def __init__(self, listener: Listener, port: int, protocols: list[Echo]) -> None:
        self.listener = listener
        self.port = port
        self.protocols = protocols
        self.clients: list[asyncio.StreamWriter] = []

    async def call(self, tls: ssl.SSLContext | None = None) -> Streams:
        name = "localhost" if tls else None
        streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name)
        self.clients.append(streams[1])
        return streams

    async def close(self) -> None:
        await self.listener.close(grace_s=1)
        for writer in self.clients:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def echo(self, tls: ssl.SSLContext | None = None) -> None:
        """One honest client: connects, is answered, leaves."""
        reader, writer = await self.call(tls)
        writer.write(b"AMQP\x03\x01\x00\x00hello")
        assert await reader.readexactly(4 + 13) == b"amqpAMQP\x03\x01\x00\x00hello"
        writer.close()
        await writer.wait_closed()

    async def farewell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """What the server still says before it closes the connection; a reset counts as closed."""
        try:
            rest = await reader.read()
        except ConnectionError:
            rest = b""
        writer.transport.abort()
        return rest


RunListener = Callable[..., AbstractAsyncContextManager[RunningListener]]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Tests that are coroutines run on either event loop."""
    factory = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[request.param]
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_made_certificate(tmp_path_factory.mktemp("data"))


@pytest.fixture
def server_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return server_context(*certificate)


@pytest.fixture
def client_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """A client that trusts the self-made certificate and checks the host's name against it."""
    return ssl.create_default_context(cafile=certificate[0])


@pytest.fixture
def run_listener(server_tls: ssl.SSLContext) -> RunListener:
    """Opens a listener with echoing stubs; keyword arguments go to `Listener`."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[RunningListener]:
        protocols: list[Echo] = []

        def stub(greeting: bytes) -> Echo:
            protocols.append(Echo(greeting))
            return protocols[-1]

        defaults = {"amqp": lambda: stub(b"amqp"), "http": lambda: stub(b"http"), "tls": server_tls}
        listener = Listener(**(defaults | settings))
        running = RunningListener(listener, await listener.listen("127.0.0.1", 0), protocols)
        try:
            yield running
        finally:
            await running.close()

    return opened
