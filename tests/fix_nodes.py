"""Brokers that join and leave, in one process. They share stores, a catalog and a roster, all in memory.

Nothing happens by itself: a test calls `round` for each broker, and moves the clock of the roster.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bendybus.broker.broker import Broker
from bendybus.broker.lifecycle import Availability
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.following import Following
from bendybus.cluster.identity import Identity
from bendybus.cluster.link_protocol import LinkProtocol
from bendybus.cluster.membership import DEAD_AFTER_S, GONE, STARTING
from bendybus.cluster.node import Node
from bendybus.cluster.ownership import Ownership
from bendybus.cluster.serving import Service
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import PartitionMoved, StoreUnavailable
from bendybus.names import EntityPath, Epoch, PartitionNumber
from bendybus.store.catalog import Description, EntityRecord
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog
from bendybus.store.protocol import PartitionKey, PartitionRecord, StoreOwner
from bendybus.store.roster import BrokerRow, Lead, RosterView
from fix_async import until


class MemoryRoster:
    """`Roster`, with a clock that a test moves."""

    def __init__(self) -> None:
        self.clock_s = 0.0
        self.away = False
        self.brokers: dict[str, BrokerRow] = {}
        self.leader = Lead("", "", 0, 0)
        self._heard: dict[str, float] = {}

    def join(self, broker: BrokerRow, dead_after_s: float) -> bool:
        known = self.brokers.get(broker.name)
        if known is not None and known.state != GONE and self._silence(broker.name) < dead_after_s:
            return False
        self.brokers[broker.name] = broker
        self._heard[broker.name] = self.clock_s
        return True

    def _silence(self, name: str) -> float:
        return self.clock_s - self._heard[name]

    def beat(self, name: str, instance: str, state: str) -> RosterView:
        if self.away:
            raise StoreUnavailable("the catalog is away")
        own = None
        known = self.brokers.get(name)
        if known is not None and known.instance == instance:
            own = self._silence(name)
            self._heard[name] = self.clock_s
            self.brokers[name] = replace(known, state=state)
        brokers = [replace(each, silent_s=self._silence(each.name)) for each in self.brokers.values()]
        return RosterView(brokers, self.leader, own)

    def reach(self, name: str, instance: str, unreached: Sequence[str]) -> None:
        known = self.brokers[name]
        if known.instance == instance:
            self.brokers[name] = replace(known, unreached=tuple(unreached))

    def lead(self, name: str, instance: str, after: int) -> int | None:
        if self.leader.term != after:
            return None
        self.leader = Lead(name, instance, after + 1, self.leader.revision)
        return after + 1

    def close(self) -> None:
        """Nothing to close."""


class MemorySharedCatalog:
    """`SharedCatalog` of one broker."""

    def __init__(self, shared: MemoryCatalog, roster: MemoryRoster) -> None:
        self._shared = shared
        self._roster = roster
        self.term: int | None = None

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def read(self) -> tuple[int, list[EntityRecord]]:
        return self._roster.leader.revision, self._shared.entities()

    def confirm_lead(self) -> None:
        if self.term != self._roster.leader.term:
            raise StoreUnavailable("Another broker of the cluster leads.")

    def namespace(self) -> Description:
        return self._shared.namespace()

    def entities(self) -> list[EntityRecord]:
        return self._shared.entities()

    def _change(self) -> None:
        leader = self._roster.leader
        if self.term != leader.term:
            raise StoreUnavailable("Another broker of the cluster leads.")
        self._roster.leader = replace(leader, revision=leader.revision + 1)

    def describe_namespace(self, description: Description) -> None:
        if description != self.namespace():
            self._change()
            self._shared.describe_namespace(description)

    def add(self, record: EntityRecord) -> None:
        self._change()
        self._shared.add(record)

    def replace(self, *records: EntityRecord) -> None:
        self._change()
        self._shared.replace(*records)

    def remove(self, *paths: EntityPath) -> None:
        self._change()
        self._shared.remove(*paths)


class Contents(MemoryStore):
    """The contents of a store that several brokers reach."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.owner = StoreOwner("", "", 0)


