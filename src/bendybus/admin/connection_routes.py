"""The AMQP connections of a namespace over HTTP: list them, and close one.

    GET     /$connections         a page of them: who, from where, links, credit, messages so far
                                  ?skip=0&top=50
    DELETE  /$connections/{id}    close one; the client is told that an operator did, and may connect again

Manage on the whole namespace is needed. Answers are JSON.
"""

from __future__ import annotations

from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus import audit
from bendybus.admin.pages import page_of
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.errors import BrokerError, NotSupported
from bendybus.namespaces import Namespace

__all__ = ["ConnectionKeeper", "connection_routes"]


class ConnectionKeeper(Protocol):
    """Knows the connections of namespaces: gateway/connection_list.py."""

    def list(self, namespace: Namespace) -> list[dict[str, object]]: ...

    def close(self, namespace: Namespace, number: str) -> str | None:
        """The address of the client whose connection was closed; None if there is no such connection."""
        ...


def connection_routes(namespace: Namespace, keeper: ConnectionKeeper | None) -> list[BaseRoute]:
    """Must come before the management API, for which every path may be an entity.

    `keeper`: None for one broker of several, which does not know the connections of the others.
    """

    def answered(request: Request, right: Right) -> Response:
        try:
            authorise(request.headers, namespace.keys, "", right, now())
            if keeper is None:
                raise NotSupported(
                    "This server has several brokers, and a broker cannot show the connections of others yet."
                )
            if request.method == "GET":
                skip, top = page_of(request.query_params)
                found = keeper.list(namespace)
                shown = found[skip : skip + top]
                return JSONResponse({"at": now(), "count": len(found), "connections": shown})
            number = request.path_params["number"]
            client = keeper.close(namespace, number)
            if client is None:
                return JSONResponse({"error": f"There is no connection '{number[:60]}'."}, 404)
            audit.record("connection-closed", connection=number, client=client)
            return JSONResponse({"id": number, "closed": True})
        except BrokerError as refusal:
            audit.record_refused_change(request.method, request.url.path, refusal)
            return JSONResponse({"error": refusal.description}, refusal.status)

    async def all_connections(request: Request) -> Response:
        return answered(request, Right.MANAGE)

    return [
        Route("/$connections", all_connections, methods=["GET"]),
        Route("/$connections/{number}", all_connections, methods=["DELETE"]),
    ]
