"""The brokers of a virtual cluster: each a process with an event loop and threads of its own.

Everything in such a process is what `bendybus serve --cluster` runs, put together as server/cluster_node.py
and server/app.py do it. The way to the databases and to the other brokers is virtual; nothing is encrypted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.broker.broker import Broker
from bendybus.broker.lifecycle import Availability
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.following import Following
from bendybus.cluster.identity import Identity
from bendybus.cluster.link_protocol import LinkProtocol
from bendybus.cluster.membership import STARTING
from bendybus.cluster.node import Node
from bendybus.cluster.ownership import Ownership
from bendybus.cluster.serving import Service
from bendybus.domain.entities import Tier
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import BrokerError
from bendybus.gateway.gateway import Gateway
from bendybus.namespaces import NAMESPACE_DEFAULT, Namespace, Namespaces
from bendybus.store.roster import BrokerRow
from faults.simulation.cluster_network import ClusterNetwork
from faults.simulation.databases import (
    CATALOG,
    CatalogAccess,
    CatalogDatabase,
    Reach,
    RosterAccess,
    StoreAccess,
    StoreDatabase,
)
from faults.simulation.fences import Fence
from faults.simulation.loop import Loop
from faults.simulation.server import ENDPOINT, Process, ServerGone
from faults.simulation.stores import Disk, DiskFaults
from faults.simulation.threads import Threading, current
from faults.simulation.world import World
from fix_client import Endpoint

__all__ = ["START_AGAIN_S", "Brokers", "ClusterBroker", "Machines"]

T = TypeVar("T")

# Whoever supervises the processes starts one again so soon after it could not start.
START_AGAIN_S = 1.0


class Machines:
    """What all brokers have in common."""

    def __init__(
        self,
        world: World,
        network: ClusterNetwork,
        catalog: CatalogDatabase,
        stores: Sequence[StoreDatabase],
        fence: Fence,
        tier: Tier,
        complain: Callable[[str], None],
        watch: Callable[[StoreAccess], None],
    ) -> None:
        """`watch` gets every new access to a store."""
        self.world = world
        self.network = network
        self.catalog = catalog
        self.stores = {store.name: store for store in stores}
        self.fence = fence
        self.tier = tier
        self.complain = complain
        self.watch = watch
        self.on_stall: Callable[[], None] = lambda: None


class ClusterBroker(Process):
    """One broker: a name, and one process after another."""

    def __init__(self, name: str, machines: Machines) -> None:
        super().__init__(machines.world, name, machines.complain)
        self.machines = machines
        self.disk = Disk(machines.world, DiskFaults())
        self.disk.on_stall = machines.on_stall
        self.cluster: Cluster | None = None
        self.node: Node | None = None
        self.ownership: Ownership | None = None
        self.paused = False
        self.stopping = False
        self.supervised = True
        self.pauses = self.stops = self.drains = 0

    def _launch(self, loop: Loop) -> None:
        loop.machine = self.name
        self.disk.loop = loop
        self.paused = self.stopping = False
        loop.call_soon(lambda: loop.create_task(self._begin(loop)))

    async def _begin(self, loop: Loop) -> None:
        try:
            await self._serve(loop)
        except (BrokerError, OSError) as failure:
            if self.loop is loop and loop.alive:
                self.world.note(f"{self.name} cannot start: {failure}")
                self.die()
                self.world.later(START_AGAIN_S, self.start_again)

    async def _serve(self, loop: Loop) -> None:
        machines, network = self.machines, self.machines.network
        to_catalog = Reach(network, self.name, CATALOG, self.disk)
        catalog = CatalogAccess(machines.catalog, self.disk, to_catalog)
        catalog.open()
        me = Identity("cluster", self.name, b"secret")
        self.cluster = cluster = Cluster(me, dict.fromkeys(machines.stores), (), "", owners_change=True)
        cluster.namespace = catalog.namespace
        network.listen(_peer_host(self.name), loop, cluster.peers.accept)
        row = BrokerRow(self.name, me.instance, _peer_host(self.name), "1", STARTING, tuple(machines.stores))
        roster = RosterAccess(machines.catalog, self.disk, to_catalog)
        self.node = node = Node(row, roster, catalog, cluster, self.stop)

        async def connect(name: str, made: Callable[[], LinkProtocol]) -> Any:
            address = node.addresses.get(name)
            if address is None:
                raise ConnectionRefusedError(f"the broker {name} is gone")
            return await network.connect(loop, made, address)

        cluster.peers.call_all(connect)
        await node.join()
        broker = Broker(catalog, [], tier=machines.tier, contents=AmqpContents(), elsewhere=cluster)
        broker.start()
        following = Following(broker, cluster)
        self.ownership = ownership = Ownership(broker, cluster, following, self._access, node.compare)
        service = Service(broker.entities, {**following.calls(), **ownership.calls()}, ownership.terms)
        broker.entities.watch(lambda entity: service.entity_removed(entity) if entity.deleted else None)
        ownership.service = service
        cluster.peers.serve(service)
        await node.serve(following, ownership)
        node.run()
        namespaces = Namespaces()
        namespaces.add(Namespace(NAMESPACE_DEFAULT, broker, KeyRing([AccessRule.root(ENDPOINT.key)])))
        gateway = Gateway(namespaces)
        gateway.start()

        async def end() -> None:
            network.hang_up(self.name)
            gateway.stop()
            await node.stop()
            await service.stop()
            await broker.stop()
            network.hang_up(_peer_host(self.name))
            await cluster.stop()

        self._end = end
        self.broker = broker
        network.listen(self.name, loop, gateway.protocol)
        self.world.note(f"{self.name} serves")

    def _access(self, name: str) -> StoreAccess:
        machines = self.machines
        reach = Reach(machines.network, self.name, name, self.disk)
        access = StoreAccess(machines.stores[name], self.disk, reach, machines.fence)
        machines.watch(access)
        return access

    def start_again(self) -> None:
        """What a supervisor does, if the process is not there."""
        if self.supervised and not self.is_up:
            self.start()

    # -- how it ends ------------------------------------------------------------------------

    def stop(self) -> None:
        """SIGTERM."""
        if self.broker is None or self.stopping:
            return
        self.stopping = True
        self.stops += 1
        self.world.note(f"{self.name} stops")
        self.loop.create_task(self._stop(self.loop))

    async def _stop(self, loop: Loop) -> None:
        await self._end()
        if self.loop is loop and loop.alive:
            self.world.note(f"{self.name} has stopped")
            self.die()

    def drain(self, *, draining: bool) -> None:
        """`bendybus cluster drain`, or its end. Refused if nobody else serves."""
        if self.node is not None and self.broker is not None and not self.stopping:
            self.loop.create_task(self._drain(self.node, draining=draining))

    async def _drain(self, node: Node, *, draining: bool) -> None:
        try:
            await node.drain(draining)
        except BrokerError as refusal:
            self.world.note(f"{self.name} is not drained: {refusal}")
        else:
            self.drains += draining
            self.world.note(f"{self.name} {'drains' if draining else 'serves again'}")

    def pause(self) -> None:
        """SIGSTOP."""
        if self.loop.alive and not self.paused:
            self.pauses += 1
            self.paused = True
            self.world.note(f"{self.name} is paused")
            self.loop.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused = False
            self.world.note(f"{self.name} goes on")
            self.loop.resume()

    def die(self) -> None:
        self.paused = False
        self.cluster = self.node = self.ownership = None
        super().die()

    def _lose_network(self) -> None:
        self.machines.network.lose(self.loop)

    # -- for whoever looks --------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.broker is not None and self.cluster is not None and self.cluster.has_catalog

    @property
    def owned(self) -> int:
        """How many stores it owns, as far as it knows."""
        return 0 if self.ownership is None else len(self.ownership.terms())

    def missing(self) -> str | None:
        """A partition that cannot be used here; None if there is no such."""
        if self.broker is None:
            return "everything"
        for entity in (*self.broker.entities.sources(), *self.broker.topics):
            for port in entity.hosts:
                if port.availability is not Availability.AVAILABLE:
                    return f"partition {port.number} of '{entity.path}': {port.availability.name}"
        return None


def _peer_host(name: str) -> str:
    return f"{name}/peers"


class Brokers:
    """All of them; what a single server is to the peers."""

    def __init__(self, names: str, machines: Machines) -> None:
        self._world = machines.world
        self.all = [ClusterBroker(name, machines) for name in names]

    @property
    def threads(self) -> Threading:
        """Of the process that is running now."""
        running = asyncio._get_running_loop()
        if isinstance(running, Loop):
            return Threading(running)
        (loop,) = (each.loop for each in self.up if current(each.loop) is not None)
        return Threading(loop)

    @property
    def up(self) -> list[ClusterBroker]:
        """Those that have a process."""
        return [each for each in self.all if each.is_up]

    @property
    def broker(self) -> Broker | None:
        """Of the one that is left at the end."""
        (last,) = self.up
        return last.broker

    def endpoint(self, broker: ClusterBroker) -> Endpoint:
        return Endpoint(broker.name, 5671, ENDPOINT.key_name, ENDPOINT.key)

    async def ask(self, what: Callable[[Broker], Awaitable[T]]) -> T:
        """For what people do over HTTP: any broker passes it on to the one that leads."""
        leading = [each for each in self.all if each.leads]
        if not leading:
            raise ServerGone
        return await leading[-1].ask(what)

    def start(self) -> None:
        for each in self.all:
            each.start()

    def bury(self) -> None:
        for each in self.all:
            each.bury()
