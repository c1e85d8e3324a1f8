"""The composition root: settings in, a running server out.

The one place that knows every concrete part. They start in the order of what
stands on what (folder, stores, broker, gateway, listener) and stop in reverse;
the line `ready <connection string>` on stdout is the promise that clients are
now served.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from bendybus.admin.rest_routes import RestMessages
from bendybus.admin.routes import management_routes
from bendybus.admin.rule_book import RootRule, RuleBook
from bendybus.admin.rule_routes import AuthorizationRules
from bendybus.auth.rules import KeyRing
from bendybus.broker.broker import Broker
from bendybus.contents import AmqpContents
from bendybus.errors import ConfigError, RequestError, StoreUnavailable
from bendybus.gateway.gateway import Gateway
from bendybus.server.announcement import announce, withdraw
from bendybus.server.emulator_config import EmulatorConfig, load_config
from bendybus.server.fault_routes import fault_routes
from bendybus.server.http import Health, http_app
from bendybus.server.http_protocol import HttpHost
from bendybus.server.key_sets import trusted_issuer
from bendybus.server.listener import Listener
from bendybus.server.metrics import BrokerCollector
from bendybus.server.settings import STORES_DEFAULT, Settings, connection_string, refuse_exposed_keys
from bendybus.server.sockets import raise_descriptor_limit
from bendybus.server.store_keeper import StoreKeeper
from bendybus.server.store_routes import store_routes
from bendybus.server.stores import examine_stores, messaging_stores, namespace_id
from bendybus.server.tls import self_made_certificate, server_context
from bendybus.store.faults import StoreFaults
from bendybus.store.folder import DataFolder
from bendybus.store.protocol import MessagingStore
from bendybus.store.sqlite.catalog import SqliteCatalog

__all__ = ["Server", "run"]

logger = logging.getLogger(__name__)

# Message records are many, long-lived and free of cycles: looking through all of them again and
# again costs a fifth of the throughput and finds nothing. Young objects are still collected.
GC_THRESHOLDS: Final = (50_000, 50, 1000)

# Closing empties the log into the file, 64 MB at most.
CLOSE_TIMEOUT_S: Final = 10.0


class Server:
    """A server and everything in it. `async with Server(settings) as server: ...`"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._exits = AsyncExitStack()
        self._ready = False
        self.faults: StoreFaults | None = None
        """The switches of its stores, if it was started for development."""
        self.connection_string = ""
        self.ports: list[int] = []

    async def __aenter__(self) -> Server:
        async with AsyncExitStack() as exits:
            await self._start(exits)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._ready = False
        await self._exits.aclose()

    async def _start(self, exits: AsyncExitStack) -> None:
        settings = self._settings
        config = load_config(settings.config) if settings.config else EmulatorConfig()
        folder = DataFolder(settings.data)
        folder.open()
        exits.callback(folder.close)
        root = _root_rule(settings, folder)
        broker = self._broker(folder, exits)
        keeper = StoreKeeper(broker, folder, self.faults, _close)
        exits.callback(keeper.close)
        broker.start()
        exits.push_async_callback(broker.stop)
        keys = KeyRing(issuer=await trusted_issuer(settings, exits))
        book = RuleBook(broker, keys, root)
        book.open()
        try:
            await self._ensure(broker, config)
            for scope, rules in config.rules.items():
                await book.bring(scope, rules)
        except RequestError as refusal:
            raise ConfigError(f"{settings.config}: {refusal}") from refusal
        refuse_exposed_keys(settings.host, [known for rule in keys for known in rule.keys])

        gateway = Gateway(broker, keys, handshake_timeout_s=settings.handshake_timeout_s)
        rest = RestMessages(broker, keys)
        # Management last: every path may be an entity's.
        management = management_routes(broker, keys)
        own = [*fault_routes(broker, keys, self.faults), *store_routes(broker, keys, keeper)]
        routes = [*own, rest, AuthorizationRules(book, keys), *management]
        http = self._http(gateway, broker, routes)
        listener = self._listener(gateway, http)
        gateway.start()
        exits.push_async_callback(self._drain, listener, rest, http, gateway, broker)
        self.ports = [await listener.listen(host, port) for host, port in settings.addresses]
        self.connection_string = connection_string(settings.host, self.ports[0], root.primary_key)
        announce(settings.data, settings.host, self.ports[0], key_in_folder=settings.sas_key is None)
        exits.callback(withdraw, settings.data)
        self._ready = True

    async def _ensure(self, broker: Broker, config: EmulatorConfig) -> None:
        """Have what the file asks for, from the start."""
        try:
            # Topics forward nothing, and nothing is forwarded to a subscription.
            for topic in config.topics:
                await broker.topics.ensure(topic)
            await broker.ensure_queues(config.queues)
            for subscription in config.subscriptions:
                await broker.topics.ensure_subscription(subscription)
        except StoreUnavailable as reason:
            # The rest of the namespace is worth serving; the next start brings it to the description.
            logger.error("%s: not everything is as described: %s", self._settings.config, reason)

    def _broker(self, folder: DataFolder, exits: AsyncExitStack) -> Broker:
        catalog = SqliteCatalog(folder.catalog_path)
        catalog.open()
        exits.callback(catalog.close)
        settings = self._settings
        placed = {name for record in catalog.entities() for name in record.placement}
        attached = folder.store_list().attached
        stores = messaging_stores(settings, folder, placed)
        examine_stores(stores, namespace_id(catalog))
        if settings.development:
            self.faults = StoreFaults(stores)
            stores = self.faults.stores
        unopened: dict[str, StoreUnavailable] = {}
        for store in stores:
            try:
                store.open()
            except StoreUnavailable as reason:
                # One that holds nothing yet was more likely given wrongly: its operator is told at once.
                if store.name not in placed and store.name not in attached:
                    raise
                unopened[store.name] = reason
            exits.callback(_close, store)
        if not settings.store_urls and not unopened:
            folder.record_stores(len(folder.store_paths(settings.stores, STORES_DEFAULT)))
        return Broker(
            catalog,
            stores,
            tier=settings.tier,
            premium_partitions=settings.premium_partitions,
            contents=AmqpContents(),
            unopened=unopened,
            stall_after_s=settings.stall_after_s,
        )

    def _http(self, gateway: Gateway, broker: Broker, routes: Sequence[BaseRoute]) -> HttpHost:
        registry = CollectorRegistry()
        registry.register(BrokerCollector(broker, gateway))
        app = http_app(
            amqp=gateway.protocol, health=partial(self._health, broker), registry=registry, routes=routes
        )
        return HttpHost(app, head_timeout_s=self._settings.handshake_timeout_s)

    def _listener(self, gateway: Gateway, http: HttpHost) -> Listener:
        settings = self._settings
        if settings.tls_cert is not None and settings.tls_key is not None:
            certificate, key = settings.tls_cert, settings.tls_key
        else:
            certificate, key = self_made_certificate(settings.data, (settings.host, *settings.host_names))
        return Listener(
            amqp=gateway.protocol,
            http=http.protocol,
            tls=server_context(certificate, key),
            handshake_timeout_s=settings.handshake_timeout_s,
            connections_max=settings.connections_max,
        )

    def _health(self, broker: Broker) -> Health:
        return Health(self._ready, {"stores": {store.name: store.state.value for store in broker.stores()}})

    async def _drain(
        self, listener: Listener, rest: RestMessages, http: HttpHost, gateway: Gateway, broker: Broker
    ) -> None:
        """No newcomers; what was accepted becomes durable and is answered; then goodbye."""
        listener.stop_accepting()
        rest.stop()
        if self.faults is not None:
            self.faults.heal_all()
        await broker.drain()
        gateway.stop()
        await http.close()
        await listener.close()


def _close(store: MessagingStore) -> None:
    """Close the store, but do not wait for one that is stuck: what it has acknowledged is on disk."""
    closing = threading.Thread(target=store.close, name=f"close-{store.name}", daemon=True)
    closing.start()
    closing.join(CLOSE_TIMEOUT_S)
    if closing.is_alive():
        logger.error("store %s: it does not let itself be closed", store.name)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. For the command line; returns after draining."""
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    raise_descriptor_limit()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings))


def _root_rule(settings: Settings, folder: DataFolder) -> RootRule:
    """With the operator's key for both, or with those that the data folder keeps."""
    if settings.sas_key is not None:
        return RootRule(settings.sas_key, settings.sas_key)
    return RootRule(folder.root_key(), folder.root_key("secondary"), folder.keep_root_key)


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Server(settings) as server:
        sys.stdout.write(f"ready {server.connection_string}\n")
        sys.stdout.flush()
        await stop.wait()
        logger.info("stopping")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - where there is none (Windows), asyncio's own loop serves
    except ImportError:
        return None
    return uvloop.new_event_loop
