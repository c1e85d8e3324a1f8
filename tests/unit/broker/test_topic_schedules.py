"""Topics over time: scheduled messages, duplicates, idle entities, a clock that moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bendybus.broker.clock import now
from bendybus.domain.commands import CancelScheduled
from bendybus.domain.filters import DEFAULT_RULE_NAME
from bendybus.errors import (
    MessageNotFound,
)
from bendybus.names import Instant
from fix_topics import NEWS, PLAIN, bodies, held, plain, publish, rule, subscription

# -- scheduled and repeated -------------------------------------------------------------


async def test_scheduled_messages_wait_at_the_topic_and_meet_the_rules_when_due(open_broker, stores):
    async with open_broker() as broker:
        topic, (one,) = await plain(broker, "one")
        soon = Instant(now() + 60_000)
        await publish(topic, "later", due=soon, n=1)
        assert topic.hosts[0].partition.scheduled_count == 1
        assert await bodies(one) == []
        # Rules are those of the moment of activation.
        await broker.topics.update_rule("plain", "one", rule(DEFAULT_RULE_NAME, "n = 1", "SET due = true"))
        two = await broker.topics.create_subscription(subscription("two"))
        await broker.ticker.advance(61_000)
        assert await bodies(one) == ["later"]
        ((message, _),) = await held(two)
        assert message.enqueued_at >= soon
        assert message.origin.sequence_number == 2  # a new number at activation
        (store,) = [store for store in stores if store.name == topic.hosts[0].store.name]
        assert topic.hosts[0].partition.size_bytes == 0
        assert store.body_count == 2  # the changed copy's own, and the one that was there all along


async def test_scheduled_messages_survive_a_restart_and_fire_once(open_broker):
    async with open_broker() as broker:
        topic, _ = await plain(broker, "one")
        await publish(topic, "later", due=Instant(now() + 60_000))

    for _ in range(2):
        async with open_broker() as broker:
            one = broker.find("plain/subscriptions/one")
            await broker.ticker.advance(61_000)
            assert await bodies(one) == ["later"]


async def test_a_scheduled_message_whose_payload_is_gone_is_looked_for_again(
    open_broker, stores, monkeypatch
):
    # Found by a simulation: another broker had published it, and the former owner never tried again.
    async with open_broker() as broker:
        topic, (one,) = await plain(broker, "one")
        await broker.topics.update_rule("plain", "one", rule(DEFAULT_RULE_NAME, "n = 1"))
        await publish(topic, "later", due=Instant(now() + 60_000), n=1)
        (store,) = [store for store in stores if store.name == topic.hosts[0].store.name]
        answers = [[None]]
        read = store.read
        monkeypatch.setattr(store, "read", lambda row_ids: answers.pop() if answers else read(row_ids))
        await broker.ticker.advance(61_000)
        await broker.recovered()
        await broker.ticker.advance(1_000)
        assert await bodies(one) == ["later"]


async def test_scheduled_messages_are_cancelled_by_their_number(open_broker):
    async with open_broker() as broker:
        topic, _ = await plain(broker, "one")
        reply = await publish(topic, "a", "b", due=Instant(now() + 60_000))
        await topic.hosts[0].ask(CancelScheduled([reply.first]))
        assert topic.hosts[0].partition.scheduled_count == 1
        with pytest.raises(MessageNotFound):
            await topic.hosts[0].ask(CancelScheduled([reply.first]))


@pytest.mark.row("P-15")
async def test_duplicates_are_dropped_at_the_topic(open_broker):
    async with open_broker() as broker:
        topic = await broker.topics.create(replace(PLAIN, requires_duplicate_detection=True))
        one = await broker.topics.create_subscription(subscription("one"))
        await publish(topic, "a")
        await publish(topic, "a", "b")
        assert await bodies(one) == ["a", "b"]

    async with open_broker() as broker:
        topic = broker.topics.get("plain")
        await publish(topic, "b", "c")
        assert await bodies(broker.find("plain/subscriptions/one")) == ["a", "b", "c"]


async def test_idle_topics_and_subscriptions_are_deleted(open_broker):
    async with open_broker() as broker:
        await broker.topics.create(replace(PLAIN, auto_delete_on_idle_s=300))
        await broker.topics.create(NEWS)
        await broker.topics.create_subscription(subscription("idle", "News", auto_delete_on_idle_s=300))
        await broker.topics.create_subscription(subscription("busy", "News"))
        await broker.topics.get("News").loaded()
        for each in broker.entities.sources():
            await each.loaded()
        await broker.topics.get("plain").loaded()
        await broker.ticker.advance(301_000)
        assert broker.topics.find("plain") is None
        assert [each.name for each in broker.topics.get("News").subscriptions] == ["busy"]


async def test_what_is_scheduled_at_a_topic_is_published_when_the_clock_has_moved(open_broker):
    async with open_broker() as broker:
        topic, (one,) = await plain(broker, "one", default_message_ttl_s=3600)
        await publish(topic, "now")
        await publish(topic, "later", due=Instant(now() + 7_200_000))
        await broker.ticker.advance(7_201_000)
        # It begins to live when it is published; the other one is past its time.
        assert await bodies(one) == ["later"]
        await broker.ticker.advance(3_601_000)
        assert await bodies(one) == []
