"""Deleting an entity loses no message that a transaction sent through it to another one."""

from __future__ import annotations

import pytest

from bendybus.amqp.message import encode_message
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.broker.transactions import commit
from bendybus.domain.commands import Enqueue
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.domain.transactions import MessageKeys
from bendybus.envelope import admit
from bendybus.errors import EntityNotFound, MessagesInTransit, StoreUnavailable
from bendybus.gateway.transaction import Transaction
from bendybus.names import EntityPath
from bendybus.store.faults import StoreFaults
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_broker import at_work_on_faults
from fix_topics import held

NO_KEYS = MessageKeys(None, None, None)


@pytest.fixture
def faults() -> StoreFaults:
    return StoreFaults([MemoryStore(name) for name in "ab"])


async def two_stores(broker: Broker, via: str) -> tuple[Queue | Topic, Queue]:
    """What is sent through, in the first store, and its destination, in the second."""
    source: Queue | Topic
    if via == "queue":
        source = await broker.queues.create(QueueDescription(EntityPath("via")))
    else:
        source = await broker.topics.create(TopicDescription(EntityPath("via")))
        for name in ("first", "second"):
            await broker.topics.create_subscription(SubscriptionDescription.of("via", name))
    target = await broker.queues.create(QueueDescription(EntityPath("target")))
    assert source.hosts[0].store is not target.hosts[0].store
    return source, target


def bare(target: Queue) -> Message:
    message, _ = admit(encode_message(data=b"x"), now(), target.description)
    return message


async def send_through(source: Queue | Topic, target: Queue, count: int = 1) -> None:
    """As a client's transaction does."""
    transaction = Transaction(b"1")
    transaction.send_through(source, target, [bare(target) for _ in range(count)], [NO_KEYS] * count)
    await commit(transaction.placed_work())


async def take_away(broker: Broker, faults: StoreFaults, target: Queue) -> None:
    store = target.hosts[0].store
    faults.fail(store.name, "unplugged")
    store.fail(StoreUnavailable("unplugged"))


async def delete(broker: Broker, what: str, *, force: bool = False) -> None:
    if what == "queue":
        await broker.queues.delete("via", force=force)
    elif what == "topic":
        await broker.topics.delete("via", force=force)
    else:
        await broker.topics.delete_subscription("via", "first", force=force)


WHAT = pytest.mark.parametrize("what", ["queue", "topic", "subscription"])


@pytest.mark.row("P-37")
@WHAT
async def test_what_was_sent_through_an_entity_leaves_before_it_is_deleted(
    catalog: SqliteCatalog, faults: StoreFaults, what: str
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        source, target = await two_stores(broker, what)
        await send_through(source, target, 100)
        await delete(broker, what)
        assert target.hosts[0].partition is not None
        assert target.hosts[0].partition.counts().active == 100


@pytest.mark.row("P-37")
@WHAT
async def test_an_entity_is_not_deleted_while_the_destination_is_away(
    catalog: SqliteCatalog, faults: StoreFaults, what: str
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        source, target = await two_stores(broker, what)
        await take_away(broker, faults, target)
        await send_through(source, target)
        with pytest.raises(MessagesInTransit, match="'target'"):
            await delete(broker, what)
        # Nothing has changed: more can be sent through it.
        await send_through(source, target)
        faults.heal_all()
        await broker.recovered()
        for forwarder in broker.entities.forwarders():
            forwarder.drop()
        await delete(broker, what)
        assert len(await held(target)) == 2


@WHAT
async def test_force_gives_up_what_cannot_leave(
    catalog: SqliteCatalog, faults: StoreFaults, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        source, target = await two_stores(broker, what)
        await take_away(broker, faults, target)
        await send_through(source, target)
        await delete(broker, what, force=True)
        assert "given up" in caplog.text


async def test_an_entity_that_is_being_deleted_takes_nothing_for_others(
    catalog: SqliteCatalog, faults: StoreFaults
) -> None:
    """What a transaction sends through a topic goes through another of its subscriptions."""

    async with at_work_on_faults(catalog, faults) as broker:
        topic, target = await two_stores(broker, "topic")
        assert isinstance(topic, Topic)
        first, second = topic.subscriptions
        first.leaving = True
        await take_away(broker, faults, target)
        await send_through(topic, target)
        assert second.hosts[0].available(SubQueue.OUTBOX) == 1
        with pytest.raises(EntityNotFound):
            await commit([(first.hosts[0], Enqueue([bare(target)], destination=target.path))])


async def test_an_idle_entity_stays_while_messages_wait_in_its_outbox(
    catalog: SqliteCatalog, faults: StoreFaults
) -> None:
    async with at_work_on_faults(catalog, faults) as broker:
        source = await broker.queues.create(QueueDescription(EntityPath("via"), auto_delete_on_idle_s=300))
        target = await broker.queues.create(QueueDescription(EntityPath("target")))
        await take_away(broker, faults, target)
        await send_through(source, target)
        await broker.ticker.advance(301_000)
        assert not source.deleted
        faults.heal_all()
        await broker.recovered()
        forwarder = broker.entities.forwarders()[0]
        forwarder.drop()
        forwarder.wake()
        await forwarder.settled()
        await broker.ticker.advance(1000)
        assert source.deleted
        assert len(await held(target)) == 1
