"""uvicorn's HTTP and WebSocket protocols on connections that our listener accepted.

`uvicorn.Server` binds sockets, handles signals and owns the process; none of that
is wanted here, so its protocol classes are driven directly: a loaded `Config`, a
`ServerState`, and one protocol object per connection. What uvicorn leaves open is
bounded here: how many bytes a request's head may have and how long it may take.
"""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Final

import httptools
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from uvicorn.server import ServerState

from bendybus.admin.atom import ERROR_TYPE, document, error
from bendybus.admin.rest_headers import HEADER_SPELLINGS
from bendybus.broker.clock import now
from bendybus.errors import ArgumentError

__all__ = ["HttpHost"]

# Request line and headers together. Service Bus allows 64 KB of message headers; as much for the rest.
HEAD_BYTES_MAX: Final = 128 * 1024

# As long as the listener gives a connection to say its first word.
HEAD_TIMEOUT_S: Final = 20.0

HTTP_VERSIONS: Final = ("1.0", "1.1")

# One WebSocket message. Clients send an AMQP frame or less in each, and frames are far smaller.
WEBSOCKET_MESSAGE_MAX: Final = 4 * 1024 * 1024

# Kept connections make HTTP receives faster (P-29): long enough for a client that polls once a minute.
KEEP_ALIVE_S: Final = 75


class BoundedHttpProtocol(HttpToolsProtocol):
    """An HTTP connection whose request heads are limited in size and in time."""

    def __init__(self, config: Config, state: ServerState, head_timeout_s: float) -> None:
        super().__init__(config, state, app_state={})
        self._head_timeout_s = head_timeout_s
        self._head_bytes = 0
        self._spellings: list[bytes] = []
        self._head_timer: asyncio.TimerHandle | None = None
        """Runs while a head is awaited or under way, and so tells whether one is."""
        self._objection = ""
        """What is wrong with the head that has just arrived, though it can be parsed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._is_line_without_version(data):
            # A request of HTTP/0.9 is one line and has no headers: nothing more would come.
            self.send_400_response("HTTP/0.9 is not spoken here; HTTP/1.1 is.")
            return
        # Checked after parsing: a large body may follow a small head in one read.
        if self._head_timer is not None and self._head_bytes > HEAD_BYTES_MAX and self.parser is not None:
            self.send_400_response(f"The request's head is longer than {HEAD_BYTES_MAX} bytes.")

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP at all is refused in the shape of every other refusal."""
        body = document(error(ArgumentError(self._objection or msg), "", now()))
        _refresh_date(self.server_state)
        lines = [
            b"HTTP/1.1 400 Bad Request",
            *(b"%s: %s" % each for each in self.server_state.default_headers),
        ]
        lines.append(f"content-type: {ERROR_TYPE}".encode())
        lines += [b"content-length: %d" % len(body), b"connection: close"]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # ASGI lower-cases the names of headers; where one is a message property's, case counts.
        self._spellings = []
        self.scope["extensions"] = {HEADER_SPELLINGS: self._spellings}  # type: ignore[dict-item]  # ours
        if self._head_timer is None:
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._spellings.append(name)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._objection = self._what_is_wrong()
        if self._objection:
            # The parser stops at it, and uvicorn calls `send_400_response`.
            raise ArgumentError(self._objection)
        self._head_arrived()
        _refresh_date(self.server_state)
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        # "A server MUST accept the absolute-form in requests" [RFC 9112 3.2.2]; the Java SDK uses it. For
        # WebSockets uvicorn passes the target on as it came, so it gets the path that it found in it.
        target = httptools.parse_url(self.url)
        self.url = target.path + (b"?" + target.query if target.query else b"")
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def _what_is_wrong(self) -> str:
        """Why the head is refused: what two programs on its way would read differently."""
        if self._version() not in HTTP_VERSIONS:
            return f"HTTP/{self._version()} is not spoken here; HTTP/1.1 is."
        # "A server MUST respond with a 400 [...] to any request message that contains more than one Host
        # header field line" [RFC 9112 3.2]
        if sum(name == b"host" for name, _ in self.headers) > 1:
            return "The request has more than one Host header."
        if b"%00" in self.url:
            return "The URL has a NUL in it."
        return ""

    def _is_line_without_version(self, data: bytes) -> bool:
        return self.parser is not None and bool(self.url) and self._version() == "0.0" and data[-1:] == b"\n"

    def _version(self) -> str:
        version: str = self.parser.get_http_version()
        return version

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self._head_timeout_s, self.transport.abort)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpHost:
    """Makes the protocols of HTTP connections, all serving one ASGI application."""

    def __init__(self, app: ASGIApp, *, head_timeout_s: float = HEAD_TIMEOUT_S) -> None:
        self._config = Config(
            app,
            http=BoundedHttpProtocol,
            ws=WSProtocol,
            ws_max_size=WEBSOCKET_MESSAGE_MAX,
            # AMQP has its own heartbeats, and some clients read (and so answer pings) only now and then.
            ws_ping_interval=None,
            # A few bytes could otherwise unpack into gigabytes.
            ws_per_message_deflate=False,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            # One line per WebSocket is of interest to nobody; its warnings are.
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._head_timeout_s = head_timeout_s

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one new connection; give this method to the listener."""
        return BoundedHttpProtocol(self._config, self._state, self._head_timeout_s)

    async def close(self, grace_s: float = 5.0) -> None:
        """Let the requests under way finish, then end every connection."""
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=grace_s)
            for task in late:
                task.cancel()


def _refresh_date(state: ServerState) -> None:
    # A server with a clock has to send its date [RFC 9110 6.6.1]; uvicorn leaves that to its own server.
    date = formatdate(time.time(), usegmt=True).encode()
    if not state.default_headers or state.default_headers[0][1] != date:
        # In place: connections hold on to this very list.
        state.default_headers[:] = [(b"date", date)]
