"""Partitions move between stores while traffic flows, and whatever happens nothing is lost or there twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from os import urandom

import pytest

from bendybus.broker import transactions
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.copying import Copies
from bendybus.broker.queue import Queue
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Enqueue,
    Given,
    Settled,
)
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import MessageState, SubQueue
from bendybus.domain.session_commands import (
    AcceptSession,
    LockInSession,
    SessionAccepted,
    SessionLock,
    SetSessionState,
)
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import (
    StoreUnavailable,
)
from bendybus.names import EntityPath, Instant, SessionId
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_broker import at_work
from fix_topics import bodies, publish
from unit.broker.moved import (
    ORDERS,
    PLAIN,
    Stores,
    drained,
    emptied,
    held_by,
    lock,
    new,
    send,
    texts,
    token,
)

# -- what moves ---------------------------------------------------------------------------


async def test_everything_a_partition_has_moves_and_survives_a_restart(
    catalog: SqliteCatalog, two_stores: Stores
) -> None:
    async def fill(broker: Broker) -> Queue:
        queue = await broker.queues.create(PLAIN)
        await send(queue, *[f"m{number}" for number in range(8)], "")
        first, second, third, fourth = await lock(queue, 4)
        host = queue.hosts[0]
        await host.ask(Defer([token(first)]))
        await host.ask(DeadLetter([token(second)], "why", "so", b"\x01"))
        await host.ask(Abandon([token(third)], b"\x02"))
        await host.ask(Complete([token(fourth)]))
        later = new("later")
        later.state, later.enqueued_at = MessageState.SCHEDULED, Instant(now() + 3_600_000)
        await host.ask(Enqueue([later]))
        return queue

    def look(queue: Queue) -> list[tuple[object, ...]]:
        partition = queue.hosts[0].partition
        assert partition is not None
        return sorted(
            (
                m.sequence_number,
                m.state,
                m.subqueue,
                m.delivery_count,
                m.enqueued_at,
                m.size,
                repr(m.amendment),
            )
            for m in partition.confirmed()
        )

    async with at_work(catalog, two_stores) as broker:
        queue = await fill(broker)
        before, number = look(queue), queue.hosts[0].partition.next_sequence_number
        assert queue.hosts[0].store.name == "a"
        await drained(broker, "a")
        assert queue.hosts[0].store.name == "b"
        assert look(queue) == before
        assert await texts(queue) == ["m0", "m2", "m4", "m5", "m6", "m7", "", "later"]
        assert await texts(queue, SubQueue.DEAD_LETTER) == ["m1"]
        await send(queue, "after")
        assert max(row[0] for row in look(queue)) == number
        before = look(queue)
    assert held_by(two_stores[0]) == []

    async with at_work(catalog, two_stores) as broker:
        queue = broker.find("plain")
        await queue.loaded()
        assert queue.hosts[0].store.name == "b"
        assert look(queue) == before
        assert await texts(queue, SubQueue.DEAD_LETTER) == ["m1"]
        assert "after" in await texts(queue)


@pytest.mark.row("P-05")
async def test_locks_are_kept_and_can_be_settled_after_the_move(
    catalog: SqliteCatalog, two_stores: Stores
) -> None:
    async with at_work(catalog, two_stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "one", "two", "three")
        one, two = await lock(queue, 2)
        await drained(broker, "a")
        assert await queue.hosts[0].ask(Complete([token(one)])) == Settled([])
        assert await queue.hosts[0].ask(Abandon([token(two)])) == Settled([])
        assert await texts(queue) == ["two", "three"]
        broker.cache.forget(())
    assert [count for _, _, count in held_by(two_stores[1])] == [2]


@pytest.mark.row("P-16")
async def test_partitions_that_moved_take_turns_with_those_of_their_new_store(
    catalog: SqliteCatalog,
) -> None:
    async with at_work(catalog, [MemoryStore(name) for name in "abc"]) as broker:
        queue = await broker.queues.create(ORDERS)
        await queue.loaded()
        await drained(broker, "a")
        around = [queue.host_for(None) for _ in queue.hosts]
        assert {host.number for host in around} == {host.number for host in queue.hosts}
        assert [name for name, _ in groupby(host.store.name for host in around)] == ["b", "c"]


@pytest.mark.row("P-13")
async def test_sessions_keep_their_holders_their_messages_and_their_states(
    catalog: SqliteCatalog, two_stores: Stores
) -> None:
    description = QueueDescription(EntityPath("sessions"), requires_session=True)

    async with at_work(catalog, two_stores) as broker:
        queue = await broker.queues.create(description)
        host = queue.hosts[0]
        await send(queue, "1", "2", session="red")
        await send(queue, "3", session="blue\x00")
        accepted = await host.ask(AcceptSession(SessionId("red"), urandom(ENTROPY_PER_LOCK)))
        assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
        held: SessionLock = accepted.lock
        await host.ask(SetSessionState(held, b"half-way"))
        given = await host.ask(LockInSession(held, 1, urandom(ENTROPY_PER_LOCK)))
        assert isinstance(given, Given)
        await drained(broker, "a")
        assert await host.session_state(held) == b"half-way"
        assert await host.ask(Complete([token(given.messages[0])])) == Settled([])
        await host.ask(SetSessionState(held, b"further"))
    async with at_work(catalog, two_stores) as broker:
        queue = broker.find("sessions")
        await queue.loaded()
        accepted = await queue.hosts[0].ask(AcceptSession(SessionId("red"), urandom(ENTROPY_PER_LOCK)))
        assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
        assert await queue.hosts[0].session_state(accepted.lock) == b"further"
        assert await texts(queue) == ["2", "3"]


@pytest.mark.row("P-14")
async def test_what_duplicate_detection_remembers_moves_too(
    catalog: SqliteCatalog, two_stores: Stores
) -> None:
    description = QueueDescription(EntityPath("once"), requires_duplicate_detection=True)

    async with at_work(catalog, two_stores) as broker:
        queue = await broker.queues.create(description)
        await queue.hosts[0].ask(Enqueue([new("first")], ["id-1"]))
        await drained(broker, "a")
        await queue.hosts[0].ask(Enqueue([new("again")], ["id-1"]))
    async with at_work(catalog, two_stores) as broker:
        queue = broker.find("once")
        await queue.loaded()
        await queue.hosts[0].ask(Enqueue([new("again")], ["id-1"]))
        await queue.hosts[0].ask(Enqueue([new("second")], ["id-2"]))
        assert await texts(queue) == ["first", "second"]


@pytest.mark.row("P-34")
async def test_what_is_forwarded_arrives_once_though_both_ends_move(
    catalog: SqliteCatalog, two_stores: Stores
) -> None:
    async with at_work(catalog, two_stores) as broker:
        await broker.queues.create(QueueDescription(EntityPath("target")))
        source = await broker.queues.create(
            QueueDescription(EntityPath("source"), forward_to=EntityPath("target"))
        )
        sent = [f"{number:03}" for number in range(100)]
        target = broker.find("target")

        async def traffic() -> None:
            for text in sent:
                await publish(source, text)

        sending = asyncio.create_task(traffic())
        for name in ("a", "b"):
            await drained(broker, name)
            await broker.drains.end(name)
        await sending
        for forwarder in broker.entities.forwarders():
            await forwarder.settled()
        assert sorted(await bodies(target)) == sent
        assert await bodies(source) == []


@pytest.mark.row("P-19")
async def test_a_topic_and_its_subscriptions_move_together_and_share_their_bodies(
    catalog: SqliteCatalog, two_stores: Stores
) -> None:
    async with at_work(catalog, two_stores) as broker:
        topic = await broker.topics.create(TopicDescription(EntityPath("news")))
        subscriptions = [
            await broker.topics.create_subscription(SubscriptionDescription.of("news", name))
            for name in ("one", "two")
        ]
        await publish(topic, "x" * 100, "second")
        await publish(topic, "later", due=Instant(now() + 3_600_000))
        await publish(topic, "soon", due=Instant(now() + 60_000))
        (first,) = await lock(subscriptions[0])
        await drained(broker, "a")
        assert {host.store.name for each in (topic, *subscriptions) for host in each.hosts} == {"b"}
        assert await subscriptions[0].hosts[0].ask(Complete([token(first)])) == Settled([])
        await publish(topic, "third")
        await broker.ticker.advance(61_000)
    async with at_work(catalog, two_stores) as broker:
        found = {
            each.name: sorted(await bodies(each)) for topic in broker.topics for each in topic.subscriptions
        }
        assert found == {
            "one": ["second", "soon", "third"],
            "two": ["second", "soon", "third", "x" * 100],
        }
        assert [topic.hosts[0].partition.scheduled_count for topic in broker.topics] == [1]
    assert held_by(two_stores[0]) == []
    messages = [m for record in two_stores[1].partitions() for m in two_stores[1].load(record.key).messages]
    # Seven copies and one that is scheduled, of five messages: five bodies.
    assert len(messages) == 8
    assert len({message.body_row_id for message in messages}) == 5


# -- traffic ------------------------------------------------------------------------------


class Traffic:
    """Senders and a receiver at work all the time; what was acknowledged, and what was completed."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._stop = False
        self.acknowledged: list[str] = []
        self.completed: list[str] = []
        self.lost = 0

    async def send(self, sender: int) -> None:
        number = 0
        while not self._stop:
            number += 1
            key = f"key-{number % 40}" if number % 2 else None
            text = f"{sender}-{number}"
            with suppress(StoreUnavailable):
                await self._queue.host_for(key).ask(Enqueue([new(text)]))
                self.acknowledged.append(text)
            await asyncio.sleep(0)

    async def receive(self) -> None:
        while not self._stop:
            for host in self._queue.in_turn():
                messages = host.lock(3, 10_000, SubQueue.MAIN)
                if not messages:
                    continue
                payloads = await host.payloads(messages)
                keep = messages[: len(messages) // 2 + 1]
                settled = await host.ask(Complete([token(message) for message in keep]))
                assert isinstance(settled, Settled)
                self.lost += len(settled.lost)
                self.completed += [(payload or b"?").decode() for payload in payloads[: len(keep)]]
                await host.ask(Abandon([token(message) for message in messages[len(keep) :]]))
            await asyncio.sleep(0)

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.send(number)) for number in range(6)]
        tasks.append(asyncio.create_task(self.receive()))
        try:
            yield
        finally:
            self._stop = True
            await asyncio.gather(*tasks)


