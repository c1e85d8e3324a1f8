"""Copies whose rule has set another key: each is in the partition of that key, once, whatever fails."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.broker import transactions
from bendybus.broker.clock import now
from bendybus.domain.commands import Complete, Enqueue
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.domain.filters import TrueFilter
from bendybus.domain.messages import SubQueue
from bendybus.domain.routing import partition_of
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope import admit
from bendybus.errors import StoreUnavailable
from bendybus.names import EntityPath
from fix_broker import GatedStore, until_answered
from fix_topics import bodies, held, publish, rule

NEWS = TopicDescription(EntityPath("news"), enable_partitioning=True)

# Kind -> tier and partitions of `NEWS`.
KINDS = {16: Tier.STANDARD, 2: Tier.PREMIUM}

TO_SESSION = "SET sys.SessionId = 'ada'"


@pytest.fixture
def stores():
    return [GatedStore("left"), GatedStore("right")]


def acting(action, topic="news", **properties):
    return SubscriptionDescription.of(
        topic, "all", rules=(rule("act", TrueFilter(), action),), max_delivery_count=10, **properties
    )


async def made(broker, action=TO_SESSION, topic=NEWS, **properties):
    news = await broker.topics.create(topic)
    return news, await broker.topics.create_subscription(acting(action, topic.path, **properties))


def elsewhere(topic, key="ada"):
    """A key of another partition than this one's, in another store."""
    store = topic.host_for(key).store
    return next(other for other in map(str, range(100)) if topic.host_for(other).store is not store)


def on_the_way(subscription):
    partitions = [host.partition for host in subscription.hosts]
    return sum(1 if each is None else each.counts(SubQueue.OUTBOX).active for each in partitions)


async def until_bodies(subscription, expected):
    async def there():
        return not on_the_way(subscription) and sorted(await bodies(subscription)) == sorted(expected)

    await until_answered(there)


def partitions_of(found):
    return {message.sequence_number >> 48 for message, _ in found}


@pytest.mark.row("P-13")
@pytest.mark.parametrize("count", KINDS)
@pytest.mark.parametrize("requires_session", [False, True])
@pytest.mark.parametrize("action", [TO_SESSION, TO_SESSION + "; SET sys.PartitionKey = 'ADA'"])
async def test_copies_of_one_session_meet_in_its_partition(open_broker, count, requires_session, action):
    async with open_broker(tier=KINDS[count]) as broker:
        topic, subscription = await made(broker, action, requires_session=requires_session)
        assert len(topic.hosts) == count
        texts = [str(number) for number in range(48)]
        for text in texts:
            await publish(topic, text)
        await until_bodies(subscription, texts)
        found = await held(subscription)
        assert partitions_of(found) == {partition_of("ada", count)}
        assert {message.session_id for message, _ in found} == {"ada"}
        # What happened to it on the way does not show.
        assert {(message.origin.hops, message.delivery_count) for message, _ in found} == {(0, 0)}
        assert len({message.origin.sequence_number for message, _ in found}) == len(texts)
        if requires_session:
            assert sum(host.available(SubQueue.MAIN) for host in subscription.hosts) == 1


@pytest.mark.row("P-12")
async def test_a_partition_key_set_by_an_action_is_the_key(open_broker):
    async with open_broker() as broker:
        topic, subscription = await made(broker, "SET sys.PartitionKey = colour")
        for number in range(32):
            await publish(topic, str(number), colour="red" if number % 2 else "blue")
        await until_bodies(subscription, [str(number) for number in range(32)])
        places = {
            (
                message.sequence_number >> 48,
                decode_message(payload).message_annotations["x-opt-partition-key"],
            )
            for message, payload in await held(subscription)
        }
        assert places == {(partition_of(colour, 16), colour) for colour in ("red", "blue")}


@pytest.mark.row("P-13")
async def test_the_order_of_a_sender_is_kept_in_the_new_session(open_broker):
    async with open_broker() as broker:
        topic, subscription = await made(broker)
        key, texts = elsewhere(topic), [str(number) for number in range(50)]
        for text in texts:
            await publish(topic, text, key=key)
        await until_bodies(subscription, texts)
        assert await bodies(subscription) == texts


