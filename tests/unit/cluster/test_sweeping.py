"""Partitions that belong to no entity are removed, and no others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bendybus.cluster import sweeping
from bendybus.domain.entities import QueueDescription
from bendybus.errors import StoreUnavailable, Unavailable
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.catalog import EntityRecord
from fix_async import until
from fix_nodes import NodeMember, Nodes, nodes

GONE = EntityPath("gone")


def leave_behind(cluster: Nodes) -> None:
    """As if an owner had died before it removed the partitions of a deleted entity."""
    for store in cluster.stores.values():
        store.create_partitions(GONE, [PartitionNumber(number) for number in range(3)])


def paths(cluster: Nodes) -> set[str]:
    return {record.entity for store in cluster.stores.values() for record in store.partitions()}


async def new_queue(cluster: Nodes, name: str = "orders") -> None:
    description = QueueDescription(EntityPath(name), enable_partitioning=True)
    while True:
        try:
            await leader(cluster).broker.queues.create(description)
            return
        except Unavailable:
            # The machine stood still, and a store has changed its owner meanwhile.
            await cluster.whole()
    await cluster.whole()


def leader(cluster: Nodes) -> NodeMember:
    (leading,) = (member for member in cluster if member.cluster.has_catalog)
    assert isinstance(leading, NodeMember)
    return leading


async def sweep(member: NodeMember) -> None:
    assert member.node.sweep is not None
    await member.node.sweep.run()


@pytest.mark.row("N-04")
async def test_partitions_that_a_dead_broker_left_behind_are_removed() -> None:
    async with nodes("abc") as cluster:
        await new_queue(cluster)
        leave_behind(cluster)
        await sweep(leader(cluster))
        assert paths(cluster) == {"orders"}
        await cluster.whole()
        await new_queue(cluster, GONE)
        assert paths(cluster) == {"orders", GONE}


async def test_a_broker_that_took_them_over_forgets_them() -> None:
    async with nodes("abc") as cluster:
        leave_behind(cluster)
        lost = leader(cluster)
        lost.cut()
        await cluster.pass_time()
        del cluster.by_name[lost.name]
        await sweep(leader(cluster))
        assert paths(cluster) == set()
        for member in cluster:
            for store in member.broker.entities.stores:
                assert store.recovery.given_up == set()
        await new_queue(cluster, GONE)
        assert paths(cluster) == {GONE}
        await lost.stop()


async def test_partitions_of_an_entity_that_is_being_created_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes("abc") as cluster:
        leading, may_add, adds = leader(cluster), threading.Event(), threading.Event()
        add = leading.catalog.add

        def slowly(record: object) -> None:
            adds.set()
            assert may_add.wait(10)
            add(record)  # type: ignore[arg-type]

        monkeypatch.setattr(leading.catalog, "add", slowly)
        creating = asyncio.create_task(new_queue(cluster))
        await until(adds.is_set)
        assert paths(cluster) == {"orders"}
        sweeps = asyncio.create_task(sweep(leading))
        await asyncio.sleep(0.1)
        assert not sweeps.done()
        may_add.set()
        await asyncio.gather(creating, sweeps)
        assert paths(cluster) == {"orders"}
        await cluster.whole()


async def test_a_broker_that_does_not_lead_any_more_removes_nothing() -> None:
    async with nodes("abc") as cluster:
        leave_behind(cluster)
        former = leader(cluster)
        # Another one leads, and creates the entity; its catalog does not list it yet.
        cluster.roster.lead("other", "instance", cluster.roster.leader.term)
        with pytest.raises(StoreUnavailable):
            await sweep(former)
        assert paths(cluster) == {GONE}


async def test_partitions_that_were_created_since_they_were_listed_stay() -> None:
    async with nodes("a") as cluster:
        leave_behind(cluster)
        leftovers = cluster["a"].node._following.leftovers  # type: ignore[union-attr]
        listed = await leftovers.listed()
        await new_queue(cluster, GONE)
        await leftovers.remove({name: [each.key for each in found] for name, found in listed.items()})
        queue = cluster["a"].broker.queues.get(GONE)
        held = {host.key for host in queue.own.values()}
        assert held <= {record.key for store in cluster.stores.values() for record in store.partitions()}
        assert len(queue.own) == 16


async def test_the_leader_learns_of_a_deletion_whose_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # Found by seed 992278 of four brokers: partitions were removed that the leader still looked for.
    async with nodes("abc") as cluster:
        await new_queue(cluster)
        leading = leader(cluster)
        remove = leading.catalog.remove

        def lost(*removed: EntityPath) -> None:
            remove(*removed)
            raise StoreUnavailable("the connection was lost")

        monkeypatch.setattr(leading.catalog, "remove", lost)
        with pytest.raises(StoreUnavailable):
            await leading.broker.queues.delete("orders")
        monkeypatch.undo()
        # The others read the catalog.
        await cluster.rounds()
        leave_behind(cluster)
        await sweep(leading)
        assert paths(cluster) == set()
        assert [entity.path for member in cluster for entity in member.broker.entities] == []
        (other, *_) = (member for member in cluster if member is not leading)
        other.cut()
        await cluster.pass_time()
        assert all(store.owner.broker not in ("", other.name) for store in cluster.stores.values())


async def test_an_entity_whose_creation_was_not_answered_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nodes("ab") as cluster:
        await until(lambda: all(peer.link for peer in cluster["a"].cluster.peers.by_name.values()))
        catalog = leader(cluster).catalog
        add = catalog.add

        def add_unheard(record: EntityRecord) -> None:
            add(record)
            raise StoreUnavailable("no answer")

        def be_away(*_: EntityPath) -> None:
            raise StoreUnavailable("away")

        with monkeypatch.context() as outage:
            outage.setattr(catalog, "add", add_unheard)
            outage.setattr(catalog, "remove", be_away)
            with pytest.raises(StoreUnavailable, match="not created"):
                await leader(cluster).broker.queues.create(QueueDescription(GONE, enable_partitioning=True))
        await cluster.rounds()
        # The others have read it in the catalog.
        assert [member.broker.entities.look_up(GONE) is None for member in cluster] == [True, False]

        await sweep(leader(cluster))
        await cluster.rounds()

        assert [member.broker.entities.look_up(GONE) for member in cluster] == [None, None]
        await until(lambda: not paths(cluster))
        await new_queue(cluster, "gone")


async def test_a_partition_that_is_open_is_not_removed() -> None:
    async with nodes("a") as cluster:
        await new_queue(cluster)
        (store, *_) = cluster.stores.values()
        keys = [record.key for record in store.partitions()]
        with pytest.raises(StoreUnavailable, match="open"):
            await cluster["a"].node._following.leftovers.remove({store.name: keys})  # type: ignore[union-attr]
        assert [record.key for record in store.partitions()] == keys


async def test_an_open_partition_with_the_same_key_in_another_store_does_not_matter() -> None:
    async with nodes("a", ("s0", "s1")) as cluster:
        (store, *_) = cluster.stores.values()
        left = store.create_partitions(GONE, [PartitionNumber(number) for number in range(3)])
        await new_queue(cluster)
        kept = {host.key for queue in cluster["a"].broker.queues for host in queue.own.values()}
        assert kept & {record.key for record in left}
        await sweep(leader(cluster))
        assert paths(cluster) == {"orders"}


async def test_nothing_is_removed_while_a_store_has_no_owner() -> None:
    async with nodes("ab") as cluster:
        leave_behind(cluster)
        leading = leader(cluster)
        leading.cluster.set_owner("s0", None)
        with pytest.raises(StoreUnavailable, match="no owner"):
            await sweep(leading)


async def test_the_leader_sweeps_when_owners_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SETTLED_AFTER_S", 0.0)
    async with nodes("abc") as cluster:
        leave_behind(cluster)
        (lost, *_) = (member for member in cluster if not member.cluster.has_catalog)
        lost.cut()
        await cluster.pass_time()
        await until(lambda: paths(cluster) == set())


async def test_what_could_not_be_removed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SETTLED_AFTER_S", 0.0)
    monkeypatch.setattr(sweeping, "AGAIN_AFTER_S", 0.0)
    async with nodes("a") as cluster:
        # It has swept since it began to lead.
        leave_behind(cluster)
        member = cluster["a"]
        assert member.node.sweep is not None
        monkeypatch.setattr(sweeping, "EVERY_S", 0.0)
        member.node.sweep._seen = None
        member.cut_off.add("s1")
        await cluster.rounds(2)
        assert GONE in paths(cluster)
        member.cut_off.clear()
        for _ in range(200):
            await cluster.rounds(1)
            if GONE not in paths(cluster):
                break
            await asyncio.sleep(0.02)
        assert paths(cluster) == set()
