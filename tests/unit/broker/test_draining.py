"""Stores that drain: no new partitions, and what they hold moves to the others."""

from __future__ import annotations

import pytest

from bendybus.broker.moving import Move
from bendybus.domain.entities import QueueDescription
from bendybus.errors import (
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    StoreNotFound,
)
from bendybus.names import EntityPath
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_broker import at_work
from unit.broker.moved import (
    ORDERS,
    PLAIN,
    drained,
    emptied,
    held_by,
    send,
    texts,
)

# -- draining -----------------------------------------------------------------------------


@pytest.mark.row("P-02")
async def test_a_store_that_drains_gets_no_new_partitions_also_after_a_restart(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore]
) -> None:
    async with at_work(catalog, memory_stores) as broker:
        await broker.drains.begin("a")
        queue = await broker.queues.create(ORDERS)
        assert {host.store.name for host in queue.hosts} == {"b"}
    async with at_work(catalog, memory_stores) as broker:
        assert "a" in broker.drains
        queue = await broker.queues.create(PLAIN)
        assert queue.hosts[0].store.name == "b"
        await broker.drains.end("a")
        one, two = [await broker.queues.create(QueueDescription(EntityPath(name))) for name in "xy"]
        assert {one.hosts[0].store.name, two.hosts[0].store.name} == {"a", "b"}


async def test_an_interrupted_drain_goes_on_at_the_next_start(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore]
) -> None:
    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(ORDERS)
        await send(queue, *map(str, range(100)))
        await broker.drains.begin("a")
    async with at_work(catalog, memory_stores) as broker:
        await emptied(broker, "a")
        assert sorted(await texts(broker.find("orders")), key=int) == list(map(str, range(100)))
    assert held_by(memory_stores[0]) == []


@pytest.mark.row("P-02")
async def test_partitions_spread_over_the_stores_that_are_left(catalog: SqliteCatalog) -> None:
    two_stores = [MemoryStore(name) for name in "abcd"]

    async with at_work(catalog, two_stores) as broker:
        queue = await broker.queues.create(ORDERS)
        await drained(broker, "a")
        spread = [host.store.name for host in queue.hosts]
        assert sorted(spread.count(name) for name in "bcd") == [5, 5, 6]


@pytest.mark.row("P-02")
async def test_a_store_that_is_attached_takes_partitions_and_one_that_is_empty_can_go(
    catalog: SqliteCatalog,
) -> None:
    two_stores = [MemoryStore("a")]

    async with at_work(catalog, two_stores) as broker:
        queue = await broker.queues.create(ORDERS)
        await send(queue, "kept")
        with pytest.raises(InvalidOperation, match="last messaging store"):
            await broker.drains.begin("a")
        added = MemoryStore("b")
        await broker.attach(added)
        with pytest.raises(EntityExists):
            await broker.attach(MemoryStore("b"))
        with pytest.raises(InvalidOperation, match="keeps 16 partitions; drain it first"):
            await broker.detach("a", lambda: pytest.fail("nothing is to be forgotten"))
        with pytest.raises(StoreNotFound, match="there are a, b"):
            await broker.drains.begin("nowhere")
        await drained(broker, "a")
        with pytest.raises(InvalidOperation, match="last messaging store"):
            await broker.drains.begin("b")
        forgotten: list[str] = []
        await broker.detach("a", lambda: forgotten.append("a"))
        assert forgotten == ["a"]
        assert [store.name for store in broker.stores] == ["b"]
        assert "a" not in broker.drains
        assert await texts(queue) == ["kept"]


@pytest.mark.row("P-32")
async def test_an_entity_that_is_deleted_while_it_moves_leaves_nothing(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore]
) -> None:
    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "one")
        move = Move(broker.entities, lambda: queue.hosts, broker.stores["a"], broker.stores["b"])
        catch_up = move._copies.catch_up

        async def delete_first() -> None:
            await broker.queues.delete("plain")
            await broker.queues.create(QueueDescription(EntityPath("plain"), max_delivery_count=3))
            await catch_up()

        move._copies.catch_up = delete_first
        with pytest.raises(EntityNotFound):
            await move.run()
        await send(broker.find("plain"), "anew")
        assert await texts(broker.find("plain")) == ["anew"]
    assert len([*held_by(memory_stores[0]), *held_by(memory_stores[1])]) == 1
