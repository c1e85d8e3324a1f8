"""The composition root: settings in, a running server out.

Only this module knows every concrete part. They start in the order of their dependencies
(folder, stores, brokers, front) and stop in reverse. The process around it: process.py.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute

from bendybus.admin.authorization_rules import AuthorizationRules, RootRule
from bendybus.arm.namespace_resources import NoChanges
from bendybus.arm.routes import ResourceManagerOptions
from bendybus.auth.connection_strings import ConnectionString
from bendybus.auth.key_ring import KeyRing
from bendybus.broker.broker import Broker
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import ConfigError, StoreCorrupted, StoreUnavailable
from bendybus.namespaces import Namespace
from bendybus.server.allowed_stores import AllowedStores
from bendybus.server.announcement import announce, withdraw
from bendybus.server.backup import BackedUp, Backups
from bendybus.server.backup_routes import ask_here, backup_routes, refused_backup_routes
from bendybus.server.cluster_member import ClusterMember
from bendybus.server.cluster_node import ClusterNode
from bendybus.server.cluster_part import ClusterPart, refuse_new_root_key
from bendybus.server.described import Described
from bendybus.server.emulator_config import NamespaceConfig, load_config
from bendybus.server.front import Front
from bendybus.server.http import RESERVED_NAMES
from bendybus.server.key_sets import trusted_issuer
from bendybus.server.local_auth import has_local_auth
from bendybus.server.memory_limit import memory_limit
from bendybus.server.namespace_keeper import NamespaceKeeper, OpenedNamespace
from bendybus.server.namespace_routes import ONE_NAMESPACE, namespace_routes, refused_namespace_routes
from bendybus.server.naming import namespace_folders
from bendybus.server.portal import PORTAL_PATH, Portal, PortalTarget, portal_is_installed
from bendybus.server.settings import STORES_DEFAULT, Settings, is_loopback, refuse_exposed_keys
from bendybus.server.store_keeper import StoreKeeper
from bendybus.server.stores import examine_stores, messaging_stores, namespace_id, refuse_missing_stores
from bendybus.server.telemetry import start_telemetry
from bendybus.server.tiers import NamespaceTier, refuse_unknown_names, refuse_unused_partitions
from bendybus.server.tls import self_made_certificate, server_context
from bendybus.store.catalog import Catalog
from bendybus.store.faults import StoreFaults
from bendybus.store.folder import DataFolder, make_key
from bendybus.store.protocol import MessagingStore
from bendybus.store.sqlite.catalog import SqliteCatalog

if TYPE_CHECKING:
    from bendybus.auth.jwt import TrustedIssuer

__all__ = ["Server"]

logger = logging.getLogger(__name__)

# Closing empties the log into the file, 64 MB at most.
CLOSE_TIMEOUT_S: Final = 10.0


class Server:
    """A server and everything in it. `async with Server(settings) as server: ...`"""

    def __init__(self, settings: Settings, member: ClusterPart | None = None) -> None:
        """`member`: what makes this server one broker of several; None if it is alone."""
        self._settings = settings
        self._member = member
        self._allowed = AllowedStores.parse(settings.allowed_stores, settings.data)
        self._exits = AsyncExitStack()
        self.connection_strings: dict[str, str] = {}
        """By namespace; the first is the one to show."""
        self.ports: list[int] = []
        self.metrics_port: int | None = None
        self.portal_url = ""
        """Where a browser finds the portal, with the one-time code if there is one; empty if it has none."""
        self.faults: dict[str, StoreFaults] = {}
        """The switches of each namespace's stores, if the server was started for development."""

    @property
    def connection_string(self) -> str:
        return next(iter(self.connection_strings.values()), "")

    async def __aenter__(self) -> Server:
        async with AsyncExitStack() as exits:
            await self._start(exits)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._exits.aclose()

    async def _start(self, exits: AsyncExitStack) -> None:
        settings = self._settings
        configs = load_config(settings.config) if settings.config else ()
        folder = DataFolder(settings.data)
        if isinstance(self._member, ClusterMember):
            # The supervisor has opened the folder.
            await self._member.open(exits)
        else:
            folder.open()
            exits.callback(folder.close)
            folder.finish_removing()
        issuer = await trusted_issuer(settings, exits)
        wanted = [*(config.name for config in configs), *settings.namespaces]
        folders = namespace_folders(folder, wanted, settings, exits)
        refuse_unknown_names(settings, folders)
        described = {config.name.lower(): config for config in configs}
        keeper = NamespaceKeeper(settings, folder, partial(self._open_namespace, provider=issuer))
        exits.push_async_callback(keeper.close)
        for name, own in folders.items():
            await keeper.open(name, described.get(name.lower(), NamespaceConfig(name)), own)
        refuse_unused_partitions(settings, [each.namespace.broker.tier for each in keeper.opened])
        if len(folders) > 1:
            folder.record_namespaces(list(folders))

        backups = Backups(settings.data, lambda: list(map(self._backed_up, keeper.opened)))
        keeper.refuse_deleting = lambda: backups.running
        member = self._member
        operator_key = member.membership.operator_key if isinstance(member, ClusterMember) else make_key()
        portal = self._portal() if settings.portal else None
        front = Front(
            self._tls([f"{name}.localhost" for name in folders] if len(folders) > 1 else []),
            handshake_timeout_s=settings.handshake_timeout_s,
            connections_max=settings.connections_max,
            require_tls=settings.require_tls,
            operators_routes=self._operators_routes(backups, keeper, operator_key, portal),
            take_over=None if portal is None else portal.tunnel,
            memory_bytes=self._memory_bytes(),
            member=self._member,
            resource_manager=self._resource_manager(keeper, issuer),
        )
        exits.push_async_callback(front.close)
        if settings.telemetry:
            start_telemetry(front, self._member, exits)
        exits.push_async_callback(backups.stop)
        if portal is not None:
            exits.push_async_callback(portal.close)
        for opened in keeper.opened:
            front.admit(opened.namespace, opened.rules, opened.stores)
        await self._open_ports(front)
        keeper.serve(front, self.ports[0])
        self.connection_strings = keeper.connection_strings()
        if not isinstance(self._member, ClusterMember):
            announce(
                settings.data,
                settings.host,
                self.ports[0],
                sas_key=settings.sas_key,
                operator_key=operator_key,
                tls=settings.require_tls,
            )
            exits.callback(withdraw, settings.data)
        if not settings.require_tls and not is_loopback(settings.host):
            logger.warning(
                "other machines can connect without TLS: ports %s on '%s'. --require-tls refuses that",
                ", ".join(map(str, self.ports)),
                settings.host,
            )
        if portal is not None:
            self.portal_url = self._open_portal(portal)
        front.ready = True

    def _operators_routes(
        self, backups: Backups, keeper: NamespaceKeeper, operator_key: str, portal: Portal | None
    ) -> Sequence[BaseRoute]:
        routes = [] if portal is None else [portal.route]
        if isinstance(self._member, ClusterMember):
            ask = self._member.ask_backups(backups)
            return [*backup_routes(ask, operator_key), *refused_namespace_routes(), *routes]
        if self._member is not None:
            return [*refused_backup_routes(), *refused_namespace_routes(), *routes]
        ask = ask_here(backups)
        return [*backup_routes(ask, operator_key), *namespace_routes(keeper, operator_key), *routes]

    def _backed_up(self, opened: OpenedNamespace) -> BackedUp:
        others = self._member.standing_brokers() if isinstance(self._member, ClusterMember) else None
        return BackedUp(opened.namespace.name, opened.namespace.broker, opened.folder, others)

    def _resource_manager(
        self, keeper: NamespaceKeeper, issuer: TrustedIssuer | None
    ) -> ResourceManagerOptions:
        settings = self._settings
        return ResourceManagerOptions(
            changes=keeper if self._member is None else NoChanges(ONE_NAMESPACE),
            issuer=issuer,
            any_token=settings.arm_any_token,
            tls_only=settings.require_tls,
        )

    def _memory_bytes(self) -> int:
        """The connections' memory. Several brokers share it equally."""
        processes = 1 if self._member is None else self._member.processes
        return memory_limit(self._settings.memory) // processes

    async def _open_ports(self, front: Front) -> None:
        settings, member = self._settings, self._member
        if isinstance(member, ClusterMember):
            shared = member.membership
            self.ports = front.open_sockets(shared.sockets(), shared.metrics_sockets(), shared.turns())
            return
        self.ports = await front.open(settings.addresses)
        if settings.metrics_port is not None:
            self.metrics_port = await front.open_metrics(settings.host, settings.metrics_port)
            logger.info("metrics are served on port %d", self.metrics_port)

    def _portal(self) -> Portal:
        return self._member.portal() if isinstance(self._member, ClusterMember) else Portal()

    def _open_portal(self, portal: Portal) -> str:
        if isinstance(self._member, ClusterMember) and not self._member.has_catalog:
            # The first broker has it.
            return ""
        settings = self._settings
        own_certificate = settings.require_tls and settings.tls_cert is None
        certificate = str(self_made_certificate(settings.data)[0]) if own_certificate else None
        # Anyone who can read what this machine's user sees may also read the root key.
        with_code = is_loopback(settings.host) and "SharedAccessKey=" in self.connection_string
        code = portal.serve(PortalTarget(self.connection_string, certificate, with_code))
        if not portal_is_installed():
            return ""
        scheme = "https" if settings.require_tls else "http"
        netloc = ConnectionString.parse(self.connection_string, "unused").netloc
        return f"{scheme}://{netloc}{PORTAL_PATH}" + (f"/sign-in?code={code}" if code else "")

    async def _open_namespace(
        self,
        name: str,
        config: NamespaceConfig,
        folder: DataFolder,
        exits: AsyncExitStack,
        *,
        provider: TrustedIssuer | None,
    ) -> tuple[Namespace, AuthorizationRules, StoreKeeper]:
        settings, member = self._settings, self._member
        catalog = await self._catalog(folder, exits)
        root = _root_rule(settings, folder)
        if member is not None and root.keep is not None:
            root = replace(root, keep=refuse_new_root_key)
        broker = self._broker(name, config, folder, catalog, exits)
        keeper = StoreKeeper(broker, folder, self._allowed, self.faults.get(name), _close)
        exits.callback(keeper.close)
        broker.start()
        exits.push_async_callback(broker.stop)
        if config.roles and provider is None:
            raise ConfigError(f"{settings.config}: 'RoleAssignments' need --jwt-issuer")
        issuer = None if provider is None else provider.of_namespace(name, config.roles)
        local_auth = has_local_auth(name, settings, config, broker.catalog, issuer)
        keys = KeyRing(issuer=issuer, local_auth=local_auth)
        authorization_rules = AuthorizationRules(broker, keys, root)
        authorization_rules.open()
        if member is not None:
            await member.serve(broker, authorization_rules.namespace_changed, exits)
        await Described(settings.config, config, broker, authorization_rules).apply(member)
        refuse_exposed_keys(settings.host, [known for rule in keys for known in rule.keys])
        served = Namespace(name, broker, keys, self.faults.get(name), folder.runs_path)
        return served, authorization_rules, keeper

    async def _catalog(self, folder: DataFolder, exits: AsyncExitStack) -> Catalog:
        if self._member is not None:
            return await self._member.catalog(folder, exits)
        catalog = SqliteCatalog(folder.catalog_path)
        catalog.open()
        exits.callback(catalog.close)
        return catalog

    def _broker(
        self,
        name: str,
        config: NamespaceConfig,
        folder: DataFolder,
        catalog: Catalog,
        exits: AsyncExitStack,
    ) -> Broker:
        settings = self._settings
        tier = NamespaceTier.of(name, settings, config, catalog.namespace())
        records = catalog.entities()
        placed = {name for record in records for name in record.placement}
        known = placed | folder.store_list().attached.keys()
        stores = messaging_stores(settings, folder, placed)
        refuse_missing_stores(stores, records)
        cluster = None if self._member is None else self._member.cluster
        if isinstance(self._member, ClusterMember):
            stores = self._member.own_stores(stores)
        examine_stores(stores, namespace_id(catalog), known)
        if isinstance(self._member, ClusterNode):
            # It takes them over when it serves.
            stores = []
        if settings.development:
            self.faults[name] = faults = StoreFaults(stores)
            stores = faults.stores
        unopened: dict[str, Exception] = {}
        for store in stores:
            try:
                store.open()
            except (StoreUnavailable, StoreCorrupted) as reason:
                # One that holds nothing yet was more likely given wrongly: its operator is told at once.
                if store.name not in known:
                    raise
                unopened[store.name] = reason
            exits.callback(_close, store)
        if not settings.store_urls and not unopened and cluster is None:
            folder.record_stores(len(folder.store_paths(settings.stores, STORES_DEFAULT)))
        return Broker(
            catalog,
            stores,
            tier=tier.tier,
            premium_partitions=tier.premium_partitions,
            contents=AmqpContents(),
            unopened=unopened,
            stall_after_s=settings.stall_after_s,
            reserved_names=RESERVED_NAMES,
            elsewhere=cluster,
        )

    def _tls(self, host_names: Sequence[str]) -> ssl.SSLContext:
        settings = self._settings
        if settings.tls_cert is not None and settings.tls_key is not None:
            return server_context(settings.tls_cert, settings.tls_key)
        names = (settings.host, *settings.host_names, *host_names)
        return server_context(*self_made_certificate(settings.data, names))


def _close(store: MessagingStore) -> None:
    """Close the store without waiting for one that is stuck: what it has acknowledged is on disk."""
    closing = threading.Thread(target=store.close, name=f"close-{store.name}", daemon=True)
    closing.start()
    closing.join(CLOSE_TIMEOUT_S)
    if closing.is_alive():
        logger.error("store %s: cannot close it within %d s", store.name, CLOSE_TIMEOUT_S)


def _root_rule(settings: Settings, folder: DataFolder) -> RootRule:
    """With the operator's key for both, or with those that the data folder keeps."""
    if settings.sas_key is not None:
        return RootRule(settings.sas_key, settings.sas_key)
    return RootRule(folder.root_key(), folder.root_key("secondary"), folder.keep_root_key)
