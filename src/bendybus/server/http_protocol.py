"""uvicorn's HTTP and WebSocket protocols on connections that our listener accepted.

`uvicorn.Server` binds sockets, handles signals and owns the process; none of that
is wanted here, so its protocol classes are driven directly: a loaded `Config`, a
`ServerState`, and one protocol object per connection. What uvicorn leaves open is
bounded here: how many bytes a request's head may have and how long it may take, and
how much is read of the requests that a client sends ahead. WebSockets:
websocket_protocol.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, TypeAlias

import httptools
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from bendybus.admin.documents import error
from bendybus.atom import ERROR_TYPE
from bendybus.broker.clock import now
from bendybus.errors import ArgumentError, BrokerError
from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.rest.headers import HEADER_SPELLINGS
from bendybus.server.websocket_protocol import BoundedWebSocket

__all__ = ["HttpHost", "TakeOver"]

logger = logging.getLogger(__name__)

TakeOver: TypeAlias = Callable[[bytes, bytes, list[tuple[bytes, bytes]], str], asyncio.Protocol | None]
"""Gives the protocol that takes over a WebSocket as bytes, by its method, URL, headers and scheme.

None: the WebSocket is the application's.
"""

# Request line and headers together. Service Bus allows 64 KB of message headers; as much for the rest. The
# same limit holds for trailers, and for all that stands between two pieces of a body.
HEAD_BYTES_MAX: Final = 128 * 1024

# As long as the listener waits for the first bytes of a connection.
HEAD_TIMEOUT_S: Final = 20.0

HTTP_VERSIONS: Final = ("1.0", "1.1")

# One WebSocket message. Clients send an AMQP frame or less in each, and frames are far smaller.
WEBSOCKET_MESSAGE_MAX: Final = 4 * 1024 * 1024

# Kept connections make HTTP receives faster (P-29): long enough for a client that polls once a minute.
KEEP_ALIVE_S: Final = 75

# What the parser is given at a time. It cannot stop inside a piece, so this is as much as is parsed of the
# requests that were sent ahead: two dozen of the smallest.
PIECE_BYTES: Final = 1024

# A request may wait for a message. Only this much of its time counts as work.
PIECE_WORK_MAX_S: Final = 0.05


class TurnsOfSentAhead:
    """When the next piece of requests that were sent ahead is parsed: they get half of the time together.

    If they got all of it, the event loop would never be idle, and the threads of the stores would have to
    wait for the interpreter lock several times in every commit.
    """

    def __init__(self) -> None:
        self._free_at = 0.0

    def next(self, at: float, took_s: float) -> float:
        """The time for a connection whose last piece took this long."""
        took_s = min(took_s, PIECE_WORK_MAX_S)
        start = max(at + took_s, self._free_at)
        self._free_at = start + 2 * took_s
        return start


class HoldableFlow(FlowControl):
    """uvicorn's flow control, which resumes reading only when nothing that was read waits to be parsed."""

    held = False
    held_back = False
    """By the memory budget."""

    def resume_reading(self) -> None:
        if not self.held and not self.held_back:
            super().resume_reading()


