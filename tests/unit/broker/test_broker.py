"""Which queues exist, and where their partitions live."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from bendybus.broker.broker import Broker
from bendybus.domain.commands import Enqueue
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.errors import EntityExists, EntityNotFound, InvalidOperation, StoreError
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_broker import message

ORDERS = QueueDescription(EntityPath("Orders"), enable_partitioning=True)
PLAIN = QueueDescription(EntityPath("plain"))


@pytest.fixture
def catalog(tmp_path):
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.open()
    yield catalog
    catalog.close()


@pytest.fixture
def stores():
    return [MemoryStore(name) for name in ("a", "b", "c")]


@pytest.fixture
def with_broker(catalog, stores):
    """Run a coroutine against a broker started on these stores; each call is another start."""

    def run(test, **options):
        async def whole():
            broker = Broker(catalog, options.pop("stores", stores), **options)
            broker.start()
            try:
                return await test(broker)
            finally:
                await broker.stop()

        return asyncio.run(whole())

    return run


def test_a_partitioned_queue_is_spread_over_the_stores(with_broker):  # P-02
    async def test(broker):
        queue = await broker.create_queue(ORDERS)
        assert [host.number for host in queue.hosts] == list(range(16))
        assert sorted(Counter(host.store.name for host in queue.hosts).values()) == [5, 5, 6]

    with_broker(test)


def test_an_unpartitioned_queue_lives_in_one_store_and_they_take_turns(with_broker):  # P-02
    async def test(broker):
        queues = [await broker.create_queue(QueueDescription(EntityPath(name))) for name in "xyz"]
        assert [[host.store.name for host in queue.hosts] for queue in queues] == [["a"], ["b"], ["c"]]

    with_broker(test)


@pytest.mark.parametrize(("tier", "asked", "count"), [(Tier.STANDARD, True, 16), (Tier.PREMIUM, False, 4)])
def test_the_tier_decides_the_number_of_partitions(with_broker, tier, asked, count):  # P-08 P-09
    async def test(broker):
        description = QueueDescription(EntityPath("q"), enable_partitioning=asked)
        assert len((await broker.create_queue(description)).hosts) == count

    with_broker(test, tier=tier, premium_partitions=4)


def test_names_are_found_in_any_case_and_taken_once(with_broker):
    async def test(broker):
        queue = await broker.create_queue(ORDERS)
        assert broker.find("oRDERS") is queue
        with pytest.raises(EntityExists):
            await broker.create_queue(QueueDescription(EntityPath("orders")))
        with pytest.raises(EntityNotFound, match="The messaging entity 'other' could not be found"):
            broker.find("other")

    with_broker(test)


def test_a_restart_finds_queues_and_messages(with_broker):  # B-08
    async def fill(broker):
        queue = await broker.create_queue(ORDERS)
        await queue.hosts[7].ask(Enqueue([message("kept")]))

    async def look(broker):
        host = broker.find("orders").hosts[7]
        await host.ask(Enqueue([message("more")]))
        assert [each.sequence_number & 0xFF for each in host.partition.confirmed()] == [1, 2]

    with_broker(fill)
    with_broker(look)


def test_what_the_catalog_does_not_name_is_swept_away(with_broker, stores):  # P-32
    stores[1].create_partitions(EntityPath("half-made"), [PartitionNumber(0)])

    async def test(broker):
        assert list(broker.queues()) == []

    with_broker(test)
    assert stores[1].partitions() == []


def test_a_store_that_is_missing_is_named(with_broker, stores):
    async def create(broker):
        await broker.create_queue(ORDERS)

    async def nothing(broker):
        pass

    with_broker(create)
    with pytest.raises(StoreError, match="'c'"):
        with_broker(nothing, stores=stores[:2])


def test_an_update_changes_what_may_be_changed_for_good(with_broker):
    changed = QueueDescription(EntityPath("Orders"), enable_partitioning=True, max_delivery_count=3)

    async def update(broker):
        queue = await broker.create_queue(ORDERS)
        await queue.hosts[0].ask(Enqueue([message()]))
        assert await broker.ensure_queue(changed) is queue
        assert queue.hosts[0].partition.description.max_delivery_count == 3

    async def look(broker):
        assert broker.find("orders").description == changed

    with_broker(update)
    with_broker(look)


def test_partitioning_is_fixed_at_creation(with_broker):  # P-07
    async def test(broker):
        await broker.create_queue(ORDERS)
        with pytest.raises(InvalidOperation, match="EnablePartitioning is True"):
            await broker.ensure_queue(QueueDescription(EntityPath("orders")))

    with_broker(test)


def test_keyless_messages_take_turns_over_all_partitions(with_broker):  # P-16
    async def test(broker):
        queue = await broker.create_queue(ORDERS)
        assert {queue.place(None).number for _ in range(16)} == set(range(16))
        assert queue.place("key") is queue.place("key")

    with_broker(test)