@pytest.mark.row("P-05")
async def test_nothing_is_lost_or_repeated_while_stores_are_emptied_under_traffic(
    catalog: SqliteCatalog, two_stores: Stores
) -> None:
    async with at_work(catalog, two_stores) as broker:
        queue = await broker.queues.create(
            QueueDescription(ORDERS.path, enable_partitioning=True, max_delivery_count=1000)
        )
        await send(queue, *[f"before-{number}" for number in range(700)])
        traffic = Traffic(queue)
        traffic.acknowledged += [f"before-{number}" for number in range(700)]
        async with traffic.flowing():
            for name in ("a", "b", "a"):
                await drained(broker, name)
                assert not broker.stores[name].residents
                await broker.drains.end(name)
        # Locks outlive every move.
        assert traffic.lost == 0
        left = await texts(queue)
        assert sorted(traffic.completed + left) == sorted(traffic.acknowledged)
    async with at_work(catalog, two_stores) as broker:
        queue = broker.find("orders")
        await queue.loaded()
        assert sorted(await texts(queue)) == sorted(left)


@pytest.mark.row("P-12")
async def test_messages_of_one_key_stay_in_order_across_a_move(
    catalog: SqliteCatalog, two_stores: Stores
) -> None:
    async with at_work(catalog, two_stores) as broker:
        queue = await broker.queues.create(ORDERS)

        async def sender() -> None:
            for number in range(400):
                await queue.host_for("key").ask(Enqueue([new(f"{number:04}")]))

        sending = asyncio.create_task(sender())
        for name in ("a", "b", "a"):
            await drained(broker, name)
            await broker.drains.end(name)
        await sending
        assert await texts(queue) == [f"{number:04}" for number in range(400)]


