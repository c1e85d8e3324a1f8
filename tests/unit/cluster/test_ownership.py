"""Stores pass from one broker to another, and the partitions in them go on."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any, cast

import pytest

from bendybus.broker.lifecycle import Availability
from bendybus.broker.queue import Queue
from bendybus.cluster import ownership, reaching
from bendybus.cluster.remote import RemotePartition
from bendybus.domain.commands import Complete, Enqueue, Enqueued, Given, Peek, Settled
from bendybus.domain.entities import QueueDescription
from bendybus.domain.leases import LeaseRequest
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import AcceptSession, SessionAccepted
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription, subscription_path
from bendybus.errors import BrokerError, ConsumerLeaseHeld, StoreUnavailable, Unavailable
from bendybus.names import EntityPath, SequenceNumber
from bendybus.store.protocol import SharedStore
from fix_async import until
from fix_nodes import NodeMember, Nodes, StoreView, nodes

PAGE = 1024 * 1024
MAIN = SubQueue.MAIN
STORES = ("s0", "s1", "s2", "s3")


def made(*texts: str, session: str | None = None) -> list[Message]:
    return [Message(text.encode(), len(text), session_id=session) for text in texts]


async def new_queue(cluster: Nodes, at: str = "a", **properties: object) -> None:
    description = QueueDescription(EntityPath("orders"), enable_partitioning=True, **properties)
    await cluster[at].broker.queues.create(description)
    await cluster.whole()


def orders(member: NodeMember) -> Queue:
    return member.broker.queues.get("orders")


async def send_to_all(queue: Queue, text: str) -> None:
    """One message to each partition."""
    for host in queue.hosts:
        await host.ask(Enqueue(made(f"{text}/{host.number}")))


async def contents(queue: Queue) -> Counter[str]:
    found: Counter[str] = Counter()
    for host in queue.hosts:
        given = await host.ask(Peek(SequenceNumber(0), 100))
        assert isinstance(given, Given)
        found.update(
            payload.decode() for payload in await host.payloads(given.messages) if payload is not None
        )
    return found


def expected(queue: Queue, *texts: str) -> Counter[str]:
    return Counter(f"{text}/{host.number}" for text in texts for host in queue.hosts)


@pytest.mark.row("N-01")
async def test_brokers_share_the_stores_and_reach_every_partition() -> None:
    async with nodes("abc") as cluster:
        assert sorted(store for member in cluster for store in member.owns) == list(STORES)
        assert all(member.owns for member in cluster)
        await new_queue(cluster)
        for member in cluster:
            await send_to_all(orders(member), member.name)
        for member in cluster:
            queue = orders(member)
            assert await contents(queue) == expected(queue, "a", "b", "c")


@pytest.mark.row("N-03", "N-04")
async def test_when_a_broker_dies_another_serves_its_partitions_and_nothing_is_lost() -> None:
    async with nodes() as cluster:
        await new_queue(cluster)
        await send_to_all(orders(cluster["a"]), "settled")
        for member in cluster:
            for host in orders(member).own.values():
                (message,) = host.lock(1, PAGE, MAIN)
                assert message.lock_token is not None
                await host.ask(Complete([message.lock_token]))
        await send_to_all(orders(cluster["a"]), "before")

        cluster["b"].cut()
        await cluster.pass_time()
        await cluster.whole()

        assert cluster["a"].owns == set(STORES)
        queue = orders(cluster["a"])
        assert await contents(queue) == expected(queue, "before")
        await send_to_all(queue, "after")

        # It believes that it owns its stores, and cannot commit.
        late = orders(cluster["b"])
        for host in late.own.values():
            with pytest.raises(Unavailable):
                await host.ask(Enqueue(made("too late")))
        assert await contents(queue) == expected(queue, "before", "after")

        cluster["b"].silent = False
        await cluster.rounds()
        await until(lambda: len(cluster["b"].owns) == 2)
        await cluster.rounds()
        await cluster.whole()
        for member in cluster:
            assert await contents(orders(member)) == expected(queue, "before", "after")


async def test_commands_that_wait_for_a_dead_broker_are_answered_by_the_next_one() -> None:
    async with nodes() as cluster:
        await new_queue(cluster)
        queue = orders(cluster["a"])
        cluster["b"].cut()
        (first, *_) = [host for host in queue.hosts if isinstance(host, RemotePartition)]
        await until(lambda: first.availability is Availability.LOADING)
        waiting = asyncio.ensure_future(first.ask(Enqueue(made("x"))))

        await cluster.pass_time()

        assert isinstance(await waiting, Enqueued)
        assert await contents(queue) == Counter(["x"])


async def test_a_broker_that_joins_gets_its_share_and_messages_stay() -> None:
    async with nodes("a") as cluster:
        await new_queue(cluster)
        await send_to_all(orders(cluster["a"]), "before")

        await cluster.add("b")
        await cluster.rounds()
        await cluster.whole()

        assert len(cluster["a"].owns) == len(cluster["b"].owns) == 2
        for member in cluster:
            queue = orders(member)
            assert await contents(queue) == expected(queue, "before")
        for member in cluster:
            await send_to_all(orders(member), member.name)
        queue = orders(cluster["a"])
        assert await contents(queue) == expected(queue, "before", "a", "b")


async def test_a_broker_that_ends_in_order_is_replaced_at_once() -> None:
    async with nodes() as cluster:
        await new_queue(cluster)
        await send_to_all(orders(cluster["a"]), "before")

        await cluster["b"].stop()
        cluster.by_name.pop("b")
        await cluster.rounds(1)
        await cluster.whole()

        queue = orders(cluster["a"])
        assert await contents(queue) == expected(queue, "before")


async def test_a_receiver_goes_on_when_the_owner_changes() -> None:
    class Taker:
        def __init__(self, queue: Queue) -> None:
            self.queue = queue
            self.taken: list[Message] = []

        def wake(self) -> None:
            for host in self.queue.in_turn():
                self.taken += host.lock(5, PAGE, MAIN)
            self.queue.wait(self, MAIN, wanted=5)

    async with nodes() as cluster:
        await new_queue(cluster)
        taker = Taker(orders(cluster["a"]))
        taker.wake()
        await send_to_all(orders(cluster["a"]), "one")
        await until(lambda: len(taker.taken) == 16)

        await cluster.add("c")
        await cluster.rounds()
        await cluster.whole()
        # What it has stays locked.
        await send_to_all(orders(cluster["c"]), "two")
        await until(lambda: len(taker.taken) == 16 + 16)


@pytest.mark.row("N-05")
async def test_a_broker_that_joins_or_leaves_ends_no_lock() -> None:
    async with nodes("a") as cluster:
        await new_queue(cluster)
        queue = orders(cluster["a"])
        await send_to_all(queue, "x")
        locked = {host.number: host.lock(1, PAGE, MAIN)[0] for host in queue.hosts}

        await cluster.add("b")
        await cluster.rounds()
        await cluster.whole()
        assert len(cluster["b"].owns) == 2
        await cluster.by_name.pop("b").stop()
        await cluster.rounds(1)
        await cluster.whole()

        for number, message in locked.items():
            token = message.lock_token
            assert token is not None
            host = queue.host_of_token(token)
            assert host is not None and host.number == number
            assert await host.ask(Complete([token])) == Settled([])


async def test_locks_end_when_the_owner_dies_and_messages_come_back() -> None:
    async with nodes() as cluster:
        await new_queue(cluster)
        queue = orders(cluster["a"])
        await send_to_all(queue, "x")
        lost = cluster["b"].owns
        locked = [host.lock(1, PAGE, MAIN)[0] for host in orders(cluster["b"]).own.values()]
        cluster["b"].cut()
        await cluster.pass_time()
        await cluster.whole()
        for message in locked:
            assert message.lock_token is not None
            host = queue.host_of_token(message.lock_token)
            assert host is not None and host.store.name in lost
            assert await host.ask(Complete([message.lock_token])) == Settled([message.lock_token])
        assert await contents(queue) == expected(queue, "x")


async def test_leases_end_when_the_owner_dies_as_after_a_restart() -> None:
    async with nodes() as cluster:
        await new_queue(cluster)
        (owner,) = (member for member in cluster if 0 in orders(member).own)
        (other,) = (member for member in cluster if member is not owner)
        await orders(other).lease(LeaseRequest("one", MAIN, 60_000))
        owner.cut()
        await until(lambda: orders(other).hosts[0].availability is Availability.LOADING)
        # What waits for the dead broker is answered by the next one.
        asked = asyncio.create_task(orders(other).lease(LeaseRequest("two", MAIN, 60_000)))
        await cluster.pass_time()
        await cluster.whole()
        await asked
        with pytest.raises(ConsumerLeaseHeld, match="'two'"):
            await orders(other).lease(LeaseRequest("one", MAIN, None))


async def test_the_holder_of_a_session_is_told_when_the_owner_dies() -> None:
    class Holder:
        is_lost = False

        def wake(self) -> None: ...

        def lost(self) -> None:
            self.is_lost = True

    async with nodes() as cluster:
        await new_queue(cluster, requires_session=True)
        queue = orders(cluster["a"])
        await until(lambda: all(peer.link for peer in cluster["a"].cluster.peers.by_name.values()))
        holders: dict[int, Holder] = {}
        for host in queue.hosts:
            await host.ask(Enqueue(made("x", session=f"s{host.number}")))
            accepted = await host.ask(AcceptSession(f"s{host.number}", b"\0" * 16))
            assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
            holders[host.number] = Holder()
            host.hold_session(accepted.lock, holders[host.number])
        elsewhere = {host.number for host in queue.hosts if host.store.name in cluster["b"].owns}

        cluster["b"].cut()
        await cluster.pass_time()
        await cluster.whole()
        assert elsewhere and {number for number, holder in holders.items() if holder.is_lost} == elsewhere


async def test_a_topic_and_its_subscriptions_pass_together() -> None:
    async with nodes() as cluster:
        topics = cluster["a"].broker.topics
        await topics.create(TopicDescription(EntityPath("events"), enable_partitioning=True))
        await topics.create_subscription(SubscriptionDescription(subscription_path("events", "all")))
        await cluster.whole()
        at_a = cluster["a"].broker
        for host in at_a.find_target("events").hosts:
            await host.ask(Enqueue(made(f"before/{host.number}")))

        cluster["b"].cut()
        await cluster.pass_time()
        await cluster.whole()

        for host in at_a.find_target("events").hosts:
            await host.ask(Enqueue(made(f"after/{host.number}")))
        copies = at_a.find("events/subscriptions/all")
        assert await contents(copies) == expected(copies, "before", "after")


@pytest.mark.row("N-08")
async def test_nothing_moves_while_the_catalog_is_away() -> None:
    async with nodes() as cluster:
        await new_queue(cluster)
        owned = {member.name: member.owns for member in cluster}
        cluster.roster.away = True
        cluster.roster.clock_s += 100
        for member in cluster:
            with pytest.raises(Unavailable):
                await member.node.round()
        assert {member.name: member.owns for member in cluster} == owned
        for member in cluster:
            await send_to_all(orders(member), member.name)
        cluster.roster.away = False
        await cluster.rounds()
        await cluster.whole()
        queue = orders(cluster["a"])
        assert await contents(queue) == expected(queue, "a", "b")


async def test_a_broker_that_was_presumed_dead_may_still_be_the_owner() -> None:
    async with nodes() as cluster:
        await new_queue(cluster)
        await send_to_all(orders(cluster["a"]), "before")
        # Nobody else reaches its stores, so nobody can take them over.
        store_named = cluster["a"].ownership._store_named
        cluster["a"].ownership._store_named = lambda name: _away()
        owned = cluster["b"].owns
        cluster["b"].cut()
        await cluster.pass_time()
        queue = orders(cluster["a"])
        (waiting, *_) = [host for host in queue.hosts if isinstance(host, RemotePartition)]
        assert "no broker owns" in str(waiting._unavailable())

        cluster["b"].silent = False
        cluster["a"].ownership._store_named = store_named
        cluster.roster.away = True
        cluster["a"].cluster.peers.add("b")
        cluster["b"].cluster.peers.add("a")
        await cluster.whole()
        assert cluster["b"].owns == owned
        assert await contents(queue) == expected(queue, "before")
        cluster.roster.away = False


def _away() -> Any:
    raise StoreUnavailable("it does not answer")


async def test_a_database_that_hangs_delays_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "TAKE_PATIENCE_S", 0.05)
    async with nodes() as cluster:
        await new_queue(cluster)
        hanging = threading.Event()
        (name, *_) = cluster["b"].owns
        store_named = cluster["a"].ownership._store_named

        def store_that_hangs(asked: str) -> Any:
            store = store_named(asked)
            if asked == name:
                store.open = hanging.wait
            return store

        cluster["a"].ownership._store_named = store_that_hangs
        cluster["b"].cut()
        await cluster.pass_time()
        assert cluster["a"].owns == set(STORES) - {name}
        hanging.set()
        await until(lambda: cluster["a"].owns == set(STORES))
        await cluster.whole()


async def test_a_store_that_lacks_partitions_is_not_served() -> None:
    async with nodes() as cluster:
        await new_queue(cluster)
        (lost, *_) = cluster["b"].owns
        cluster["b"].cut()
        contents_of = cluster.stores[lost]
        contents_of.discard([record.key for record in contents_of.partitions()])

        await cluster.pass_time()

        assert cluster["a"].owns == set(STORES) - {lost}
        assert contents_of.owner.instance == ""
        queue = orders(cluster["a"])
        assert {host.store.name for host in queue.hosts if isinstance(host, RemotePartition)} == {lost}


async def test_a_store_that_does_not_answer_while_it_is_given_up_is_served_again() -> None:
    async with nodes("a") as cluster:
        await new_queue(cluster)
        owned = cluster["a"].ownership
        (name, *_) = cluster["a"].owns
        cluster.stores[name].outage = BrokerError("it does not answer")
        await owned.release(name)
        await cluster.rounds(1)
        assert name not in cluster["a"].owns
        cluster.stores[name].outage = None
        await cluster.rounds(2)
        assert name in cluster["a"].owns
        await cluster["a"].broker.recovered()
        await send_to_all(orders(cluster["a"]), "x")


@pytest.mark.row("N-04")
async def test_a_store_that_its_owner_does_not_reach_passes_to_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaching, "UNREACHED_AFTER_S", 0.05)
    monkeypatch.setattr(reaching, "TRY_AGAIN_AFTER_S", 0.05)
    async with nodes("abc") as cluster:
        await new_queue(cluster)
        await send_to_all(orders(cluster["a"]), "before")
        (name, *_) = cluster["a"].owns
        queue = orders(cluster["a"])
        (first, *_) = [host for host in queue.hosts if host.store.name == name]
        for member in "ab":
            cluster[member].cut_off.add(name)
        with pytest.raises(Unavailable):
            await first.ask(Enqueue(made("lost")))

        while name not in cluster["c"].owns:
            await cluster.rounds(1)
        await cluster.whole()
        # Its clients reach it through the broker that does.
        await send_to_all(queue, "after")
        assert await contents(queue) == expected(queue, "before", "after")
        assert cluster.roster.brokers["a"].unreached == (name,)

        for member in "ab":
            cluster[member].cut_off.clear()
        while any(broker.unreached for broker in cluster.roster.brokers.values()):
            await cluster.rounds(1)
        await cluster.whole()
        assert await contents(queue) == expected(queue, "before", "after")


@pytest.mark.row("N-04")
async def test_a_store_that_was_given_up_unheard_keeps_its_partitions_when_it_is_back() -> None:
    # Found by seed 106 of three brokers: the former owner swept what no partition of its own stood for.
    async with nodes("ab") as cluster:
        await new_queue(cluster)
        await cluster["a"].broker.queues.create(
            QueueDescription(EntityPath("gone"), enable_partitioning=True)
        )
        await send_to_all(orders(cluster["a"]), "before")
        (name, *_) = cluster["a"].owns
        cluster["a"].cut_off.add(name)
        (first, *_) = [host for host in orders(cluster["a"]).hosts if host.store.name == name]
        with pytest.raises(Unavailable):
            await first.ask(Enqueue(made("lost")))
        # Its partitions in the store are to be removed when the store is back.
        await cluster["a"].broker.queues.delete("gone", force=True)
        await cluster["a"].ownership.release(name)
        assert name not in cluster["a"].owns

        cluster["a"].cut_off.clear()
        while not any(name in member.owns for member in cluster):
            await cluster.rounds(1)
        await cluster.whole()
        queue = orders(cluster["b"])
        assert await contents(queue) == expected(queue, "before")


async def test_a_store_that_nobody_reaches_is_served_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "UNREACHED_AFTER_S", 0.05)
    async with nodes("ab") as cluster:
        await new_queue(cluster)
        await send_to_all(orders(cluster["a"]), "before")
        (name, *_) = cluster["a"].owns
        for member in cluster:
            member.cut_off.add(name)
        (first, *_) = [host for host in orders(cluster["a"]).hosts if host.store.name == name]
        with pytest.raises(Unavailable):
            await first.ask(Enqueue(made("lost")))
        while not all(name in broker.unreached for broker in cluster.roster.brokers.values()):
            await cluster.rounds(1)

        for member in cluster:
            member.cut_off.clear()
        while not any(name in member.owns for member in cluster):
            await cluster.rounds(1)
        await cluster.whole()
        queue = orders(cluster["b"])
        assert await contents(queue) == expected(queue, "before")


async def test_a_store_that_was_taken_without_an_answer_is_given_back() -> None:
    # Found by a simulation: its owner was to be another broker, which waited for this one to give it up.
    async with nodes() as cluster:
        await new_queue(cluster)
        (name, *_) = cluster["b"].owns
        store_named = cluster["a"].ownership._store_named

        def unanswered(asked: str) -> Any:
            store = store_named(asked)
            take = store.take

            def taken(*arguments: Any) -> int | None:
                take(*arguments)
                raise StoreUnavailable("the answer is lost")

            if asked == name:
                store.take = taken  # type: ignore[method-assign]
            return store

        cluster["a"].ownership._store_named = unanswered
        cluster["b"].cut()
        await cluster.pass_time()
        assert cluster.stores[name].owner.broker == "a" and name not in cluster["a"].owns

        cluster["a"].ownership._store_named = store_named
        cluster["b"].silent = False
        await cluster["b"].node.round()
        await cluster.rounds()
        assert cluster.stores[name].owner.broker == "b"
        await cluster.whole()


async def test_an_owner_that_came_and_went_unheard_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Found by a simulation: a store that nobody wrote to had no owner, and the former one did not know.
    monkeypatch.setattr(ownership, "CHECK_EVERY_S", 0.0)
    async with nodes("a") as cluster:
        other = StoreView(cluster.stores["s0"])
        other.take("b", "another process", cluster.stores["s0"].owner.term)
        other.release()
        async with asyncio.timeout(10):
            while cluster.stores["s0"].owner.broker != "a":
                await cluster.rounds(1)
        await cluster.whole()


async def test_a_store_is_let_go_of_though_its_new_owner_is_gone_already() -> None:
    # Found by a simulation: the broker failed halfway, and its partitions were nobody's.
    async with nodes("a") as cluster:
        await new_queue(cluster)
        member = cluster["a"]
        member.ownership.heard("b", {"s0": cluster.stores["s0"].owner.term + 1})
        await until(lambda: "s0" not in member.owns and not member.broker.entities.changing.locked())
        assert member.cluster.owner_of("s0") is None
        assert "s0" not in [store.name for store in member.broker.stores]
        await cluster.rounds()
        await cluster.whole()


async def test_a_store_that_is_being_taken_over_is_not_closed_under_it() -> None:
    # Found in a cluster whose brokers were stopped together: "the connection socket was closed".
    async with nodes("a") as cluster:
        ownership = cluster["a"].ownership
        taking: asyncio.Task[None] = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        closed = []

        class Candidate:
            def __init__(self, name: str) -> None:
                self.name = name

            def close(self) -> None:
                closed.append(self.name)
                # While the first one is closed, another broker asks this one to take the second.
                ownership._taking["later"] = taking

        for name in ("first", "later"):
            ownership._candidates[name] = cast("SharedStore", Candidate(name))
        await ownership.settle(dict.fromkeys(STORES, "a"), ())

        assert closed == ["first"]
        del ownership._taking["later"], ownership._candidates["later"]


@pytest.mark.parametrize("end", ["settle", "stop"])
async def test_a_store_that_is_let_go_of_while_another_is_given_up_stops_nothing(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Found by seed 910154 of three brokers: the rest of the round was left out, with a KeyError.
    async with nodes("a") as cluster:
        member = cluster["a"]
        for name in ("s0", "s1"):
            member.cut_off.add(name)
            await member.ownership.release(name)
        assert list(member.ownership._leaving) == ["s0", "s1"]
        release = member.ownership._leaving["s0"].owned.store.release
        loop = asyncio.get_running_loop()

        def released() -> None:
            # While the first store is told, the second one says that another broker has it.
            asyncio.run_coroutine_threadsafe(member.ownership._let_go("s1"), loop).result(10)
            release()

        monkeypatch.setattr(member.ownership._leaving["s0"].owned.store, "release", released)
        member.cut_off.clear()
        if end == "settle":
            await member.ownership.settle(dict.fromkeys(STORES, "a"), ())
            assert member.owns == set(STORES)
        else:
            await member.ownership.stop()
            assert not member.owns
        assert not member.ownership._leaving


async def test_a_broker_that_stops_takes_nothing_over() -> None:
    # Its connections are closed next.
    async with nodes("a") as cluster:
        ownership = cluster["a"].ownership
        await ownership.stop()
        ownership._take_soon("s0")
        assert not ownership._taking


async def test_a_store_that_was_let_go_of_refuses_what_nobody_would_answer() -> None:
    # Found by a simulation: a broker asked such a store who owns it, and never went on.
    async with nodes("a") as cluster:
        owned = cluster["a"].ownership._own["s0"]
        await cluster["a"].ownership._let_go("s0")
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailable, match="not used by this broker any more"):
                await owned.attached.query(owned.store.owner)
