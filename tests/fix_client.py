"""A small AMQP client for tests: our own engine in the client's role, over an asyncio transport.

Fast enough to put a server under load, and frank enough to misbehave: `write`
sends any bytes, `frame` any performative at any moment, and `connection` is the
engine itself. It waits for answers only where a caller awaits one. Whatever is
awaited when the connection goes raises `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

from bendybus.amqp.frames import encode_frame
from bendybus.amqp.message import DecodedMessage, Properties, decode_message, encode_message
from bendybus.amqp.performatives import (
    RCV_FIRST,
    RCV_SECOND,
    RECEIVER,
    SENDER,
    SND_SETTLED,
    SND_UNSETTLED,
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Error,
    Performative,
    Source,
    Target,
)
from bendybus.amqp.performatives import Coordinator as CoordinatorTarget
from bendybus.amqp.types import Symbol
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.engine.deliveries import Delivery
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

T = TypeVar("T")

# A server on the same machine that has not answered by then never will.
ANSWER_TIMEOUT_S = 20.0


class ConnectionLost(Exception):
    """The connection went before the answer came; `error` is the server's last word, if it had one."""

    def __init__(self, error: Error | None = None) -> None:
        super().__init__(str(error) if error is not None else "the connection was cut off")
        self.error = error


class LinkRefused(Exception):
    def __init__(self, error: Error | None) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def condition(self) -> str | None:
        return None if self.error is None else self.error.condition


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
        """Say goodbye and wait for the answer; a connection that is gone already is no error."""
        if not self.lost:
            self.connection.close()
            self.flush()
            await self._wait(self._ended)
        self.transport.abort()

    def cut(self) -> None:
        """Leave without a word."""
        self.transport.abort()

    async def ended(self) -> Error | None:
        """Wait until the server has ended the connection; its reason."""
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
        properties: dict[str, object] | None = None,
    ) -> Receiver:
        """Asked for, and not answered yet."""
        link = session.attach(
            name or f"from-{address}-{next(self._names)}",
            RECEIVER,
            source=Source(address=address, filter=filter, distribution_mode=distribution_mode),
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
        """Bytes past the engine, after everything the engine wanted to say."""
        self.flush()
        self.transport.write(data)

    def frame(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        self.write(encode_frame(channel, performative, payload))

    def flush(self) -> None:
        data = self.connection.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    async def drained(self) -> None:
        """Wait while the socket takes no more."""
        if not self._writable.is_set():
            await self._wait_event(self._writable)

    def future(self) -> asyncio.Future[Any]:
        """Something that the end of the connection answers with `ConnectionLost`."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._awaited[future] = None
        future.add_done_callback(self._awaited.pop)
        if self.lost:
            _refuse([future], ConnectionLost(self.last_word))
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
        _refuse(tuple(self._awaited), ConnectionLost(self.last_word))
        for ended in (self._ended, *self._session_ends.values()):
            if not ended.done():
                ended.set_result(self.last_word)

    def _handle(self, event: Event) -> None:
        match event:
            case DeliveriesReceived(link, deliveries):
                _wrapper(link, Receiver).arrived(deliveries)
            case DeliveriesSettled(link, deliveries, state):
                _wrapper(link, Receiver).settled(deliveries, state)
            case DeliveriesAnswered(link, deliveries, state):
                _wrapper(link, Receiver).answered_as(deliveries, state)
            case OutcomesReceived(link, sent, state):
                _wrapper(link, Sender).outcomes([delivery.tag for delivery in sent], state)
                if not event.settled:
                    link.settle(sent, state)
            case LinkFlow(link):
                _wrapper(link, Sender).flowed()
            case LinkDrained(link):
                _wrapper(link, Receiver).drained()
            case LinkAttached(link):
                cast(_Half, link.context).answered()
            case LinkDetached(link, error):
                cast(_Half, link.context).gone(error)
            case SessionBegun(session):
                _resolve(self._begun[session], None)
            case SessionEnded(session, error):
                _resolve(self._session_ends[session], error)
            case ConnectionOpened():
                _resolve(self._opened, None)
            case ConnectionClosed(error):
                self.last_word = error
                self.flush()
                self.transport.close()
            case ConnectionFailed(failure):
                self.last_word = Error(failure.condition, f"this client gave up: {failure}")
                self.transport.close()


class _Half:
    """What a sender and a receiver share: being attached, and being gone."""

    def __init__(self, client: Client, link: SendingLink | ReceivingLink) -> None:
        self.client = client
        link.context = self
        self._link = link
        self._attached = client.future()
        self._detached: asyncio.Future[Error | None] = client.future()
        client.flush()

    async def attached(self) -> None:
        await self.client.wait(self._attached)

    async def detached(self) -> Error | None:
        """Wait until the server detaches the link; its reason."""
        return await self.client.wait(self._detached)

    @property
    def is_gone(self) -> bool:
        return self._detached.done()

    def detach(self) -> None:
        self._link.detach()
        self.client.flush()

    def answered(self) -> None:
        remote = self._link.remote
        assert remote is not None
        if remote.source is not None and remote.target is not None:
            _resolve(self._attached, None)

    def gone(self, error: Error | None) -> None:
        _resolve(self._detached, error)
        _refuse((self._attached,), LinkRefused(error))


class Sender(_Half):
    def __init__(self, client: Client, link: SendingLink) -> None:
        super().__init__(client, link)
        self.link = link
        self._count = 0
        self._flowed = client.future()
        self._outcomes: dict[bytes, asyncio.Future[DeliveryState | None]] = {}

    @property
    def unanswered(self) -> int:
        return len(self._outcomes)

    async def credit(self) -> int:
        """Wait for credit; how much there is."""
        while self.link.credit <= 0:
            if self.client.lost:
                raise ConnectionLost(self.client.last_word)
            if self._flowed.done():
                self._flowed = self.client.future()
            await self.client.wait(self._flowed)
        return self.link.credit

    def post(
        self,
        payload: bytes,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: DeliveryState | None = None,
    ) -> asyncio.Future[DeliveryState | None]:
        """Send now; the future gives the outcome. There must be credit; `client.flush` is yours to call."""
        self._count += 1
        tag = self._count.to_bytes(8, "big")
        outcome = self.client.future()
        taken = self.link.send(
            ((tag, b"", payload),), settled=settled, message_format=message_format, state=state
        )
        assert taken == 1, "no credit"
        if settled:
            outcome.set_result(None)
        else:
            self._outcomes[tag] = outcome
        return outcome

    async def send(
        self, *payloads: bytes, message_format: int = 0, state: DeliveryState | None = None
    ) -> list[DeliveryState | None]:
        """Send all of them, within the credit; their outcomes."""
        posted = []
        for payload in payloads:
            if self.link.credit <= 0:
                self.client.flush()
                await self.credit()
            posted.append(self.post(payload, message_format=message_format, state=state))
        self.client.flush()
        return [await self.client.wait(outcome) for outcome in posted]

    def flowed(self) -> None:
        _resolve(self._flowed, None)

    def outcomes(self, tags: Sequence[bytes], state: DeliveryState | None) -> None:
        for tag in tags:
            _resolve(self._outcomes.pop(tag), state)

    def gone(self, error: Error | None) -> None:
        super().gone(error)
        _refuse((self._flowed, *self._outcomes.values()), LinkRefused(error))


class Coordinator(Sender):
    """Declares and discharges transactions."""

    async def declare(self) -> bytes:
        (declared,) = await self.send(encode_message(value=Declare()))
        assert isinstance(declared, Declared), declared
        return declared.txn_id

    async def commit(self, txn_id: bytes) -> DeliveryState | None:
        return (await self.send(encode_message(value=Discharge(txn_id, False))))[0]

    async def roll_back(self, txn_id: bytes) -> DeliveryState | None:
        return (await self.send(encode_message(value=Discharge(txn_id, True))))[0]


class Receiver(_Half):
    def __init__(self, client: Client, link: ReceivingLink) -> None:
        super().__init__(client, link)
        self.link = link
        self.waiting: deque[Delivery] = deque()
        self.settled_ids: set[int] = set()
        self._arrived = client.future()
        self._drained = client.future()
        self._outcomes: dict[int, asyncio.Future[DeliveryState | None]] = {}

    def grant(self, credit: int, *, drain: bool = False) -> None:
        self.link.grant(credit, drain=drain)
        self.client.flush()

    async def receive(self, count: int = 1) -> list[Delivery]:
        """The next `count` deliveries."""
        while len(self.waiting) < count:
            await self._next_arrival()
        return [self.waiting.popleft() for _ in range(count)]

    async def receive_some(self) -> list[Delivery]:
        """All that has arrived, at least one."""
        while not self.waiting:
            await self._next_arrival()
        arrived, self.waiting = list(self.waiting), deque()
        return arrived

    async def drain(self, credit: int) -> list[Delivery]:
        """What the server has now, up to `credit`."""
        self._drained = self.client.future()
        self.grant(credit, drain=True)
        await self.client.wait(self._drained)
        arrived, self.waiting = list(self.waiting), deque()
        return arrived

    def settle(
        self, deliveries: Sequence[Delivery], state: DeliveryState | None = None
    ) -> list[asyncio.Future[DeliveryState | None]]:
        """Ask for this outcome (accepted, if none is named); the futures give what the server answers."""
        asked = []
        for delivery in deliveries:
            self._outcomes[delivery.delivery_id] = outcome = self.client.future()
            asked.append(outcome)
        self.link.propose(deliveries, Accepted() if state is None else state)
        self.client.flush()
        return asked

    async def settled_as(
        self, deliveries: Sequence[Delivery], state: DeliveryState | None = None
    ) -> list[DeliveryState | None]:
        """`settle`, and wait for the answers."""
        return [await self.client.wait(answer) for answer in self.settle(deliveries, state)]

    async def _next_arrival(self) -> None:
        if self._arrived.done():
            self._arrived = self.client.future()
        if self.client.lost:
            raise ConnectionLost(self.client.last_word)
        await self.client.wait(self._arrived)

    def arrived(self, deliveries: Sequence[Delivery]) -> None:
        self.waiting += deliveries
        _resolve(self._arrived, None)

    def settled(self, deliveries: Sequence[Delivery], state: DeliveryState | None) -> None:
        self.settled_ids.update(delivery.delivery_id for delivery in deliveries)
        self.answered_as(deliveries, state)

    def answered_as(self, deliveries: Sequence[Delivery], state: DeliveryState | None) -> None:
        """In a transaction the answer comes before the settlement, which then answers nothing."""
        for delivery in deliveries:
            outcome = self._outcomes.pop(delivery.delivery_id, None)
            if outcome is not None:
                _resolve(outcome, state)

    def is_settled(self, delivery: Delivery) -> bool:
        """Whether the server has settled it."""
        return delivery.delivery_id in self.settled_ids

    def drained(self) -> None:
        _resolve(self._drained, None)

    def gone(self, error: Error | None) -> None:
        super().gone(error)
        _refuse((self._arrived, self._drained, *self._outcomes.values()), LinkRefused(error))


class Requester:
    """Request and response over a pair of links."""

    def __init__(self, sender: Sender, replies: Receiver) -> None:
        self.sender = sender
        self.replies = replies
        self._numbers = itertools.count(1)

    def encode(self, body: object, properties: Mapping[str, object]) -> bytes:
        return encode_message(
            properties=Properties(message_id=f"request-{next(self._numbers)}", reply_to="replies"),
            application_properties=properties,
            value=body,
        )

    async def ask(self, operation: str, body: object = None, **properties: object) -> DecodedMessage:
        """One request, one answer."""
        request = self.encode({} if body is None else body, {"operation": operation, **properties})
        await self.sender.send(request)
        self.replies.link.top_up(100)
        (reply,) = await self.replies.receive()
        return decode_message(reply.payload)


def _wrapper(link: SendingLink | ReceivingLink, kind: type[T]) -> T:
    assert isinstance(link.context, kind), link
    return link.context


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _refuse(futures: Iterable[asyncio.Future[Any]], reason: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(reason)
            future.exception()  # asyncio complains of those that nobody asks for
