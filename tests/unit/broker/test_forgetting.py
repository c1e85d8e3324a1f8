"""A store that is lost for good is given up, and entities are deleted while a store is away."""

from __future__ import annotations

import pytest

from bendybus.broker import forgetting
from bendybus.broker.broker import Broker
from bendybus.broker.forgetting import Loss
from bendybus.broker.lifecycle import Availability, StoreState
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Enqueue, Given, Peek
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import InvalidOperation, StoreUnavailable
from bendybus.names import EntityPath, SequenceNumber
from bendybus.store.faults import StoreFaults
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_broker import at_work_on_faults

ORDERS = QueueDescription(EntityPath("orders"), enable_partitioning=True)
PLAIN = QueueDescription(EntityPath("plain"))


@pytest.fixture
def faults() -> StoreFaults:
    return StoreFaults([MemoryStore(name) for name in "abc"])


async def lose(broker: Broker, faults: StoreFaults, name: str) -> None:
    faults.fail(name, "the disk is gone")
    broker.stores[name].fail(StoreUnavailable("the disk is gone"))
    assert broker.stores[name].state is StoreState.AWAY


async def send_to_all(queue: Queue) -> None:
    for host in queue.hosts:
        await host.ask(Enqueue([Message(b"x", size=1)]))


async def numbers(queue: Queue) -> dict[int, list[int]]:
    """Partition -> the sequence numbers in it, those that answer."""
    await queue.loaded()
    found: dict[int, list[int]] = {}
    for host in queue.hosts:
        if host.availability is Availability.AVAILABLE:
            reply = await host.ask(Peek(SequenceNumber(0), 100))
            assert isinstance(reply, Given)
            found[host.number] = [message.sequence_number for message in reply.messages]
    return found


def nothing() -> None:
    """In place of the list of stores in the data folder."""


async def test_a_forgotten_store_takes_its_messages_and_nothing_else(
    catalog: SqliteCatalog, faults: StoreFaults
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        orders = await broker.queues.create(ORDERS)
        await send_to_all(orders)
        before = await numbers(orders)
        lost = {host.number for host in orders.hosts if host.store.name == "b"}
        await lose(broker, faults, "b")
        assert await broker.forget("b", nothing) == Loss(len(lost), len(lost), 0)
        assert [store.name for store in broker.stores] == ["a", "c"]
        now = await numbers(orders)
        assert now == {number: [] if number in lost else found for number, found in before.items()}
        await send_to_all(orders)
        # Numbers that clients may still hold are not given out again, nor lower ones.
        after = await numbers(orders)
        assert all(after[number][-1] > before[number][-1] + 1000 for number in lost)
        assert all(after[number][-1] >> 48 == number for number in lost)
        assert orders.generation == catalog.entities()[0].generation
        assert "b" not in catalog.entities()[0].placement
    faults.remove("b")
    async with at_work_on_faults(catalog, faults) as broker:
        assert await numbers(broker.find("orders")) == after


async def test_a_topic_and_its_subscriptions_begin_again_together(
    catalog: SqliteCatalog, faults: StoreFaults
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        topic = await broker.topics.create(TopicDescription(EntityPath("t"), enable_partitioning=True))
        for name in ("one", "two"):
            await broker.topics.create_subscription(
                SubscriptionDescription(EntityPath(f"t/Subscriptions/{name}"))
            )
        await lose(broker, faults, "a")
        await broker.forget("a", nothing)
        for subscription in topic.subscriptions:
            await subscription.loaded()
            assert [host.store for host in subscription.hosts] == [host.store for host in topic.hosts]
        assert not topic.limited
        for host in topic.hosts:
            await host.ask(Enqueue([Message(b"x", size=1)]))


async def test_a_store_that_answers_or_is_the_last_is_not_forgotten(
    catalog: SqliteCatalog, faults: StoreFaults
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        orders = await broker.queues.create(ORDERS)
        await send_to_all(orders)
        with pytest.raises(InvalidOperation, match="drain it and retire it"):
            await broker.forget("b", nothing)
        for name in "abc":
            await lose(broker, faults, name)
        with pytest.raises(StoreUnavailable, match="No other store"):
            await broker.forget("b", nothing)
        faults.heal_all()
        await broker.recovered()
        assert [len(found) for found in (await numbers(orders)).values()] == [1] * 16


async def test_a_store_that_could_not_be_forgotten_keeps_its_messages(
    catalog: SqliteCatalog, faults: StoreFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        orders = await broker.queues.create(ORDERS)
        await send_to_all(orders)
        await lose(broker, faults, "b")

        def refused(*_: object) -> None:
            raise OSError("the catalog's disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(catalog, "replace", refused)
            with pytest.raises(StoreUnavailable, match="was not forgotten"):
                await broker.forget("b", nothing)
        faults.heal_all()
        await broker.recovered()
        assert [len(found) for found in (await numbers(orders)).values()] == [1] * 16


@pytest.mark.parametrize("has_leftovers", [False, True])
async def test_a_store_that_comes_back_while_it_is_not_forgotten_keeps_its_messages(
    catalog: SqliteCatalog, faults: StoreFaults, monkeypatch: pytest.MonkeyPatch, has_leftovers: bool
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        orders = await broker.queues.create(ORDERS)
        await send_to_all(orders)
        await lose(broker, faults, "b")
        lost = next(store for store in broker.stores if store.name == "b")
        lost.recovery.has_leftovers = has_leftovers

        async def comes_back(*_: object) -> None:
            faults.heal_all()
            lost.recovery.probe()
            await lost.recovered()

        async def refused(*_: object) -> None:
            if has_leftovers:
                await comes_back()
            raise OSError("the catalog's disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(forgetting, "replace_records", refused)
            patch.setattr(forgetting, "discard_partitions", comes_back)
            with pytest.raises(StoreUnavailable, match="was not forgotten"):
                await broker.forget("b", nothing)
        await broker.recovered()
        assert [len(found) for found in (await numbers(orders)).values()] == [1] * 16


async def test_an_entity_is_deleted_by_force_and_swept_when_its_store_is_back(
    catalog: SqliteCatalog, faults: StoreFaults
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        orders = await broker.queues.create(ORDERS)
        await broker.queues.create(PLAIN)
        await send_to_all(orders)
        await lose(broker, faults, "b")
        with pytest.raises(StoreUnavailable, match="Nothing was changed"):
            await broker.queues.delete("orders")
        await broker.queues.delete("orders", force=True)
        assert broker.entities.look_up("orders") is None
        faults.heal_all()
        await broker.recovered()
        store = broker.stores["b"].store
        assert [record.entity for record in store.partitions() if record.entity == "orders"] == []
