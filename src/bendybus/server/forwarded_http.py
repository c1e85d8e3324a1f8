"""HTTP requests that one broker passes on to another: management, where the catalog is.

The client is answered by the broker that it is connected to, with what the other one says. Tokens are checked
where the request is served. Messages over HTTP are not passed on: every broker reaches every partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bendybus import audit
from bendybus.admin.documents import error_response
from bendybus.broker.clock import now
from bendybus.cluster.peers import Peer
from bendybus.errors import BrokerError
from bendybus.http_bodies import RequestBody

__all__ = [
    "HTTP_CALL",
    "ForwardedRequest",
    "ForwardedResponse",
    "ForwardingRoute",
    "Refuse",
    "serve_forwarded",
]

Refuse: TypeAlias = Callable[[BrokerError, str], Response]
"""The response to a request, by its path, that cannot be passed on."""

HTTP_CALL: Final = "http"

# The largest description of an entity with all its rules is smaller.
BODY_MAX: Final = 4 * 1024 * 1024


class ForwardedRequest(msgspec.Struct, array_like=True, frozen=True):
    method: str
    scheme: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None


class ForwardedResponse(msgspec.Struct, array_like=True, frozen=True):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class ForwardingRoute(BaseRoute):
    """Matches every request, and lets another broker answer it."""

    def __init__(self, leader: Callable[[], Peer], refuse: Refuse | None = None) -> None:
        """`leader`: the broker that has the catalog now; `Unavailable` if there is none."""
        self._leader = leader
        self._refuse: Refuse = refuse or (lambda refusal, path: error_response(refusal, path, now()))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["type"] == "http" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self.answer(request)
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        """What the other broker answers."""
        scope = request.scope
        body = RequestBody(request.receive, request.headers.get("content-length"))
        try:
            forwarded = ForwardedRequest(
                request.method,
                scope.get("scheme", "http"),
                scope["path"],
                scope["query_string"],
                [(bytes(name), bytes(value)) for name, value in scope["headers"]],
                await body.read_document(BODY_MAX),
                scope.get("client"),
                scope.get("server"),
            )
            answer = await self._leader().call(HTTP_CALL, forwarded, ForwardedResponse)
        except BrokerError as refusal:
            response = self._refuse(refusal, request.url.path.strip("/"))
        else:
            response = Response(answer.body, answer.status)
            response.raw_headers = answer.headers
        if not await body.discard():
            response.headers["connection"] = "close"
        return response


async def serve_forwarded(app: ASGIApp, request: ForwardedRequest) -> ForwardedResponse:
    """The answer of this application to a request that another broker has passed on."""
    audit.enter(by="", peer=audit.peer_name(request.client))
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "client": request.client,
        "server": request.server,
    }
    incoming: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]
    started: list[Message] = []
    chunks: list[bytes] = []

    async def receive() -> Message:
        return incoming.pop() if incoming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.append(message)
        else:
            chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    (start,) = started
    headers = [(bytes(name), bytes(value)) for name, value in start.get("headers", ())]
    return ForwardedResponse(start["status"], headers, b"".join(chunks))
