"""Temporary queues and topics, frame by frame: nodes that a link makes and that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import (
    RCV_FIRST,
    RECEIVER,
    SND_UNSETTLED,
    Accepted,
    Source,
    Target,
    TransactionalState,
)
from bendybus.amqp.types import Described, Symbol, ULong
from fix_client import LinkRefused, Receiver
from fix_jms import DELETE_ON_CLOSE, JmsClient, Premium, address_of, gone, message, start_premium, texts
from fix_server import StartServer
from set_ups import several_brokers

PREFIXES = {"temporary-queue": "temporary-queue-", "temporary-topic": "temporary-topic-"}
KINDS = pytest.mark.parametrize("kind", PREFIXES)


async def there(premium: Premium) -> list[str]:
    return [name for name in await asyncio.to_thread(premium.entities) if name.startswith("temporary-")]


async def no_more(premium: Premium) -> None:
    async with asyncio.timeout(30):
        while await there(premium):
            await asyncio.sleep(0.1)


@KINDS
async def test_a_temporary_node_ends_with_its_link(premium: Premium, kind: str) -> None:
    async with await JmsClient.connect(premium.endpoint) as jms:
        creator = await jms.temporary(kind)
        address = address_of(creator)
        assert address.startswith(PREFIXES[kind])
        assert address in await there(premium)
        creator.detach()
        assert await creator.detached() is None
        # The answer comes when it is gone.
        assert address not in await there(premium)


@KINDS
@pytest.mark.parametrize("how", ["close", "cut"])
async def test_a_temporary_node_ends_with_its_connection(premium: Premium, kind: str, how: str) -> None:
    jms = await JmsClient.connect(premium.endpoint)
    address = address_of(await jms.temporary(kind))
    if how == "close":
        await jms.client.close()
    else:
        jms.client.cut()
    await gone(premium, address)


async def test_a_connection_is_closed_when_its_temporary_nodes_are_gone(premium: Premium) -> None:
    """Whoever sends there next is refused, at any broker."""
    jms = await JmsClient.connect(premium.endpoint)
    addresses = [address_of(await jms.temporary()) for _ in range(10)]
    assert set(addresses) <= {*await there(premium)}
    await jms.client.close()
    assert not {*addresses} & {*await there(premium)}


async def test_a_client_that_does_not_wait_leaves_nothing_behind(premium: Premium) -> None:
    before = await there(premium)
    jms = await JmsClient.connect(premium.endpoint)
    for _ in range(5):
        waiting = asyncio.create_task(jms.temporary())
        await asyncio.sleep(0)
        waiting.cancel()
    jms.client.flush()
    await asyncio.sleep(0)
    jms.client.transport.close()
    async with asyncio.timeout(20):
        # What was begun when the connection ended is created, and then deleted again.
        while await there(premium) != before:
            await asyncio.sleep(0.05)


async def test_a_connection_may_wait_for_many_nodes_and_not_for_endless_ones(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint) as jms:
        asked = await asyncio.gather(*(jms.temporary() for _ in range(150)), return_exceptions=True)
        refused = [each for each in asked if isinstance(each, LinkRefused)]
        assert {each.condition for each in refused} <= {"com.microsoft:server-busy"}
        assert len(asked) - len(refused) >= 100
    await no_more(premium)


async def test_a_request_is_answered_through_a_temporary_queue(premium: Premium, topic: str) -> None:
    """Request and reply, by clients of two connections; the request goes through a topic of each kind."""
    async with (
        await JmsClient.connect(premium.endpoint) as asking,
        await JmsClient.connect(premium.endpoint) as answering,
    ):
        requests = await answering.consumer(topic)
        address = address_of(await asking.temporary())
        replies = await asking.consumer(address, capabilities=("temporary-queue",))
        await asking.send(topic, encode_message(properties=Properties(reply_to=address), data=b"ping"))
        (request,) = await requests.receive()
        reply_to = decode_message(request.payload).properties.reply_to
        assert isinstance(reply_to, str)
        await answering.send(reply_to, *(message(f"pong {number}") for number in range(20)))
        found = texts(await replies.receive(20))
        assert found == sorted(f"pong {number}" for number in range(20))


async def test_consumers_of_a_temporary_topic_each_get_a_copy(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint) as jms:
        creator = await jms.temporary("temporary-topic")
        address = address_of(creator)
        consumers = [await jms.consumer(address, capabilities=("temporary-topic",)) for _ in range(2)]
        await jms.send(address, *(message(f"m{number}") for number in range(10)))
        for consumer in consumers:
            assert texts(await consumer.receive(10)) == sorted(f"m{number}" for number in range(10))
        creator.detach()
        assert await creator.detached() is None
        for consumer in consumers:
            error = await consumer.detached()
            assert error is not None and error.condition == "amqp:not-found"


async def test_a_receiver_may_make_its_own_queue(premium: Premium) -> None:
    """As other AMQP 1.0 clients do it: a dynamic source."""
    async with await JmsClient.connect(premium.endpoint) as jms:
        receiver = await dynamic_receiver(jms)
        assert receiver.link.remote is not None
        source = receiver.link.remote.source
        assert isinstance(source, Source) and isinstance(source.address, str)
        assert source.dynamic
        await jms.send(source.address, message("m"))
        receiver.grant(1)
        assert texts(await receiver.receive()) == ["m"]
        await jms.close_consumer(receiver, closed=True)
        assert source.address not in await there(premium)
        with pytest.raises(LinkRefused) as refused:
            await jms.client.sender(source.address)
        assert refused.value.condition == "amqp:not-found"


async def dynamic_receiver(jms: JmsClient, **source: Any) -> Receiver:
    link = jms.session.attach(
        "dynamic",
        RECEIVER,
        source=Source(dynamic=True, **source),
        target=Target(),
        snd_settle_mode=SND_UNSETTLED,
        rcv_settle_mode=RCV_FIRST,
    )
    receiver = Receiver(jms.client, link)  # type: ignore[arg-type]  # our role makes it a ReceivingLink
    await receiver.attached()
    return receiver


# -- what is not accepted -----------------------------------------------------------


@pytest.mark.parametrize("code", [0x2C, 0x2D, 0x2E])
async def test_other_lives_of_a_dynamic_node_are_refused(premium: Premium, code: int) -> None:
    """Delete on no links, on no messages, and on neither."""
    async with await JmsClient.connect(premium.endpoint) as jms:
        policy = {Symbol("lifetime-policy"): Described(ULong(code), [])}
        with pytest.raises(LinkRefused, match="deleted with their link") as refused:
            await jms.temporary(dynamic_node_properties=policy)
        assert refused.value.condition == "amqp:not-implemented"


async def test_a_dynamic_node_has_no_address_of_the_clients(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint) as jms:
        with pytest.raises(LinkRefused, match="leave the address out"):
            await jms.temporary(address="mine")
        with pytest.raises(LinkRefused, match="Nobody receives from a topic"):
            await dynamic_receiver(jms, capabilities=[Symbol("temporary-topic")])


async def test_the_answer_has_only_what_is_in_place(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint) as jms:
        properties = {
            Symbol("lifetime-policy"): DELETE_ON_CLOSE,
            Symbol("supported-dist-modes"): Symbol("copy"),
        }
        creator = await jms.temporary(
            dynamic_node_properties=properties, durable=2, expiry_policy=Symbol("never"), timeout=60
        )
        assert creator.link.remote is not None
        target = creator.link.remote.target
        assert isinstance(target, Target)
        assert list(target.dynamic_node_properties or {}) == ["lifetime-policy"]
        assert (target.durable, target.expiry_policy, target.timeout) == (0, "link-detach", None)
        assert target.capabilities == ["temporary-queue"]


async def test_a_temporary_node_needs_manage(premium: Premium) -> None:
    for rule, key in (("listener", "listen-key"), ("sender", "send-key")):
        async with await JmsClient.connect(premium.endpoint_of(rule, key)) as jms:
            with pytest.raises(LinkRefused, match="Manage") as refused:
                await jms.temporary()
            assert refused.value.condition == "amqp:unauthorized-access"


async def test_other_tiers_refuse_temporary_nodes(start_server: StartServer) -> None:
    premium = Premium(start_server({}))
    async with await JmsClient.connect(premium.endpoint) as jms:
        for kind in PREFIXES:
            with pytest.raises(LinkRefused, match="premium tier") as refused:
                await jms.temporary(kind)
            assert refused.value.condition == "amqp:not-implemented"


# -- crashes ------------------------------------------------------------------------


@pytest.fixture
def own_premium(tmp_path: Path) -> Iterator[Premium]:
    server = start_premium(tmp_path)
    yield Premium(server)
    if server.running:
        server.kill()
    server.refuse_trouble()


async def test_after_a_crash_no_temporary_node_is_left(own_premium: Premium) -> None:
    premium = own_premium
    jms = await JmsClient.connect(premium.endpoint)
    addresses = [address_of(await jms.temporary(kind)) for kind in PREFIXES]
    await jms.consumer(addresses[1], capabilities=("temporary-topic",))
    for address in addresses:
        await jms.send(address, message("m"))
    premium.server.kill()
    premium.server.start()
    for address in addresses:
        await gone(premium, address)
    assert await there(premium) == []
    premium.server.stop()
    premium.server.start()
    assert await there(premium) == []


async def test_a_stopped_server_leaves_no_temporary_node(own_premium: Premium) -> None:
    premium = own_premium
    jms = await JmsClient.connect(premium.endpoint)
    for kind in PREFIXES:
        await jms.temporary(kind)
    premium.server.stop()
    premium.server.start()
    if several_brokers():
        # Its broker may have ended after the one with the catalog, which asks again after five seconds.
        await no_more(premium)
    assert await there(premium) == []


async def test_what_was_sent_through_a_temporary_queue_arrives(premium: Premium) -> None:
    """A transaction that began with a temporary queue sends to another entity: that is acknowledged."""
    topic = premium.new_topic(16)
    async with await JmsClient.connect(premium.endpoint, "reader") as reader:
        consumer = await reader.durable(topic, "through")
        jms = await JmsClient.connect(premium.endpoint)
        address = address_of(await jms.temporary())
        session = await jms.client.begin()
        coordinator = await jms.client.coordinator(session)
        await jms.client.receiver(address, session)
        sender = await jms.client.sender(topic, session)
        txn = await coordinator.declare()
        for number in range(10):
            await sender.send(message(f"m{number}"), state=TransactionalState(txn))
        assert await coordinator.commit(txn) == Accepted()
        jms.client.cut()
        assert texts(await consumer.receive(10)) == sorted(f"m{number}" for number in range(10))
        await gone(premium, address)