@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_copy_whose_partition_stays_the_same_is_one_commit(open_broker, stores, partitioned):
    async with open_broker() as broker:
        topic, subscription = await made(
            broker, topic=TopicDescription(EntityPath("news"), enable_partitioning=partitioned)
        )
        before = sum(len(store.groups) for store in stores)
        await publish(topic, "a", key="ada")
        assert sum(len(store.groups) for store in stores) == before + 1
        assert await bodies(subscription) == ["a"]


@pytest.mark.row("P-34")
async def test_a_subscription_that_forwards_makes_no_detour(open_broker):
    async with open_broker() as broker:
        target = await broker.queues.create(QueueDescription(EntityPath("target"), enable_partitioning=True))
        topic, _ = await made(broker, forward_to=EntityPath("target"))
        for number in range(20):
            await publish(topic, str(number))
        await until_bodies(target, [str(number) for number in range(20)])
        found = await held(target)
        assert partitions_of(found) == {partition_of("ada", 16)}
        assert {message.origin.hops for message, _ in found} == {1}


@pytest.mark.row("P-14")
@pytest.mark.parametrize("topic", [NEWS, TopicDescription(EntityPath("plain"))], ids=lambda topic: topic.path)
async def test_a_copy_with_two_keys_that_differ_is_never_kept(open_broker, topic):
    async with open_broker() as broker:
        _, buries = await made(broker, TO_SESSION + "; SET sys.PartitionKey = 'bob'", topic)
        drops = await broker.topics.create_subscription(
            SubscriptionDescription.of(
                topic.path,
                "drops",
                rules=(rule("act", TrueFilter(), TO_SESSION),),
                dead_letter_on_filter_errors=False,
            )
        )
        at_work = broker.topics.get(topic.path)
        payload = encode_message(
            message_annotations={"x-opt-partition-key": "bob"},
            properties=Properties(message_id="x"),
            data=b"x",
        )
        message, key = admit(payload, now(), at_work.description)
        await at_work.host_for(key).ask(Enqueue([message]))
        ((letter, _),) = await held(buries, SubQueue.DEAD_LETTER)
        assert letter.amendment.dead_letter_reason == "RuleActionException"
        assert "SessionId is 'ada' but PartitionKey is 'bob'" in letter.amendment.dead_letter_description
        for subscription in (buries, drops):
            for subqueue in (SubQueue.MAIN, SubQueue.OUTBOX):
                assert await held(subscription, subqueue) == []
        assert await held(drops, SubQueue.DEAD_LETTER) == []


async def test_a_copy_is_on_its_way_in_the_commit_that_publishes_it(open_broker, stores):
    """And a server that dies then moves it when it has started again."""

    async with open_broker() as broker:
        topic, subscription = await made(broker)
        key = elsewhere(topic)
        source = topic.host_for(key).store
        (other,) = [store for store in stores if store.name != source.name]
        other.shut()
        before = len(source.store.groups)
        await publish(topic, "a", key=key)
        assert len(source.store.groups) == before + 1
        ((message, _),) = await held(subscription, SubQueue.OUTBOX)
        assert message.session_id == "ada"
        assert await bodies(subscription) == []
        other.fails_once = StoreUnavailable("crashed")

    async with open_broker() as broker:
        subscription = broker.find("news/Subscriptions/all")
        await until_bodies(subscription, ["a"])


async def test_a_copy_that_arrived_and_was_not_removed_is_dropped_after_a_restart(open_broker, stores):
    async with open_broker() as broker:
        topic, subscription = await made(broker)
        key = elsewhere(topic)
        (source,) = [store for store in stores if store.name == topic.host_for(key).store.name]
        source.shut()
        sending = asyncio.create_task(publish(topic, "a", "b", key=key))
        await asyncio.to_thread(source.reached.wait, 10)
        source.let_one_through()
        await sending

        async def arrived():
            return await bodies(subscription) == ["a", "b"]

        await until_answered(arrived)
        # The removal from the outbox never reaches the disk.
        await asyncio.to_thread(source.reached.wait, 10)
        source.fails_once = StoreUnavailable("crashed")

    async with open_broker() as broker:
        await broker.recovered()
        subscription = broker.find("news/Subscriptions/all")
        await until_bodies(subscription, ["a", "b"])