class StoreView:
    """`SharedStore`: one broker's access to a store."""

    def __init__(self, contents: Contents, cut_off: Container[str] = ()) -> None:
        """`cut_off`: the names of stores that the broker does not reach."""
        self._contents = contents
        self._cut_off = cut_off
        self._term = -1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._contents, name)
        # These two never fail.
        return self._reach(found) if callable(found) and name not in ("settle", "tidy") else found

    def _reach(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def reached(*args: Any, **options: Any) -> Any:
            if self.name in self._cut_off:
                raise StoreUnavailable("no route to host")
            return call(*args, **options)

        return reached

    @property
    def name(self) -> str:
        return self._contents.name

    def close(self) -> None:
        """The contents stay open for the others."""

    def owner(self) -> StoreOwner:
        self.partitions()
        return self._contents.owner

    def take(self, broker: str, instance: str, after: int) -> int | None:
        if self._contents.owner.term != after:
            return None
        self._term = after + 1
        self._contents.owner = StoreOwner(broker, instance, self._term)
        return self._term

    def release(self) -> None:
        self.partitions()
        if self._contents.owner.term == self._term:
            self._contents.owner = StoreOwner("", "", self._term)

    def _check(self) -> None:
        self.partitions()
        if self._contents.owner.term != self._term:
            raise PartitionMoved("taken over by another broker")

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        self._check()
        return self._contents.create_partitions(entity, numbers)

    def drop_partitions(self, entity: EntityPath) -> None:
        self._check()
        self._contents.drop_partitions(entity)

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        self._check()
        self._contents.discard(keys)

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        self._check()
        return self._contents.claim(keys)


class NodeMember:
    """One broker."""

    def __init__(self, name: str, nodes: Nodes, stores: Sequence[str]) -> None:
        """`stores`: those that it is given."""
        self.name = name
        self._nodes = nodes
        self._stores = stores
        self.replaced = False
        self.broker: Broker
        self.ownership: Ownership
        self.node: Node
        self.silent = False
        """Whether it accepts no connections."""
        self.cut_off: set[str] = set()
        """The stores that it does not reach."""

    async def start(self) -> None:
        nodes = self._nodes
        self.catalog = MemorySharedCatalog(nodes.catalog, nodes.roster)
        me = Identity("c", self.name, b"secret")
        self.cluster = Cluster(me, dict.fromkeys(self._stores), (), "", owners_change=True)
        self.cluster.peers.call_all(self._connect)
        row = BrokerRow(self.name, me.instance, self.name, "1", STARTING, tuple(self._stores))
        self.node = Node(row, nodes.roster, self.catalog, self.cluster, self._be_replaced)
        await self.node.join()
        self.broker = Broker(self.catalog, [], contents=AmqpContents(), elsewhere=self.cluster)
        self.broker.start()
        following = Following(self.broker, self.cluster)
        self.ownership = Ownership(
            self.broker,
            self.cluster,
            following,
            lambda name: StoreView(nodes.stores[name], self.cut_off),
            self.node.compare,
        )
        calls = {**following.calls(), **self.ownership.calls()}
        self.service = Service(self.broker.entities, calls, self.ownership.terms)
        self.ownership.service = self.service
        self.cluster.peers.serve(self.service)
        await self.node.serve(following, self.ownership)

    def _be_replaced(self) -> None:
        self.replaced = True

    async def _connect(self, name: str, made: Callable[[], LinkProtocol]) -> None:
        other = self._nodes.by_name.get(name)
        if other is None or other.silent or self.silent or not hasattr(other, "cluster"):
            raise ConnectionRefusedError
        loop = asyncio.get_running_loop()
        one, another = socket.socketpair()
        await loop.create_connection(made, sock=one)
        await loop.create_connection(other.cluster.peers.accept, sock=another)

    async def stop(self) -> None:
        await self.node.stop()
        await self.cluster.stop()
        await self.service.stop()
        await self.broker.stop()

    def cut(self) -> None:
        """No broker reaches it, and it reaches none. It still reaches the databases."""
        self.silent = True
        for peer in self.cluster.peers.by_name.values():
            peer.hang_up("cut by a test")

    @property
    def owns(self) -> set[str]:
        return set(self.ownership.terms())


class Nodes:
    def __init__(self, stores: Sequence[str]) -> None:
        self.catalog = MemoryCatalog()
        self.roster = MemoryRoster()
        self.stores = {name: Contents(name) for name in stores}
        for each in self.stores.values():
            each.open()
        self.by_name: dict[str, NodeMember] = {}

    def __getitem__(self, name: str) -> NodeMember:
        return self.by_name[name]

    def __iter__(self) -> Any:
        return iter(list(self.by_name.values()))

    def add_store(self, name: str) -> None:
        """One more store, which brokers that are started from now on are given."""
        self.stores[name] = Contents(name)
        self.stores[name].open()

    async def add(self, name: str, stores: Sequence[str] | None = None) -> NodeMember:
        member = self.by_name[name] = NodeMember(name, self, list(self.stores) if stores is None else stores)
        await member.start()
        return member

    async def rounds(self, count: int = 3) -> None:
        """Every broker that is not cut off has received everything and has acted on it."""
        for _ in range(count):
            for member in self:
                if not member.silent:
                    await member.node.round()
            await until(self._are_connected)

    def _are_connected(self) -> bool:
        """Whether the brokers that know each other have a connection."""
        members = {member.name: member for member in self if not member.silent}
        return all(
            name not in members or member.name not in members[name].cluster.peers.by_name or peer.link
            for member in members.values()
            for name, peer in member.cluster.peers.by_name.items()
        )

    async def pass_time(self) -> None:
        """Brokers that do not continue are presumed dead."""
        for _ in range(2):
            self.roster.clock_s += DEAD_AFTER_S * 0.6
            await self.rounds(1)
        await self.rounds()

    async def whole(self) -> None:
        """Every broker that is not cut off reaches every partition."""
        await until(
            lambda: all(
                host.availability is Availability.AVAILABLE
                for member in self
                if not member.silent
                for entity in member.broker.entities
                for host in entity.hosts
            )
        )


@asynccontextmanager
async def nodes(names: str = "ab", stores: Sequence[str] = ("s0", "s1", "s2", "s3")) -> AsyncIterator[Nodes]:
    """Brokers of these names, and stores that all of them reach."""
    cluster = Nodes(stores)
    for name in names:
        await cluster.add(name)
    await cluster.rounds()
    try:
        yield cluster
    finally:
        for member in cluster:
            await member.stop()
