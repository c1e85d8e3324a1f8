"""One broker of several on this machine: its part of a server that `serve --brokers N` starts.

The supervisor (supervisor.py) starts one process for each broker and says which messaging stores it has. The
first broker has the catalog. The processes talk over Unix sockets in a folder that only they can use.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp

from bendybus.broker.broker import Broker
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.following import Following
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.link import Identity, PeerLink
from bendybus.cluster.peers import Peer
from bendybus.cluster.serving import Calls, Service
from bendybus.errors import BrokerError, NotSupported, Unavailable
from bendybus.server.figures import ProcessFigures
from bendybus.server.forwarded_http import (
    HTTP_CALL,
    ForwardedRequest,
    ForwardedResponse,
    ForwardingRoute,
    serve_forwarded,
)
from bendybus.server.settings import Settings
from bendybus.store.catalog import Catalog
from bendybus.store.sqlite.catalog import SqliteCatalog

__all__ = ["ClusterMember", "Membership"]

logger = logging.getLogger(__name__)

FETCH_AGAIN_S: Final = 0.05
FIGURES_CALL: Final = "figures"
_FIGURES: Final = list[tuple[str, str, int | float]]


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

    def metrics_sockets(self) -> list[socket.socket]:
        return [socket.socket(fileno=each) for each in self.metrics]


class ClusterMember:
    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        identity = Identity(membership.cluster, membership.broker, membership.secret)
        self.cluster = Cluster(identity, membership.owners, membership.brokers, membership.brokers[0])
        self._following: Following | None = None
        self._app: ASGIApp | None = None
        self._figures: Callable[[], Awaitable[ProcessFigures]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def has_catalog(self) -> bool:
        return self.cluster.has_catalog

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

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.peers.stop()

    def _socket(self, name: str) -> Path:
        return self.membership.folder / f"{name}.sock"

    async def _connect(self, name: str, made: Callable[[], PeerLink]) -> Any:
        return await asyncio.get_running_loop().create_unix_connection(made, str(self._socket(name)))

    # -- the catalog --------------------------------------------------------------

    async def catalog(self, path: Path, exits: AsyncExitStack) -> Catalog:
        """The catalog itself, or what the broker that has it says."""
        if self.has_catalog:
            catalog = SqliteCatalog(path)
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
        """Serve the other brokers."""
        self._following = following = Following(broker, self.cluster)
        following.namespace_changed = namespace_changed
        own: Calls = {HTTP_CALL: self._serve_http, FIGURES_CALL: self._serve_figures}
        service = Service(broker.entities, {**following.calls(), **own})
        broker.entities.watch(lambda entity: service.entity_removed(entity) if entity.deleted else None)
        exits.push_async_callback(service.stop)
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
        try:
            await following.catch_up()
        except BrokerError as reason:
            # The connection was lost again, and the next one brings the next try.
            logger.warning("the catalog was not compared: %s", reason)

    # -- HTTP ---------------------------------------------------------------------

    def forwarding(self) -> ForwardingRoute | None:
        """Passes management on to the broker that has the catalog; None if this one has it."""
        return None if self.has_catalog else ForwardingRoute(self.cluster.leader)

    def answer_with(self, app: ASGIApp, figures: Callable[[], Awaitable[ProcessFigures]]) -> None:
        """How requests that other brokers pass on are answered, and what this process counts."""
        self._app, self._figures = app, figures

    async def figures_of_others(self) -> list[ProcessFigures]:
        """What the other processes count, of those that can be asked."""
        found: list[ProcessFigures] = []
        for peer in self.cluster.peers.by_name.values():
            try:
                found.append(await peer.call(FIGURES_CALL, None, _FIGURES))
            except Unavailable as absence:
                logger.debug("the figures of the broker '%s' are missing: %s", peer.name, absence)
        return found

    async def _serve_figures(self, link: PeerLink, frame: Frame, call: Call) -> ProcessFigures:
        return () if self._figures is None else await self._figures()

    async def _serve_http(self, link: PeerLink, frame: Frame, call: Call) -> ForwardedResponse:
        if self._app is None:
            raise Unavailable("This broker is starting. Please retry the operation.")
        return await serve_forwarded(self._app, frame.decoded(ForwardedRequest, call.body))


def refuse_new_root_key(which: str, key: str) -> None:
    """Instead of keeping it: the other brokers would not know it."""
    raise NotSupported(
        "The root key cannot be changed yet while a server with several brokers runs. Start it with one "
        "broker to change the key."
    )
