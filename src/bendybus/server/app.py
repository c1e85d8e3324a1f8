"""The composition root: settings in, a running server out.

Only this module knows every concrete part. They start in the order of their dependencies
(folder, stores, brokers, front) and stop in reverse. The line `ready <connection string>` on
stdout means that clients are now served.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute

from bendybus import audit
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
from bendybus.server.backup_routes import backup_routes, refused_backup_routes
from bendybus.server.cluster_member import ClusterMember, Membership
from bendybus.server.cluster_node import ClusterNode
from bendybus.server.cluster_part import ClusterPart, refuse_new_root_key
from bendybus.server.described import Described
from bendybus.server.emulator_config import NamespaceConfig, load_config
from bendybus.server.front import Front
from bendybus.server.http import RESERVED_NAMES
from bendybus.server.key_sets import trusted_issuer
from bendybus.server.local_auth import has_local_auth
from bendybus.server.logs import start_log
from bendybus.server.memory_limit import memory_limit
from bendybus.server.namespace_keeper import NamespaceKeeper, OpenedNamespace
from bendybus.server.namespace_routes import ONE_NAMESPACE, namespace_routes, refused_namespace_routes
from bendybus.server.naming import namespace_folders
from bendybus.server.portal import PORTAL_PATH, Portal, PortalTarget, portal_is_installed
from bendybus.server.settings import STORES_DEFAULT, Settings, is_loopback, refuse_exposed_keys
from bendybus.server.sockets import raise_descriptor_limit
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

__all__ = ["Server", "loop_factory", "run", "run_member"]

logger = logging.getLogger(__name__)

# Message records are many, long-lived and free of cycles. Scanning them again and again would cost a fifth of
# the throughput and find nothing. Young objects are still collected.
GC_THRESHOLDS: Final = (50_000, 50, 1000)

# Hosts that mean every address of the machine.
EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")

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

        backups = Backups(settings.data, lambda: list(map(_backed_up, keeper.opened)))
        keeper.refuse_deleting = lambda: backups.running
        operator_key = make_key()
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
        if self._member is not None:
            return [*refused_backup_routes(), *refused_namespace_routes(), *routes]
        return [*backup_routes(backups, operator_key), *namespace_routes(keeper, operator_key), *routes]

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
            membership = member.membership
            self.ports = front.open_sockets(membership.sockets(), membership.metrics_sockets())
            return
        self.ports = await front.open(settings.addresses)
        if settings.metrics_port is not None:
            self.metrics_port = await front.open_metrics(settings.host, settings.metrics_port)
            logger.info("metrics are shown on port %d", self.metrics_port)

    def _portal(self) -> Portal:
        return self._member.portal() if isinstance(self._member, ClusterMember) else Portal()

    def _open_portal(self, portal: Portal) -> str:
        if isinstance(self._member, ClusterMember) and not self._member.has_catalog:
            # The first broker has it.
            return ""
        settings = self._settings
        own_certificate = settings.require_tls and settings.tls_cert is None
        certificate = str(self_made_certificate(settings.data)[0]) if own_certificate else None
        # Whoever can read what this machine's user sees may also read the root key.
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
            raise ConfigError(f"{settings.config}: 'RoleAssignments' say nothing without --jwt-issuer")
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


def _backed_up(opened: OpenedNamespace) -> BackedUp:
    return BackedUp(opened.namespace.name, opened.namespace.broker, opened.folder)


def _close(store: MessagingStore) -> None:
    """Close the store without waiting for one that is stuck: what it has acknowledged is on disk."""
    closing = threading.Thread(target=store.close, name=f"close-{store.name}", daemon=True)
    closing.start()
    closing.join(CLOSE_TIMEOUT_S)
    if closing.is_alive():
        logger.error("store %s: it does not let itself be closed", store.name)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. For the command line; returns after draining."""
    _run(settings, None)


def run_member(membership: Membership) -> None:
    """`run` for one broker of several. It ends when its supervisor does."""
    _run(membership.settings, membership)


def _run(settings: Settings, membership: Membership | None) -> None:
    start_log(settings.log_level, settings.log_format, settings.audit_log)
    raise_descriptor_limit()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings, membership))


def _root_rule(settings: Settings, folder: DataFolder) -> RootRule:
    """With the operator's key for both, or with those that the data folder keeps."""
    if settings.sas_key is not None:
        return RootRule(settings.sas_key, settings.sas_key)
    return RootRule(folder.root_key(), folder.root_key("secondary"), folder.keep_root_key)


async def _serve(settings: Settings, membership: Membership | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    member: ClusterPart | None = None if settings.cluster is None else ClusterNode(settings)
    if membership is not None:
        member = ClusterMember(membership)
        # Nothing is ever written to it: it can be read when the supervisor is gone. Then nobody stops this
        # process in order, and whoever starts the server again waits for it. All that it said is on disk.
        loop.add_reader(membership.supervisor, os._exit, 1)
    server = Server(settings, member)
    if not await _enter(server, stop):
        return
    async with AsyncExitStack() as exits:
        exits.push_async_exit(server)
        lines = _printed(server, settings)
        # A supervisor goes on when it has read `ready`, so for it this line is the last one.
        sys.stdout.writelines(lines if membership is None else [*lines[1:], lines[0]])
        sys.stdout.flush()
        audit.record(
            "server-started",
            version=version("bendybus"),
            namespaces=",".join(server.connection_strings),
            ports=",".join(map(str, server.ports)),
        )
        await stop.wait()
        logger.info("stopping")
        if member is not None:
            await member.leave()
        audit.record("server-stopping")


async def _enter(server: Server, stop: asyncio.Event) -> bool:
    """Whether it was started. One that waits for other brokers may be told to stop before."""
    entering, stopping = asyncio.create_task(server.__aenter__()), asyncio.create_task(stop.wait())
    await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not entering.done():
        entering.cancel()
        await asyncio.wait((entering,))
        return False
    await entering
    return True


def _printed(server: Server, settings: Settings) -> list[str]:
    """What whoever starts the server reads, the line `ready` first."""
    lines = [f"ready {server.connection_string}\n"]
    for name, shown in islice(server.connection_strings.items(), 1, None):
        lines.append(f"namespace {name} {shown}\n")
    if settings.host in EVERY_ADDRESS and server.connection_string:
        # The line above is for this machine; others reach it by its name.
        own = ConnectionString.parse(server.connection_string, "unused").netloc
        elsewhere = f"{socket.gethostname()}:{server.ports[0]}"
        lines.append(f"network {server.connection_string.replace(own, elsewhere, 1)}\n")
    if server.portal_url:
        lines.append(f"portal {server.portal_url}\n")
    return lines


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes the fastest event loop that is installed."""
    try:
        import uvloop  # noqa: PLC0415 - where there is none (Windows), asyncio's own loop serves
    except ImportError:
        return None
    return uvloop.new_event_loop
