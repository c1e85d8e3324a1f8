"""Which queues exist, and where their partitions live."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest

from bendybus.broker.broker import Broker
from bendybus.broker.lifecycle import Availability
from bendybus.broker.queue import with_free_sessions
from bendybus.domain.commands import ENTROPY_PER_LOCK, Abandon, Defer, Enqueue, LockDeferred
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.schedule import postpone
from bendybus.domain.session_commands import ReleaseSession
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope import admit
from bendybus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    StoreError,
    StoreUnavailable,
)
from bendybus.names import EntityPath, Instant, PartitionNumber, SessionId
from bendybus.store.memory import MemoryStore
from fix_async import until
from fix_broker import message
from fix_topics import encoded

UNAVAILABLE = Availability.UNAVAILABLE

ORDERS = QueueDescription(EntityPath("Orders"), enable_partitioning=True)
PLAIN = QueueDescription(EntityPath("plain"))


@pytest.fixture
def stores():
    return [MemoryStore(name) for name in ("a", "b", "c")]


async def recovered(broker: Broker, name: str) -> None:
    """The store has been probed, now rather than in a second, and its partitions are loaded."""
    (store,) = [each for each in broker.stores if each.name == name]
    store.recover()
    await store.changes.until(lambda: not any(each.availability is UNAVAILABLE for each in store.residents))
    for queue in broker.queues:
        await queue.loaded()


@pytest.mark.row("P-02")
async def test_a_partitioned_queue_is_spread_over_the_stores(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        assert [host.number for host in queue.hosts] == list(range(16))
        assert sorted(Counter(host.store.name for host in queue.hosts).values()) == [5, 5, 6]


@pytest.mark.row("P-16")
async def test_keyless_messages_go_round_the_partitions_store_by_store(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        hosts = [queue.host_for(None) for _ in range(32)]
        assert hosts[16:] == hosts[:16]
        assert {host.number for host in hosts} == set(range(16))
        assert [store for store, _ in groupby(host.store.name for host in hosts[:16])] == ["a", "b", "c"]


@pytest.mark.row("P-02")
async def test_an_unpartitioned_queue_lives_in_one_store_and_they_take_turns(open_broker):
    async with open_broker() as broker:
        queues = [await broker.queues.create(QueueDescription(EntityPath(name))) for name in "xyz"]
        assert [[host.store.name for host in queue.hosts] for queue in queues] == [["a"], ["b"], ["c"]]


@pytest.mark.row("P-08", "P-09")
@pytest.mark.parametrize(("tier", "asked", "count"), [(Tier.STANDARD, True, 16), (Tier.PREMIUM, None, 4)])
async def test_the_tier_decides_the_number_of_partitions(open_broker, tier, asked, count):
    async with open_broker(tier=tier, premium_partitions=4) as broker:
        description = QueueDescription(EntityPath("q"), enable_partitioning=asked)
        assert len((await broker.queues.create(description)).hosts) == count


async def test_names_are_found_in_any_case_and_taken_once(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        assert broker.find("oRDERS") is queue
        with pytest.raises(EntityExists):
            await broker.queues.create(QueueDescription(EntityPath("orders")))
        with pytest.raises(EntityNotFound, match="The messaging entity 'other' could not be found"):
            broker.find("other")


async def test_a_name_that_the_server_needs_is_refused_but_an_old_entity_keeps_it(open_broker):
    reserved = frozenset({"health"})

    async with open_broker() as broker:
        await broker.queues.create(QueueDescription(EntityPath("Health")))

    async with open_broker(reserved_names=reserved) as broker:
        assert broker.queues.get("health").path == "Health"
        # What a Config.json says of it still counts.
        await broker.queues.ensure(QueueDescription(EntityPath("health"), max_delivery_count=3))
        await broker.queues.delete("HEALTH")
        for name in ("health", "HEALTH"):
            with pytest.raises(ArgumentError, match="the server itself answers at '/"):
                await broker.queues.create(QueueDescription(EntityPath(name)))
            with pytest.raises(ArgumentError, match="the server itself answers at '/"):
                await broker.topics.create(TopicDescription(EntityPath(name)))
        for name in ("health2", "health/x", "x/health"):
            await broker.queues.create(QueueDescription(EntityPath(name)))


@pytest.mark.row("B-08")
async def test_a_restart_finds_queues_and_messages(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        await queue.hosts[7].ask(Enqueue([message("kept")]))

    async with open_broker() as broker:
        host = broker.find("orders").hosts[7]
        await host.ask(Enqueue([message("more")]))
        assert [each.sequence_number & 0xFF for each in host.partition.confirmed()] == [1, 2]


@pytest.mark.row("P-32")
async def test_what_the_catalog_does_not_name_is_swept_away(open_broker, stores):
    stores[1].create_partitions(EntityPath("half-made"), [PartitionNumber(0)])

    async with open_broker() as broker:
        assert list(broker.queues) == []

    assert stores[1].partitions() == []


async def test_a_store_that_is_missing_is_named(open_broker, stores):
    async with open_broker() as broker:
        await broker.queues.create(ORDERS)

    with pytest.raises(StoreError, match="'c'"):
        async with open_broker(stores=stores[:2]) as broker:
            pass


async def test_an_update_changes_what_may_be_changed_for_good(open_broker):
    changed = QueueDescription(EntityPath("Orders"), enable_partitioning=True, max_delivery_count=3)

    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        await queue.hosts[0].ask(Enqueue([message()]))
        assert await broker.queues.ensure(changed) is queue
        assert queue.hosts[0].partition.description.max_delivery_count == 3

    async with open_broker() as broker:
        assert broker.find("orders").description == replace(changed, max_message_size_kb=256)


@pytest.mark.row("P-07")
async def test_partitioning_is_fixed_at_creation(open_broker):
    async with open_broker() as broker:
        await broker.queues.create(ORDERS)
        with pytest.raises(InvalidOperation, match="EnablePartitioning is True"):
            await broker.queues.ensure(QueueDescription(EntityPath("orders"), enable_partitioning=False))
        queue = await broker.queues.ensure(QueueDescription(EntityPath("orders"), max_delivery_count=3))
        assert queue.description.enable_partitioning


@pytest.mark.row("P-09")
@pytest.mark.parametrize("before", [Tier.STANDARD, Tier.PREMIUM])
async def test_entities_keep_their_partitions_when_the_tier_changes(open_broker, before):
    count, after = (16, Tier.PREMIUM) if before is Tier.STANDARD else (2, Tier.STANDARD)
    asked = True if before is Tier.STANDARD else None
    described = QueueDescription(EntityPath("q"), enable_partitioning=asked, max_size_mb=5120)
    async with open_broker(tier=before) as broker:
        await broker.queues.create(described)
    async with open_broker(tier=after, premium_partitions=1) as broker:
        queue = broker.find("q")
        assert (len(queue.hosts), queue.description.enable_partitioning) == (count, True)
        await queue.hosts[count - 1].ask(Enqueue([message()]))
        await broker.queues.ensure(described)
        await broker.queues.update(replace(queue.description, max_delivery_count=3))
        assert queue.description.max_delivery_count == 3


@pytest.mark.row("P-09")
async def test_the_tier_is_kept_in_the_catalog(open_broker):
    async with open_broker(tier=Tier.PREMIUM, premium_partitions=4) as broker:
        kept = broker.catalog.namespace()
        assert (kept["tier"], kept["premium_partitions"]) == ("premium", 4)


@pytest.mark.row("P-09")
async def test_an_entity_of_an_earlier_version_shows_its_partitions(open_broker):
    async with open_broker(tier=Tier.PREMIUM) as broker:
        await broker.queues.create(QueueDescription(EntityPath("q")))
        record = broker.entities.record("q")
        broker.catalog.replace(
            replace(record, description=record.description | {"enable_partitioning": False})
        )
    async with open_broker(tier=Tier.PREMIUM) as broker:
        assert broker.find("q").description.enable_partitioning is True


@pytest.mark.row("P-16")
async def test_keyless_messages_take_turns_over_all_partitions(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        assert {queue.host_for(None).number for _ in range(16)} == set(range(16))
        assert queue.host_for("key") is queue.host_for("key")


async def test_receivers_ask_the_partitions_that_have_something_and_begin_with_another_each_time(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        assert queue.stocked(SubQueue.MAIN) == []
        two = [queue.hosts[3], queue.hosts[8]]
        for host in two:
            await host.ask(Enqueue([message("m")]))
        assert [queue.stocked(SubQueue.MAIN)[0] for _ in range(4)] == two * 2
        assert queue.stocked(SubQueue.DEAD_LETTER) == []
        (locked,) = two[0].lock(1, 1000, SubQueue.MAIN)
        assert queue.stocked(SubQueue.MAIN) == two[1:]
        await two[0].ask(Abandon([locked.lock_token]))
        assert set(queue.stocked(SubQueue.MAIN)) == set(two)


async def test_only_partitions_with_a_free_session_are_asked_for_the_next_one(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(replace(ORDERS, requires_session=True))
        assert list(with_free_sessions(queue)) == []
        two = [queue.hosts[3], queue.hosts[8]]
        for host in two:
            await host.ask(Enqueue([Message(b"m", size=1, session_id=SessionId("s"))]))
        assert set(with_free_sessions(queue)) == set(two)
        assert {next(with_free_sessions(queue)) for _ in queue.hosts} == set(two), "none is favoured"
        accepted = two[0].accept_next_session()
        assert list(with_free_sessions(queue)) == two[1:]
        await two[0].ask(ReleaseSession(accepted.lock))
        assert set(with_free_sessions(queue)) == set(two)


@pytest.mark.row("P-32")
async def test_a_deleted_queue_leaves_nothing_behind(open_broker, catalog, stores):
    async with open_broker() as broker:
        told = []
        broker.entities.watch(told.append)
        queue = await broker.queues.create(ORDERS)
        await queue.hosts[3].ask(Enqueue([message("lost")]))
        await broker.queues.delete("orders")
        assert told == [queue, queue] and queue.deleted
        with pytest.raises(EntityNotFound):
            broker.find("Orders")
        with pytest.raises(EntityNotFound):
            await queue.hosts[3].ask(Enqueue([message()]))
        with pytest.raises(EntityNotFound):
            await broker.queues.delete("orders")
        assert broker.cache.used_bytes == 0
        again = await broker.queues.create(ORDERS)
        await again.loaded()
        assert not any(list(host.partition.confirmed()) for host in again.hosts)

    assert [record.path for record in catalog.entities()] == ["Orders"]
    assert sum(len(store.partitions()) for store in stores) == 16


async def test_what_was_under_way_when_a_queue_was_deleted_is_answered(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        replies = []
        await queue.loaded()
        for host in queue.hosts:
            host.submit(Enqueue([message()]), replies.append)
        await broker.queues.delete("orders")
        assert len(replies) == 16
        assert broker.cache.used_bytes == 0


@pytest.mark.row("P-32")
async def test_a_create_that_meets_an_unhealthy_store_makes_nothing_and_can_be_repeated(open_broker, stores):
    async with open_broker() as broker:
        stores[2].outage = StoreUnavailable("away")
        with pytest.raises(StoreUnavailable, match="Queue 'Orders' was not created: away"):
            await broker.queues.create(ORDERS)
        stores[2].outage = None
        assert [store.partitions() for store in stores] == [[], [], []]
        with pytest.raises(EntityNotFound):
            broker.find("orders")
        assert len((await broker.queues.create(ORDERS)).hosts) == 16


@pytest.mark.row("P-32")
async def test_update_and_delete_are_refused_while_a_partition_is_away(open_broker, stores):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        await queue.loaded()
        stores[1].outage = StoreUnavailable("away")
        with pytest.raises(StoreUnavailable):
            await queue.hosts[1].ask(Enqueue([message()]))
        for change in (broker.queues.delete("orders"), broker.queues.update(ORDERS)):
            with pytest.raises(StoreUnavailable, match=r"of 'Orders' are unavailable \(1, 4, 7, 10, 13\)"):
                await change
        stores[1].outage = None
        await recovered(broker, "b")
        await broker.queues.delete("orders")


@pytest.mark.row("P-32")
async def test_what_a_deleted_namesake_left_in_a_store_does_not_come_back(open_broker, stores):
    async with open_broker() as broker:
        queue = await broker.queues.create(PLAIN)
        await queue.hosts[0].ask(Enqueue([message("old")]))
        stores[0].outage = StoreUnavailable("away")
        await broker.queues.delete("plain")
        stores[0].outage = None
        assert len(stores[0].partitions()) == 1
        again = await broker.queues.create(PLAIN)
        await again.loaded()
        assert list(again.hosts[0].partition.confirmed()) == []


@pytest.mark.row("P-32")
async def test_a_create_that_finds_a_store_away_touches_none(open_broker, stores):
    async with open_broker() as broker:
        queue = await broker.queues.create(PLAIN)
        stores[0].outage = StoreUnavailable("away")
        with pytest.raises(StoreUnavailable):
            await queue.hosts[0].ask(Enqueue([message()]))
        with pytest.raises(StoreUnavailable, match="'Orders' was not created: The messaging store 'a' is"):
            await broker.queues.create(ORDERS)
        assert stores[1].partitions() == []
        stores[0].outage = None
        await recovered(broker, "a")
        assert len((await broker.queues.create(ORDERS)).hosts) == 16


@pytest.mark.row("P-04")
async def test_an_unpartitioned_queue_is_made_where_it_can_be(open_broker, stores):
    async with open_broker() as broker:
        queues = [await broker.queues.create(QueueDescription(EntityPath(name))) for name in "xyz"]
        stores[0].outage = StoreUnavailable("away")
        with pytest.raises(StoreUnavailable):
            await queues[0].hosts[0].ask(Enqueue([message()]))
        more = [await broker.queues.create(QueueDescription(EntityPath(name))) for name in "uvw"]
        assert {host.store.name for queue in more for host in queue.hosts} == {"b", "c"}


@pytest.mark.row("P-04")
@pytest.mark.parametrize("opened", [True, False])
async def test_a_broker_starts_with_a_store_away_and_takes_it_up_when_it_is_back(open_broker, stores, opened):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        for host in queue.hosts:
            await host.ask(Enqueue([message("kept")]))

    stores[1].create_partitions(EntityPath("half-made"), [PartitionNumber(0)])
    if opened:
        stores[1].drop_partitions(EntityPath("half-made"))
    away = stores[1].outage = StoreUnavailable("no route to host")
    async with open_broker(unopened={} if opened else {"b": away}) as broker:
        queue = broker.find("orders")
        await queue.loaded()
        away = [host.number for host in queue.hosts if host.availability is UNAVAILABLE]
        assert away == [1, 4, 7, 10, 13] and queue.limited
        assert queue.host_for(None).number not in away
        with pytest.raises(StoreUnavailable):
            await queue.hosts[1].ask(Enqueue([message()]))
        for change in (broker.queues.delete("orders"), broker.queues.update(ORDERS)):
            with pytest.raises(StoreUnavailable):
                await change
        stores[1].outage = None
        await recovered(broker, "b")
        assert [host.available(SubQueue.MAIN) for host in queue.hosts] == [1] * 16
        assert [record.entity for record in stores[1].partitions()] == ["Orders"] * 5
        await broker.queues.delete("orders")


async def test_of_two_who_create_one_queue_at_once_one_is_told_so(open_broker):
    async with open_broker() as broker:
        made = await asyncio.gather(*[broker.queues.create(ORDERS) for _ in range(3)], return_exceptions=True)
        assert [type(one) for one in made].count(EntityExists) == 2
        await broker.find("orders").hosts[0].ask(Enqueue([message()]))


async def test_an_update_keeps_the_spelling_of_the_name(open_broker):
    async with open_broker() as broker:
        await broker.queues.create(ORDERS)
        changed = QueueDescription(EntityPath("ORDERS"), enable_partitioning=True, lock_duration_s=5)
        queue = await broker.queues.update(changed)
        assert (queue.path, queue.description.lock_duration_s) == ("Orders", 5)
        assert queue.updated_at >= queue.created_at > 0

    async with open_broker() as broker:
        assert broker.find("orders").path == "Orders"
        await broker.queues.delete("oRders")


@pytest.mark.row("P-11")
async def test_a_namespace_has_a_hundred_partitioned_queues_at_most(open_broker, catalog):
    async with open_broker(stores=[MemoryStore("a")]) as broker:
        for number in range(100):
            await broker.queues.create(QueueDescription(EntityPath(f"q{number}"), enable_partitioning=True))
        with pytest.raises(QuotaExceeded, match="has 100 partitioned"):
            await broker.queues.create(ORDERS)
        await broker.queues.create(PLAIN)
        await broker.queues.delete("q0")
        await broker.queues.create(ORDERS)


async def test_the_namespace_remembers_when_it_was_made(open_broker):
    async with open_broker() as broker:
        created_at = broker.created_at

    async with open_broker() as broker:
        assert broker.created_at == created_at > 0


@pytest.mark.row("B-08")
async def test_emptying_takes_everything_out_and_leaves_the_entities(open_broker, catalog, stores):
    async with open_broker() as broker:
        queue, plain = await broker.queues.create(ORDERS), await broker.queues.create(PLAIN)
        for host in (*queue.hosts, *plain.hosts):
            await host.ask(Enqueue([message("lost"), message("lost")]))
        (kept,) = queue.hosts[3].lock(1, 1000, SubQueue.MAIN)
        under_way = []
        plain.hosts[0].submit(Enqueue([message("lost")]), under_way.append)
        await broker.empty()
        assert len(under_way) == 1
        await queue.loaded()
        assert broker.find("orders") is queue and not queue.deleted
        assert not any(list(host.partition.confirmed()) for host in (*queue.hosts, *plain.hosts))
        # A receiver that keeps a message for later sees that it is no longer its own.
        assert not queue.hosts[3].holds(kept.lock_token, queue.now())
        assert broker.cache.used_bytes == 0
        assert (await queue.hosts[3].ask(Enqueue([message("new")]))).first & 0xFFFF == 1

    assert [record.path for record in catalog.entities()] == ["Orders", "plain"]
    assert sum(len(store.partitions()) for store in stores) == 17


@pytest.mark.row("P-13")
async def test_what_a_namespace_had_by_the_earlier_rule_for_keys_follows_todays_once_it_is_emptied(
    open_broker, catalog
):
    async with open_broker() as broker:
        queue = await broker.queues.create(replace(ORDERS, exact_keys=True))
        changed = await broker.queues.update(replace(ORDERS, max_delivery_count=3))
        assert changed.description.exact_keys, "an update does not tear the messages of a key apart"
        assert await broker.queues.ensure(ORDERS) is queue
        assert queue.description.exact_keys
        assert queue.key_of("Alpha") == "Alpha"
        await broker.empty()
        assert queue.key_of("Alpha") == "alpha"

    assert [record.description["exact_keys"] for record in catalog.entities()] == [False]


@pytest.mark.row("B-08")
async def test_what_is_sent_while_a_queue_is_emptied_stays(open_broker):
    async with open_broker() as broker:
        queue = await broker.queues.create(PLAIN)
        await queue.loaded()
        replies = []
        emptying = asyncio.create_task(broker.empty())
        await asyncio.sleep(0)
        assert queue.loading
        queue.hosts[0].submit(Enqueue([message("stays")]), replies.append)
        await emptying
        await queue.loaded()
        await broker.drain()
        assert len(replies) == 1
        assert len(list(queue.hosts[0].partition.confirmed())) == 1


async def test_emptying_is_refused_while_a_partition_is_away(open_broker, stores):
    async with open_broker() as broker:
        queue = await broker.queues.create(ORDERS)
        await queue.hosts[0].ask(Enqueue([message("kept")]))
        stores[1].outage = StoreUnavailable("away")
        with pytest.raises(StoreUnavailable):
            await queue.hosts[1].ask(Enqueue([message()]))
        with pytest.raises(StoreUnavailable, match="Nothing was changed"):
            await broker.empty()
        assert len(list(queue.hosts[0].partition.confirmed())) == 1
        stores[1].outage = None


async def test_a_store_that_fails_while_it_is_emptied_keeps_what_it_has(open_broker, stores):
    async with open_broker() as broker:
        paths = [EntityPath(name) for name in ("one", "two", "three")]  # each in a store of its own
        queues = [await broker.queues.create(QueueDescription(path)) for path in paths]
        for queue in queues:
            await queue.hosts[0].ask(Enqueue([message("x")]))
        broken = queues[1].hosts[0].store.store
        drop, broken.drop_partitions = broken.drop_partitions, _refuse
        with pytest.raises(StoreUnavailable, match="Not everything was emptied: away"):
            await broker.empty()
        await broker.recovered()
        left = [len(list(queue.hosts[0].partition.confirmed())) for queue in queues]
        assert left == [0, 1, 0]
        broken.drop_partitions = drop
        await broker.empty()
        assert not list(queues[1].hosts[0].partition.confirmed())


def _refuse(path):
    raise StoreUnavailable("away.")


async def test_what_falls_due_has_happened_when_the_clock_has_moved(open_broker, stores):
    async with open_broker() as broker:
        queue = await broker.queues.create(PLAIN)
        (host,) = queue.hosts
        await host.ask(Enqueue([message("locked")]))
        (locked,) = host.lock(1, 1000, SubQueue.MAIN)
        before = broker.clock.now()
        await broker.ticker.advance(59_000)
        assert locked.lock_token is not None
        await broker.ticker.advance(2_000)
        assert (locked.lock_token, locked.delivery_count) == (None, 1)
        assert host.available(SubQueue.MAIN) == 1
        assert broker.clock.now() >= before + 61_000 and queue.now() >= before + 61_000
        # And it is in the store, not only in memory.
        (record,) = [record for store in stores for record in store.partitions()]
        (store,) = [store for store in stores if store.partitions()]
        assert [stored.delivery_count for stored in store.load(record.key).messages] == [1]


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_lock_of_a_deferred_message_expires(open_broker, restarted):
    # Nothing else had a deadline in its partition, which was not ticked: the lock lasted for ever.
    async with open_broker() as broker:
        queue = await broker.queues.create(PLAIN)
        (host,) = queue.hosts
        await host.ask(Enqueue([message()]))
        (deferred,) = host.lock(1, 1000, SubQueue.MAIN)
        await host.ask(Defer([deferred.lock_token]))
        await broker.ticker.advance(61_000)
        numbers = [deferred.sequence_number]
        if restarted:
            host.fail(StoreUnavailable("a reply was lost"))
            await recovered(broker, host.store.name)
        broker.ticker.tick()
        for _ in range(2):
            given = await host.ask(LockDeferred(numbers, bytes(ENTROPY_PER_LOCK)))
            assert [each.sequence_number for each in given.messages] == numbers
            await broker.ticker.advance(61_000)
        assert host.partition.counts().locked == 0


# -- idle queues --------------------------------------------------------------------


async def test_a_queue_that_nobody_uses_is_deleted_after_its_idle_time(open_broker):
    async with open_broker() as broker:
        kept = await broker.queues.create(PLAIN)
        idle, used, awaited = [
            await broker.queues.create(QueueDescription(EntityPath(name), auto_delete_on_idle_s=300))
            for name in ("idle", "used", "awaited")
        ]
        for queue in (idle, used, awaited):
            await queue.loaded()
        broker.clock.move_on(301_000)
        used.accessed_at = broker.clock.now()
        awaited.wait(object(), SubQueue.MAIN)
        broker.ticker.tick()
        await until(lambda: idle.deleted)
        assert [queue.deleted for queue in (kept, used, awaited)] == [False] * 3
        with pytest.raises(EntityNotFound):
            broker.find("idle")


async def test_a_queue_that_forwards_only_its_dead_letters_can_be_idle(open_broker):
    # Its forwarder waited for them like a receiver, so the queue was never deleted.
    async with open_broker() as broker:
        letters = await broker.queues.create(PLAIN)
        forwarding = {"auto_delete_on_idle_s": 300, "forward_dead_lettered_to": letters.path}
        idle, awaited = [
            await broker.queues.create(QueueDescription(EntityPath(name), **forwarding))
            for name in ("idle", "awaited")
        ]
        await awaited.loaded()
        awaited.wait(object(), SubQueue.DEAD_LETTER)
        await broker.ticker.advance(301_000)
        assert (idle.deleted, awaited.deleted) == (True, False)


async def test_an_entity_that_is_sent_to_without_a_link_is_not_idle(open_broker):
    """Over HTTP, or by forwarding: only links and requests were noted."""
    async with open_broker() as broker:
        target = QueueDescription(EntityPath("target"), auto_delete_on_idle_s=300)
        await broker.queues.create(target)
        source = await broker.queues.create(QueueDescription(EntityPath("source"), forward_to=target.path))
        direct = await broker.queues.create(replace(target, path=EntityPath("direct")))
        topic = await broker.topics.create(TopicDescription(EntityPath("topic"), auto_delete_on_idle_s=300))
        for _ in range(2):
            await broker.ticker.advance(200_000)
            for each in (source, direct, topic):
                sent, _ = admit(encoded(), each.now(), each.description)
                await each.host_for(None).ask(Enqueue([sent]))
            await broker.entities.forwarder(source).settled()
        assert [broker.find(name).path for name in ("target", "direct")] == ["target", "direct"]
        assert not topic.deleted
        await broker.ticker.advance(301_000)
        assert topic.deleted and direct.deleted


async def test_an_entity_is_not_deleted_when_its_scheduled_messages_become_due(open_broker):
    # It had been idle all the time before, so it was deleted at that moment, with the messages.
    async with open_broker() as broker:
        queue = await broker.queues.create(QueueDescription(EntityPath("q"), auto_delete_on_idle_s=300))
        topic = await broker.topics.create(TopicDescription(EntityPath("t"), auto_delete_on_idle_s=300))
        news = await broker.topics.create_subscription(SubscriptionDescription.of("t", "news"))
        for entity in (queue, topic):
            later = message()
            postpone(later, entity.now(), Instant(entity.now() + 3_600_000))
            await entity.host_for(None).ask(Enqueue([later]))
        await broker.ticker.advance(3_601_000)
        assert (queue.deleted, topic.deleted) == (False, False)
        assert [sum(host.available(SubQueue.MAIN) for host in each.hosts) for each in (queue, news)] == [1, 1]
        await broker.ticker.advance(301_000)
        assert queue.deleted and topic.deleted


@pytest.mark.row("P-32")
@pytest.mark.row("P-32")
async def test_a_queue_whose_store_goes_away_while_it_is_created_is_unavailable_there(
    open_broker, catalog, monkeypatch
):
    """It was taken for available, so a deletion was accepted and left its partitions behind."""
    add, loop = catalog.add, asyncio.get_running_loop()
    async with open_broker() as broker:
        store = next(iter(broker.stores))

        def add_while_it_goes(record):
            add(record)
            loop.call_soon_threadsafe(store.fail, StoreUnavailable("a reply was lost"))

        monkeypatch.setattr(catalog, "add", add_while_it_goes)
        queue = await broker.queues.create(ORDERS)
        assert {host.store.name for host in queue.hosts if host.availability is UNAVAILABLE} == {store.name}
        with pytest.raises(StoreUnavailable, match="Nothing was changed"):
            await broker.queues.delete("Orders")
        await recovered(broker, store.name)
        await broker.queues.delete("Orders")
        assert store.store.partitions() == []


async def test_a_queue_that_the_catalog_took_and_said_it_did_not_leaves_nothing_half_made(
    open_broker, catalog, monkeypatch
):
    """Else the catalog would name partitions that no store has, and the server would not start again."""
    add = catalog.add

    def add_and_fail(record):
        add(record)
        raise StoreUnavailable("the answer was lost")

    async with open_broker() as broker:
        monkeypatch.setattr(catalog, "add", add_and_fail)
        with pytest.raises(StoreUnavailable):
            await broker.queues.create(PLAIN)
        monkeypatch.setattr(catalog, "add", add)
        assert catalog.entities() == []

    async with open_broker() as broker:
        await broker.queues.create(PLAIN)