class BoundedHttpProtocol(HttpToolsProtocol):
    """An HTTP connection whose request heads are limited in size and in time.

    While a whole request waits for its answer, nothing behind it is parsed: the rest of the socket read
    is held, and the socket is not read.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        head_timeout_s: float,
        budget: MemoryBudget,
        turns: TurnsOfSentAhead,
        take_over: TakeOver | None = None,
    ) -> None:
        super().__init__(config, state, app_state={})
        # uvicorn sets it when a request begins, and a line end may come before the first one.
        self.url = b""
        self._take_over = take_over
        self._turns = turns
        self._piece_began = 0.0
        """When the last piece was parsed, by the loop's time."""
        self._budget = budget
        self._account = budget.open(self)
        self._body_bytes = 0
        """Of the request under way: the application keeps its body until it has answered."""
        self._head_timeout_s = head_timeout_s
        self._overhead_bytes = 0
        """Parsed since the last byte of a body or the end of a request: heads, trailers, sizes of chunks."""
        self._spellings: list[bytes] = []
        self._head_timer: asyncio.TimerHandle | None = None
        """Runs while a head is awaited or under way, and so tells whether one is."""
        self._upgraded = False
        self._held: bytes | None = None
        """Read from the socket, and not to be parsed before the request before it has been answered."""
        self._held_flow: HoldableFlow
        self._under_way: list[RequestResponseCycle] = []
        """Requests without an answer yet; of those that were sent ahead uvicorn knows only the last."""
        self._objection = ""
        """What is wrong with the head that has just arrived, though it can be parsed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.flow = self._held_flow = HoldableFlow(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._held is not None:
            # A transport may hand over what it had already read when it was told to pause.
            self._held += data
        else:
            self._parse(data)
        self._update_account()

    def hold_back(self, held_back: bool) -> None:
        """Called by the memory budget: stop reading a growing body, or continue."""
        self._held_flow.held_back = held_back
        if held_back:
            self._held_flow.pause_reading()
        else:
            self._held_flow.resume_reading()

    def evict(self, reason: BrokerError) -> None:
        """Called by the memory budget: answer with the reason, if no answer has begun, and disconnect."""
        logger.warning("HTTP connection from %s closed: %s", self.client, reason.description)
        self.loop.call_soon(self._give_up, reason)

    def _give_up(self, reason: BrokerError) -> None:
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and cycle.response_started:
            self.transport.abort()
            return
        if cycle is not None:
            # For the application the client is gone.
            cycle.disconnected = True
            cycle.message_event.set()
        self._refuse(reason)
        self._close_account()
        self.transport.close()

    def _update_account(self) -> None:
        self._account.update(self._body_bytes + (0 if self._held is None else len(self._held)))

    def _close_account(self) -> None:
        self._held = None
        self._body_bytes = 0
        self._account.close()
        self._update_account()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._overhead_bytes = 0
        if self.cycle is not None and not self.cycle.response_complete:
            self._body_bytes += len(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._body_bytes = 0
        self._update_account()
        if self._held is not None and not self.pipeline:
            # Later: the answer must be sent first, and other connections are waiting too.
            at = self.loop.time()
            self.loop.call_at(self._turns.next(at, at - self._piece_began), self._parse_held)

    @property
    def _answering(self) -> bool:
        """Whether a request is complete and its answer is not."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _parse(self, data: bytes) -> None:
        """Parse up to the end of a request; hold what comes after it."""
        for start in range(0, len(data), PIECE_BYTES):
            if self._upgraded or self.transport.is_closing():
                return
            if self._answering or self.pipeline:
                self._hold(data[start:])
                return
            self._parse_piece(data[start : start + PIECE_BYTES])
        if self.pipeline and self._head_timer is not None:
            # The rest of the next head is not awaited yet, so its sender is not slow.
            self._hold(b"")

    def _parse_piece(self, data: bytes) -> None:
        self._piece_began = self.loop.time()
        self._overhead_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._is_line_without_version(data):
            # A request of HTTP/0.9 is one line and has no headers: nothing more would come.
            self.send_400_response("HTTP/0.9 is not spoken here; HTTP/1.1 is.")
            return
        # Checked after parsing: a body may follow a small head in one piece.
        if self._overhead_bytes > HEAD_BYTES_MAX and self.parser is not None:
            self.send_400_response(
                f"The request has more than {HEAD_BYTES_MAX} bytes of headers, trailers or chunk extensions."
            )

    def _hold(self, data: bytes) -> None:
        self._held = data
        self._held_flow.held = True
        self._held_flow.pause_reading()
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _parse_held(self) -> None:
        held, self._held = self._held, None
        if held is None or self.transport.is_closing():
            return
        self._held_flow.held = False
        if self._head_timer is not None:
            self._head_timer = self.loop.call_later(self._head_timeout_s, self.transport.abort)
        self._parse(held)
        self._held_flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Input that is not HTTP is refused with an Error document, like every other refusal."""
        self._refuse(ArgumentError(self._objection or msg))
        self.transport.close()

    def _refuse(self, reason: BrokerError) -> None:
        body = error(reason, "", now()).encode()
        _refresh_date(self.server_state)
        status = HTTPStatus(reason.status)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}".encode(),
            *(b"%s: %s" % each for each in self.server_state.default_headers),
        ]
        lines.append(f"content-type: {ERROR_TYPE}".encode())
        lines += [b"content-length: %d" % len(body), b"connection: close"]
        self.transport.write(b"\r\n".join([*lines, b"", body]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # ASGI lower-cases the names of headers; where one is a message property's, case counts.
        self._spellings = []
        self.scope["extensions"] = {HEADER_SPELLINGS: self._spellings}  # type: ignore[dict-item]  # ours
        if self._head_timer is None:
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_timer is None:
            # "a recipient MUST NOT merge a field from the trailer section into the header section unless"
            # it understands it and that field's definition permits it [RFC 9110 6.5.1]
            return
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
        if self.cycle is not None:
            self._under_way = [each for each in self._under_way if not each.response_complete]
            self._under_way.append(self.cycle)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._overhead_bytes = 0

    def handle_websocket_upgrade(self) -> None:
        # "A server MUST accept the absolute-form in requests" [RFC 9112 3.2.2]; the Java SDK uses it. For
        # WebSockets uvicorn passes the target on as it came, so it gets the path that it found in it.
        self._upgraded = True
        target = httptools.parse_url(self.url)
        self.url = target.path + (b"?" + target.query if target.query else b"")
        self._close_account()
        if self._take_over is not None:
            taker = self._take_over(
                self.scope["method"].encode(), self.url, self.headers, self.scope["scheme"]
            )
            if taker is not None:
                self.connections.discard(self)
                self.transport.set_protocol(taker)
                taker.connection_made(self.transport)
                return
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, BoundedWebSocket), "as HttpHost has configured it"
        protocol.open_account(self._budget)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_account()
        self._head_arrived()
        super().connection_lost(exc)
        # Nothing more is written for any of them.
        for cycle in self._under_way:
            cycle.disconnected = True

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
        self._overhead_bytes = 0
        self._head_timer = self.loop.call_later(self._head_timeout_s, self.transport.abort)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpHost:
    """Makes the protocols of HTTP connections, all serving one ASGI application."""

    def __init__(
        self,
        app: ASGIApp,
        budget: MemoryBudget | None = None,
        *,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        take_over: TakeOver | None = None,
    ) -> None:
        self._take_over = take_over
        self._budget = budget or MemoryBudget()
        self._config = Config(
            app,
            http=BoundedHttpProtocol,
            ws=BoundedWebSocket,
            ws_max_size=WEBSOCKET_MESSAGE_MAX,
            # AMQP has its own heartbeats, and some clients read (and so answer pings) only now and then.
            ws_ping_interval=None,
            # A few bytes could otherwise unpack into gigabytes.
            ws_per_message_deflate=False,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            # A log line per WebSocket is not useful; warnings are.
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._turns = TurnsOfSentAhead()
        self._head_timeout_s = head_timeout_s

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one new connection; give this method to the listener."""
        return BoundedHttpProtocol(
            self._config, self._state, self._head_timeout_s, self._budget, self._turns, self._take_over
        )

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
        # In place: connections keep a reference to this list.
        state.default_headers[:] = [(b"date", date)]
