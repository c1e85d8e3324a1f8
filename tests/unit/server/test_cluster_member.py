"""A broker of `--brokers N` and the first one, which has the catalog."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from bendybus.broker.broker import Broker
from bendybus.cluster.following import FollowedCatalog
from bendybus.domain.entities import QueueDescription
from bendybus.envelope.contents import AmqpContents
from bendybus.names import EntityPath
from bendybus.server.cluster_member import ClusterMember, Membership
from bendybus.server.settings import Settings
from bendybus.store.catalog import Catalog
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog
from fix_async import until


def member(folder: Path, name: str) -> ClusterMember:
    owners = {"s0": "0", "s1": "1"}
    return ClusterMember(Membership(Settings(), name, ("0", "1"), owners, "c", b"secret", "", folder, ()))


async def serve(member: ClusterMember, catalog: Catalog, store: MemoryStore, exits: AsyncExitStack) -> Broker:
    broker = Broker(catalog, [store], contents=AmqpContents(), elsewhere=member.cluster)
    broker.start()
    exits.push_async_callback(broker.stop)
    await member.serve(broker, lambda: None, exits)
    return broker


async def test_a_change_that_was_not_announced_is_seen_when_the_first_broker_is_back(tmp_path: Path) -> None:
    catalog, store = MemoryCatalog(), MemoryStore("s0")
    first, follower = member(tmp_path, "0"), member(tmp_path, "1")
    async with AsyncExitStack() as exits:
        async with AsyncExitStack() as of_first:
            await first.open(of_first)
            await follower.open(exits)
            broker = await serve(first, catalog, store, of_first)
            await follower.cluster.leader.connected_once.wait()
            following = await serve(
                follower, FollowedCatalog(catalog.namespace(), []), MemoryStore("s1"), exits
            )
            await first.cluster.assembled()
            await broker.queues.create(QueueDescription("q"))
            assert following.queues.find("q") is not None
        # As if it had been killed between the change and its announcement.
        catalog.remove(EntityPath("q"))

        first = member(tmp_path, "0")
        await first.open(exits)
        await first.cluster.peers.by_name["1"].connected_once.wait()
        # While it loads, the other asks for the catalog in vain.
        await asyncio.sleep(0.05)
        await serve(first, catalog, store, exits)

        async with asyncio.timeout(10):
            await until(lambda: following.queues.find("q") is None)
