"""A client that asks for things on the wire as Apache Qpid JMS does, and topics of each kind in Premium.

A Premium namespace makes topics of two partitions. Those of 16 and of one were made in Standard, before the
namespace became Premium, and keep their partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self, cast

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.amqp.message import decode_message, encode_message
from bendybus.amqp.performatives import (
    RCV_FIRST,
    RECEIVER,
    SENDER,
    SND_UNSETTLED,
    Accepted,
    Modified,
    Source,
    Target,
)
from bendybus.amqp.types import Described, Symbol, ULong
from bendybus.engine.deliveries import Delivery
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.engine.session import Session
from fix_client import Client, Endpoint, Receiver, Sender
from fix_server import ServerProcess, namespace

__all__ = ["KINDS", "JmsClient", "Premium", "message", "text_of", "texts"]

KINDS = (16, 2, 1)
TOPICS = 40

SELECTOR_CODE = ULong(0x0000_468C_0000_0004)
DELETE_ON_CLOSE = Described(ULong(0x2B), [])

LISTENER = {"Name": "listener", "PrimaryKey": "listen-key", "Rights": ["Listen"]}
SENDER_RULE = {"Name": "sender", "PrimaryKey": "send-key", "Rights": ["Send"]}

_names = count()


def message(text: str, **properties: object) -> bytes:
    return encode_message(application_properties=properties or None, data=text.encode())


def text_of(delivery: Delivery) -> str:
    return b"".join(decode_message(delivery.payload).data or ()).decode()


def texts(deliveries: Sequence[Delivery]) -> list[str]:
    return sorted(map(text_of, deliveries))


@dataclass
class JmsClient:
    """One JMS connection: its container-id is the client identifier."""

    client: Client
    session: Session

    @classmethod
    async def connect(cls, endpoint: Endpoint, client_id: str | None = None, **config: Any) -> Self:
        container_id = client_id or f"ID:generated-{next(_names)}:1"
        client = await Client.connect(endpoint, container_id=container_id, **config)
        return cls(client, await client.begin())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close()

    # -- consumers ---------------------------------------------------------------------

    async def consumer(
        self,
        address: str,
        *,
        name: str | None = None,
        durable: bool = False,
        capabilities: Sequence[str] = ("topic",),
        selector: str | None = None,
        credit: int = 100,
        **source: Any,
    ) -> Receiver:
        """As `createConsumer` and its kin attach; `LinkRefused` if that is refused."""
        asked: dict[str, Any] = {
            "durable": 2 if durable else 0,
            "expiry_policy": Symbol("never" if durable else "link-detach"),
            "distribution_mode": Symbol("copy") if durable else None,
            "default_outcome": Modified(delivery_failed=True),
            "filter": {Symbol("jms-selector"): Described(SELECTOR_CODE, selector)} if selector else None,
        } | source
        link = self.session.attach(
            name or f"qpid-jms:receiver:{next(_names)}",
            RECEIVER,
            source=Source(address=address, capabilities=[*map(Symbol, capabilities)], **asked),
            target=Target(),
            snd_settle_mode=SND_UNSETTLED,
            rcv_settle_mode=RCV_FIRST,
            desired_capabilities=[Symbol("SHARED-SUBS")],
        )
        receiver = Receiver(self.client, cast(ReceivingLink, link))
        await receiver.attached()
        if credit:
            receiver.grant(credit)
        return receiver

    async def durable(self, topic: str, name: str, **options: Any) -> Receiver:
        """createDurableConsumer"""
        return await self.consumer(topic, name=name, durable=True, **options)

    async def shared(
        self,
        topic: str,
        name: str,
        *,
        number: int = 1,
        durable: bool = False,
        everyone: bool = False,
        **more: Any,
    ) -> Receiver:
        """createSharedConsumer and createSharedDurableConsumer; `everyone`: without a client identifier."""
        which = {
            (False, False): f"{name}|volatile{number}",
            (False, True): f"{name}|global-volatile{number}",
            (True, False): name if number == 1 else f"{name}|{number}",
            (True, True): f"{name}|global{number if number > 1 else ''}",
        }[durable, everyone]
        capabilities = ("topic", "shared", "global") if everyone else ("topic", "shared")
        return await self.consumer(topic, name=which, durable=durable, capabilities=capabilities, **more)

    async def close_consumer(self, receiver: Receiver, *, closed: bool = False) -> Any:
        """A durable consumer is detached, others are closed. Gives the error of the answer."""
        receiver.link.detach(closed=closed)
        self.client.flush()
        return await receiver.detached()

    async def unsubscribe(self, name: str, *, everyone: bool = False) -> Any:
        """As `unsubscribe`: attach without a source, and close. Gives the error of the answer."""
        session = await self.client.begin()
        link = session.attach(
            f"{name}|global" if everyone else name,
            RECEIVER,
            source=None,
            target=Target(),
            snd_settle_mode=SND_UNSETTLED,
            rcv_settle_mode=RCV_FIRST,
            desired_capabilities=[Symbol("shared"), Symbol("global")] if everyone else (),
        )
        receiver = Receiver(self.client, cast(ReceivingLink, link))
        await receiver.attached()
        return await self.close_consumer(receiver, closed=True)

    # -- temporary destinations --------------------------------------------------------

    async def temporary(self, kind: str = "temporary-queue", **target: Any) -> Sender:
        """createTemporaryQueue and createTemporaryTopic: the link whose target has the address."""
        asked: dict[str, Any] = {
            "durable": 0,
            "expiry_policy": Symbol("link-detach"),
            "dynamic_node_properties": {Symbol("lifetime-policy"): DELETE_ON_CLOSE},
        } | target
        link = self.session.attach(
            f"qpid-jms:temp-creator:{next(_names)}",
            SENDER,
            source=Source(),
            target=Target(dynamic=True, capabilities=[Symbol(kind)], **asked),
            snd_settle_mode=SND_UNSETTLED,
            rcv_settle_mode=RCV_FIRST,
        )
        sender = Sender(self.client, cast(SendingLink, link))
        await sender.attached()
        return sender

    async def send(self, address: str, *payloads: bytes) -> None:
        """One at a time, so that they are spread over the partitions."""
        sender = await self.client.sender(address, self.session)
        for payload in payloads:
            assert await sender.send(payload) == [Accepted()]
        sender.detach()


def address_of(sender: Sender) -> str:
    """The address that the server has given to a temporary destination."""
    remote = sender.link.remote
    assert remote is not None and isinstance(remote.target, Target)
    address = remote.target.address
    assert isinstance(address, str)
    return address


@dataclass
class Premium:
    """A Premium namespace with topics of 16, of 2 and of 1 partition."""

    server: ServerProcess
    unused: dict[int, Iterator[int]] = field(
        default_factory=lambda: {kind: iter(range(TOPICS)) for kind in KINDS}
    )

    def new_topic(self, kind: int) -> str:
        return f"topic-{kind}-{next(self.unused[kind])}"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.parse(self.server.connection_string)

    def endpoint_of(self, name: str, key: str) -> Endpoint:
        return Endpoint(self.endpoint.host, self.endpoint.port, name, key)

    def admin(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self.server.connection_string, connection_verify=str(self.server.certificate), retry_total=0
        )

    def entities(self) -> list[str]:
        """The queues and topics that there are."""
        with self.admin() as admin:
            return [each.name for each in (*admin.list_queues(), *admin.list_topics())]

    def subscriptions(self, topic: str) -> list[str]:
        with self.admin() as admin:
            return sorted(each.name for each in admin.list_subscriptions(topic))


def _topics(count: int, *kinds: int) -> list[dict[str, object]]:
    return [
        {"Name": f"topic-{kind}-{number}", "Properties": {"EnablePartitioning": kind > 1}}
        for kind in kinds
        for number in range(count)
    ]


def start_premium(folder: Path, topics: int = 1) -> ServerProcess:
    """With this many topics of each kind."""
    rules = {"": [LISTENER, SENDER_RULE]}
    server = ServerProcess(folder, namespace({}, rules, _topics(topics, 16, 1)))
    server.start()
    server.stop()
    server._options = ("--tier", "premium")
    server.write_config(namespace({}, rules, _topics(topics, 16, 1, 2)))
    server.start()
    return server


@pytest.fixture(scope="module")
def premium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Premium]:
    server = start_premium(tmp_path_factory.mktemp("premium"), TOPICS)
    yield Premium(server)
    server.stop()
    server.refuse_trouble()


@pytest.fixture(params=KINDS)
def topic(request: pytest.FixtureRequest, premium: Premium) -> str:
    """A topic of each kind that no other test uses."""
    return premium.new_topic(request.param)


async def gone(premium: Premium, path: str) -> None:
    """Return once there is no such entity. The end of a connection has begun its deletion."""
    topic, _, subscription = path.partition("/")

    def is_there() -> bool:
        if subscription:
            return subscription in premium.subscriptions(topic)
        return path in premium.entities()

    async with asyncio.timeout(20):
        while await asyncio.to_thread(is_there):
            await asyncio.sleep(0.05)
