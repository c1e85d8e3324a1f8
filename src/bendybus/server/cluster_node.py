"""One broker of a cluster on PostgreSQL: its part of what `serve --cluster URL` starts.

The brokers have a catalog in common, in the database that the URL names, and the messaging stores that all of
them are given by `--store`. They talk over TCP, encrypted. The first broker of a cluster makes a certificate
and a secret, and keeps both in the catalog's database: anyone who can read that database can be a member. How
the certificate is renewed: cluster_trust.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from bendybus import audit
from bendybus.admin.broker_routes import ListedBroker
from bendybus.broker.broker import Broker
from bendybus.cluster.cluster import Cluster, stores_of
from bendybus.cluster.following import Following
from bendybus.cluster.frames import Frame
from bendybus.cluster.identity import Identity
from bendybus.cluster.items import Call
from bendybus.cluster.link import PeerLink
from bendybus.cluster.link_protocol import LinkProtocol
from bendybus.cluster.membership import GONE, SERVING, STARTING, is_alive
from bendybus.cluster.node import Node
from bendybus.cluster.ownership import Ownership
from bendybus.cluster.serving import Service
from bendybus.errors import ConfigError, StoreUnavailable
from bendybus.server.cluster_part import ClusterPart
from bendybus.server.cluster_trust import LIFETIMES, TLS_NAME, CertificateCatalog, Trust, new_certificate
from bendybus.server.emulator_config import load_config
from bendybus.server.settings import Settings
from bendybus.server.stores import kind_of, messaging_stores, namespace_id, postgres_driver, shown_url
from bendybus.store.catalog import Catalog
from bendybus.store.folder import DataFolder, make_key
from bendybus.store.protocol import SharedStore
from bendybus.store.roster import BrokerRow, ClusterCertificate, ClusterSecrets

if TYPE_CHECKING:
    from bendybus.store.postgres.address import StoreAddress

__all__ = ["ClusterNode", "refuse_unsupported"]

logger = logging.getLogger(__name__)

DRAIN_CALL: Final = "drain"
HANDSHAKE_TIMEOUT_S: Final = 5.0
_ANYWHERE: Final = ("", "0.0.0.0", "::", "*")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")


class ClusterNode(ClusterPart):
    processes = 1

    def __init__(self, settings: Settings) -> None:
        assert settings.cluster is not None, "a server without --cluster is alone"
        refuse_unsupported(settings)
        self._settings = settings
        self._name = settings.broker_name
        folder = DataFolder(settings.data)
        self._address = _catalog_address(settings.cluster, folder.timelines_path)
        self._stores = [store.name for store in messaging_stores(settings, folder)]
        self._node: Node
        self._trust: Trust
        self._certificates: CertificateCatalog
        # It is known who we are when the catalog has been opened.
        super().__init__(Cluster(Identity("", self._name, b""), {}, (), ""))

    # -- the catalog, and the connections to the others ----------------------------

    async def catalog(self, folder: DataFolder, exits: AsyncExitStack) -> Catalog:
        """Open it, become a member, and talk to the others from now on."""
        from bendybus.store.postgres.catalog import PostgresCatalog  # noqa: PLC0415 - optional, see _catalog_address
        from bendybus.store.postgres.roster import PostgresRoster  # noqa: PLC0415

        _refuse_used(folder)
        catalog = PostgresCatalog(self._address, _make_secrets)
        catalog.open()
        exits.callback(catalog.close)
        shared = catalog.secrets
        primary, secondary = shared.root_keys
        folder.keep_root_key("primary", primary)
        folder.keep_root_key("secondary", secondary)
        me = Identity(shared.cluster, self._name, shared.secret)
        self.cluster = cluster = Cluster(me, dict.fromkeys(self._stores), (), "", owners_change=True)
        cluster.namespace = catalog.namespace
        exits.push_async_callback(cluster.stop)
        self._trust = trust = Trust(self._settings.data)
        trust.use(catalog.certificates)
        self._certificates = catalog
        host, port = _parse_address(self._settings.cluster_address)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                cluster.peers.accept, host, port, ssl=trust.server, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except OSError as error:
            raise ConfigError(f"--cluster-address {self._settings.cluster_address}: {error}") from error
        exits.callback(server.close)
        listening = f"{host}:{server.sockets[0].getsockname()[1]}"
        row = BrokerRow(
            self._name, me.instance, listening, version("bendybus"), STARTING, tuple(self._stores)
        )
        self._node = node = Node(row, PostgresRoster(self._address), catalog, cluster, _end)
        exits.push_async_callback(node.stop)

        async def connect(name: str, made: Callable[[], LinkProtocol]) -> Any:
            address = node.addresses.get(name)
            if address is None:
                raise ConnectionRefusedError(f"the broker {name} is gone")
            there, at = _parse_address(address)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                return await loop.create_connection(
                    made, there, at, ssl=trust.client, server_hostname=TLS_NAME
                )

        cluster.peers.call_all(connect)
        await node.join()
        logger.info("the broker '%s' listens for the others on %s", self._name, listening)
        return catalog

    def listed_brokers(self) -> list[ListedBroker]:
        view = self._node.view
        if view is None:
            raise StoreUnavailable("The cluster's catalog has not been read yet. Please retry the operation.")
        return [
            ListedBroker(
                broker.name,
                broker.state if is_alive(broker) or broker.state == GONE else "silent",
                broker.instance == view.lead.instance,
                stores_of(self.cluster, broker.name),
                broker.address,
                broker.version,
            )
            for broker in view.brokers
        ]

    async def drain_broker(self, name: str, draining: bool) -> None:
        if name == self._name:
            await self._node.drain(draining)
        else:
            peer = self.cluster.peers.by_name.get(name)
            if peer is None:
                raise StoreUnavailable(f"The broker '{name}' cannot be reached. Please retry the operation.")
            await peer.call(DRAIN_CALL, draining, type(None))
            # So that the next request sees it.
            await self._node.look()
        audit.record("broker-drain-begun" if draining else "broker-drain-ended", broker=name)

    async def _drain(self, link: PeerLink, frame: Frame, call: Call) -> None:
        await self._node.drain(frame.decoded(bool, call.body))

    @property
    def draining(self) -> str:
        state = self._node.state
        return "" if state in (STARTING, SERVING) else f"The broker '{self._name}' is {state}."

    async def leave(self) -> None:
        await self._node.leave()

    async def serve(
        self, broker: Broker, namespace_changed: Callable[[], None], exits: AsyncExitStack
    ) -> None:
        settings, namespace = self._settings, namespace_id(broker.catalog)

        def store_named(name: str) -> SharedStore:
            found = messaging_stores(settings, DataFolder(settings.data))
            (store,) = (store for store in found if store.name == name)
            store.namespace = namespace
            # All of them are on PostgreSQL.
            return cast(SharedStore, store)

        cluster, node = self.cluster, self._node
        following = Following(broker, cluster)
        following.namespace_changed = namespace_changed
        ownership = Ownership(broker, cluster, following, store_named, node.compare)
        calls = {**following.calls(), **ownership.calls(), **self.own_calls, DRAIN_CALL: self._drain}
        service = Service(broker.entities, calls, ownership.terms)
        broker.entities.watch(lambda entity: service.entity_removed(entity) if entity.deleted else None)
        ownership.service = service
        exits.push_async_callback(service.stop)
        cluster.peers.serve(service)
        await node.serve(following, ownership)
        node.run()
        keeping = asyncio.get_running_loop().create_task(self._trust.keep(self._certificates))
        exits.callback(keeping.cancel)
        # Before the broker is stopped.
        exits.push_async_callback(node.stop)


def _end() -> None:
    """In order, as the operator would end it."""
    os.kill(os.getpid(), signal.SIGTERM)


def _make_secrets() -> ClusterSecrets:
    first = ClusterCertificate(*new_certificate(LIFETIMES.validity))
    return ClusterSecrets(uuid.uuid4().hex, secrets.token_bytes(32), first, (make_key(), make_key()))


def _catalog_address(url: str, timelines: Path) -> StoreAddress:
    with postgres_driver():
        from bendybus.store.postgres.address import parse_address  # noqa: PLC0415
        from bendybus.store.postgres.catalog import CATALOG_SCHEMA  # noqa: PLC0415
    try:
        if kind_of(url) != "postgresql":
            raise ConfigError("write postgresql://USER@HOST:PORT/DATABASE")
        return parse_address(url, CATALOG_SCHEMA, timelines)
    except ConfigError as error:
        raise ConfigError(f"--cluster {shown_url(url)}: {error}") from None


def _parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, as brokers tell each other."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535 or host.strip("[]") in _ANYWHERE:
        raise ConfigError(
            f"--cluster-address is '{text}'; write HOST:PORT, with an address at which the other brokers "
            "reach this one. Port 0 picks a free one"
        )
    return host.strip("[]"), int(port)


def refuse_unsupported(settings: Settings) -> None:
    """`ConfigError` for what does not work in a cluster yet."""
    _parse_address(settings.cluster_address)
    if not _NAME.fullmatch(settings.broker_name):
        raise ConfigError(
            f"--broker is '{settings.broker_name}'; allowed are letters, digits, '.', '_' and '-', up to 63"
        )
    if not settings.store_urls:
        raise ConfigError("--cluster needs messaging stores that all brokers reach: --store postgresql://...")
    for url in settings.store_urls:
        if kind_of(url) != "postgresql":
            raise ConfigError(f"--store {shown_url(url)}: in a cluster, messaging stores are on PostgreSQL")
    names = set(settings.namespaces)
    if settings.config is not None:
        names |= {config.name for config in load_config(settings.config)}
    refused = {
        "several namespaces": len(names) > 1,
        "--development": settings.development,
        "--allow-store": bool(settings.allowed_stores),
    }
    for what, is_used in refused.items():
        if is_used:
            raise ConfigError(f"--cluster and {what} cannot be used together yet")


def _refuse_used(folder: DataFolder) -> None:
    """The data folder of a server that was alone has entities, which would not be served."""
    if folder.catalog_path.exists() or folder.store_list().attached or folder.namespaces():
        raise ConfigError(
            f"the data folder {folder.path} has entities of its own; give a broker of a cluster another one"
        )
