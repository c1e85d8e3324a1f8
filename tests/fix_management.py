"""The management API of a namespace in memory, called without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from bendybus.admin.routes import management_routes
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.auth.sas import make_token
from bendybus.broker.broker import Broker
from bendybus.domain.entities import Tier
from bendybus.namespaces import Namespace
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog

HOST = "ns.example.com"
FAR_FUTURE_S = 4_000_000_000
KEYS = {"RootManageSharedAccessKey": "the-key-of-the-root", "listens": "the-key-of-a-listener"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: str

    @property
    def detail(self) -> str:
        """The text of an Error document, without the parts that differ each time."""
        return ElementTree.fromstring(self.body).findtext("Detail") or ""

    def text(self, name: str) -> str | None:
        """Of the first element of this name, in whatever namespace."""
        found = (each for each in ElementTree.fromstring(self.body).iter() if each.tag.endswith(f"}}{name}"))
        return next((each.text for each in found), None)


class Api:
    """`await api("PUT", "q", "<LockDuration>PT5S</LockDuration>")`"""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        ring = KeyRing([AccessRule.root(KEYS["RootManageSharedAccessKey"])])
        ring.put(AccessRule("listens", KEYS["listens"], "", Right.LISTEN))
        (self._route,) = management_routes(Namespace("ns", broker, ring))

    async def __call__(
        self,
        method: str,
        path: str,
        elements: str = "",
        *,
        kind: str = "QueueDescription",
        update: bool = False,
        if_match: str | None = None,
        query: str = "api-version=2021-05",
        rule: str = "RootManageSharedAccessKey",
        key: str | None = None,
    ) -> Answer:
        token = make_token(f"https://{HOST}/", rule, key or KEYS[rule], FAR_FUTURE_S)
        headers = {"host": HOST, "authorization": token}
        if update or if_match is not None:
            headers["if-match"] = if_match or "*"
        body = (
            '<entry xmlns="http://www.w3.org/2005/Atom" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
            f"<content><{kind}>{elements}</{kind}></content></entry>"
        )
        scope = {
            "type": "http",
            "scheme": "https",
            "method": method,
            "path": f"/{unquote(path)}",
            "path_params": {"path": unquote(path)},
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        sent: list[Any] = []

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body.encode() if method == "PUT" else b""}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._route.app(scope, receive, send)  # type: ignore[attr-defined]  # it is a Route
        shown = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], shown, b"".join(part.get("body", b"") for part in sent[1:]).decode())


@asynccontextmanager
async def open_namespace(tier: Tier = Tier.STANDARD) -> AsyncIterator[Api]:
    broker = Broker(MemoryCatalog(), [MemoryStore("m")], tier=tier)
    broker.start()
    try:
        yield Api(broker)
    finally:
        await broker.stop()
