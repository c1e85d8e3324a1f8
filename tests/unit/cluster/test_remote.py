"""Partitions of another broker behave as those of one's own do (N-01)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bendybus.broker.clock import now
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.transactions import commit
from bendybus.cluster.remote import RemotePartition
from bendybus.domain.commands import (
    CancelScheduled,
    Complete,
    Done,
    Enqueue,
    Enqueued,
    Given,
    Peek,
    Renew,
    Renewed,
    Settled,
)
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.domain.leases import LeaseRequest
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import AcceptSession, ReleaseSession, SessionAccepted, SetSessionState
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription, subscription_path
from bendybus.envelope import admit
from bendybus.errors import (
    BrokerError,
    ConsumerLeaseHeld,
    EntityNotFound,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    StoreUnavailable,
    Unavailable,
)
from bendybus.names import EntityPath, SequenceNumber
from fix_async import until
from fix_cluster import Members, members

# properties: message-id "m", application-properties {}, data "x", as an ordinary client writes them.
BARE = b"\x00\x53\x73\xc0\x04\x01\xa1\x01m\x00\x53\x75\xa0\x01x"
PAGE = 1024 * 1024
MAIN = SubQueue.MAIN


def made(*texts: str, session: str | None = None) -> list[Message]:
    return [Message(text.encode(), len(text), session_id=session) for text in texts]


async def queue_at(cluster: Members, name: str, **properties: object) -> Queue:
    """A queue of sixteen partitions, as one of the brokers sees it."""
    path = EntityPath("orders")
    if cluster["a"].broker.queues.find(path) is None:
        await cluster["a"].broker.queues.create(
            QueueDescription(path, enable_partitioning=True, **properties)
        )
    await cluster.whole()
    return cluster[name].broker.queues.get(path)


def remote(queue: Queue) -> list[ReceivingPort]:
    return [host for host in queue.hosts if isinstance(host, RemotePartition)]


class Taker:
    """A receiver: takes what it is allowed to, from all partitions, and waits for more."""

    def __init__(self, queue: Queue, credit: int, hosts: Sequence[ReceivingPort] | None = None) -> None:
        self.queue = queue
        self.credit = credit
        self.hosts = hosts
        self.taken: list[Message] = []
        self.changed = asyncio.Event()

    def wake(self) -> None:
        for host in self.hosts or self.queue.in_turn():
            if self.credit > len(self.taken):
                self.taken += host.lock(self.credit - len(self.taken), PAGE, MAIN)
        if self.credit > len(self.taken):
            self.queue.wait(self, MAIN, self.credit - len(self.taken))
        self.changed.set()

    async def has(self, count: int) -> list[Message]:
        self.wake()
        while len(self.taken) < count:
            self.changed.clear()
            await self.changed.wait()
        return self.taken

    def close(self) -> None:
        self.queue.stop_waiting(self, MAIN)


def texts(messages: Sequence[Message]) -> list[str]:
    return [(message.payload or b"").decode() for message in messages]


async def test_each_broker_owns_the_partitions_of_its_stores() -> None:
    async with members("abc") as cluster:
        for name in "abc":
            await queue_at(cluster, name)
        owned = [set(member.broker.queues.get("orders").own) for member in cluster]

    assert sorted(number for each in owned for number in each) == list(range(16))
    assert all(len(each) >= 5 for each in owned)


async def test_a_command_is_answered_by_the_owner() -> None:
    async with members() as cluster:
        queue = await queue_at(cluster, "b")
        for host in queue.hosts:
            reply = await host.ask(Enqueue(made("one", "two")))
            assert isinstance(reply, Enqueued)
            assert reply.first >> 48 == host.number
            peeked = await host.ask(Peek(SequenceNumber(0), 10))
            assert isinstance(peeked, Given)
            assert texts(peeked.messages) == ["one", "two"]


async def test_an_error_of_the_owner_is_raised_here() -> None:
    async with members() as cluster:
        queue = await queue_at(cluster, "b", requires_session=True)

        with pytest.raises(BrokerError, match="SessionId"):
            await remote(queue)[0].ask(Enqueue(made("without a session")))


async def test_messages_come_to_a_receiver_that_waits() -> None:
    async with members() as cluster:
        here, there = await queue_at(cluster, "a"), await queue_at(cluster, "b")
        taker = Taker(here, 32)
        taker.wake()

        for host in there.hosts:
            await host.ask(Enqueue(made(f"{host.number}-1", f"{host.number}-2")))

        taken = await taker.has(32)
        assert sorted(texts(taken)) == sorted(f"{n}-{i}" for n in range(16) for i in (1, 2))
        for message in taken:
            host = here.host_of_token(message.lock_token)
            assert host is not None
            assert await host.ask(Complete([message.lock_token])) == Settled([])
        for host in there.hosts:
            assert await host.ask(Peek(SequenceNumber(0), 1)) == Given([])


async def test_partitions_elsewhere_are_in_stock_once_their_messages_have_arrived() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one", "two")))
        assert here.stocked(MAIN) == []

        here.wait(Taker(here, 0), MAIN, wanted=2)
        await until(lambda: first.available(MAIN) > 0)

        assert here.stocked(MAIN) == [first]
        assert len(await Taker(here, 2).has(2)) == 2
        assert here.stocked(MAIN) == []


async def test_messages_of_a_partition_elsewhere_keep_their_order() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        await first.ask(Enqueue(made(*map(str, range(700)))))

        taken = await Taker(here, 700, [first]).has(700)

        assert texts(taken) == list(map(str, range(700)))


async def test_what_a_receiver_does_not_take_goes_back_uncounted_when_it_leaves() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, second, *_) = remote(here)
        await first.ask(Enqueue(made("one", "two", "three")))
        taker = Taker(here, 1, [second])
        taker.wake()
        here.wait(taker, MAIN)
        await until(lambda: first.available(MAIN) > 0)

        taker.close()

        await until(lambda: first.available(MAIN) == 0)
        owner = cluster["a"].broker.queues.get("orders")
        await until(lambda: sum(host.available(MAIN) for host in owner.hosts) == 3)
        taken = await Taker(owner, 3).has(3)
        assert texts(taken) == ["one", "two", "three"]
        assert [message.delivery_count for message in taken] == [0, 0, 0]


async def test_no_more_large_messages_are_asked_for_than_fit_into_memory(monkeypatch) -> None:
    monkeypatch.setattr("bendybus.cluster.supply.KEEP_S", 1000)
    async with members(tier=Tier.PREMIUM) as cluster:
        here = await queue_at(cluster, "b", max_message_size_kb=100 * 1024)
        (first,) = remote(here)
        await first.ask(Enqueue(made(*map(str, range(10)))))
        here.wait(Taker(here, 0), MAIN, 10)
        await until(lambda: first.available(MAIN) > 0)
        assert first.available(MAIN) == 2

        assert texts(await Taker(here, 10).has(10)) == list(map(str, range(10)))


async def test_what_nobody_takes_for_a_while_goes_back(monkeypatch) -> None:
    monkeypatch.setattr("bendybus.cluster.supply.KEEP_S", 0.001)
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, second, *_) = remote(here)
        await first.ask(Enqueue(made("one")))
        taker = Taker(here, 1, [second])
        taker.wake()

        taken = await Taker(cluster["a"].broker.queues.get("orders"), 1).has(1)
        assert texts(taken) == ["one"]
        taker.close()


async def test_a_demand_ends_soon_after_the_last_receiver_had_enough(monkeypatch) -> None:
    monkeypatch.setattr("bendybus.cluster.supply.KEEP_S", 0.001)
    async with members() as cluster:
        here, there = await queue_at(cluster, "b"), await queue_at(cluster, "a")
        (first, *_) = remote(here)
        own = next(iter(here.own.values()))
        # Its credit is used up by a message of its own broker; the demand is still there.
        taker = Taker(here, 1, [first, own])
        taker.wake()
        await until(lambda: there.awaited)
        await own.ask(Enqueue(made("one")))
        await taker.has(1)

        await until(lambda: not there.awaited)


async def test_a_message_crosses_only_if_no_receiver_of_its_owner_wants_it() -> None:
    async with members() as cluster:
        here, there = await queue_at(cluster, "b"), await queue_at(cluster, "a")
        (first, *_) = remote(here)
        abroad = Taker(here, 2, [first])
        abroad.wake()
        await until(lambda: there.awaited)
        at_home = Taker(there, 1, [there.own[first.number]])
        at_home.wake()

        await first.ask(Enqueue(made("one")))
        await first.ask(Enqueue(made("two")))

        assert texts(await abroad.has(1)) == ["two"]
        assert texts(at_home.taken) == ["one"]


async def test_a_message_without_a_key_stays_here_while_a_receiver_here_waits() -> None:
    async with members() as cluster:
        queue = await queue_at(cluster, "a")
        own = set(queue.own)
        assert 0 < len(own) < len(queue.hosts)
        # Nobody waits: it takes its turn among all partitions.
        assert {queue.host_for(None).number for _ in range(16)} == set(range(16))
        taker = Taker(queue, credit=2)
        taker.wake()
        assert {queue.host_for(None).number for _ in range(16)} == own
        taker.close()
        assert {queue.host_for(None).number for _ in range(16)} == set(range(16))


async def test_a_message_without_a_key_leaves_if_no_partition_here_is_available() -> None:
    async with members() as cluster:
        queue = await queue_at(cluster, "a")
        taker = Taker(queue, credit=2)
        taker.wake()
        for host in queue.own.values():
            host.availability = Availability.UNAVAILABLE
        assert {queue.host_for(None).number for _ in range(16)} == set(range(16)) - set(queue.own)
        for host in queue.own.values():
            host.availability = Availability.AVAILABLE
        taker.close()


async def test_a_second_receiver_is_not_forgotten_when_the_first_takes_everything() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        takers = [Taker(here, 2, [first]), Taker(here, 2, [first])]
        for taker in takers:
            taker.wake()

        for number in range(4):
            await first.ask(Enqueue(made(str(number))))

        for taker in takers:
            await taker.has(2)


async def test_it_is_known_soon_that_there_is_nothing() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        taker = Taker(here, 5)
        taker.wake()
        assert here.is_unknown(MAIN)
        taker.changed.clear()

        await taker.changed.wait()

        assert not here.is_unknown(MAIN)
        for host in here.hosts:
            await host.known(MAIN)
        taker.close()


async def test_payloads_that_are_not_in_memory_are_read_from_the_owners_store() -> None:
    async with members() as cluster:
        here, there = await queue_at(cluster, "b"), await queue_at(cluster, "a")
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one", "two")))
        owned = there.own[first.number]
        assert owned.partition is not None
        for message in owned.partition.confirmed():
            message.payload = None

        peeked = await first.ask(Peek(SequenceNumber(0), 10))
        assert isinstance(peeked, Given)
        assert texts(peeked.messages) == ["", ""]
        assert await first.payloads(peeked.messages) == [b"one", b"two"]
        assert texts(await Taker(here, 2, [first]).has(2)) == ["one", "two"]


async def test_a_lock_is_renewed_and_found_by_its_token() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one")))
        (message,) = await Taker(here, 1, [first]).has(1)
        token = message.lock_token

        renewed = await first.ask(Renew([token]))
        found = await first.find_locked(token)

        assert isinstance(renewed, Renewed)
        assert renewed.locked_until[0] is not None
        assert found is not None
        assert found.sequence_number == message.sequence_number
        first.release([token])
        assert (await first.ask(Complete([token]))) == Settled([token])


async def test_figures_are_those_of_the_owner() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one", "two")))

        await here.refresh()

        assert first.figures is not None
        assert first.figures.counts(MAIN).active == 2
        assert first.figures.size_bytes == 6


class Holder:
    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.is_lost = asyncio.Event()

    def wake(self) -> None:
        self.woken.set()

    def lost(self) -> None:
        self.is_lost.set()


async def in_session(host: ReceivingPort, accepted: SessionAccepted, count: int) -> list[Message]:
    """Messages of a session that is accepted here."""
    assert accepted.lock is not None
    holder = Holder()
    host.hold_session(accepted.lock, holder)
    taken = host.lock_in_session(accepted.lock, count, PAGE)
    while len(taken) < count:
        await holder.woken.wait()
        holder.woken.clear()
        taken += host.lock_in_session(accepted.lock, count - len(taken), PAGE)
    return taken


async def test_a_session_elsewhere_is_held_received_and_released() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b", requires_session=True)
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one", "two", "three", session="s")))
        accepted = await first.ask(AcceptSession("s", b"e" * 14))
        assert isinstance(accepted, SessionAccepted)
        lock = accepted.lock
        assert lock is not None

        assert texts(await in_session(first, accepted, 2)) == ["one", "two"]
        assert await first.ask(SetSessionState(lock, b"state")) == Done()
        assert await first.session_state(lock) == b"state"
        first.let_go_session(lock)
        await first.ask(ReleaseSession(lock))

        again = await first.ask(AcceptSession("s", b"f" * 14))
        assert isinstance(again, SessionAccepted)
        taken = await in_session(first, again, 3)
        assert texts(taken) == ["one", "two", "three"]
        assert {message.delivery_count for message in taken} == {0}


async def test_it_is_known_when_a_session_elsewhere_has_no_more_messages() -> None:
    """A receiver that drains its credit is answered then, and not before."""
    async with members() as cluster:
        here = await queue_at(cluster, "b", requires_session=True)
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one", "two", session="s")))
        accepted = await first.ask(AcceptSession("s", b"e" * 14))
        assert isinstance(accepted, SessionAccepted)
        assert accepted.lock is not None
        holder = Holder()
        first.hold_session(accepted.lock, holder)
        taken = first.lock_in_session(accepted.lock, 10, PAGE)
        assert taken == [] and first.session_is_unknown(accepted.lock)

        while first.session_is_unknown(accepted.lock):
            await holder.woken.wait()
            holder.woken.clear()
            taken += first.lock_in_session(accepted.lock, 10 - len(taken), PAGE)

        assert texts(taken) == ["one", "two"]


async def test_the_next_free_session_may_be_elsewhere() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b", requires_session=True)
        (first, *_) = remote(here)
        found: asyncio.Future[SessionAccepted] = asyncio.get_running_loop().create_future()

        class Seeker:
            def wake(self) -> None:
                for host in here.in_turn():
                    accepted = host.accept_next_session()
                    if accepted is not None:
                        found.set_result(accepted)
                        return
                here.wait(self, MAIN)

        Seeker().wake()
        await first.ask(Enqueue(made("one", session="s")))

        accepted = await found
        assert accepted.lock is not None
        assert accepted.lock.session_id == "s"
        assert texts(await in_session(first, accepted, 1)) == ["one"]


async def test_a_session_that_nobody_wants_any_more_is_free_again() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b", requires_session=True)
        (first, *_) = remote(here)

        class Seeker:
            def wake(self) -> None:
                """It has gone away, and the queue does not know yet."""

        assert first.accept_next_session() is None
        here.wait(Seeker(), MAIN)
        await asyncio.sleep(0)
        await first.ask(Enqueue(made("one", session="s")))

        owner = cluster["a"].broker.queues.get("orders").own[first.number]
        await until(lambda: owner.available(MAIN) == 1)
        assert isinstance(await owner.ask(AcceptSession("s", b"e" * 14)), SessionAccepted)


async def test_sessions_end_with_the_connection_at_both_sides() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b", requires_session=True)
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one", session="s")))
        accepted = await first.ask(AcceptSession("s", b"e" * 14))
        assert isinstance(accepted, SessionAccepted)
        assert accepted.lock is not None
        holder = Holder()
        first.hold_session(accepted.lock, holder)

        cluster["b"].cut("a")

        await holder.is_lost.wait()
        again = await first.ask(AcceptSession("s", b"f" * 14))
        assert isinstance(again, SessionAccepted)


async def test_locks_outlive_the_connection() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one")))
        (message,) = await Taker(here, 1, [first]).has(1)

        cluster["b"].cut("a")

        assert first.availability is Availability.LOADING
        assert await first.ask(Complete([message.lock_token])) == Settled([])


async def test_receivers_go_on_after_the_connection_was_lost() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        taker = Taker(here, 2, [first])
        await first.ask(Enqueue(made("one")))
        await taker.has(1)

        cluster["b"].cut("a")
        await first.ask(Enqueue(made("two")))

        assert texts(await taker.has(2)) == ["one", "two"]


async def test_what_is_asked_of_a_broker_that_is_starting_waits_until_it_serves() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        starting = cluster["a"].cluster.peers
        starting.service = None
        cluster["a"].service.lost(starting.by_name["b"].link)
        cluster["b"].cut("a")
        cluster["b"].cluster.leader.connected_once.clear()
        await cluster["b"].cluster.leader.connected_once.wait()
        taker = Taker(here, 1, [first])
        taker.wake()
        sent = asyncio.create_task(first.ask(Enqueue(made("one"))))
        await asyncio.sleep(0.01)
        assert first.availability is Availability.LOADING
        assert not sent.done()

        starting.serve(cluster["a"].service)

        await sent
        assert texts(await taker.has(1)) == ["one"]


async def test_a_broker_that_stays_away_makes_its_partitions_unavailable(monkeypatch) -> None:
    monkeypatch.setattr("bendybus.cluster.peers.GRACE_S", 0.01)
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        await cluster["a"].cluster.peers.stop()
        await until(lambda: first.availability is not Availability.AVAILABLE)

        with pytest.raises(StoreUnavailable, match="broker 'a'"):
            await first.ask(Peek(SequenceNumber(0), 1))
        assert first.availability is Availability.UNAVAILABLE
        for _ in range(20):
            assert here.host_for(None).number in here.own


@pytest.mark.parametrize("path", ["orders", "other", "third"])
async def test_one_consumer_has_the_lease_whichever_broker_it_asks(path: str) -> None:
    # The first partition of some of these queues is at each of the brokers.
    async with members() as cluster:
        await cluster["a"].broker.queues.create(QueueDescription(EntityPath(path), enable_partitioning=True))
        await cluster.whole()
        queues = [member.broker.queues.get(path) for member in cluster]
        await queues[0].lease(LeaseRequest("one", MAIN, 60_000))
        for queue in queues:
            await queue.lease(LeaseRequest("one", MAIN, 60_000))
            await queue.lease(LeaseRequest("one", MAIN, None))
            for duration_ms in (60_000, None):
                with pytest.raises(ConsumerLeaseHeld, match="'one'"):
                    await queue.lease(LeaseRequest("two", MAIN, duration_ms))
            await queue.lease(LeaseRequest("three", SubQueue.DEAD_LETTER, 60_000))
        await queues[1].lease(LeaseRequest("one", MAIN, 0))
        await queues[0].lease(LeaseRequest("two", MAIN, 60_000))


async def test_a_lease_outlives_the_connection_and_the_partitions_memory() -> None:
    async with members() as cluster:
        await queue_at(cluster, "a")
        owner, other = sorted(cluster, key=lambda member: 0 not in member.broker.queues.get("orders").own)
        here, there = owner.broker.queues.get("orders"), other.broker.queues.get("orders")
        await there.lease(LeaseRequest("one", MAIN, 60_000))
        other.cut(owner.name)
        here.own[0].fail(StoreUnavailable("a test"))
        for queue in (here, there):
            with pytest.raises(ConsumerLeaseHeld, match="'one'"):
                await queue.lease(LeaseRequest("two", MAIN, 60_000))


async def test_a_broker_of_an_earlier_version_gives_no_leases_and_says_so() -> None:
    async with members() as cluster:
        await queue_at(cluster, "a")
        owner, other = sorted(cluster, key=lambda member: 0 not in member.broker.queues.get("orders").own)
        del owner.service._calls["consumer-lease"]
        with pytest.raises(Unavailable, match="it may be older"):
            await other.broker.queues.get("orders").lease(LeaseRequest("one", MAIN, 60_000))


async def test_a_transaction_is_committed_by_the_owner() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one")))
        (message,) = await Taker(here, 1, [first]).has(1)

        await commit([(first, Complete([message.lock_token])), (first, Enqueue(made("two")))])

        peeked = await first.ask(Peek(SequenceNumber(0), 10))
        assert isinstance(peeked, Given)
        assert texts(peeked.messages) == ["two"]
        with pytest.raises(MessageLockLost):
            await commit([(first, Enqueue(made("three"))), (first, Complete([message.lock_token]))])
        assert (await first.ask(Peek(SequenceNumber(0), 10))).messages[0].sequence_number
        assert len((await first.ask(Peek(SequenceNumber(0), 10))).messages) == 1


@pytest.mark.parametrize("commands", [1, 3])
async def test_a_transaction_that_does_not_fit_into_a_frame_is_refused(commands: int) -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)
        await first.ask(Enqueue(made("one")))
        (message,) = await Taker(here, 1, [first]).has(1)
        payload = bytes(45 * 1024 * 1024)
        large = [Message(payload, len(payload)) for _ in range(3)]

        with pytest.raises(MessageSizeExceeded, match="transaction"):
            await commit([(first, Enqueue(large[number::commands])) for number in range(commands)])

        # Nothing else was affected.
        assert await first.ask(Complete([message.lock_token])) == Settled([])


async def test_a_topic_is_published_to_from_any_broker() -> None:
    async with members() as cluster:
        topics = cluster["a"].broker.topics
        await topics.create(TopicDescription(EntityPath("events"), enable_partitioning=True))
        await topics.create_subscription(SubscriptionDescription(subscription_path("events", "all")))
        await cluster.whole()
        topic = cluster["b"].broker.topics.get("events")

        for host in topic.hosts:
            await host.ask(Enqueue(made(str(host.number))))

        for member in cluster:
            subscription = member.broker.topics.get_subscription("events", "all")
            taken = await Taker(subscription, 8).has(8)
            assert len(set(texts(taken))) == 8


async def test_a_deleted_entity_is_gone_everywhere() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        (first, *_) = remote(here)

        await cluster["a"].broker.queues.delete("orders")

        assert here.deleted
        with pytest.raises(EntityNotFound):
            await first.ask(Enqueue(made("one")))
        again = await queue_at(cluster, "b")
        assert again is not here
        assert await remote(again)[0].ask(Peek(SequenceNumber(0), 1)) == Given([])


async def test_messages_are_forwarded_between_brokers() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        await cluster["a"].broker.queues.create(
            QueueDescription(EntityPath("source"), enable_partitioning=True, forward_to=EntityPath("orders"))
        )
        await cluster.whole()
        source = cluster["b"].broker.queues.get("source")

        for host in source.hosts:
            message, _ = admit(BARE, now(), source.description)
            await host.ask(Enqueue([message]))

        taken = await Taker(here, 16).has(16)
        assert len({message.sequence_number for message in taken}) == 16


class Looker:
    """One that looks at messages and takes none, as gateway/browser.py."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.woken = asyncio.Event()

    def wake(self) -> None:
        self.woken.set()
        self._queue.watch(self, MAIN)


