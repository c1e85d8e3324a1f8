"""The namespaces of a running server: opened at the start, and created and deleted later.

Each has an exit stack of its own, so that one can be closed alone. The first namespace is the data folder
itself and stays. Which names the folder has recorded, and where their files are: naming.py, store/folder.py.
HTTP: namespace_routes.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from bendybus import audit
from bendybus.admin.authorization_rules import AuthorizationRules
from bendybus.errors import BrokerError, ConfigError, EntityExists, InvalidOperation, NamespaceNotFound
from bendybus.namespaces import Namespace, NewNamespace, check_namespace_name
from bendybus.server.emulator_config import NamespaceConfig
from bendybus.server.front import Front
from bendybus.server.naming import connection_strings, refuse_shared_stores
from bendybus.server.settings import Settings
from bendybus.server.store_keeper import StoreKeeper
from bendybus.store.folder import DataFolder

__all__ = ["NamespaceKeeper", "OpenNamespace", "OpenedNamespace"]

logger = logging.getLogger(__name__)

OpenNamespace: TypeAlias = Callable[
    [str, NamespaceConfig, DataFolder, AsyncExitStack],
    Awaitable[tuple[Namespace, AuthorizationRules, StoreKeeper]],
]


@dataclass(frozen=True, slots=True)
class OpenedNamespace:
    namespace: Namespace
    rules: AuthorizationRules
    stores: StoreKeeper
    folder: DataFolder
    exits: AsyncExitStack


class NamespaceKeeper:
    def __init__(self, settings: Settings, folder: DataFolder, open_namespace: OpenNamespace) -> None:
        self._settings = settings
        self._folder = folder
        self._open_namespace = open_namespace
        self._opened: dict[str, OpenedNamespace] = {}
        """By name in lower case, first that of the data folder itself."""
        self.refuse_deleting: Callable[[], bool] = lambda: False
        """Whether a backup is being made, which needs all files."""
        self._front: Front | None = None
        self._port = 0
        self._changing = asyncio.Lock()

    @property
    def opened(self) -> list[OpenedNamespace]:
        return list(self._opened.values())

    async def open(self, name: str, config: NamespaceConfig, folder: DataFolder) -> OpenedNamespace:
        """Open the files of a namespace and start its broker."""
        # What the broker does by itself from now on, such as AutoDeleteOnIdle, is done in this context.
        with audit.acting(audit.Actor(namespace=name)):
            async with AsyncExitStack() as exits:
                parts = await self._open_namespace(name, config, folder, exits)
                opened = OpenedNamespace(*parts, folder, exits.pop_all())
        self._opened[name.lower()] = opened
        return opened

    def serve(self, front: Front, port: int) -> None:
        """Clients are served by this front from now on."""
        self._front, self._port = front, port

    async def close(self) -> None:
        while self._opened:
            _, opened = self._opened.popitem()
            await opened.exits.aclose()

    # -- while the server runs ----------------------------------------------------

    def shown(self) -> list[dict[str, Any]]:
        """All of them with their connection strings: for the operator, who may read the keys anyway."""
        strings = self.connection_strings()
        return [
            {
                "name": opened.namespace.name,
                "tier": opened.namespace.broker.tier.value,
                "queues": sum(1 for _ in opened.namespace.broker.queues),
                "topics": sum(1 for _ in opened.namespace.broker.topics),
                "first": number == 0,
                "connectionString": strings[opened.namespace.name],
            }
            for number, opened in enumerate(self._opened.values())
        ]

    async def create(self, new: NewNamespace) -> None:
        """Create a namespace and serve it. It is there again after a restart."""
        name, front = new.name, self._front
        assert front is not None, "the server accepts no requests before its front is open"
        async with self._changing:
            names = [opened.namespace.name for opened in self._opened.values()]
            for each in (*names, name):
                check_namespace_name(each)
            if name.lower() in self._opened:
                raise EntityExists(f"The namespace '{name}' already exists.")
            try:
                refuse_shared_stores(self._settings)
            except ConfigError as refusal:
                raise InvalidOperation(f"{refusal}.") from None
            folder = self._folder.of_namespace(name)
            config = NamespaceConfig(
                name,
                tier=new.tier,
                premium_partitions=new.premium_partitions,
                disable_local_auth=new.disable_local_auth,
            )
            # What a crash left of an earlier attempt.
            await asyncio.to_thread(folder.remove)
            try:
                folder.open()
                opened = await self.open(name, config, folder)
            except BrokerError as failure:
                folder.close()
                await asyncio.to_thread(folder.remove)
                raise InvalidOperation(f"The namespace '{name}' cannot be created: {failure}") from failure
            opened.exits.callback(folder.close)
            self._folder.record_namespaces([*names, name])
            front.admit(opened.namespace, opened.rules, opened.stores)
            audit.record("namespace-created", replace(audit.current_actor(), namespace=name))
            logger.info("namespace %s: created", name)

    async def delete(self, name: str) -> None:
        """Delete a namespace with all its entities and messages. Its clients are disconnected."""
        front = self._front
        assert front is not None, "the server accepts no requests before its front is open"
        async with self._changing:
            opened = self._opened.get(name.lower())
            if opened is None:
                raise NamespaceNotFound(f"There is no namespace '{name[:80]}'.")
            if opened.folder is self._folder:
                raise InvalidOperation(
                    f"'{name}' is the first namespace, which is the data folder itself: it cannot be deleted."
                )
            if self.refuse_deleting():
                raise InvalidOperation("A backup is being made. Delete the namespace when it is complete.")
            del self._opened[name.lower()]
            front.dismiss(opened.namespace)
            await opened.namespace.broker.drain()
            names = [each.namespace.name for each in self._opened.values()]
            # From here on it is gone, whatever happens: the next start removes what is left.
            self._folder.record_namespaces(names, removing=[opened.namespace.name])
            await opened.exits.aclose()
            opened.folder.close()
            await asyncio.to_thread(self._folder.finish_removing)
            actor = replace(audit.current_actor(), namespace=opened.namespace.name)
            audit.record("namespace-deleted", actor)
            logger.info("namespace %s: deleted", opened.namespace.name)

    def connection_strings(self) -> dict[str, str]:
        """By namespace; the first is the one to show."""
        settings = self._settings
        namespaces = [opened.namespace for opened in self._opened.values()]
        return connection_strings(namespaces, settings.host, self._port, tls=settings.require_tls)
