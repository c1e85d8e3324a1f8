"""One broker of several on this machine: its part of a server that `serve --brokers N` starts.

The supervisor (supervisor.py) starts one process for each broker and says which messaging stores it has. The
first broker has the catalog. The processes talk over Unix sockets in a folder that only they can use.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bendybus.admin.broker_routes import ListedBroker
from bendybus.broker.broker import Broker
from bendybus.cluster.cluster import Cluster, stores_of
from bendybus.cluster.following import Following
from bendybus.cluster.identity import Identity
from bendybus.cluster.link_protocol import LinkProtocol
from bendybus.cluster.peers import Peer
from bendybus.cluster.serving import Service
from bendybus.errors import BrokerError, Unavailable
from bendybus.server.accept_turns import AcceptTurns
from bendybus.server.backup import Backups
from bendybus.server.backup_routes import AskBackups
from bendybus.server.cluster_part import ClusterPart
from bendybus.server.portal import START_TIMEOUT_S, Portal
from bendybus.server.settings import Settings
from bendybus.server.standing_still import StandingBrokers, answer_standing, ask_first
from bendybus.store.catalog import Catalog
from bendybus.store.folder import DataFolder
from bendybus.store.protocol import MessagingStore
from bendybus.store.sqlite.catalog import SqliteCatalog

__all__ = ["ClusterMember", "Membership"]

logger = logging.getLogger(__name__)

FETCH_AGAIN_S: Final = 0.05

# A question to the first broker: where its portal listens.
PORTAL: Final = "portal"


@dataclass(frozen=True, slots=True)
class Membership:
    """What the supervisor tells a broker."""

    settings: Settings
    broker: str
    brokers: tuple[str, ...]
    """The first one has the catalog."""
    owners: dict[str, str]
    """The broker of each messaging store."""
    cluster: str
    secret: bytes = field(repr=False)
    operator_key: str = field(repr=False)
    folder: Path
    """Where the sockets of the brokers are."""
    listening: tuple[tuple[int, ...], ...]
    """The descriptors of the listening sockets of each address."""
    metrics: tuple[int, ...] = ()
    supervisor: int = -1
    """A descriptor that ends when the supervisor does."""

    @property
    def has_catalog(self) -> bool:
        return self.broker == self.brokers[0]

    def sockets(self) -> list[list[socket.socket]]:
        return [[socket.socket(fileno=each) for each in address] for address in self.listening]

    def turns(self) -> AcceptTurns:
        """The processes that accept on these sockets."""
        return AcceptTurns(self.folder, len(self.brokers), self.brokers.index(self.broker))

    def metrics_sockets(self) -> list[socket.socket]:
        return [socket.socket(fileno=each) for each in self.metrics]


class ClusterMember(ClusterPart):
    def __init__(self, membership: Membership) -> None:
        identity = Identity(membership.cluster, membership.broker, membership.secret)
        super().__init__(Cluster(identity, membership.owners, membership.brokers, membership.brokers[0]))
        self.membership = membership
        self.processes = len(membership.brokers)
        self._following: Following | None = None
        self._other_stores: list[MessagingStore] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, exits: AsyncExitStack) -> None:
        """Talk to the other brokers from now on."""
        loop = asyncio.get_running_loop()
        own = self._socket(self.membership.broker)
        own.unlink(missing_ok=True)
        server = await loop.create_unix_server(self.cluster.peers.accept, own)
        exits.callback(server.close)
        self.cluster.peers.call_all(self._connect)
        self.cluster.peers.connected = self._connected
        exits.push_async_callback(self._stop)

    def listed_brokers(self) -> list[ListedBroker]:
        cluster, own = self.cluster, self.membership.broker
        return [
            ListedBroker(
                name,
                "serving" if name == own or cluster.peers.by_name[name].link is not None else "away",
                name == self.membership.brokers[0],
                stores_of(cluster, name),
                version=version("bendybus"),
            )
            for name in self.membership.brokers
        ]

    async def leave(self) -> None:
        """Nothing to do: its stores stay its own."""

    def portal(self) -> Portal:
        """All processes share the port, so all of them pass browsers on to the portal of the first one."""
        first = self.membership.brokers[0]

        async def address() -> str:
            # Longer than the first broker waits, so that its own error is shown.
            return await self.others.ask(first, PORTAL, None, str, START_TIMEOUT_S + 5)

        async def own_address(_: None) -> str:
            return await portal.address()

        portal = Portal(None if self.has_catalog else address)
        self.others.answer(PORTAL, type(None), own_address)
        return portal

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.stop()

    def _socket(self, name: str) -> Path:
        return self.membership.folder / f"{name}.sock"

    async def _connect(self, name: str, made: Callable[[], LinkProtocol]) -> Any:
        return await asyncio.get_running_loop().create_unix_connection(made, str(self._socket(name)))

    # -- the catalog --------------------------------------------------------------

    def own_stores(self, stores: Sequence[MessagingStore]) -> list[MessagingStore]:
        """Those that belong to this broker."""
        own = stores_of(self.cluster, self.membership.broker)
        self._other_stores = [store for store in stores if store.name not in own]
        return [store for store in stores if store.name in own]

    def standing_brokers(self) -> StandingBrokers:
        """The other brokers, for a backup."""
        return StandingBrokers(self.others, self._other_stores)

    def ask_backups(self, backups: Backups) -> AskBackups:
        return ask_first(self.others, self.membership.brokers[0], backups)

    async def catalog(self, folder: DataFolder, exits: AsyncExitStack) -> Catalog:
        if self.has_catalog:
            catalog = SqliteCatalog(folder.catalog_path)
            catalog.open()
            exits.callback(catalog.close)
            self.cluster.namespace = catalog.namespace
            return catalog
        while True:
            await self.cluster.leader.connected_once.wait()
            try:
                return await Following.fetch(self.cluster)
            except Unavailable as reason:
                logger.debug("the catalog cannot be read yet: %s", reason)
                await asyncio.sleep(FETCH_AGAIN_S)

    async def serve(
        self, broker: Broker, namespace_changed: Callable[[], None], exits: AsyncExitStack
    ) -> None:
        self._following = following = Following(broker, self.cluster)
        following.namespace_changed = namespace_changed
        service = Service(broker.entities, {**following.calls(), **self.own_calls})
        broker.entities.watch(lambda entity: service.entity_removed(entity) if entity.deleted else None)
        exits.push_async_callback(service.stop)
        answer_standing(self.others, broker)
        self.cluster.peers.serve(service)
        if not self.has_catalog:
            # Changes since the catalog was fetched were not told to a broker that did not serve yet.
            await following.catch_up()

    def _connected(self, peer: Peer) -> None:
        if self._following is not None and not self.has_catalog and peer is self.cluster.leader:
            task = asyncio.get_running_loop().create_task(self._catch_up(self._following))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _catch_up(self, following: Following) -> None:
        while True:
            try:
                await following.catch_up()
                return
            except Unavailable as reason:
                # The first broker is connected before it has loaded the catalog.
                logger.debug("the catalog cannot be compared yet: %s", reason)
            except BrokerError as reason:
                logger.warning("the catalog was not compared: %s", reason)
                return
            await asyncio.sleep(FETCH_AGAIN_S)
