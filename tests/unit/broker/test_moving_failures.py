"""Crashes and outages in the middle of a move: every message is in one place afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from bendybus.broker.broker import Broker
from bendybus.broker.copying import Copies
from bendybus.broker.lifecycle import Availability
from bendybus.broker.moving import Move
from bendybus.domain.commands import (
    Complete,
    Settled,
)
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import (
    BrokerError,
    StoreUnavailable,
)
from bendybus.names import EntityPath
from bendybus.store.catalog import EntityRecord
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_async import until
from fix_broker import at_work
from fix_topics import bodies, publish
from unit.broker.moved import (
    PLAIN,
    Stores,
    drained,
    emptied,
    held_by,
    lock,
    send,
    texts,
    token,
)

# -- crashes and outages ------------------------------------------------------------------


class PowerCut(BaseException):
    """The process ends here."""


STEPS = [
    (Copies, "_copy_rest"),
    (Copies, "catch_up"),
    (Move, "_switch"),
    (Copies, "compared"),
    (Move, "_settle"),
    (Move, "_clear_source"),
]


@pytest.mark.row("B-08")
@pytest.mark.parametrize(("of", "step"), STEPS, ids=[step for _, step in STEPS])
async def test_a_crash_at_any_step_leaves_everything_once(
    catalog: SqliteCatalog, two_stores: Stores, monkeypatch: pytest.MonkeyPatch, of: type, step: str
) -> None:
    def cut(*_: object) -> None:
        raise PowerCut(step)

    with suppress(asyncio.CancelledError):
        broker = Broker(catalog, two_stores, contents=AmqpContents())
        broker.start()
        topic = await broker.topics.create(TopicDescription(EntityPath("news")))
        for name in ("one", "two"):
            await broker.topics.create_subscription(SubscriptionDescription.of("news", name))
        await publish(topic, *"abc")
        with monkeypatch.context() as patch:
            patch.setattr(of, step, cut)
            # What the process would do on its way down does not happen when the power fails.
            patch.setattr("bendybus.broker.moving.discard_partitions", _nothing_async)
            moving = Move(
                broker.entities,
                lambda: [topic.hosts[0], *(each.hosts[0] for each in topic.subscriptions)],
                broker.stores["a"],
                broker.stores["b"],
            )
            with pytest.raises(PowerCut):
                await moving.run()
        for store in broker.stores:
            store.stop()
        broker.ticker.stop()
    both = [*held_by(two_stores[0]), *held_by(two_stores[1])]
    assert len(both) > 3, "there is litter"

    async with at_work(catalog, two_stores) as broker:
        for name in ("one", "two"):
            assert await bodies(broker.topics.get_subscription("news", name)) == list("abc")
        assert len([*held_by(two_stores[0]), *held_by(two_stores[1])]) == 3
        # And it can be repeated.
        await drained(broker, "a")
        assert held_by(two_stores[0]) == []
        await publish(broker.topics.get("news"), "d")
    async with at_work(catalog, two_stores) as broker:
        for name in ("one", "two"):
            assert await bodies(broker.topics.get_subscription("news", name)) == list("abcd")


async def _nothing_async(*_: object) -> None:
    pass


@pytest.mark.row("P-04")
async def test_a_destination_that_fails_leaves_the_partition_where_it_was(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = Copies.compared
    failing = [True]

    def fail_once(self: Copies, each: Any) -> Any:
        if failing:
            failing.pop()
            memory_stores[1].outage = StoreUnavailable("b: gone")
            raise StoreUnavailable("b: gone")
        return compared(self, each)

    monkeypatch.setattr(Copies, "compared", fail_once)

    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "one")
        (one,) = await lock(queue)
        await broker.drains.begin("a")
        await until(lambda: not failing)
        await send(queue, "two")
        assert queue.hosts[0].store.name == "a"
        assert await queue.hosts[0].ask(Complete([token(one)])) == Settled([])
        await broker.drains.changes.until(lambda: "problem" in broker.drains.progress("a"))
        memory_stores[1].outage = None
        await emptied(broker, "a")
        assert await texts(queue) == ["two"]
    assert held_by(memory_stores[0]) == []
    assert held_by(memory_stores[1]) == [("plain", 0, 1)]


def fail_at_the_switch(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    """The store on this side of a move goes away just when the catalog has it moved."""
    settle = Move._settle

    def settle_late(self: Move, *arguments: Any) -> None:
        getattr(self, side).fail(StoreUnavailable("just now"))
        settle(self, *arguments)

    monkeypatch.setattr(Move, "_settle", settle_late)


@pytest.mark.row("P-04")
async def test_a_source_that_goes_away_in_the_moment_of_the_switch_costs_nothing(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at_the_switch(monkeypatch, "_source")

    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "one", "two")
        await broker.drains.begin("a")
        await emptied(broker, "a")
        await queue.loaded()
        assert queue.hosts[0].store.name == "b"
        assert await texts(queue) == ["one", "two"]
        await send(queue, "three")
    async with at_work(catalog, memory_stores) as broker:
        await broker.find("plain").loaded()
        assert await texts(broker.find("plain")) == ["one", "two", "three"]
        assert held_by(memory_stores[0]) == []


@pytest.mark.row("P-04")
async def test_a_destination_that_goes_away_in_the_moment_of_the_switch_has_it_when_it_is_back(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at_the_switch(monkeypatch, "_target")

    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "one", "two")
        await broker.drains.begin("a")
        await emptied(broker, "a")
        host = queue.hosts[0]
        assert host.store.name == "b" and host.availability is Availability.UNAVAILABLE
        with pytest.raises(StoreUnavailable):
            await send(queue, "refused")
        host.store.recover()
        await host.store.changes.until(lambda: host.availability is Availability.AVAILABLE)
        assert await texts(queue) == ["one", "two"]


@pytest.mark.row("B-08")
async def test_a_catalog_that_switched_and_said_it_failed_is_believed_in_what_it_holds(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the copy cleared away for it, the messages would be gone at the next start."""
    replace, entities = catalog.replace, catalog.entities
    mute = 2

    def replace_and_fail(*records: EntityRecord) -> None:
        replace(*records)
        monkeypatch.setattr(catalog, "replace", replace)
        monkeypatch.setattr(catalog, "entities", entities_later)
        raise StoreUnavailable("the answer was lost")

    def entities_later() -> list[EntityRecord]:
        nonlocal mute
        if mute:
            mute -= 1
            raise StoreUnavailable("not yet")
        return entities()

    monkeypatch.setattr("bendybus.broker.placing.ASK_AGAIN_S", 0.001)

    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "one", "two")
        monkeypatch.setattr(catalog, "replace", replace_and_fail)
        await drained(broker, "a")
        assert queue.hosts[0].store.name == "b"
        await send(queue, "three")
    async with at_work(catalog, memory_stores) as broker:
        await broker.find("plain").loaded()
        assert await texts(broker.find("plain")) == ["one", "two", "three"]


async def test_a_copy_that_is_not_equal_is_never_switched_to(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore]
) -> None:
    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "one", "two")
        move = Move(broker.entities, lambda: queue.hosts, broker.stores["a"], broker.stores["b"])
        twins = move._copies._twins

        async def forgetful(each: Any, messages: Any) -> Any:
            return dict(list((await twins(each, messages)).items())[:-1])

        move._copies._twins = forgetful
        with pytest.raises(BrokerError, match="not in its copy"):
            await move.run()
        assert queue.hosts[0].store.name == "a"
        assert await texts(queue) == ["one", "two"]
    assert held_by(memory_stores[1]) == []
