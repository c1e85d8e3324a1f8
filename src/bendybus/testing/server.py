"""A server inside the test's process: a thread with an event loop, one port, any number of namespaces.

It serves what `bendybus serve` serves, through the same listener. Its namespaces are
created and closed within milliseconds, are in memory unless they are durable, and
are independent of each other: each has a key of its own, which identifies it when
a client connects.
"""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from bendybus.admin.authorization_rules import RootRule
from bendybus.auth.connection_strings import local_connection_string
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import ConfigError
from bendybus.names import EntityPath
from bendybus.namespaces import check_namespace_name
from bendybus.server.emulator_config import NamespaceConfig, load_config
from bendybus.server.front import Front
from bendybus.server.memory_limit import memory_limit
from bendybus.server.process import loop_factory
from bendybus.server.settings import Settings
from bendybus.server.tls import self_made_certificate, server_context
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog
from bendybus.store.sqlite.catalog import SqliteCatalog
from bendybus.store.sqlite.store import SqliteStore
from bendybus.testing.namespace import Namespace, NamespaceStorage

__all__ = ["Server"]

T = TypeVar("T")

NO_TOPICS: Final[Mapping[str, Iterable[str]]] = {}


class Server:
    """`with Server() as server:`, then `server.namespace()` any number of times."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._settings = Settings(host=host, port=port, admin_port=None)
        self._folder: TemporaryDirectory[str]
        self._numbers = count(1)
        self._namespaces: list[Namespace] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._front: Front
        self._stop: asyncio.Event
        self.port = port
        """0 until the server has chosen one."""

    # -- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Start the server. Returns when it serves clients."""
        if self._thread is not None:
            raise RuntimeError("this server has been started already")
        self._folder = TemporaryDirectory(prefix="bendybus-testing-")
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="bendybus-server", daemon=True
        )
        self._thread.start()
        started.result()

    def stop(self) -> None:
        """Close every namespace and the port. Stopping twice is no error."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._loop = None
            self._folder.cleanup()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def certificate(self) -> Path:
        """The certificate that a client has to trust to use TLS, as the administration clients do."""
        return self_made_certificate(Path(self._folder.name), [self._settings.host])[0]

    # -- namespaces ---------------------------------------------------------------

    def namespace(
        self,
        name: str | None = None,
        *,
        queues: Iterable[str] | Mapping[str, Mapping[str, Any]] = (),
        topics: Mapping[str, Iterable[str] | Mapping[str, Mapping[str, Any]]] = NO_TOPICS,
        config: str | Path | None = None,
        durable: bool = False,
        stores: int = 1,
        tier: str | None = None,
        premium_partitions: int | None = None,
    ) -> Namespace:
        """Create a namespace for the caller alone.

        `queues` are names, or names with properties as for `Namespace.create_queue`. `topics` are names
        with the names of their subscriptions, or with subscriptions and their properties. `config` is a
        Config.json, of which the first namespace is used, or the one called `name`. A durable namespace
        keeps everything on disk, with fsync, in the server's temporary folder. `tier` is "standard"
        unless the Config.json has another. `premium_partitions` are those of each entity in Premium.
        """
        self._running()
        described = _described(config, name)
        name = check_namespace_name(name or f"test-{next(self._numbers)}")
        described = replace(
            described,
            queues=(*described.queues, *_queues(queues)),
            topics=(*described.topics, *(TopicDescription(EntityPath(topic)) for topic in topics)),
            subscriptions=(*described.subscriptions, *_subscriptions(topics)),
        )
        key = base64.b64encode(os.urandom(32)).decode("ascii")
        namespace = Namespace(
            name,
            RootRule(key, key),
            self._storage(name, stores) if durable else _in_memory(stores),
            described,
            _settings(name, tier, premium_partitions),
            local_connection_string(self._settings.host, self.port, key),
            self._front,
            self._call,
        )
        self._call(self._enter(name, namespace))
        return namespace

    def _storage(self, name: str, stores: int) -> NamespaceStorage:
        folder = Path(self._folder.name) / "namespaces" / name.lower()
        folder.mkdir(parents=True, exist_ok=True)
        files = [SqliteStore(folder / f"store-{number}.db") for number in range(stores)]
        return NamespaceStorage(SqliteCatalog(folder / "catalog.db"), list(files), folder)

    async def _enter(self, name: str, namespace: Namespace) -> None:
        if name in self._front.namespaces:
            raise ConfigError(f"this server has a namespace '{name}' already")
        await namespace.enter()
        self._namespaces = [*(each for each in self._namespaces if not each.closed), namespace]

    # -- the thread ---------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this on the server's loop and wait for it."""
        try:
            loop = self._running()
        except RuntimeError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the server is not running: use `with Server() as server:`")
        return self._loop

    def _run(self, started: Future[None]) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                runner.run(self._open())
            except BaseException as failure:
                self._folder.cleanup()
                started.set_exception(failure)
                return
            started.set_result(None)
            runner.run(self._serve())

    async def _open(self) -> None:
        settings = self._settings
        certificate = self_made_certificate(Path(self._folder.name), [settings.host])
        self._front = Front(
            server_context(*certificate),
            handshake_timeout_s=settings.handshake_timeout_s,
            connections_max=settings.connections_max,
            memory_bytes=memory_limit(settings.memory),
        )
        (self.port,) = await self._front.open(settings.addresses)
        self._front.ready = True
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def _serve(self) -> None:
        await self._stop.wait()
        for namespace in self._namespaces:
            await namespace.leave()
        await self._front.close()


def _queues(given: Iterable[str] | Mapping[str, Mapping[str, Any]]) -> Iterator[QueueDescription]:
    named = given if isinstance(given, Mapping) else {name: {} for name in given}
    for name, properties in named.items():
        yield QueueDescription(EntityPath(name), **properties)


def _subscriptions(
    topics: Mapping[str, Iterable[str] | Mapping[str, Mapping[str, Any]]],
) -> Iterator[SubscriptionDescription]:
    for topic, given in topics.items():
        named = given if isinstance(given, Mapping) else {name: {} for name in given}
        for name, properties in named.items():
            yield SubscriptionDescription.of(topic, name, **properties)


def _in_memory(stores: int) -> NamespaceStorage:
    return NamespaceStorage(
        MemoryCatalog(), [MemoryStore(f"store-{number}") for number in range(stores)], None
    )


def _settings(name: str, tier: str | None, premium_partitions: int | None) -> Settings:
    """What a test sets for its namespace."""
    return Settings(
        namespace_tiers={name.lower(): Tier(tier)} if tier else {},
        namespace_premium_partitions={name.lower(): premium_partitions} if premium_partitions else {},
    )


def _described(config: str | Path | None, name: str | None) -> NamespaceConfig:
    """The part of a Config.json that describes this namespace."""
    if config is None:
        return NamespaceConfig()
    namespaces = load_config(Path(config))
    named = [each for each in namespaces if name is None or each.name.lower() == name.lower()]
    # A file with one namespace fits any name, because the vendor's files all use the same one.
    return next(iter(named or namespaces[:1]), NamespaceConfig())
