"""Entities that links make, with several brokers: any broker's links create, hold and end them."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from bendybus.broker.client_subscriptions import WantedSubscription
from bendybus.broker.temporary import QUEUE_PREFIX, TOPIC_PREFIX
from bendybus.broker.topic import Topic
from bendybus.domain.client_scopes import ClientScope
from bendybus.domain.entities import Tier
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import EntityNotFound, SubscriptionInUse, Unauthorized
from bendybus.names import EntityPath
from fix_async import until
from fix_cluster import Member, Members, members


def premium(names: str = "ab") -> AbstractAsyncContextManager[Members]:
    return members(names, Tier.PREMIUM)


def allowed() -> None:
    """The client may create what it wants."""


def forbidden() -> None:
    raise Unauthorized("Manage is needed.")


def wanted(name: str = "s", *, shared: bool = False, selector: str = "") -> WantedSubscription:
    return WantedSubscription(ClientScope(name, "client", durable=True), shared, selector)


async def topic_at(member: Member, cluster: Members) -> Topic:
    if cluster["a"].broker.topics.find("t") is None:
        await cluster["a"].broker.topics.create(TopicDescription(EntityPath("t")))
    return member.broker.topics.get("t")


@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_temporary_entity_of_any_broker_is_known_to_all_and_ends_with_its_holder(name: str) -> None:
    async with premium("abc") as cluster:
        temporary = cluster[name].broker.temporary
        queue = await temporary.create_queue(temporary.new_path(QUEUE_PREFIX), "link")
        topic = await temporary.create_topic(temporary.new_path(TOPIC_PREFIX), "link")

        for member in cluster:
            assert member.broker.entities.find(queue.path).path == queue.path
            assert member.broker.entities.find(topic.path).path == topic.path
        for entity in (queue, topic):
            ending = temporary.release(entity, "link")
            assert ending is not None and await ending is None
            for member in cluster:
                assert member.broker.entities.look_up(entity.path) is None


async def test_a_temporary_entity_stays_while_a_link_of_any_broker_holds_it() -> None:
    async with premium("abc") as cluster:
        brokers = {name: cluster[name].broker for name in "abc"}
        path = brokers["b"].temporary.new_path(QUEUE_PREFIX)
        at_b = await brokers["b"].temporary.create_queue(path, "creator")
        at_c = brokers["c"].queues.get(path)
        at_c.holders.add("other")

        ending = brokers["b"].temporary.release(at_b, "creator")
        assert ending is not None and await ending is None
        brokers["a"].temporary.sweep(asyncio.get_running_loop().time())
        await brokers["a"].entities.changing.acquire()
        brokers["a"].entities.changing.release()
        assert brokers["a"].queues.find(path) is not None

        ending = brokers["c"].temporary.release(at_c, "other")
        assert ending is not None and await ending is None
        assert brokers["a"].queues.find(path) is None


async def test_what_the_links_of_a_broker_held_ends_when_nobody_says_it_holds_it() -> None:
    """As after the death of that broker: the one that has the catalog asks."""
    async with premium() as cluster:
        path = cluster["b"].broker.temporary.new_path(QUEUE_PREFIX)
        queue = await cluster["b"].broker.temporary.create_queue(path, "link")
        await asyncio.sleep(0)
        queue.holders.clear()

        cluster["a"].broker.temporary.sweep(asyncio.get_running_loop().time())

        await until(lambda: all(member.broker.entities.look_up(path) is None for member in cluster))


@pytest.mark.parametrize(("first", "second"), ["ab", "ba", "bc", "bb"])
async def test_an_unshared_subscription_has_one_consumer_at_all_brokers_together(
    first: str, second: str
) -> None:
    async with premium("abc") as cluster:
        one, other = cluster[first], cluster[second]
        topic = await topic_at(one, cluster)
        subscription = await one.broker.client_subscriptions.consume(topic, wanted(), "link", allowed)
        there = await topic_at(other, cluster)

        with pytest.raises(SubscriptionInUse, match="active consumer"):
            await other.broker.client_subscriptions.consume(there, wanted(), "another", allowed)
        found = other.broker.client_subscriptions.find(wanted().scope)
        with pytest.raises(SubscriptionInUse, match="active consumer"):
            await other.broker.client_subscriptions.consume_known(found, "another")
        with pytest.raises(SubscriptionInUse, match="active consumer"):
            await other.broker.client_subscriptions.unsubscribe(found, "another")

        one.broker.temporary.release(subscription, "link")
        await other.broker.client_subscriptions.consume_known(found, "another")
        await other.broker.client_subscriptions.unsubscribe(found, "another")
        for member in cluster:
            with pytest.raises(EntityNotFound):
                member.broker.client_subscriptions.find(wanted().scope)


async def test_of_two_that_ask_at_the_same_time_one_is_the_consumer() -> None:
    async with premium("abc") as cluster:
        topics = {name: await topic_at(cluster[name], cluster) for name in "abc"}
        asked = await asyncio.gather(
            *(
                cluster[name].broker.client_subscriptions.consume(topics[name], wanted(), name, allowed)
                for name in "abc"
            ),
            return_exceptions=True,
        )

        refused = [each for each in asked if isinstance(each, BaseException)]
        assert len(refused) == 2
        assert all(isinstance(each, SubscriptionInUse) for each in refused)


async def test_a_shared_subscription_has_consumers_at_several_brokers() -> None:
    async with premium("abc") as cluster:
        for name in "abc":
            topic = await topic_at(cluster[name], cluster)
            subscriptions = cluster[name].broker.client_subscriptions
            await subscriptions.consume(topic, wanted(shared=True), "link", allowed)
        with pytest.raises(SubscriptionInUse, match="another selector"):
            await subscriptions.consume(topic, wanted(shared=True, selector="a = 1"), "another", allowed)


async def test_the_rights_of_a_client_count_at_the_broker_that_has_the_catalog() -> None:
    async with premium() as cluster:
        topic = await topic_at(cluster["b"], cluster)
        subscriptions = cluster["b"].broker.client_subscriptions

        with pytest.raises(Unauthorized, match="Manage is needed"):
            await subscriptions.consume(topic, wanted(), "link", forbidden)
        made = await subscriptions.consume(topic, wanted(), "link", allowed)
        cluster["b"].broker.temporary.release(made, "link")
        assert await subscriptions.consume(topic, wanted(), "link", forbidden) is made


@pytest.mark.parametrize("is_topic", [True, False])
async def test_a_missing_entity_is_created_for_a_client_of_any_broker(is_topic: bool) -> None:
    async with premium() as cluster:
        elsewhere = cluster["b"].cluster.linked_entities
        await elsewhere.create_missing(EntityPath("new"), is_topic=is_topic, idle_s=600)

        for member in cluster:
            entity = member.broker.entities.find("new")
            assert isinstance(entity, Topic) is is_topic
            assert entity.description.auto_delete_on_idle_s == 600
