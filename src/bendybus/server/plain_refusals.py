"""The answers to clients without TLS, on a server that requires it (`--require-tls`).

Over AMQP the client may open its connection and is then told in a close frame. Only anonymous logins are
offered, so no key is sent in the clear; the token that it would put comes later and is never
read. Over HTTP every request but `/health` gets an Error document, WebSockets included. Probes of
load balancers ask for `/health`, and it tells nothing about what is in the server.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from bendybus import audit
from bendybus.admin.documents import error_response
from bendybus.broker.clock import now
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.engine.events import ConnectionClosed, ConnectionFailed, ConnectionOpened, SaslInitReceived
from bendybus.errors import TlsRequired

__all__ = ["PlainAmqpRefusal", "PlainHttpRefusal"]

PLAIN_SCHEMES: Final = ("http", "ws")

CONFIG: Final = ConnectionConfig(
    container_id="bendybus",
    sasl_mechanisms=("MSSBCBS", "ANONYMOUS", "EXTERNAL"),
    require_sasl=False,
    channel_max=0,
    links_max=0,
)

# To open a connection and to read why it is closed.
TIME_S: Final = 10.0


class PlainAmqpRefusal(asyncio.Protocol):
    """One AMQP connection without TLS, from its first bytes to our refusal."""

    def __init__(self) -> None:
        self._engine = Connection.server(CONFIG)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._end: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._end = self._loop.call_later(TIME_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        events = list(self._engine.receive_data(data, self._loop.time()))
        while events:
            match events.pop(0):
                case SaslInitReceived():
                    events += self._engine.sasl_outcome(ok=True)
                case ConnectionOpened():
                    peer = audit.peer_name(self._transport.get_extra_info("peername"))
                    audit.record("connection-refused", audit.Actor("", peer), reason="tls-required")
                    self._engine.close(TlsRequired())
                case ConnectionClosed() | ConnectionFailed():
                    self._transport.write(self._engine.data_to_send())
                    self._transport.close()
                    return
        self._transport.write(self._engine.data_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()


class PlainHttpRefusal:
    """An ASGI application before another one, which it lets only TLS reach."""

    def __init__(self, app: ASGIApp, open_path: str) -> None:
        self._app = app
        self._open_path = open_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["scheme"] not in PLAIN_SCHEMES or scope["path"] == self._open_path:
            await self._app(scope, receive, send)
            return
        audit.record("connection-refused", reason="tls-required")
        refusal = error_response(TlsRequired(), scope["path"].strip("/"), now())
        # A body may be on its way; it is not read.
        refusal.headers["connection"] = "close"
        await _refuse(refusal, scope, receive, send)


async def _refuse(refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(refusal)
    else:
        await refusal(scope, receive, send)