@pytest.mark.row("P-23")
async def test_a_transaction_waits_for_the_move_and_is_whole(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore]
) -> None:
    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "old")
        (old,) = await lock(queue)
        host = queue.hosts[0]
        host.freeze()
        work = [(host, Complete([token(old)])), (host, Enqueue([new("new")]))]
        committing = asyncio.create_task(transactions.commit(work))
        await asyncio.sleep(0)
        assert not committing.done()
        host.thaw()
        await committing
        assert await texts(queue) == ["new"]


@pytest.mark.row("P-20")
async def test_subscriptions_may_come_and_go_while_their_topic_moves(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up = Copies.catch_up
    turns: list[Callable[[], Awaitable[object]]] = []

    async def meanwhile(self: Copies) -> None:
        if turns:
            await turns.pop(0)()
        await catch_up(self)

    monkeypatch.setattr(Copies, "catch_up", meanwhile)

    async with at_work(catalog, memory_stores) as broker:
        topic = await broker.topics.create(TopicDescription(EntityPath("news")))
        await broker.topics.create_subscription(SubscriptionDescription.of("news", "old"))
        await publish(topic, "one")
        turns.append(lambda: broker.topics.create_subscription(SubscriptionDescription.of("news", "new")))
        turns.append(lambda: publish(topic, "two"))
        await broker.drains.begin("a")
        await emptied(broker, "a")
        assert not turns
        assert await bodies(broker.topics.get_subscription("news", "new")) == ["two"]
        assert await bodies(broker.topics.get_subscription("news", "old")) == ["one", "two"]
        await broker.drains.end("a")
        turns.append(lambda: broker.topics.delete_subscription("news", "old"))
        await drained(broker, "b")
        assert await bodies(broker.topics.get_subscription("news", "new")) == ["two"]
        await broker.drains.end("b")
        turns.append(lambda: broker.topics.delete("news"))
        await drained(broker, "a")
    assert held_by(memory_stores[0]) == held_by(memory_stores[1]) == []
