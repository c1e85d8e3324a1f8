"""Queues and topics that azure-servicebus-jms creates by using them, and what strangers are told."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from bendybus.amqp.performatives import RCV_FIRST, RECEIVER, SENDER, SND_UNSETTLED, Accepted, Source, Target
from bendybus.amqp.types import Symbol
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from fix_client import LinkRefused, Receiver, Sender
from fix_jms import JmsClient, Premium, message, texts
from fix_server import StartServer

VENDOR = "com.microsoft"


def provider(**settings: object) -> dict[str, Any]:
    """What the library says of itself when it connects."""
    named = {Symbol(f"{VENDOR}:{name.replace('_', '-')}"): value for name, value in settings.items()}
    return {"properties": {Symbol(f"{VENDOR}:is-client-provider"): True, **named}}


async def producer(jms: JmsClient, address: str, kind: str) -> Sender:
    link = jms.session.attach(
        f"qpid-jms:sender:{address}",
        SENDER,
        source=Source(address="producer"),
        target=Target(address=address, capabilities=[Symbol(kind)]),
        snd_settle_mode=SND_UNSETTLED,
        rcv_settle_mode=RCV_FIRST,
    )
    sender = Sender(jms.client, cast(SendingLink, link))
    await sender.attached()
    await sender.credit()
    return sender


async def test_a_queue_is_created_by_its_first_producer_or_consumer(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint, **provider()) as jms:
        sender = await producer(jms, "made-by-producer", "queue")
        assert await sender.send(message("m")) == [Accepted()]
        consumer = await jms.consumer("made-by-producer", capabilities=("queue",))
        assert texts(await consumer.receive()) == ["m"]
        await jms.consumer("made-by-consumer", capabilities=("queue",))
        made = {"made-by-producer", "made-by-consumer"}
        assert made <= set(await asyncio.to_thread(premium.entities))


async def test_a_topic_is_created_with_its_first_subscription(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint, "maker", **provider()) as jms:
        consumer = await jms.durable("made/topic", "first")
        sender = await producer(jms, "made/topic", "topic")
        assert await sender.send(message("m")) == [Accepted()]
        assert texts(await consumer.receive()) == ["m"]
        assert await asyncio.to_thread(premium.subscriptions, "made/topic") == ["first$maker$D"]
        await jms.close_consumer(consumer)
        await jms.unsubscribe("first")


async def test_several_links_may_want_it_at_once(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint, **provider()) as jms:
        consumers = await asyncio.gather(
            *(jms.consumer("made-once", capabilities=("queue",)) for _ in range(5))
        )
        await jms.send("made-once", message("m"))
        async with asyncio.timeout(20):
            while not any(consumer.waiting for consumer in consumers):
                await asyncio.sleep(0.01)


async def test_the_settings_for_idle_entities_are_applied(premium: Premium) -> None:
    settings = provider(
        queue_auto_delete_on_idle_duration_in_seconds=300,
        topic_auto_delete_on_idle_duration_in_seconds=600,
        subscriber_auto_delete_on_idle_duration_in_seconds=900,
    )
    async with await JmsClient.connect(premium.endpoint, "idle", **settings) as jms:
        await jms.consumer("idle-queue", capabilities=("queue",))
        consumer = await jms.durable("idle-topic", "idle")
        with premium.admin() as admin:
            assert admin.get_queue("idle-queue").auto_delete_on_idle == timedelta(minutes=5)
            assert admin.get_topic("idle-topic").auto_delete_on_idle == timedelta(minutes=10)
            subscription = admin.get_subscription("idle-topic", "idle$idle$D")
            assert subscription.auto_delete_on_idle == timedelta(minutes=15)
        await jms.close_consumer(consumer)
        await jms.unsubscribe("idle")


async def test_a_setting_that_no_entity_may_have_is_refused(premium: Premium) -> None:
    settings = provider(queue_auto_delete_on_idle_duration_in_seconds=1)
    async with await JmsClient.connect(premium.endpoint, **settings) as jms:
        with pytest.raises(LinkRefused, match="AutoDeleteOnIdle"):
            await jms.consumer("too-brief", capabilities=("queue",))


@pytest.mark.parametrize("asked", [(), ("invented",)])
async def test_only_queues_and_topics_are_created(premium: Premium, asked: tuple[str, ...]) -> None:
    async with await JmsClient.connect(premium.endpoint, **provider()) as jms:
        for address in ("no-kind", "made-not/Subscriptions/s", "no-such/$deadletterqueue"):
            with pytest.raises(LinkRefused) as refused:
                await jms.consumer(address, capabilities=asked)
            assert refused.value.condition == "amqp:not-found"


async def test_a_path_that_no_queue_may_have_is_refused(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint, **provider()) as jms:
        for address in ("a*b", "t/Subscriptions/s", "q" * 261):
            with pytest.raises(LinkRefused, match=r"not allowed|characters"):
                await jms.consumer(address, capabilities=("queue",))


async def test_creating_needs_manage(premium: Premium) -> None:
    async with await JmsClient.connect(premium.endpoint_of("listener", "listen-key"), **provider()) as jms:
        with pytest.raises(LinkRefused, match="Manage") as refused:
            await jms.consumer("not-mine", capabilities=("queue",))
        assert refused.value.condition == "amqp:unauthorized-access"


async def test_other_clients_and_other_tiers_are_told_that_there_is_none(
    premium: Premium, start_server: StartServer
) -> None:
    standard = Premium(start_server({}))
    for place, says in ((premium, {}), (standard, provider())):
        async with await JmsClient.connect(place.endpoint, **says) as jms:
            with pytest.raises(LinkRefused) as refused:
                await jms.consumer("missing", capabilities=("queue",))
            assert refused.value.condition == "amqp:not-found"


# -- strangers ----------------------------------------------------------------------


async def test_a_client_without_a_token_makes_and_learns_nothing(premium: Premium) -> None:
    before = await asyncio.to_thread(premium.entities)
    jms = await JmsClient.connect(premium.endpoint, "maker", login=False, **provider())
    async with jms:
        topic = "topic-2-0"
        for attempt in (
            jms.consumer(topic),
            jms.durable(topic, "s"),
            jms.unsubscribe("s"),
            jms.temporary(),
            jms.temporary("temporary-topic"),
            dynamic_source(jms),
            producer(jms, "new-queue", "queue"),
            jms.consumer("new-queue", capabilities=("queue",)),
        ):
            with pytest.raises(LinkRefused) as refused:
                await attempt
            assert refused.value.condition == "amqp:unauthorized-access"
    assert await asyncio.to_thread(premium.entities) == before
    assert await asyncio.to_thread(premium.subscriptions, topic) == []


async def dynamic_source(jms: JmsClient) -> None:
    link = jms.session.attach("dynamic", RECEIVER, source=Source(dynamic=True), target=Target())
    await Receiver(jms.client, cast(ReceivingLink, link)).attached()


# -- names --------------------------------------------------------------------------


async def test_names_with_unusual_letters_can_be_managed(premium: Premium) -> None:
    topic = premium.new_topic(2)
    name, client_id = "wöchentlich: bericht", "ID:host@0.1 (x)"
    async with await JmsClient.connect(premium.endpoint, client_id) as jms:
        consumer = await jms.durable(topic, name)
        await jms.close_consumer(consumer)
        await jms.send(topic, message("m"))
        full = f"{name}${client_id}$D"
        with premium.admin() as admin:
            assert [each.name for each in admin.list_subscriptions(topic)] == [full]
            assert admin.get_subscription_runtime_properties(topic, full).active_message_count == 1
            assert [rule.name for rule in admin.list_rules(topic, full)] == ["$Default"]
        receiver = await jms.client.receiver(f"{topic}/Subscriptions/{full}", credit=1)
        assert texts(await receiver.receive()) == ["m"]
        receiver.detach()
        with premium.admin() as admin:
            admin.delete_subscription(topic, full)
        with pytest.raises(LinkRefused) as refused:
            await jms.unsubscribe(name)
        assert refused.value.condition == "amqp:not-found"
