"""Partitions move between stores while traffic flows, and whatever happens nothing is lost or there twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from os import urandom
from pathlib import Path
from typing import Any

import pytest

from bendybus.broker import transactions
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.copying import Copies
from bendybus.broker.lifecycle import Availability
from bendybus.broker.moving import Move
from bendybus.broker.queue import Queue
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Enqueue,
    Given,
    Lock,
    Peek,
    Settled,
)
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.session_commands import (
    AcceptSession,
    LockInSession,
    SessionAccepted,
    SessionLock,
    SetSessionState,
)
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    StoreNotFound,
    StoreUnavailable,
)
from bendybus.names import EntityPath, Instant, LockToken, SequenceNumber, SessionId
from bendybus.store.catalog import EntityRecord
from bendybus.store.memory import MemoryStore
from bendybus.store.protocol import MessagingStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from bendybus.store.sqlite.store import SqliteStore
from fix_topics import bodies, publish

Stores = list[MessagingStore]

PLAIN = QueueDescription(EntityPath("plain"))
ORDERS = QueueDescription(EntityPath("orders"), enable_partitioning=True)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.open()
    yield catalog
    catalog.close()


@pytest.fixture(params=["memory", "sqlite", "mixed"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """Two of a kind, or one of each."""
    kinds = {"memory": (0, 0), "sqlite": (1, 1), "mixed": (1, 0)}[request.param]
    made: Stores = [
        SqliteStore(tmp_path / f"{name}.db") if kind else MemoryStore(name)
        for name, kind in zip("ab", kinds, strict=True)
    ]
    for store in made:
        store.open()
    yield made
    for store in made:
        store.close()


@pytest.fixture
def memory_stores() -> list[MemoryStore]:
    return [MemoryStore("a"), MemoryStore("b")]


@asynccontextmanager
async def at_work(catalog: SqliteCatalog, stores: Any) -> AsyncIterator[Broker]:
    broker = Broker(catalog, stores, contents=AmqpContents())
    broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def drained(broker: Broker, name: str) -> None:
    """The store has been emptied, and what was in it dropped."""
    await broker.drains.begin(name)
    await emptied(broker, name)


async def emptied(broker: Broker, name: str) -> None:
    store = broker.stores[name]
    while store.residents or broker.drains._moving is not None:
        await asyncio.sleep(0.001)


def new(text: str, session: str | None = None) -> Message:
    session_id = None if session is None else SessionId(session)
    return Message(text.encode(), size=len(text), session_id=session_id)


async def send(queue: Queue, *texts: str, session: str | None = None) -> None:
    for text in texts:
        await queue.place(session).ask(Enqueue([new(text, session)]))


async def lock(queue: Queue, count: int = 1) -> list[Message]:
    reply = await queue.hosts[0].ask(Lock(count, urandom(ENTROPY_PER_LOCK * count)))
    assert isinstance(reply, Given)
    return reply.messages


def token(message: Message) -> LockToken:
    assert message.lock_token is not None
    return message.lock_token


async def texts(queue: Queue, subqueue: SubQueue = SubQueue.MAIN) -> list[str]:
    """What is in the queue, in order within each partition."""
    found: list[str] = []
    for host in queue.hosts:
        reply = await host.ask(Peek(SequenceNumber(0), 10_000, subqueue))
        assert isinstance(reply, Given)
        for payload in await host.payloads(reply.messages):
            assert payload is not None
            found.append(payload.decode())
    return found


def held_by(store: MessagingStore) -> list[tuple[str, int, int]]:
    """The partitions that a store keeps, each with how many messages it has."""
    return [
        (record.entity, record.number, len(store.load(record.key).messages)) for record in store.partitions()
    ]


# -- what moves ---------------------------------------------------------------------------


async def test_everything_a_partition_has_moves_and_survives_a_restart(
    catalog: SqliteCatalog, stores: Stores
) -> None:  # P-03
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

    async with at_work(catalog, stores) as broker:
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
    assert held_by(stores[0]) == []

    async with at_work(catalog, stores) as broker:
        queue = broker.find("plain")
        await queue.loaded()
        assert queue.hosts[0].store.name == "b"
        assert look(queue) == before
        assert await texts(queue, SubQueue.DEAD_LETTER) == ["m1"]
        assert "after" in await texts(queue)


async def test_locks_are_kept_and_can_be_settled_after_the_move(
    catalog: SqliteCatalog, stores: Stores
) -> None:  # P-05
    async with at_work(catalog, stores) as broker:
        queue = await broker.queues.create(PLAIN)
        await send(queue, "one", "two", "three")
        one, two = await lock(queue, 2)
        await drained(broker, "a")
        assert await queue.hosts[0].ask(Complete([token(one)])) == Settled([])
        assert await queue.hosts[0].ask(Abandon([token(two)])) == Settled([])
        assert await texts(queue) == ["two", "three"]
        broker.cache.forget(())
    assert [count for _, _, count in held_by(stores[1])] == [2]


async def test_partitions_that_moved_take_turns_with_those_of_their_new_store(
    catalog: SqliteCatalog,
) -> None:  # P-16
    async with at_work(catalog, [MemoryStore(name) for name in "abc"]) as broker:
        queue = await broker.queues.create(ORDERS)
        await queue.loaded()
        await drained(broker, "a")
        around = [queue.place(None) for _ in queue.hosts]
        assert {host.number for host in around} == {host.number for host in queue.hosts}
        assert [name for name, _ in groupby(host.store.name for host in around)] == ["b", "c"]


async def test_sessions_keep_their_holders_their_messages_and_their_states(
    catalog: SqliteCatalog, stores: Stores
) -> None:  # P-13
    description = QueueDescription(EntityPath("sessions"), requires_session=True)

    async with at_work(catalog, stores) as broker:
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
    async with at_work(catalog, stores) as broker:
        queue = broker.find("sessions")
        await queue.loaded()
        accepted = await queue.hosts[0].ask(AcceptSession(SessionId("red"), urandom(ENTROPY_PER_LOCK)))
        assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
        assert await queue.hosts[0].session_state(accepted.lock) == b"further"
        assert await texts(queue) == ["2", "3"]


async def test_what_duplicate_detection_remembers_moves_too(
    catalog: SqliteCatalog, stores: Stores
) -> None:  # P-14
    description = QueueDescription(EntityPath("once"), requires_duplicate_detection=True)

    async with at_work(catalog, stores) as broker:
        queue = await broker.queues.create(description)
        await queue.hosts[0].ask(Enqueue([new("first")], ["id-1"]))
        await drained(broker, "a")
        await queue.hosts[0].ask(Enqueue([new("again")], ["id-1"]))
    async with at_work(catalog, stores) as broker:
        queue = broker.find("once")
        await queue.loaded()
        await queue.hosts[0].ask(Enqueue([new("again")], ["id-1"]))
        await queue.hosts[0].ask(Enqueue([new("second")], ["id-2"]))
        assert await texts(queue) == ["first", "second"]


async def test_what_is_forwarded_arrives_once_though_both_ends_move(
    catalog: SqliteCatalog, stores: Stores
) -> None:  # P-34
    async with at_work(catalog, stores) as broker:
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
        while len(await bodies(target)) < len(sent):
            await asyncio.sleep(0.001)
        assert sorted(await bodies(target)) == sent
        assert await bodies(source) == []


async def test_a_topic_and_its_subscriptions_move_together_and_share_their_bodies(
    catalog: SqliteCatalog, stores: Stores
) -> None:  # P-19
    async with at_work(catalog, stores) as broker:
        topic = await broker.topics.create(TopicDescription(EntityPath("news")))
        subscriptions = [
            await broker.topics.create_subscription(SubscriptionDescription.of("news", name))
            for name in ("one", "two")
        ]
        await publish(topic, "x" * 100, "second")
        await publish(topic, "later", due=Instant(now() + 3_600_000))
        soon = Instant(now() + 300)
        await publish(topic, "soon", due=soon)
        (first,) = await lock(subscriptions[0])
        await drained(broker, "a")
        assert {host.store.name for each in (topic, *subscriptions) for host in each.hosts} == {"b"}
        assert await subscriptions[0].hosts[0].ask(Complete([token(first)])) == Settled([])
        await publish(topic, "third")
        while "soon" not in await bodies(subscriptions[1]):
            await asyncio.sleep(0.01)
    async with at_work(catalog, stores) as broker:
        found = {
            each.name: sorted(await bodies(each)) for topic in broker.topics for each in topic.subscriptions
        }
        assert found == {
            "one": ["second", "soon", "third"],
            "two": ["second", "soon", "third", "x" * 100],
        }
        assert [topic.hosts[0].partition.scheduled_count for topic in broker.topics] == [1]
    assert held_by(stores[0]) == []
    messages = [m for record in stores[1].partitions() for m in stores[1].load(record.key).messages]
    # Seven copies and one that is scheduled, of five messages: five bodies.
    assert len(messages) == 8
    assert len({message.body_place for message in messages}) == 5


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
                await self._queue.place(key).ask(Enqueue([new(text)]))
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


async def test_nothing_is_lost_or_repeated_while_stores_are_emptied_under_traffic(
    catalog: SqliteCatalog, stores: Stores
) -> None:  # P-03 P-05
    async with at_work(catalog, stores) as broker:
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
    async with at_work(catalog, stores) as broker:
        queue = broker.find("orders")
        await queue.loaded()
        assert sorted(await texts(queue)) == sorted(left)


async def test_messages_of_one_key_stay_in_order_across_a_move(
    catalog: SqliteCatalog, stores: Stores
) -> None:  # P-12
    async with at_work(catalog, stores) as broker:
        queue = await broker.queues.create(ORDERS)

        async def sender() -> None:
            for number in range(400):
                await queue.place("key").ask(Enqueue([new(f"{number:04}")]))

        sending = asyncio.create_task(sender())
        for name in ("a", "b", "a"):
            await drained(broker, name)
            await broker.drains.end(name)
        await sending
        assert await texts(queue) == [f"{number:04}" for number in range(400)]


async def test_a_transaction_waits_for_the_move_and_is_whole(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore]
) -> None:  # P-23
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


async def test_subscriptions_may_come_and_go_while_their_topic_moves(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:  # P-20
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


@pytest.mark.parametrize(("of", "step"), STEPS, ids=[step for _, step in STEPS])
async def test_a_crash_at_any_step_leaves_everything_once(
    catalog: SqliteCatalog, stores: Stores, monkeypatch: pytest.MonkeyPatch, of: type, step: str
) -> None:  # P-03 B-08
    def cut(*_: object) -> None:
        raise PowerCut(step)

    with suppress(asyncio.CancelledError):
        broker = Broker(catalog, stores, contents=AmqpContents())
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
    both = [*held_by(stores[0]), *held_by(stores[1])]
    assert len(both) > 3, "there is litter"

    async with at_work(catalog, stores) as broker:
        for name in ("one", "two"):
            assert await bodies(broker.topics.get_subscription("news", name)) == list("abc")
        assert len([*held_by(stores[0]), *held_by(stores[1])]) == 3
        # And it can be repeated.
        await drained(broker, "a")
        assert held_by(stores[0]) == []
        await publish(broker.topics.get("news"), "d")
    async with at_work(catalog, stores) as broker:
        for name in ("one", "two"):
            assert await bodies(broker.topics.get_subscription("news", name)) == list("abcd")


async def _nothing_async(*_: object) -> None:
    pass


async def test_a_destination_that_fails_leaves_the_partition_where_it_was(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:  # P-04
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
        while failing:
            await asyncio.sleep(0.001)
        await send(queue, "two")
        assert queue.hosts[0].store.name == "a"
        assert await queue.hosts[0].ask(Complete([token(one)])) == Settled([])
        while "problem" not in broker.drains.progress("a"):
            await asyncio.sleep(0.001)
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


async def test_a_source_that_goes_away_in_the_moment_of_the_switch_costs_nothing(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:  # P-04
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


async def test_a_destination_that_goes_away_in_the_moment_of_the_switch_has_it_when_it_is_back(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:  # P-04
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
        while host.availability is not Availability.AVAILABLE:
            await asyncio.sleep(0.001)
        assert await texts(queue) == ["one", "two"]


async def test_a_catalog_that_switched_and_said_it_failed_is_believed_in_what_it_holds(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:  # B-08
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


# -- draining -----------------------------------------------------------------------------


async def test_a_store_that_drains_gets_no_new_partitions_also_after_a_restart(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore]
) -> None:  # P-02
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
) -> None:  # P-03
    async with at_work(catalog, memory_stores) as broker:
        queue = await broker.queues.create(ORDERS)
        await send(queue, *map(str, range(100)))
        await broker.drains.begin("a")
    async with at_work(catalog, memory_stores) as broker:
        await emptied(broker, "a")
        assert sorted(await texts(broker.find("orders")), key=int) == list(map(str, range(100)))
    assert held_by(memory_stores[0]) == []


async def test_partitions_spread_over_the_stores_that_are_left(catalog: SqliteCatalog) -> None:  # P-02
    stores = [MemoryStore(name) for name in "abcd"]

    async with at_work(catalog, stores) as broker:
        queue = await broker.queues.create(ORDERS)
        await drained(broker, "a")
        spread = [host.store.name for host in queue.hosts]
        assert sorted(spread.count(name) for name in "bcd") == [5, 5, 6]


async def test_a_store_that_is_attached_takes_partitions_and_one_that_is_empty_can_go(
    catalog: SqliteCatalog,
) -> None:  # P-02
    stores = [MemoryStore("a")]

    async with at_work(catalog, stores) as broker:
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


async def test_an_entity_that_is_deleted_while_it_moves_leaves_nothing(
    catalog: SqliteCatalog, memory_stores: list[MemoryStore]
) -> None:  # P-32
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
