"""Rules are asked about a large send in slices: others are served meanwhile, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from bendybus.broker import evaluating
from bendybus.broker.broker import Broker
from bendybus.broker.evaluating import AT_ONCE_WORK, SLICE_WORK
from bendybus.broker.topic import Subscription, Topic
from bendybus.broker.transactions import commit
from bendybus.domain.commands import Enqueue
from bendybus.domain.evaluation import STEP_WEIGHT
from bendybus.domain.filters import Reading, SqlFilter
from bendybus.domain.messages import SubQueue
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope import admit
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import RulesTooCostly
from bendybus.names import EntityPath
from bendybus.store.memory_catalog import MemoryCatalog
from fix_broker import GatedStore
from fix_topics import bodies, encoded, publish, rule


@dataclass
class Watch:
    """How many filters were asked between two turns of the loop."""

    asked: int = 0
    most: int = 0
    turns: int = 0
    over: bool = False

    def turn(self) -> None:
        self.most, self.asked = max(self.most, self.asked), 0
        self.turns += 1
        if not self.over:
            asyncio.get_running_loop().call_soon(self.turn)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    matches = SqlFilter.matches

    def counted(self: SqlFilter, reading: Reading) -> bool:
        watch.asked += 1
        return matches(self, reading)

    monkeypatch.setattr(SqlFilter, "matches", counted)
    return watch


@asynccontextmanager
async def a_topic(
    rules: int, partitioned: bool, **properties: object
) -> AsyncIterator[tuple[Topic, GatedStore]]:
    """Half of the rules in one subscription, and each other one in a subscription of its own."""
    store = GatedStore()
    broker = Broker(MemoryCatalog(), [store], contents=AmqpContents())
    broker.start()
    description = TopicDescription(EntityPath("t"), enable_partitioning=partitioned, **properties)
    topic = await broker.topics.create(description)
    many = tuple(rule(f"r{number}", f"n = {number + 1000}") for number in range(rules // 2))
    await broker.topics.create_subscription(SubscriptionDescription.of("t", "many", rules=many))
    for number in range(rules - rules // 2):
        one = (rule("r", f"n = {number}"),)
        await broker.topics.create_subscription(SubscriptionDescription.of("t", f"s{number}", rules=one))
    try:
        yield topic, store
    finally:
        await broker.stop()


def the_third(topic: Topic) -> Subscription:
    """The one that takes what has n = 3."""
    subscription = topic.subscription("s3")
    assert subscription is not None
    return subscription


PARTITIONED = pytest.mark.parametrize("partitioned", [False, True])


@PARTITIONED
async def test_a_large_send_asks_a_bounded_number_of_filters_in_a_turn(
    watch: Watch, partitioned: bool
) -> None:
    async with a_topic(100, partitioned) as (topic, store):
        watch.turn()
        commits = len(store.groups)
        await publish(topic, *map(str, range(500)), key="k", n=3)
        watch.over = True
        assert watch.most <= SLICE_WORK + STEP_WEIGHT
        assert watch.turns > 500 * 100 // SLICE_WORK
        # All of it, in its order and in one commit.
        assert len(store.groups) == commits + 1
        assert await bodies(the_third(topic)) == [str(number) for number in range(500)]


async def test_a_small_send_waits_for_no_turn(watch: Watch) -> None:
    async with a_topic(100, False) as (topic, _):
        messages = [
            admit(encoded(str(number), n=3), topic.now(), topic.description)[0]
            for number in range(AT_ONCE_WORK // 100)
        ]
        await topic.loaded()
        topic.hosts[0].submit(Enqueue(messages), lambda reply: None)
        assert watch.asked >= len(messages) * 50


async def test_what_comes_later_waits_behind_a_large_send() -> None:
    async with a_topic(100, False) as (topic, _):
        large = asyncio.create_task(publish(topic, *map(str, range(300)), n=3))
        await asyncio.sleep(0)
        await asyncio.gather(publish(topic, "after", n=3), large)
        assert (await bodies(the_third(topic)))[-2:] == ["299", "after"]


async def test_rules_that_change_meanwhile_are_asked_again(watch: Watch) -> None:
    async with a_topic(100, False) as (topic, _):
        large = asyncio.create_task(publish(topic, *map(str, range(300)), n=3))
        for _ in range(3):
            await asyncio.sleep(0)
        topic.rules_changed()
        watch.turn()
        await large
        watch.over = True
        assert watch.most <= SLICE_WORK + STEP_WEIGHT
        assert len(await bodies(the_third(topic))) == 300


async def test_a_large_transaction_is_asked_about_in_slices_too(watch: Watch) -> None:
    async with a_topic(200, False) as (topic, _):
        messages = [
            admit(encoded(str(number), n=3), topic.now(), topic.description)[0] for number in range(100)
        ]
        watch.turn()
        await commit([(topic.hosts[0], Enqueue(messages))])
        watch.over = True
        assert watch.most <= SLICE_WORK + STEP_WEIGHT
        assert len(await bodies(the_third(topic))) == 100


async def test_actions_and_failures_come_out_as_in_a_small_send() -> None:
    async with a_topic(100, False) as (topic, _):
        broker_rules = (
            rule("set", "n = 3", "SET m = sys.MessageId"),
            rule("fails", "n = 3", "SET m = n / 0"),
            rule("plain", "n = 3 AND sys.EnqueuedTimeUtc IS NOT NULL"),
        )
        described = SubscriptionDescription.of("t", "s3", rules=broker_rules)
        the_third(topic).description = described
        topic.rules_changed()
        await publish(topic, *map(str, range(100)), n=3)
        await publish(topic, "alone", n=3)
        taken = await bodies(the_third(topic))
        assert taken[:4] == ["0", "0", "1", "1"] and taken[-2:] == ["alone", "alone"]
        assert len(await bodies(the_third(topic), SubQueue.DEAD_LETTER)) == 101


@PARTITIONED
async def test_a_send_that_would_make_too_many_copies_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    monkeypatch.setattr(evaluating, "COPIES_MAX", 50)

    async with a_topic(10, partitioned) as (topic, _):
        await publish(topic, *map(str, range(50)), key="k", n=3)
        with pytest.raises(RulesTooCostly, match="Send fewer at once"):
            await publish(topic, *map(str, range(51)), key="k", n=3)
        assert len(await bodies(the_third(topic))) == 50
