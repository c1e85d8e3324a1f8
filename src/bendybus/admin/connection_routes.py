"""The AMQP connections of a namespace over HTTP: list them, and close one.

    GET     /$connections         a page of them: who, from where, links, credit, messages so far
                                  ?skip=0&top=50
    DELETE  /$connections/{id}    close one; the client is told that an operator did, and may connect again

Manage on the whole namespace is needed. Answers are JSON. A server with several brokers shows and closes the
connections of all of them, and an id begins with the name of the broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus import audit
from bendybus.admin.other_brokers import OtherBrokers
from bendybus.admin.pages import page_of
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.errors import BrokerError
from bendybus.namespaces import Namespace

__all__ = ["ConnectionKeeper", "connection_routes"]

# Questions to the other brokers.
CONNECTIONS: Final = "connections"
CLOSE_CONNECTION: Final = "close-connection"


class ConnectionKeeper(Protocol):
    """Knows the connections of namespaces: gateway/connection_list.py."""

    def list(self, namespace: Namespace) -> list[dict[str, Any]]: ...

    def close(self, namespace: Namespace, number: str) -> str | None:
        """The address of the client whose connection was closed; None if there is no such connection."""
        ...


class _Listed(NamedTuple):
    """How many connections there are, and the first of them."""

    total: int
    connections: list[dict[str, Any]]


def connection_routes(
    namespace: Namespace, keeper: ConnectionKeeper, others: OtherBrokers | None = None
) -> list[BaseRoute]:
    """Must come before the management API, for which every path may be an entity.

    `others`: None for a server with one broker.
    """
    api = _ConnectionApi(namespace, keeper, others)
    return [
        Route("/$connections", api.all_connections, methods=["GET"]),
        Route("/$connections/{number}", api.one_connection, methods=["DELETE"]),
    ]


class _ConnectionApi:
    def __init__(self, namespace: Namespace, keeper: ConnectionKeeper, others: OtherBrokers | None) -> None:
        self._namespace = namespace
        self._keeper = keeper
        self._others = others
        if others is not None:
            others.answer(CONNECTIONS, int, self._first)
            others.answer(CLOSE_CONNECTION, str, self._close_here)

    async def all_connections(self, request: Request) -> Response:
        return await self._answer(request, self._list)

    async def one_connection(self, request: Request) -> Response:
        return await self._answer(request, self._close)

    async def _answer(
        self, request: Request, operation: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        try:
            authorise(request.headers, self._namespace.keys, "", Right.MANAGE, now())
            return await operation(request)
        except BrokerError as refusal:
            audit.record_refused_change(request.method, request.url.path, refusal)
            return JSONResponse({"error": refusal.description}, refusal.status)

    # -- list ---------------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        skip, top = page_of(request.query_params)
        listed = await self._first(skip + top)
        if self._others is None:
            shown = listed.connections[skip:]
            return JSONResponse({"at": now(), "count": listed.total, "connections": shown})
        # The first ones of all are among the first ones of each.
        answers = await self._others.ask_all(CONNECTIONS, skip + top, _Listed)
        answers[self._others.name] = listed
        found = [
            each | {"id": f"{broker}-{each['id']}", "broker": broker}
            for broker, of_broker in answers.items()
            for each in of_broker.connections
        ]
        found.sort(key=itemgetter("since"))
        silent = sorted({*self._others.brokers} - answers.keys())
        return JSONResponse(
            {
                "at": now(),
                "count": sum(of_broker.total for of_broker in answers.values()),
                "connections": found[skip : skip + top],
                "unreachableBrokers": silent,
            }
        )

    async def _first(self, count: int) -> _Listed:
        """The oldest connections of this broker."""
        found = self._keeper.list(self._namespace)
        return _Listed(len(found), found[:count])

    # -- close --------------------------------------------------------------------

    async def _close(self, request: Request) -> Response:
        number = request.path_params["number"]
        client = await self._closed(number)
        if not client:
            return JSONResponse({"error": f"There is no connection '{number[:60]}'."}, 404)
        audit.record("connection-closed", connection=number, client=client)
        return JSONResponse({"id": number, "closed": True})

    async def _closed(self, number: str) -> str:
        """The client's address; an empty text if there is no such connection."""
        if self._others is None:
            return await self._close_here(number)
        broker, _, own_number = number.rpartition("-")
        if broker == self._others.name:
            return await self._close_here(own_number)
        if broker not in self._others.brokers:
            return ""
        return await self._others.ask(broker, CLOSE_CONNECTION, own_number, str)

    async def _close_here(self, number: str) -> str:
        return self._keeper.close(self._namespace, number) or ""
