"""The life of a broker in a cluster: its name, the catalog's changes, and what it does after a silence."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.cluster import ownership
from bendybus.cluster.membership import DRAINING, LEAVING, SERVING
from bendybus.domain.commands import Enqueue, Enqueued
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message
from bendybus.errors import ConfigError, InvalidOperation, StoreUnavailable, Unavailable
from bendybus.names import EntityPath
from fix_async import until
from fix_nodes import NodeMember, nodes


def queue(path: str) -> QueueDescription:
    return QueueDescription(EntityPath(path), enable_partitioning=True)


def known(member: NodeMember) -> set[str]:
    return {entity.path for entity in member.broker.entities}


async def test_the_first_broker_leads() -> None:
    async with nodes("abc") as cluster:
        assert [member.cluster.has_catalog for member in cluster] == [True, False, False]
        assert cluster["c"].cluster.leader.name == "a"


async def test_a_change_is_known_to_all_brokers_when_it_returns() -> None:
    async with nodes("abc") as cluster:
        await until(lambda: all(peer.link for peer in cluster["a"].cluster.peers.by_name.values()))
        await cluster["a"].broker.queues.create(queue("orders"))
        assert all(known(member) == {"orders"} for member in cluster)


async def test_a_broker_that_joins_knows_what_exists() -> None:
    async with nodes("a") as cluster:
        await cluster["a"].broker.queues.create(queue("orders"))
        assert known(await cluster.add("b")) == {"orders"}


@pytest.mark.row("N-03", "N-04")
async def test_when_the_leader_dies_another_leads_and_the_former_changes_nothing() -> None:
    async with nodes("ab") as cluster:
        await cluster["a"].broker.queues.create(queue("one"))
        cluster["a"].cut()
        await cluster.pass_time()

        await cluster["b"].broker.queues.create(queue("two"))
        with pytest.raises(StoreUnavailable):
            await cluster["a"].broker.queues.create(queue("three"))

        cluster["a"].silent = False
        await cluster.rounds()
        assert [member.cluster.has_catalog for member in cluster] == [False, True]
        assert known(cluster["a"]) == known(cluster["b"]) == {"one", "two"}
        await cluster.whole()


async def test_an_entity_stays_if_the_leader_that_was_deleting_it_dies() -> None:
    async with nodes("abc") as cluster:
        await until(lambda: all(peer.link for peer in cluster["a"].cluster.peers.by_name.values()))
        await cluster["a"].broker.queues.create(queue("orders"))
        await cluster["a"].cluster.send_off([EntityPath("orders")], force=False)
        assert [member.broker.queues.get("orders").leaving for member in cluster] == [False, True, True]

        cluster["a"].cut()
        await cluster.pass_time()

        assert not any(member.broker.queues.get("orders").leaving for member in cluster)


async def test_a_change_that_a_broker_was_not_told_is_found_by_the_next_heartbeat() -> None:
    async with nodes("ab") as cluster:
        cluster["b"].ownership.service = None
        for name in ("one", "two"):
            await cluster["a"].broker.queues.create(queue(name))
        await until(lambda: known(cluster["b"]) == {"one", "two"})
        for peer in cluster["a"].cluster.peers.by_name.values():
            peer.hang_up("cut by a test")
        await cluster["a"].broker.entities.remove(cluster["a"].broker.find("one"), force=True)
        await cluster.rounds()
        assert known(cluster["b"]) == {"two"}


async def test_an_entity_can_be_deleted_when_a_broker_is_gone() -> None:
    async with nodes("abc") as cluster:
        await cluster["a"].broker.queues.create(queue("orders"))
        await cluster["c"].stop()
        cluster.by_name.pop("c")
        cluster["b"].cut()
        await cluster.pass_time()
        await cluster.whole()
        assert cluster["a"].cluster.peers.by_name == {}
        await cluster["a"].broker.queues.delete("orders")
        assert known(cluster["a"]) == set()


async def test_a_process_whose_name_another_one_has_ends() -> None:
    async with nodes("ab") as cluster:
        former = cluster["b"]
        former.cut()
        await cluster.pass_time()
        await cluster.add("b")
        assert not former.replaced
        await former.node.round()
        assert former.replaced
        # It does not wait for others to take what it believes to own.
        async with asyncio.timeout(5):
            await former.node.leave()
        await former.stop()


async def test_after_a_silence_a_broker_asks_its_stores_whether_they_are_still_its_own() -> None:
    async with nodes("ab") as cluster:
        cluster["b"].cut()
        await cluster.pass_time()
        assert len(cluster["a"].owns) == 4 and len(cluster["b"].owns) == 2
        # It still reaches nobody, but it reaches the stores.
        await cluster["b"].node.round()
        assert not cluster["b"].owns


async def test_an_entity_that_a_new_owner_has_created_tells_the_former_owner_that_it_was_displaced() -> None:
    # Found by seed 20261116489 of three brokers: all were silent, and another one was heard again first.
    async with nodes("ab") as cluster:
        cluster["b"].cut()
        await cluster.pass_time()
        await cluster["a"].broker.queues.create(queue("orders"))
        await cluster["b"].node.look()
        cluster["b"].node._was_silent = False
        await cluster["b"].node.round()
        assert not cluster["b"].owns
        assert known(cluster["b"]) == {"orders"}


async def test_a_former_owner_that_does_not_reach_its_stores_opens_what_the_new_owner_has_created() -> None:
    # Found by seed 20261117233 of two brokers. Stores that are reached again say who owns them.
    async with nodes("ab") as cluster:
        await cluster["a"].broker.queues.create(queue("before"))
        cluster["b"].cut()
        cluster["b"].cut_off |= cluster["b"].owns
        for host in cluster["b"].broker.queues.get("before").own.values():
            with pytest.raises(Unavailable):
                await host.ask(Enqueue([Message(b"x", 1)]))
        await cluster.pass_time()
        await cluster["a"].broker.queues.create(queue("orders"))
        await cluster["b"].node.round()
        assert known(cluster["b"]) == {"before", "orders"}
        assert cluster["b"].owns

        cluster["b"].cut_off.clear()
        await until(lambda: not cluster["b"].owns)
        await cluster.rounds()
        await cluster.whole()


@pytest.mark.row("N-08")
async def test_when_the_catalog_is_back_nobody_is_presumed_dead_for_its_silence_meanwhile() -> None:
    async with nodes("abc") as cluster:
        owned = {member.name: member.owns for member in cluster}
        # Nobody could write a heartbeat. The first one that can finds all others silent.
        cluster.roster.clock_s += 60
        await cluster["b"].node.round()
        assert set(cluster["b"].cluster.peers.by_name) == {"a", "c"}
        await cluster.rounds()
        assert {member.name: member.owns for member in cluster} == owned
        assert cluster["a"].cluster.has_catalog

        # One that has died meanwhile is noticed a little later.
        cluster["c"].cut()
        cluster.roster.clock_s += 60
        await cluster.rounds()
        assert len(cluster["a"].owns | cluster["b"].owns) < 4
        await cluster.pass_time()
        assert len(cluster["a"].owns | cluster["b"].owns) == 4


@pytest.mark.row("N-05")
async def test_a_broker_that_drains_owns_nothing_and_serves_its_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "GIVEN_FOR_S", 0.0)
    async with nodes("abc") as cluster:
        await cluster["a"].broker.queues.create(queue("orders"))
        await cluster["a"].node.drain(True)
        await cluster.rounds()
        await cluster.whole()
        assert cluster["a"].node.state == DRAINING
        assert not cluster["a"].owns and len(cluster["b"].owns | cluster["c"].owns) == 4
        assert cluster["a"].cluster.has_catalog
        for host in cluster["a"].broker.queues.get("orders").hosts:
            assert isinstance(await host.ask(Enqueue([Message(b"x", 1)])), Enqueued)

        await cluster["a"].node.drain(False)
        await cluster.rounds()
        assert cluster["a"].node.state == SERVING and cluster["a"].owns


async def test_the_last_broker_that_serves_cannot_be_drained() -> None:
    async with nodes("ab") as cluster:
        await cluster["a"].node.drain(True)
        await cluster.rounds()
        with pytest.raises(InvalidOperation, match="No other broker is serving"):
            await cluster["b"].node.drain(True)
        # If the last one dies, one that drains is better than none.
        cluster["b"].cut()
        await cluster.pass_time()
        assert len(cluster["a"].owns) == 4


@pytest.mark.row("N-05")
async def test_a_broker_that_ends_gives_its_stores_away_before_that() -> None:
    async with nodes("ab") as cluster:
        await cluster["a"].broker.queues.create(queue("orders"))
        for member in cluster:
            member.node.run()
        await cluster["b"].node.leave()
        assert cluster["b"].node.state == LEAVING and not cluster["b"].owns
        await until(lambda: len(cluster["a"].owns) == 4)
        # Its clients are still served.
        for host in cluster["b"].broker.queues.get("orders").hosts:
            assert isinstance(await host.ask(Enqueue([Message(b"x", 1)])), Enqueued)
        with pytest.raises(InvalidOperation, match="is leaving"):
            await cluster["b"].node.drain(False)


async def test_the_last_broker_ends_with_what_it_has() -> None:
    async with nodes("a") as cluster:
        cluster["a"].node.run()
        await cluster["a"].node.leave()
        assert len(cluster["a"].owns) == 4


async def test_a_store_is_added_by_giving_it_to_one_broker_after_the_other() -> None:
    async with nodes("ab", ["s0", "s1"]) as cluster:

        def stores_of(path: str, at: str) -> set[str]:
            return {host.store.name for host in cluster[at].broker.queues.get(path).hosts}

        async def restart(name: str, *stores: str) -> None:
            await cluster.by_name.pop(name).stop()
            await cluster.add(name, stores)
            await cluster.rounds()
            await cluster.whole()

        cluster.add_store("s2")
        await restart("b", "s0", "s1", "s2")
        assert "s2" in cluster["b"].owns
        await cluster["a"].broker.queues.create(queue("before"))
        assert stores_of("before", "a") == {"s0", "s1"}

        await restart("a", "s0", "s1", "s2")
        (leader,) = (member for member in cluster if member.cluster.has_catalog)
        await leader.broker.queues.create(queue("after"))
        await cluster.whole()
        assert stores_of("after", "a") == stores_of("after", "b") == {"s0", "s1", "s2"}

        # One that does not have it cannot own it, and reaches it.
        await restart("a", "s0", "s1")
        assert "s2" in cluster["b"].owns
        for host in cluster["a"].broker.queues.get("after").hosts:
            assert isinstance(await host.ask(Enqueue([Message(b"x", 1)])), Enqueued)

        await cluster.by_name.pop("b").stop()
        await cluster.by_name.pop("a").stop()
        with pytest.raises(ConfigError, match="no broker is given them"):
            await cluster.add("a", ["s0", "s1"])
        await cluster["a"].node.stop()
        await cluster["a"].cluster.stop()
        cluster.by_name.pop("a")
