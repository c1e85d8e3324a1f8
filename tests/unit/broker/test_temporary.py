"""Temporary entities: they end with their last holder, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from bendybus.broker.broker import Broker
from bendybus.broker.client_subscriptions import WantedSubscription
from bendybus.broker.temporary import QUEUE_PREFIX, RETRY_AFTER_S
from bendybus.broker.topic import Subscription, Topic
from bendybus.domain.client_scopes import ClientScope
from bendybus.domain.entities import Tier
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import NotSupported, StoreUnavailable, SubscriptionInUse
from bendybus.names import EntityPath
from bendybus.store.sqlite.catalog import SqliteCatalog

OpenBroker = Callable[..., AbstractAsyncContextManager[Broker]]


def allowed() -> None:
    """The client may create what it wants."""


def wanted(
    name: str, *, durable: bool = False, shared: bool = True, selector: str = ""
) -> WantedSubscription:
    return WantedSubscription(ClientScope(name, "client", durable), shared, selector)


async def premium_topic(broker: Broker) -> Topic:
    return await broker.topics.create(TopicDescription(EntityPath("t")))


async def test_the_last_holder_ends_a_temporary_queue(open_broker: OpenBroker) -> None:
    async with open_broker(tier=Tier.PREMIUM) as broker:
        path = broker.temporary.new_path(QUEUE_PREFIX)
        queue = await broker.temporary.create_queue(path, "one")
        queue.holders.add("two")
        assert broker.temporary.release(queue, "one") is None
        broker.temporary.sweep(asyncio.get_running_loop().time())
        ending = broker.temporary.release(queue, "two")
        assert ending is not None and await ending is None
        assert queue.deleted and broker.queues.find(path) is None


async def test_after_a_crash_the_next_start_deletes_them(open_broker: OpenBroker) -> None:
    async with open_broker(tier=Tier.PREMIUM) as broker:
        path = broker.temporary.new_path(QUEUE_PREFIX)
        await broker.temporary.create_queue(path, "holder")
        topic = await premium_topic(broker)
        await broker.client_subscriptions.consume(topic, wanted("brief"), "holder", allowed)
        await broker.client_subscriptions.consume(topic, wanted("stays", durable=True), "holder", allowed)
    async with open_broker(tier=Tier.PREMIUM) as broker:
        assert broker.queues.find(path) is not None
        broker.ticker.tick()
        await broker.background.stop()
        assert broker.queues.find(path) is None
        assert [each.name for each in broker.topics.get("t").subscriptions] == ["stays$client$D"]


async def test_a_deletion_that_fails_is_tried_again(
    open_broker: OpenBroker, catalog: SqliteCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tier=Tier.PREMIUM) as broker:
        queue = await broker.temporary.create_queue(broker.temporary.new_path(QUEUE_PREFIX), "holder")
        with monkeypatch.context() as patched:

            def away(*paths: str) -> None:
                raise StoreUnavailable("the catalog is away")

            patched.setattr(catalog, "remove", away)
            ending = broker.temporary.release(queue, "holder")
            assert ending is not None
            assert isinstance(await ending, StoreUnavailable)
        at = asyncio.get_running_loop().time()
        broker.temporary.sweep(at)
        assert not queue.deleted, "not before some time has passed"
        broker.temporary.sweep(at + RETRY_AFTER_S)
        await broker.background.stop()
        assert queue.deleted


async def test_who_comes_before_the_deletion_keeps_it(open_broker: OpenBroker) -> None:
    async with open_broker(tier=Tier.PREMIUM) as broker:
        topic = await premium_topic(broker)
        consume = broker.client_subscriptions.consume
        first: Subscription = await consume(topic, wanted("brief"), "one", allowed)
        async with broker.entities.changing:
            ending = broker.temporary.release(first, "one")
            first.holders.add("two")
        assert ending is not None and await ending is None
        assert not first.deleted
        ending = broker.temporary.release(first, "two")
        assert ending is not None and await ending is None
        again = await consume(topic, wanted("brief"), "three", allowed)
        assert first.deleted and not again.deleted


async def test_a_consumer_that_may_not_create_changes_nothing(open_broker: OpenBroker) -> None:
    def refuse() -> None:
        raise PermissionError

    async with open_broker(tier=Tier.PREMIUM) as broker:
        topic = await premium_topic(broker)
        consume = broker.client_subscriptions.consume
        with pytest.raises(PermissionError):
            await consume(topic, wanted("s", durable=True), "one", refuse)
        assert not topic.subscriptions
        present = await consume(topic, wanted("s", durable=True), "one", allowed)
        assert await consume(topic, wanted("s", durable=True), "two", refuse) is present
        with pytest.raises(SubscriptionInUse, match="another selector"):
            await consume(topic, wanted("s", durable=True, selector="a = 1"), "three", allowed)
        present.holders.clear()
        with pytest.raises(PermissionError):
            await consume(topic, wanted("s", durable=True, selector="a = 1"), "three", refuse)
        assert not present.deleted


async def test_other_tiers_have_none(open_broker: OpenBroker) -> None:
    async with open_broker(tier=Tier.STANDARD) as broker:
        topic = await premium_topic(broker)
        with pytest.raises(NotSupported):
            await broker.client_subscriptions.consume(topic, wanted("s"), "one", allowed)
        with pytest.raises(NotSupported):
            await broker.temporary.create_queue(EntityPath("q"), "one")
