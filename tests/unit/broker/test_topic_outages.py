"""Topics and subscriptions when a store fails, stalls or comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bendybus.amqp.message import Properties, encode_message
from bendybus.broker import transactions
from bendybus.broker.clock import now
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability
from bendybus.domain.commands import Enqueue
from bendybus.domain.messages import SubQueue
from bendybus.domain.session_commands import SetSessionState
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope import admit
from bendybus.errors import StoreUnavailable
from bendybus.names import EntityPath, Instant
from fix_topics import bodies, encoded, publish

UNAVAILABLE = Availability.UNAVAILABLE
STALLED = StoreUnavailable("it has not answered for 2.0 s")
PLAIN = TopicDescription(EntityPath("plain"))
NEWS = TopicDescription(EntityPath("news"), enable_partitioning=True)


async def make(broker, description, *names, **properties):
    topic = await broker.topics.create(description)
    made = [
        await broker.topics.create_subscription(SubscriptionDescription.of(topic.path, name, **properties))
        for name in names
    ]
    for entity in (topic, *made):
        await entity.loaded()
    return topic, made


async def stall(stores, host: Host, sending) -> None:
    """What is sent hangs in the store, which is then given up."""
    (gated,) = [store for store in stores if store.name == host.store.name]
    gated.shut()
    task = asyncio.ensure_future(sending)
    await asyncio.to_thread(gated.reached.wait, 10)
    host.store.fail(STALLED)
    with pytest.raises(StoreUnavailable):
        await task
    gated.open_gate()


def waiting(queue) -> int:
    return sum(host.available(SubQueue.MAIN) for host in queue.hosts)


async def recovered(store) -> None:
    await store.writer.run(lambda: None)
    store.recover()
    await store.changes.until(
        lambda: all(host.availability is Availability.AVAILABLE for host in store.residents)
    )


@pytest.mark.row("P-16")
async def test_copies_that_a_stall_reported_as_failed_are_taken_back_everywhere(open_broker, stores):
    async with open_broker() as broker:
        topic, made = await make(broker, PLAIN, "one", "two")
        await publish(topic, "before")
        await stall(stores, topic.hosts[0], publish(topic, "doubtful"))
        await recovered(topic.hosts[0].store)
        await broker.drain()
        assert [await bodies(each) for each in made] == [["before"]] * 2
        await publish(topic, "doubtful")
        assert [await bodies(each) for each in made] == [["before", "doubtful"]] * 2
        (store,) = [store for store in stores if store.name == topic.hosts[0].store.name]
        assert len(store.groups[1][-1].stored) == 1, "it was stored late"

    async with open_broker() as broker:
        assert [await bodies(each) for each in broker.entities.sources()] == [["before", "doubtful"]] * 2


@pytest.mark.row("P-16")
async def test_a_scheduled_message_of_a_topic_is_taken_back_too(open_broker, stores):
    async with open_broker() as broker:
        topic, _ = await make(broker, PLAIN, "one")
        later = Instant(now() + 3_600_000)
        await stall(stores, topic.hosts[0], publish(topic, "doubtful", due=later))
        await recovered(topic.hosts[0].store)
        assert topic.hosts[0].partition.scheduled_count == 0


@pytest.mark.row("P-15", "P-16")
async def test_where_duplicates_are_detected_the_repetition_is_dropped_and_the_copies_stay(
    open_broker, stores
):
    description = TopicDescription(EntityPath("plain"), requires_duplicate_detection=True)

    async with open_broker() as broker:
        topic, made = await make(broker, description, "one", "two")
        await stall(stores, topic.hosts[0], publish(topic, "doubtful"))
        await recovered(topic.hosts[0].store)
        await publish(topic, "doubtful")
        assert [await bodies(each) for each in made] == [["doubtful"]] * 2


@pytest.mark.row("P-23")
async def test_a_transaction_in_a_stalled_store_is_never_torn(open_broker, stores):
    async with open_broker() as broker:
        topic, made = await make(broker, PLAIN, "one", "two")
        message, _ = admit(encoded("both or none"), now(), topic.description)
        work = [(topic.hosts[0], Enqueue([message]))]
        await stall(stores, topic.hosts[0], transactions.commit(work))
        assert all(each.hosts[0].availability is UNAVAILABLE for each in (topic, *made))
        await recovered(topic.hosts[0].store)
        # It came to be stored, and all of it has.
        assert [await bodies(each) for each in made] == [["both or none"]] * 2


@pytest.mark.row("P-04", "P-33")
async def test_a_store_takes_its_partitions_of_topics_and_subscriptions_with_it_and_they_come_back(
    open_broker,
):
    async with open_broker() as broker:
        topic, (one,) = await make(broker, NEWS, "one")
        store = topic.hosts[0].store
        store.fail(STALLED)
        gone = [host.number for host in topic.hosts if host.store is store]
        for entity in (topic, one):
            assert [host.number for host in entity.hosts if host.availability is UNAVAILABLE] == gone
            assert entity.limited
        for number in range(16):
            await publish(topic, str(number))
        assert waiting(one) == 16
        with pytest.raises(StoreUnavailable):
            await broker.topics.create_subscription(SubscriptionDescription.of(topic.path, "two"))
        await recovered(store)
        assert not topic.limited and not one.limited
        await broker.topics.create_subscription(SubscriptionDescription.of(topic.path, "two"))


@pytest.mark.row("P-04")
async def test_an_unpartitioned_topic_is_made_where_a_store_answers(open_broker):
    async with open_broker() as broker:
        for store in list(broker.stores)[:2]:
            store.fail(STALLED)
        topic, (one,) = await make(broker, PLAIN, "one")
        await publish(topic, "here")
        assert await bodies(one) == ["here"]


@pytest.mark.row("P-04")
@pytest.mark.parametrize("opened", [True, False])
async def test_topics_are_served_from_the_start_though_a_store_is_away(open_broker, stores, opened):
    async with open_broker() as broker:
        topic, _ = await make(broker, NEWS, "one")
        for host in topic.hosts:
            message, _ = admit(encoded(str(host.number)), now(), topic.description)
            await host.ask(Enqueue([message]))

    stores[1].outage = STALLED
    async with open_broker(unopened={} if opened else {"b": STALLED}) as broker:
        topic, one = broker.topics.get("news"), broker.topics.get_subscription("news", "one")
        await one.loaded()
        await topic.loaded()
        assert topic.limited and one.limited
        await publish(topic, "beside it")
        assert 10 < waiting(one) < 17
        stores[1].outage = None
        (store,) = [store for store in broker.stores if store.name == "b"]
        await recovered(store)
        assert len(await bodies(one)) == 17
        assert not topic.limited


class Holder:
    def __init__(self) -> None:
        self.told: list[str] = []

    def wake(self) -> None:
        self.told.append("woken")

    def lost(self) -> None:
        self.told.append("lost")


@pytest.mark.row("P-28")
async def test_who_holds_a_session_loses_it_with_the_store(open_broker):
    async with open_broker() as broker:
        topic, (one,) = await make(broker, PLAIN, "one", requires_session=True)
        payload = encode_message(properties=Properties(message_id="a", group_id="s"), data=b"a")
        await topic.hosts[0].ask(Enqueue([admit(payload, now(), topic.description)[0]]))
        host, holder = one.hosts[0], Holder()
        accepted = host.accept_next_session()
        host.holders.hold(accepted.lock, holder)
        host.store.fail(STALLED)
        assert holder.told == ["lost"]
        with pytest.raises(StoreUnavailable):
            await host.ask(SetSessionState(accepted.lock, b"state"))
        await recovered(host.store)
        assert host.accept_next_session() is not None


@pytest.mark.row("P-32")
async def test_what_is_as_described_needs_no_store_to_stay_so(open_broker, stores):
    described = SubscriptionDescription.of("news", "all", max_delivery_count=3)

    async with open_broker() as broker:
        await make(broker, NEWS, "all", max_delivery_count=3)

    stores[1].outage = StoreUnavailable("no route to host")
    async with open_broker() as broker:
        before = broker.entities.record("news/subscriptions/all")
        await broker.ensure([NEWS], [], [described])
        assert broker.entities.record("news/subscriptions/all") == before
        with pytest.raises(StoreUnavailable):
            await broker.ensure([], [], [replace(described, max_delivery_count=4)])
