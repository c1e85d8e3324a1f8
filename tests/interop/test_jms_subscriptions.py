"""The subscriptions of JMS clients, frame by frame: unshared and shared, durable and not.

The client asks as Apache Qpid JMS does (fix_jms.py). Topics have 16, 2 and 1 partition.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus.management import SqlRuleFilter

from bendybus.amqp.performatives import Accepted, Source
from bendybus.amqp.types import Symbol
from fix_client import Client, LinkRefused, Receiver
from fix_jms import KINDS, JmsClient, Premium, gone, message, start_premium, texts
from fix_server import StartServer

NUMBERS = [f"m{number}" for number in range(40)]


async def received(receiver: Receiver, count: int) -> list[str]:
    """So many messages, which must come; they are completed."""
    deliveries = await receiver.receive(count)
    receiver.link.settle(deliveries, Accepted())
    receiver.client.flush()
    return texts(deliveries)


async def nothing_more(receiver: Receiver) -> bool:
    return await receiver.drain(100) == []


def answered_source(receiver: Receiver) -> Source:
    assert receiver.link.remote is not None
    source = receiver.link.remote.source
    assert isinstance(source, Source)
    return source


# -- unshared, not durable ----------------------------------------------------------


async def test_each_consumer_of_a_topic_gets_every_message(premium: Premium, topic: str) -> None:
    async with await JmsClient.connect(premium.endpoint) as jms:
        await jms.send(topic, message("before"))
        one, two = await jms.consumer(topic), await jms.consumer(topic)
        await jms.send(topic, *map(message, NUMBERS))
        assert await received(one, 40) == await received(two, 40) == sorted(NUMBERS)
        assert await nothing_more(one) and await nothing_more(two)


async def test_a_subscription_ends_with_its_consumer(premium: Premium, topic: str) -> None:
    async with await JmsClient.connect(premium.endpoint) as jms:
        consumer = await jms.consumer(topic)
        (name,) = await asyncio.to_thread(premium.subscriptions, topic)
        assert name.endswith("$$ND")
        assert await jms.close_consumer(consumer, closed=True) is None
        # The answer to the close comes when it is gone.
        assert await asyncio.to_thread(premium.subscriptions, topic) == []


async def test_a_subscription_ends_with_its_connection(premium: Premium, topic: str) -> None:
    jms = await JmsClient.connect(premium.endpoint)
    await jms.consumer(topic)
    (name,) = await asyncio.to_thread(premium.subscriptions, topic)
    jms.client.cut()
    await gone(premium, f"{topic}/{name}")


async def test_a_selector_decides_what_is_copied(premium: Premium, topic: str) -> None:
    async with await JmsClient.connect(premium.endpoint) as jms:
        selector = "number BETWEEN 10 AND 12 AND JMSPriority = 4"
        consumer = await jms.consumer(topic, selector=selector)
        await jms.send(topic, *(message(str(number), number=number) for number in range(20)))
        assert await received(consumer, 3) == ["10", "11", "12"]
        assert await nothing_more(consumer)
        assert Symbol("jms-selector") in (answered_source(consumer).filter or {})
        (name,) = await asyncio.to_thread(premium.subscriptions, topic)
        with premium.admin() as admin:
            counted = admin.get_subscription_runtime_properties(topic, name)
            assert counted.total_message_count == 0, "what does not match is not kept"
            (rule,) = admin.list_rules(topic, name)
            assert rule.filter.sql_expression == selector


# -- unshared, durable --------------------------------------------------------------


async def test_a_durable_subscription_collects_while_nobody_consumes(premium: Premium, topic: str) -> None:
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        consumer = await jms.durable(topic, "audit-1")
        source = answered_source(consumer)
        assert (source.durable, source.expiry_policy, source.distribution_mode) == (2, "never", "copy")
        assert await jms.close_consumer(consumer) is None
    async with await JmsClient.connect(premium.endpoint) as other:
        await other.send(topic, *map(message, NUMBERS))
    assert await asyncio.to_thread(premium.subscriptions, topic) == ["audit-1$billing$D"]
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        consumer = await jms.durable(topic, "audit-1")
        assert await received(consumer, 40) == sorted(NUMBERS)
        assert await jms.close_consumer(consumer) is None
        assert await jms.unsubscribe("audit-1") is None


async def test_a_durable_subscription_has_one_consumer_at_a_time(premium: Premium, topic: str) -> None:
    async with (
        await JmsClient.connect(premium.endpoint, "billing") as jms,
        await JmsClient.connect(premium.endpoint, "billing") as other,
    ):
        consumer = await jms.durable(topic, "audit-2")
        with pytest.raises(LinkRefused, match="active consumer") as refused:
            await other.durable(topic, "audit-2")
        assert refused.value.condition == "amqp:resource-locked"
        await jms.close_consumer(consumer)
        again = await other.durable(topic, "audit-2")
        await other.close_consumer(again)
        assert await other.unsubscribe("audit-2") is None


async def test_clients_have_subscriptions_of_their_own(premium: Premium, topic: str) -> None:
    async with (
        await JmsClient.connect(premium.endpoint, "one") as one,
        await JmsClient.connect(premium.endpoint, "two") as two,
    ):
        consumers = await one.durable(topic, "own"), await two.durable(topic, "own")
        await one.send(topic, message("m"))
        for consumer in consumers:
            assert await received(consumer, 1) == ["m"]
        names = await asyncio.to_thread(premium.subscriptions, topic)
        assert names == ["own$one$D", "own$two$D"]
        for client, consumer in zip((one, two), consumers, strict=True):
            await client.close_consumer(consumer)
            assert await client.unsubscribe("own") is None


async def test_unsubscribing_deletes_what_was_collected(premium: Premium, topic: str) -> None:
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        consumer = await jms.durable(topic, "audit-3")
        with pytest.raises(LinkRefused, match="active consumer"):
            await jms.unsubscribe("audit-3")
        await jms.close_consumer(consumer)
        await jms.send(topic, message("collected"))
        assert await jms.unsubscribe("audit-3") is None
        assert await asyncio.to_thread(premium.subscriptions, topic) == []
        consumer = await jms.durable(topic, "audit-3")
        assert await nothing_more(consumer)
        await jms.close_consumer(consumer)
        await jms.unsubscribe("audit-3")
        with pytest.raises(LinkRefused) as refused:
            await jms.unsubscribe("audit-3")
        assert refused.value.condition == "amqp:not-found"


async def test_the_audit_log_names_who_unsubscribed(premium: Premium, topic: str) -> None:
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        await jms.close_consumer(await jms.durable(topic, "audit-5"))
        assert await jms.unsubscribe("audit-5") is None
    about = f"entity={topic}/Subscriptions/audit-5$billing$D"
    told = [line for line in premium.server.log.read_text().splitlines() if about in line]
    client = "by=RootManageSharedAccessKey peer=127.0.0.1:"
    created, deleted = told
    assert f"subscription-created {client}" in created
    assert f"subscription-deleted {client}" in deleted


async def test_another_selector_starts_the_subscription_again(premium: Premium, topic: str) -> None:
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        consumer = await jms.durable(topic, "audit-4", selector="color = 'red'")
        await jms.close_consumer(consumer)
        await jms.send(topic, message("red", color="red"), message("blue", color="blue"))
        consumer = await jms.durable(topic, "audit-4", selector="color = 'red'")
        assert await received(consumer, 1) == ["red"]
        await jms.close_consumer(consumer)
        await jms.send(topic, message("old", color="red"))
        consumer = await jms.durable(topic, "audit-4", selector="color = 'blue'")
        await jms.send(topic, message("new", color="blue"))
        assert await received(consumer, 1) == ["new"]
        assert await nothing_more(consumer)
        await jms.close_consumer(consumer)
        await jms.unsubscribe("audit-4")


async def test_another_topic_starts_the_subscription_again(premium: Premium) -> None:
    first, second = premium.new_topic(16), premium.new_topic(2)
    async with (
        await JmsClient.connect(premium.endpoint, "billing") as jms,
        await JmsClient.connect(premium.endpoint, "billing") as other,
    ):
        consumer = await jms.durable(first, "moved")
        with pytest.raises(LinkRefused, match="active consumer"):
            await other.durable(second, "moved")
        await jms.close_consumer(consumer)
        consumer = await jms.durable(second, "moved")
        assert await asyncio.to_thread(premium.subscriptions, first) == []
        assert await asyncio.to_thread(premium.subscriptions, second) == ["moved$billing$D"]
        await jms.close_consumer(consumer)
        await jms.unsubscribe("moved")


async def test_closing_the_link_of_a_durable_subscription_deletes_it(premium: Premium, topic: str) -> None:
    """A detach leaves it; "closed" says that the terminus is destroyed [AMQP 2.6.4]."""
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        consumer = await jms.durable(topic, "closed")
        assert await jms.close_consumer(consumer, closed=True) is None
        assert await asyncio.to_thread(premium.subscriptions, topic) == []


@pytest.mark.parametrize("how", ["end", "close", "cut"])
async def test_a_durable_subscription_outlives_its_session_and_connection(premium: Premium, how: str) -> None:
    topic = premium.new_topic(2)
    jms = await JmsClient.connect(premium.endpoint, "billing")
    await jms.durable(topic, "lasting")
    if how == "end":
        jms.session.end()
        jms.client.flush()
        await jms.client.session_ended(jms.session)
    if how == "cut":
        jms.client.cut()
    else:
        await jms.client.close()
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        await jms.send(topic, message("m"))
        consumer = await jms.durable(topic, "lasting")
        assert await received(consumer, 1) == ["m"]
        await jms.close_consumer(consumer)
        assert await jms.unsubscribe("lasting") is None


# -- shared -------------------------------------------------------------------------


@pytest.mark.parametrize("everyone", [False, True], ids=["one client id", "no client id"])
async def test_shared_consumers_divide_the_messages(premium: Premium, topic: str, everyone: bool) -> None:
    client_id = None if everyone else "team"
    async with (
        await JmsClient.connect(premium.endpoint, client_id) as jms,
        await JmsClient.connect(premium.endpoint, client_id) as other,
    ):
        consumers = [
            await jms.shared(topic, "work", everyone=everyone),
            await jms.shared(topic, "work", number=2, everyone=everyone),
            await other.shared(topic, "work", everyone=everyone),
        ]
        scope = "" if everyone else "team"
        assert await asyncio.to_thread(premium.subscriptions, topic) == [f"work${scope}$ND"]
        await jms.send(topic, *map(message, NUMBERS))
        found: list[str] = []
        async with asyncio.timeout(20):
            while len(found) < 40:
                for consumer in consumers:
                    found += texts(await consumer.drain(5))
        assert sorted(found) == sorted(NUMBERS)
        for client, consumer in zip((jms, jms), consumers[:2], strict=True):
            await client.close_consumer(consumer, closed=True)
        assert len(await asyncio.to_thread(premium.subscriptions, topic)) == 1, "one consumer is left"
        await other.close_consumer(consumers[2], closed=True)
        assert await asyncio.to_thread(premium.subscriptions, topic) == []


@pytest.mark.parametrize("everyone", [False, True], ids=["one client id", "no client id"])
async def test_a_shared_durable_subscription_stays(premium: Premium, topic: str, everyone: bool) -> None:
    client_id = None if everyone else "team"
    name = f"stays-{'all' if everyone else 'team'}-{topic}"
    async with await JmsClient.connect(premium.endpoint, client_id) as jms:
        consumers = [await jms.shared(topic, name, number=n, durable=True, everyone=everyone) for n in (1, 2)]
        for consumer in consumers:
            assert await jms.close_consumer(consumer) is None
        await jms.send(topic, message("kept"))
    async with await JmsClient.connect(premium.endpoint, client_id) as jms:
        consumer = await jms.shared(topic, name, durable=True, everyone=everyone)
        assert await received(consumer, 1) == ["kept"]
        with pytest.raises(LinkRefused, match="active consumer"):
            await jms.unsubscribe(name, everyone=everyone)
        await jms.close_consumer(consumer)
        assert await jms.unsubscribe(name, everyone=everyone) is None
        assert await asyncio.to_thread(premium.subscriptions, topic) == []


async def test_a_shared_and_an_unshared_subscription_cannot_have_one_name(premium: Premium) -> None:
    topic = premium.new_topic(2)
    async with await JmsClient.connect(premium.endpoint, "team") as jms:
        consumer = await jms.shared(topic, "both", durable=True)
        await jms.close_consumer(consumer)
        with pytest.raises(LinkRefused, match="is shared") as refused:
            await jms.durable(topic, "both")
        assert refused.value.condition == "amqp:resource-locked"
        await jms.unsubscribe("both")
        consumer = await jms.durable(topic, "both")
        await jms.close_consumer(consumer)
        with pytest.raises(LinkRefused, match="is unshared"):
            await jms.shared(topic, "both", durable=True)
        await jms.unsubscribe("both")


async def test_shared_consumers_agree_on_the_selector(premium: Premium) -> None:
    topic = premium.new_topic(2)
    async with await JmsClient.connect(premium.endpoint, "team") as jms:
        await jms.shared(topic, "agreed", selector="a = 1")
        with pytest.raises(LinkRefused, match="another selector"):
            await jms.shared(topic, "agreed", number=2, selector="a = 2")


# -- what is not accepted -----------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"expiry_policy": Symbol("session-end")}, "session-end"),
        ({"expiry_policy": Symbol("connection-close")}, "connection-close"),
        ({"durable": True, "expiry_policy": Symbol("link-detach")}, "link-detach"),
    ],
)
async def test_other_ways_to_expire_are_refused(premium: Premium, asked: dict[str, Any], text: str) -> None:
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        with pytest.raises(LinkRefused, match=text) as refused:
            await jms.consumer("topic-2-0", name="odd", **asked)
        assert refused.value.condition == "amqp:invalid-field"


@pytest.mark.parametrize("name", ["a$b", "a/b", "a?b", "n" * 129])
async def test_names_that_cannot_be_part_of_a_path_are_refused(premium: Premium, name: str) -> None:
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        with pytest.raises(LinkRefused, match="subscription name"):
            await jms.durable("topic-2-0", name)


async def test_the_answer_has_only_what_is_in_place(premium: Premium) -> None:
    topic = premium.new_topic(2)
    async with await JmsClient.connect(premium.endpoint) as jms:
        consumer = await jms.consumer(
            topic, capabilities=("topic", "invented"), timeout=60, filter={Symbol("no-local"): True}
        )
        source = answered_source(consumer)
        assert source.capabilities == ["topic"]
        assert source.timeout is None
        assert not source.filter
        assert consumer.link.remote is not None
        assert consumer.link.remote.offered_capabilities == ["SHARED-SUBS"]


async def test_a_client_that_does_not_ask_for_a_subscription_gets_none(premium: Premium) -> None:
    """Such as an SDK's receiver of a queue, with a topic's name by mistake."""
    topic = premium.new_topic(2)
    async with await Client.connect(premium.endpoint) as client:
        with pytest.raises(LinkRefused, match="received from its subscriptions"):
            await client.receiver(topic)


async def test_a_durable_consumer_of_an_ordinary_subscription_receives(premium: Premium, topic: str) -> None:
    """With JMS 1.1 applications name a subscription in the place of a topic. That is no browser."""
    with premium.admin() as admin:
        admin.create_subscription(topic, "plain")
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        await jms.send(topic, message("m"))
        consumer = await jms.durable(f"{topic}/Subscriptions/plain", "any")
        assert await received(consumer, 1) == ["m"]
        await jms.close_consumer(consumer)
        with premium.admin() as admin:
            assert admin.get_subscription_runtime_properties(topic, "plain").total_message_count == 0


# -- rights and tiers ---------------------------------------------------------------


async def test_creating_a_subscription_needs_manage_and_consuming_it_listen(
    premium: Premium, topic: str
) -> None:
    listener = premium.endpoint_of("listener", "listen-key")
    async with await JmsClient.connect(listener, "billing") as jms:
        for attempt in (jms.durable(topic, "rights"), jms.consumer(topic), jms.shared(topic, "rights")):
            with pytest.raises(LinkRefused, match="Manage") as refused:
                await attempt
            assert refused.value.condition == "amqp:unauthorized-access"
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        await jms.close_consumer(await jms.durable(topic, "rights"))
        await jms.send(topic, message("m"))
    async with await JmsClient.connect(listener, "billing") as jms:
        consumer = await jms.durable(topic, "rights")
        assert await received(consumer, 1) == ["m"]
        await jms.close_consumer(consumer)
        with pytest.raises(LinkRefused, match="Manage"):
            await jms.durable(topic, "rights", selector="a = 1")
        error = await jms.unsubscribe("rights")
        assert error is not None and error.condition == "amqp:unauthorized-access"
    assert await asyncio.to_thread(premium.subscriptions, topic) == ["rights$billing$D"]
    async with await JmsClient.connect(premium.endpoint_of("sender", "send-key"), "billing") as jms:
        with pytest.raises(LinkRefused, match="Listen"):
            await jms.durable(topic, "rights")
        for name in ("rights", "no-such"):
            with pytest.raises(LinkRefused, match="Listen"):
                await jms.unsubscribe(name)
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        assert await jms.unsubscribe("rights") is None


async def test_other_tiers_refuse_subscriptions_of_clients(start_server: StartServer) -> None:
    server = start_server({}, topics=[{"Name": "t", "Properties": {}}])
    premium = Premium(server)
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        for attempt in (jms.consumer("t"), jms.durable("t", "s"), jms.shared("t", "s"), jms.unsubscribe("s")):
            with pytest.raises(LinkRefused, match="premium tier") as refused:
                await attempt
            assert refused.value.condition == "amqp:not-implemented"


# -- management ---------------------------------------------------------------------


async def test_an_administrator_may_make_a_durable_subscription(premium: Premium, topic: str) -> None:
    with premium.admin() as admin:
        admin.create_subscription(topic, "made$billing$D")
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        await jms.send(topic, message("m"))
        consumer = await jms.durable(topic, "made")
        assert await received(consumer, 1) == ["m"]
        await jms.close_consumer(consumer)
        with pytest.raises(LinkRefused, match="is unshared"):
            await jms.shared(topic, "made", durable=True)
    with premium.admin() as admin:
        admin.delete_subscription(topic, "made$billing$D")


async def test_rules_of_an_administrator_stay(premium: Premium, topic: str) -> None:
    with premium.admin() as admin:
        admin.create_subscription(topic, "ruled$billing$D")
        admin.delete_rule(topic, "ruled$billing$D", "$Default")
        admin.create_rule(topic, "ruled$billing$D", "big", filter=SqlRuleFilter("size > 10"))
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        await jms.send(topic, *(message(str(size), size=size, odd=size % 2 == 1) for size in range(9, 14)))
        consumer = await jms.durable(topic, "ruled", selector="odd")
        assert await received(consumer, 2) == ["11", "13"]
        assert await nothing_more(consumer)
        await jms.close_consumer(consumer)
        consumer = await jms.durable(topic, "ruled")
        assert await received(consumer, 1) == ["12"]
        await jms.close_consumer(consumer)
        await jms.unsubscribe("ruled")


# -- crashes ------------------------------------------------------------------------


@pytest.fixture
def own_premium(tmp_path: Any) -> Any:
    server = start_premium(tmp_path)
    yield Premium(server)
    if server.running:
        server.kill()
    server.refuse_trouble()


async def test_after_a_crash_durable_subscriptions_are_there_and_others_are_not(own_premium: Premium) -> None:
    premium = own_premium
    jms = await JmsClient.connect(premium.endpoint, "billing")
    for kind in KINDS:
        await jms.close_consumer(await jms.durable(f"topic-{kind}-0", f"d{kind}"))
        await jms.consumer(f"topic-{kind}-0")
        await jms.shared(f"topic-{kind}-0", f"v{kind}")
        await jms.send(f"topic-{kind}-0", *map(message, NUMBERS))
    premium.server.kill()
    premium.server.start()
    for kind in KINDS:
        await gone(premium, f"topic-{kind}-0/v{kind}$billing$ND")
        assert await asyncio.to_thread(premium.subscriptions, f"topic-{kind}-0") == [f"d{kind}$billing$D"]
    async with await JmsClient.connect(premium.endpoint, "billing") as jms:
        for kind in KINDS:
            consumer = await jms.durable(f"topic-{kind}-0", f"d{kind}")
            assert await received(consumer, 40) == sorted(NUMBERS)
