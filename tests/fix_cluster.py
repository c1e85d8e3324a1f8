"""Several brokers in one process, connected as processes are, each with its own store."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from bendybus.broker.broker import Broker
from bendybus.broker.lifecycle import Availability
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.following import Following
from bendybus.cluster.identity import Identity
from bendybus.cluster.link_protocol import LinkProtocol
from bendybus.cluster.serving import Service
from bendybus.domain.entities import Tier
from bendybus.envelope.contents import AmqpContents
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog
from fix_async import until


class Member:
    """One broker of a cluster."""

    def __init__(self, name: str, others: Members) -> None:
        self.name = name
        self._others = others
        self.store = MemoryStore(f"store-{name}")
        self.broker: Broker
        self.cluster: Cluster
        self.service: Service

    async def start(self) -> None:
        names = list(self._others.by_name)
        owners = {f"store-{name}": name for name in names}
        self.cluster = Cluster(Identity("c", self.name, b"secret"), owners, names, names[0])
        self.cluster.peers.call_all(self._connect)
        if self.cluster.has_catalog:
            catalog = self._others.catalog
        else:
            await self.cluster.leader.connected_once.wait()
            while True:
                try:
                    catalog = await Following.fetch(self.cluster)
                    break
                except Exception:
                    await asyncio.sleep(0.005)
        self.broker = Broker(
            catalog, [self.store], contents=AmqpContents(), elsewhere=self.cluster, tier=self._others.tier
        )
        self.broker.start()
        self.following = Following(self.broker, self.cluster)
        self.service = Service(self.broker.entities, self.following.calls())
        self.cluster.peers.serve(self.service)

    async def _connect(self, name: str, made: Callable[[], LinkProtocol]) -> None:
        other = self._others.by_name.get(name)
        if other is None or not hasattr(other, "cluster"):
            raise ConnectionRefusedError
        loop = asyncio.get_running_loop()
        one, another = socket.socketpair()
        await loop.create_connection(made, sock=one)
        await loop.create_connection(other.cluster.peers.accept, sock=another)

    async def stop(self) -> None:
        await self.cluster.peers.stop()
        await self.service.stop()
        await self.broker.stop()

    def cut(self, name: str) -> None:
        """Lose the connection to another broker. It is opened again."""
        link = self.cluster.peers.by_name[name].link
        assert link is not None
        link.close("cut by a test")


class Members:
    def __init__(self, names: str, tier: Tier) -> None:
        self.tier = tier
        self.catalog = MemoryCatalog()
        self.by_name: dict[str, Member] = {}
        for name in names:
            self.by_name[name] = Member(name, self)

    def __getitem__(self, name: str) -> Member:
        return self.by_name[name]

    def __iter__(self) -> Any:
        return iter(self.by_name.values())

    async def whole(self) -> None:
        """Every broker reaches every partition."""
        await until(
            lambda: all(
                host.availability is Availability.AVAILABLE
                for member in self
                for entity in member.broker.entities
                for host in entity.hosts
            )
        )


@asynccontextmanager
async def members(names: str = "ab", tier: Tier = Tier.STANDARD) -> AsyncIterator[Members]:
    """Brokers of these names. The first one has the catalog."""
    cluster = Members(names, tier)
    await asyncio.gather(*(member.start() for member in cluster))
    await cluster["a"].cluster.assembled()
    try:
        yield cluster
    finally:
        for member in cluster:
            await member.stop()
