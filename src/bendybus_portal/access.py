"""The access to a namespace with one key: the clients, and the rights of the key.

Everything here blocks; pages call it through `in_thread`, so that no page waits for another's server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings
from bendybus.errors import ArgumentError, Unauthorized
from bendybus.management.client import NAMESPACE, ManagementClient
from bendybus.management.json_api import JsonApi

__all__ = ["Access", "Rights", "find_rights", "in_thread"]

# A person is waiting in front of the page.
TIMEOUT_S: Final = 20.0
RETRIES: Final = 1

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(function, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Access:
    """Where the namespace is, and the key."""

    namespace: ConnectionString
    certificate: str | None = None
    _api: JsonApi = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_api", JsonApi(self.namespace, self.certificate))

    def close(self) -> None:
        """Close what is kept open for the next request."""
        self._api.close()

    def management(self) -> ManagementClient:
        return ManagementClient(self.namespace, self.certificate)

    def ask(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
    ) -> dict[str, Any]:
        """One request to the server's own API. Azure has none of it, and then `ArgumentError` is raised."""
        url = quote(path, safe="/$") + (f"?{urlencode(query)}" if query else "")
        return self._api.ask(method, url, body)

    def bus(self, *, timeout_s: float = TIMEOUT_S, retries: int = RETRIES) -> BusClient:
        settings = replace(ClientSettings.of(self.namespace), certificate=self.certificate)
        return BusClient(replace(settings, timeout_s=timeout_s, retries=retries))


@dataclass(frozen=True, slots=True)
class Rights:
    """What the key may do, and what the server offers beyond Service Bus's own API."""

    manage: bool
    send: bool
    listen: bool
    extensions: bool
    """Whether the server is a Bendybus."""
    development: bool
    """Whether stores can be made to fail."""
    name: str
    """Of the namespace."""
    tier: str
    several_brokers: bool = False
    """Whether partitions, stores and connections belong to one broker of several."""

    @property
    def label(self) -> str:
        if self.manage:
            return "Manage"
        return " and ".join(name for name, has in (("Send", self.send), ("Listen", self.listen)) if has)


def find_rights(access: Access) -> Rights:
    """`Unauthorized` if the key opens nothing."""
    entity = access.namespace.entity
    try:
        told = access.ask("GET", f"/{entity}/$rights" if entity else "/$rights")
    except ArgumentError:
        return _rights_on_azure(access)
    rights = told["rights"]
    if not rights:
        raise Unauthorized("The key has no right in this namespace.")
    return Rights(
        manage="Manage" in rights,
        send="Send" in rights,
        listen="Listen" in rights,
        extensions=True,
        development=bool(told["development"]),
        name=str(told["namespace"]),
        tier=str(told["tier"]),
        several_brokers=bool(told.get("severalBrokers")),
    )


def _rights_on_azure(access: Access) -> Rights:
    """The rights of a key without Manage cannot be queried: the server refuses what it may not do."""
    name, tier, manage = access.namespace.host.partition(".")[0], "", False
    try:
        with access.management() as management:
            entry = management.get(NAMESPACE)
            name, tier, manage = entry.text("Name") or name, entry.text("MessagingSKU") or "", True
    except Unauthorized:
        if access.namespace.entity is None:
            raise
    return Rights(
        manage=manage, send=True, listen=True, extensions=False, development=False, name=name, tier=tier
    )
