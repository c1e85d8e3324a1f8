"""The HTTP side of the one port: health, metrics and AMQP over WebSocket.

Routes of other packages (management, REST) are passed in and tried after these, because an
entity may have any path. A path without a route gets an Error document with 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from bendybus.admin.documents import error_document
from bendybus.arm.resources import is_resource_path
from bendybus.atom import ERROR_TYPE
from bendybus.server.websocket import serve_amqp

__all__ = ["HEALTH_PATH", "RESERVED_NAMES", "Health", "http_app", "watching_app"]

# All SDKs use this path; .NET's adds a slash at its end.
WEBSOCKET_PATHS = ("/$servicebus/websocket", "/$servicebus/websocket/")

HEALTH_PATH = "/health"
METRICS_PATH = "/metrics"


# What no queue or topic may be called: a request for it would never reach it. Names that begin with a
# dollar sign are refused anyway.
class _ReservedNames(frozenset[str]):
    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and is_resource_path(name))


RESERVED_NAMES = _ReservedNames(
    path.strip("/").lower() for path in (HEALTH_PATH, METRICS_PATH, *WEBSOCKET_PATHS)
)


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of `/health`: 200 if ready, otherwise 503, with the details in both cases."""

    ready: bool
    details: Mapping[str, object] = field(default_factory=dict)
    draining: str = ""
    """Why clients should use another broker, although this one serves those that it has."""


def http_app(
    *,
    amqp: Callable[[], asyncio.Protocol],
    health: Callable[[], Health],
    metrics: Callable[[Request], Awaitable[Response]],
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """The ASGI application for every HTTP connection of a server."""

    async def bridge(websocket: WebSocket) -> None:
        await serve_amqp(websocket, amqp)

    return _application(
        [
            *_watching_routes(health, metrics),
            *routes,
            *(WebSocketRoute(path, bridge) for path in WEBSOCKET_PATHS),
            WebSocketRoute("/{path:path}", _no_such_websocket),
        ]
    )


def watching_app(
    *, health: Callable[[], Health], metrics: Callable[[Request], Awaitable[Response]]
) -> Starlette:
    """The application of a port that serves metrics and health, and nothing else."""
    return _application(
        [*_watching_routes(health, metrics), WebSocketRoute("/{path:path}", _no_such_websocket)]
    )


def _watching_routes(
    health: Callable[[], Health], metrics: Callable[[Request], Awaitable[Response]]
) -> list[BaseRoute]:
    async def show_health(request: Request) -> Response:
        state = health()
        # The words of the vendor's emulator, for scripts that wait for them.
        status = "healthy" if state.ready else "unhealthy"
        message = "The server takes connections." if state.ready else "The server is starting or stopping."
        if state.draining:
            status, message = "draining", state.draining
        answer = {"status": status, "message": message, **state.details}
        return JSONResponse(answer, status_code=200 if state.ready else 503)

    return [Route(HEALTH_PATH, show_health), Route(METRICS_PATH, metrics)]


def _application(routes: Sequence[BaseRoute]) -> Starlette:
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _explain},  # type: ignore[dict-item]  # starlette wants Exception
    )
    # `/health/` is not `/health`: a redirect would only hide a client's mistake.
    app.router.redirect_slashes = False
    return app


async def _explain(request: Request, error: HTTPException) -> Response:
    """What no route serves, such as `OPTIONS *`, is refused in the shape of every other refusal."""
    text = f"Nothing is served at '{request.url.path}'." if error.status_code == 404 else error.detail
    body = error_document(error.status_code, f"SubCode={error.status_code}00. {text}")
    return Response(body, error.status_code, headers=error.headers, media_type=ERROR_TYPE)


async def _no_such_websocket(websocket: WebSocket) -> None:
    refusal = {"error": f"AMQP over WebSocket is served at '{WEBSOCKET_PATHS[0]}'"}
    await websocket.send_denial_response(JSONResponse(refusal, status_code=404))