@pytest.mark.parametrize("failing", ["left", "right"])
async def test_a_failed_commit_neither_loses_nor_doubles_copies(open_broker, stores, failing):
    async with open_broker() as broker:
        topic, subscription = await made(broker)
        accepted = []
        for number in range(60):
            if number == 20:
                (store,) = [store for store in stores if store.name == failing]
                store.fails_once = StoreUnavailable("away")
            try:
                await publish(topic, str(number))
                accepted.append(str(number))
            except StoreUnavailable:
                # Told so, and taken back.
                pass
        await broker.recovered()
        await until_bodies(subscription, accepted)


@pytest.mark.row("P-04")
async def test_a_copy_waits_for_its_partition_and_publishing_does_not(open_broker, stores):
    async with open_broker() as broker:
        topic, subscription = await made(broker)
        home, key = topic.host_for("ada").store, elsewhere(topic)
        (store,) = [each for each in stores if each.name == home.name]
        store.outage = StoreUnavailable("away")
        home.fail(StoreUnavailable("away"))
        await publish(topic, "a", key=key)
        on_its_way = subscription.hosts[topic.host_for(key).number].partition.counts(SubQueue.OUTBOX)
        assert on_its_way.active == 1
        store.outage = None
        await broker.recovered()
        await until_bodies(subscription, ["a"])


async def test_a_scheduled_message_meets_its_new_session_when_it_is_due(open_broker):
    async with open_broker() as broker:
        topic, subscription = await made(broker)
        for number in range(8):
            await publish(topic, str(number), due=now() + 60_000)
        await broker.ticker.advance(61_000)
        await until_bodies(subscription, [str(number) for number in range(8)])
        assert partitions_of(await held(subscription)) == {partition_of("ada", 16)}


@pytest.mark.row("P-23")
async def test_a_transaction_publishes_copies_with_another_key(open_broker):
    async with open_broker() as broker:
        topic, subscription = await made(broker)
        key = elsewhere(topic)
        source = await broker.topics.create_subscription(SubscriptionDescription.of("news", "source"))
        await publish(topic, "in", key=key)
        await until_bodies(subscription, ["in"])
        taken = source.hosts[topic.host_for(key).number]
        (message,) = taken.lock(1, 1 << 20, SubQueue.MAIN)
        payload = encode_message(properties=Properties(message_id="out"), data=b"out")
        out, _ = admit(payload, now(), topic.description)
        await transactions.commit(
            [(taken, Complete([message.lock_token])), (topic.host_for(key), Enqueue([out]))]
        )
        await until_bodies(subscription, ["in", "out"])
        assert partitions_of(await held(subscription)) == {partition_of("ada", 16)}
        assert await bodies(source) == ["out"]


@pytest.mark.row("P-15")
async def test_a_duplicate_of_a_message_makes_no_second_copy(open_broker):
    async with open_broker() as broker:
        topic, subscription = await made(
            broker,
            topic=TopicDescription(
                EntityPath("news"), enable_partitioning=True, requires_duplicate_detection=True
            ),
        )
        for text in ("a", "b", "a", "c", "b"):
            await publish(topic, text, key=text)
        await until_bodies(subscription, ["a", "b", "c"])
        assert Counter(await bodies(subscription)) == Counter("abc")


async def test_a_copy_keeps_its_time_to_live_on_the_way(open_broker):
    async with open_broker() as broker:
        topic, subscription = await made(broker, default_message_ttl_s=3600)
        before = now()
        await publish(topic, "a", key=elsewhere(topic))
        await until_bodies(subscription, ["a"])
        ((message, _),) = await held(subscription)
        assert before + 3_600_000 <= message.expires_at <= message.enqueued_at + 3_600_000
