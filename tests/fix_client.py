"""A small AMQP client for tests: our own engine in the client's role, over an asyncio transport.

It is fast enough to put a server under load, and can misbehave on purpose: `write` sends any bytes, `frame`
any performative at any moment, and `connection` is the engine itself. It waits for answers only where a
caller awaits one. Everything that is awaited when the connection is lost raises `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from dataclasses import dataclass
from typing import Any, Self, cast

from bendybus.amqp.frames import encode_frame
from bendybus.amqp.performatives import (
    RCV_FIRST,
    RCV_SECOND,
    RECEIVER,
    SENDER,
    SND_SETTLED,
    SND_UNSETTLED,
    DeliveryState,
    Error,
    Performative,
    Source,
    Target,
)
from bendybus.amqp.performatives import Coordinator as CoordinatorTarget
from bendybus.amqp.types import Symbol
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.engine.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    DeliveriesAnswered,
    DeliveriesReceived,
    DeliveriesSettled,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    OutcomesReceived,
    SessionBegun,
    SessionEnded,
)
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sasl import plain_response
from bendybus.engine.sending import SendingLink
from bendybus.engine.session import Session
from fix_links import (
    ConnectionLost,
    Coordinator,
    LinkEnd,
    LinkRefused,
    Receiver,
    Requester,
    Sender,
    T,
    refuse,
    resolve,
    wrapper,
)

__all__ = [
    "Client",
    "ConnectionLost",
    "Coordinator",
    "Endpoint",
    "LinkRefused",
    "Receiver",
    "Requester",
    "Sender",
]

# A server on the same machine that has not answered within this time never will.
ANSWER_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, and the rule and key to log in with."""

    host: str
    port: int
    key_name: str
    key: str

    @classmethod
    def parse(cls, connection_string: str) -> Self:
        """`Endpoint=sb://HOST:PORT;SharedAccessKeyName=NAME;SharedAccessKey=KEY;...`; a key may hold `=`."""
        parts = dict(part.split("=", 1) for part in connection_string.strip().split(";") if part)
        host, _, port = parts["Endpoint"].removeprefix("sb://").rstrip("/").rpartition(":")
        return cls(host, int(port), parts["SharedAccessKeyName"], parts["SharedAccessKey"])