async def test_one_that_only_looks_is_told_of_new_messages_and_is_sent_none() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        host = remote(here)[0]
        looker = Looker(here)
        here.watch(looker, MAIN)
        await host.ask(Peek(SequenceNumber(0), 0))

        await host.ask(Enqueue(made("x")))
        await looker.woken.wait()

        given = await host.ask(Peek(SequenceNumber(0), 1))
        assert isinstance(given, Given)
        assert texts(given.messages) == ["x"]
        assert not here.waiting_count(MAIN)
        await here.refresh()
        assert host.figures is not None
        assert host.figures.counts(MAIN).locked == 0
        here.stop_watching(looker, MAIN)


async def test_one_that_only_looks_makes_the_owner_give_no_more_than_receivers_want() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        host = remote(here)[0]
        looker = Looker(here)
        here.watch(looker, MAIN)
        await host.ask(Enqueue(made("a", "b", "c")))

        (taken,) = await Taker(here, 1).has(1)
        for _ in range(5):
            await host.ask(Peek(SequenceNumber(0), 0))

        await here.refresh()
        assert host.figures is not None
        assert host.figures.counts(MAIN).locked == 1
        assert taken.lock_token is not None


async def test_the_owner_checks_commands_that_are_committed_later() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        host = remote(here)[0]
        await host.ask(Enqueue(made("x")))
        absent = SequenceNumber((host.number << 48) + 7)

        with pytest.raises(MessageNotFound):
            await host.commit([(host, CancelScheduled([absent]))], only_checks=True)
        await host.commit([(host, Enqueue(made("y")))], only_checks=True)

        given = await host.ask(Peek(SequenceNumber(0), 10))
        assert isinstance(given, Given)
        assert texts(given.messages) == ["x"]
