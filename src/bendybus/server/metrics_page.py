"""`GET /metrics`: who may read it, and how much of it.

    from this machine, without a token    everything
    with a token                          the token's namespace; Listen over all of it is needed
    on a port of its own                  everything, without a token (`--metrics-port`)

The connection's own address shows whether a request comes from this machine. Headers such as X-Forwarded-For
are not trusted; a request that has one came through a proxy and needs a token. So does a request that calls
the server by a name other than this machine's: a web page can make a browser send such requests. Listen is
the right that shows how many messages wait; a key that only sends need not know.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bendybus.admin.documents import error_response
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.errors import ArgumentError, BrokerError
from bendybus.gateway.gateway import Gateway
from bendybus.namespaces import Namespace, Namespaces
from bendybus.server.figures import ProcessFigures, process_figures
from bendybus.server.metrics import Samples, collected, exposition

__all__ = ["MetricsPage"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PARTITIONS: Final = "partitions"

# What proxies add to the requests that they pass on.
PROXY_HEADERS: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class MetricsPage:
    def __init__(
        self,
        namespaces: Namespaces,
        gateway: Gateway,
        others: Callable[[bool], Awaitable[Sequence[ProcessFigures]]] | None = None,
    ) -> None:
        """`others` asks the other broker processes of the server, by partition or not."""
        self._namespaces = namespaces
        self._gateway = gateway
        self._others = others
        self._making = asyncio.Lock()
        """One page is made at a time, however many are asked for."""

    async def show(self, request: Request) -> Response:
        """For the ports of all clients."""
        return await self._answer(request, self._visible)

    async def show_all(self, request: Request) -> Response:
        """For a port that only trusted systems can reach."""
        return await self._answer(request, lambda _: None)

    async def _answer(self, request: Request, visible: Callable[[Request], Namespace | None]) -> Response:
        try:
            only = visible(request)
            by_partition = _by_partition(request.query_params)
            async with self._making:
                pieces = await self._made(only, by_partition=by_partition)
        except BrokerError as refusal:
            return error_response(refusal, request.url.path.strip("/"), now())
        headers = {"content-length": str(sum(map(len, pieces)))}
        return StreamingResponse(_each(pieces), headers=headers, media_type=CONTENT_TYPE)

    async def _made(self, only: Namespace | None, *, by_partition: bool) -> list[bytes]:
        if only is None or only is self._namespaces.only:
            gateway = self._gateway
            return await exposition(
                tuple(self._namespaces),
                gateway.connections,
                gateway.budget,
                by_partition=by_partition,
                others=() if self._others is None else await self._others(by_partition),
            )
        # A namespace's key tells nothing about the clients of others.
        own = [each for each in self._gateway.connections if each.client.namespace is only]
        return await exposition((only,), own, by_partition=by_partition)

    async def samples(self) -> Samples:
        """All that the page of the whole server shows."""
        others = () if self._others is None else await self._others(False)
        gateway = self._gateway
        return await collected(tuple(self._namespaces), gateway.connections, gateway.budget, others=others)

    async def of_process(self, by_partition: bool) -> ProcessFigures:
        """What this process counts, for the page of another."""
        gateway = self._gateway
        namespaces = tuple(self._namespaces)
        return await process_figures(
            namespaces, gateway.connections, gateway.budget, by_partition=by_partition
        )

    def _visible(self, request: Request) -> Namespace | None:
        """The namespace to show, None for all; `Unauthorized` if the client may see none."""
        if "authorization" not in request.headers and _from_this_machine(request):
            return None
        namespace = self._namespaces.of_request(request.headers)
        authorise(request.headers, namespace.keys, "", Right.LISTEN, now())
        return namespace


async def _each(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _by_partition(query: Mapping[str, str]) -> bool:
    for name in query:
        if name != PARTITIONS:
            raise ArgumentError(f"/metrics has no parameter '{name[:60]}'; it has {PARTITIONS}=1.")
    asked = query.get(PARTITIONS, "0")
    if asked not in ("0", "1"):
        raise ArgumentError(f"{PARTITIONS} is '{asked[:60]}'; it must be 0 or 1.")
    return asked == "1"


def _from_this_machine(request: Request) -> bool:
    if request.client is None or not _is_loopback(request.client.host):
        return False
    if any(name in request.headers for name in PROXY_HEADERS):
        return False
    try:
        called = (request.url.hostname or "").lower()
    except ValueError:
        return False
    return called == "localhost" or called.endswith(".localhost") or _is_loopback(called)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