class Client(asyncio.Protocol):
    """One connection. Made by `connect`; `async with` closes it."""

    def __init__(self, config: ConnectionConfig) -> None:
        self.connection = Connection.client(config)
        self.transport: asyncio.Transport
        self.lost = False
        self.last_word: Error | None = None
        """What the server gave as its reason when it closed the connection."""
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[asyncio.Future[Any], None] = {}
        self._opened: asyncio.Future[None] = self.future()
        self._ended: asyncio.Future[Error | None] = self._loop.create_future()
        self._begun: dict[Session, asyncio.Future[None]] = {}
        self._session_ends: dict[Session, asyncio.Future[Error | None]] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._names = itertools.count()

    @classmethod
    async def connect(
        cls,
        endpoint: Endpoint,
        *,
        login: bool = True,
        open_it: bool = True,
        local_address: str | None = None,
        tls: ssl.SSLContext | None = None,
        tls_name: str | None = None,
        **config: Any,
    ) -> Self:
        """Connected and opened: with the endpoint's key over PLAIN, or anonymously to put tokens later.

        `config` are fields of `ConnectionConfig`; `local_address` is where the connection comes from;
        `tls_name` is who the server is to be when asked by TLS.
        """
        if login:
            config.setdefault("sasl_mechanism", "PLAIN")
            config.setdefault("sasl_response", plain_response(endpoint.key_name, endpoint.key))
        settings = ConnectionConfig(**{"container_id": "test-client", "hostname": endpoint.host} | config)
        try:
            _, client = await asyncio.get_running_loop().create_connection(
                lambda: cls(settings),
                endpoint.host,
                endpoint.port,
                local_addr=None if local_address is None else (local_address, 0),
                ssl=tls,
                server_hostname=tls_name,
            )
        except OSError as failure:
            raise ConnectionLost from failure
        if open_it:
            await client._wait(client._opened)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and wait for the answer. A connection that is already lost is no error."""
        if not self.lost:
            self.connection.close()
            self.flush()
            await self._wait(self._ended)
        # A transport that has reported its end has no loop any more, and cannot be aborted.
        if not self.lost:
            self.transport.abort()

    def cut(self) -> None:
        """Disconnect without a close frame."""
        self.transport.abort()

    async def ended(self) -> Error | None:
        """Wait until the server has ended the connection. Returns its reason."""
        return await self._wait(self._ended)

    # -- sessions and links ------------------------------------------------------------

    async def begin(self) -> Session:
        session = self.connection.begin()
        self._begun[session] = begun = self.future()
        self._session_ends[session] = self._loop.create_future()
        self.flush()
        await self._wait(begun)
        return session

    async def session_ended(self, session: Session) -> Error | None:
        return await self._wait(self._session_ends[session])

    async def sender(
        self,
        address: str,
        session: Session | None = None,
        *,
        settled: bool = False,
        name: str | None = None,
        source: str = "test",
        properties: dict[str, object] | None = None,
    ) -> Sender:
        """Attached and with credit, or `LinkRefused`."""
        session = session or await self.begin()
        link = session.attach(
            name or f"to-{address}-{next(self._names)}",
            SENDER,
            source=Source(address=source),
            target=Target(address=address),
            snd_settle_mode=SND_SETTLED if settled else SND_UNSETTLED,
            rcv_settle_mode=RCV_FIRST,
            properties=properties,
        )
        sender = Sender(self, cast(SendingLink, link))
        await sender.attached()
        await sender.credit()
        return sender

    async def receiver(
        self,
        address: str,
        session: Session | None = None,
        *,
        credit: int = 0,
        deletes: bool = False,
        name: str | None = None,
        target: str = "test",
        filter: dict[str, object] | None = None,  # noqa: A002 - AMQP's own word
        distribution_mode: str | None = None,
        default_outcome: DeliveryState | None = None,
        properties: dict[str, object] | None = None,
    ) -> Receiver:
        """Attached and with this credit, or `LinkRefused`. `deletes`: receive and delete, else peek-lock."""
        session = session or await self.begin()
        receiver = self.attach_receiver(
            address,
            session,
            deletes=deletes,
            name=name,
            target=target,
            filter=filter,
            distribution_mode=distribution_mode,
            default_outcome=default_outcome,
            properties=properties,
        )
        await receiver.attached()
        if credit:
            receiver.grant(credit)
        return receiver

    def attach_receiver(
        self,
        address: str,
        session: Session,
        *,
        deletes: bool = False,
        name: str | None = None,
        target: str = "test",
        filter: dict[str, object] | None = None,  # noqa: A002 - AMQP's own word
        distribution_mode: str | None = None,
        default_outcome: DeliveryState | None = None,
        properties: dict[str, object] | None = None,
    ) -> Receiver:
        """Asked for, and not answered yet."""
        link = session.attach(
            name or f"from-{address}-{next(self._names)}",
            RECEIVER,
            source=Source(
                address=address,
                filter=filter,
                distribution_mode=distribution_mode,
                default_outcome=default_outcome,
            ),
            target=Target(address=target),
            snd_settle_mode=SND_SETTLED if deletes else SND_UNSETTLED,
            rcv_settle_mode=RCV_FIRST if deletes else RCV_SECOND,
            properties=properties,
        )
        return Receiver(self, cast(ReceivingLink, link))

    async def coordinator(self, session: Session | None = None) -> Coordinator:
        """The link on which transactions are declared and discharged."""
        session = session or await self.begin()
        link = session.attach(
            f"coordinator-{next(self._names)}",
            SENDER,
            source=Source(address="coordinator"),
            target=CoordinatorTarget(capabilities=[Symbol("amqp:local-transactions")]),
            snd_settle_mode=SND_UNSETTLED,
            rcv_settle_mode=RCV_FIRST,
        )
        coordinator = Coordinator(self, cast(SendingLink, link))
        await coordinator.attached()
        await coordinator.credit()
        return coordinator

    async def requester(self, node: str) -> Requester:
        """Both links to `$cbs` or an entity's `$management`."""
        session = await self.begin()
        replies = await self.receiver(node, session, credit=100, deletes=True, target="replies")
        return Requester(await self.sender(node, session, source="replies"), replies)

    # -- raw ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes that bypass the engine, after everything that the engine has to send."""
        self.flush()
        self.transport.write(data)

    def frame(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        self.write(encode_frame(channel, performative, payload))

    def flush(self) -> None:
        data = self.connection.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    async def drained(self) -> None:
        """Wait while the socket accepts no more bytes."""
        if not self._writable.is_set():
            await self._wait_event(self._writable)

    def future(self) -> asyncio.Future[Any]:
        """A future that the end of the connection answers with `ConnectionLost`."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._awaited[future] = None
        future.add_done_callback(self._awaited.pop)
        if self.lost:
            refuse([future], ConnectionLost(self.last_word))
        return future

    async def wait(self, future: asyncio.Future[T]) -> T:
        return await self._wait(future)

    async def _wait(self, future: asyncio.Future[T]) -> T:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asyncio.shield(future)

    async def _wait_event(self, event: asyncio.Event) -> None:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await event.wait()
        if self.lost:
            raise ConnectionLost(self.last_word)

    # -- asyncio's side ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.connection.receive_data(data, self._loop.time()):
            self._handle(event)
        self.flush()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._writable.set()
        refuse(tuple(self._awaited), ConnectionLost(self.last_word))
        for ended in (self._ended, *self._session_ends.values()):
            if not ended.done():
                ended.set_result(self.last_word)

    def _handle(self, event: Event) -> None:
        match event:
            case DeliveriesReceived(link, deliveries):
                wrapper(link, Receiver).arrived(deliveries)
            case DeliveriesSettled(link, deliveries, state):
                wrapper(link, Receiver).settled(deliveries, state)
            case DeliveriesAnswered(link, deliveries, state):
                wrapper(link, Receiver).answered_as(deliveries, state)
            case OutcomesReceived(link, sent, state):
                wrapper(link, Sender).outcomes([delivery.tag for delivery in sent], state)
                if not event.settled:
                    link.settle(sent, state)
            case LinkFlow(link):
                wrapper(link, Sender).flowed()
            case LinkDrained(link):
                wrapper(link, Receiver).drained()
            case LinkAttached(link):
                cast(LinkEnd, link.context).answered()
            case LinkDetached(link, error):
                cast(LinkEnd, link.context).gone(error)
            case SessionBegun(session):
                resolve(self._begun[session], None)
            case SessionEnded(session, error):
                resolve(self._session_ends[session], error)
            case ConnectionOpened():
                resolve(self._opened, None)
            case ConnectionClosed(error):
                self.last_word = error
                self.flush()
                self.transport.close()
            case ConnectionFailed(failure):
                self.last_word = Error(failure.condition, f"this client gave up: {failure}")
                self.transport.close()
