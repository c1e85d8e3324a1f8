"""Passing requests of browsers to the portal's process: HTTP one request at a time, WebSockets byte by byte.

An HTTP request has its own connection to the process, so a connection of a browser, or of a proxy for many
clients, never leaves the server's own routes. A WebSocket cannot become anything else again, so its bytes
are passed on as they are: no frame is parsed here. Neither side is read faster than the other is written.
What the process learns about the browser's connection are headers that a browser cannot set: those that it
sends are removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, cast

import httptools
from starlette.types import Receive, Scope, Send

from bendybus.errors import BrokerError, ServerBusy, Unavailable
from bendybus.http_bodies import RequestBody

__all__ = ["Tunnel", "pass_request"]

# A form, or a Config.json to import.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
# How long the process may take to begin an answer, and between two pieces of it.
ANSWER_TIMEOUT_S: Final = 60.0
PIECE_BYTES: Final = 64 * 1024

# Of one connection and not of a request [RFC 9110 7.6.1]; or ours to set.
_HOP_BY_HOP: Final = frozenset({b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding"})
_OURS: Final = frozenset(
    {b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-prefix", b"x-forwarded-proto"}
)


def _head(method: bytes, url: bytes, headers: Iterable[tuple[bytes, bytes]], scheme: str, peer: str) -> bytes:
    lines = [method + b" " + url + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in headers]
    lines += [b"x-forwarded-proto: " + scheme.encode(), b"x-forwarded-for: " + peer.encode("latin-1")]
    return b"\r\n".join([*lines, b"", b""])


# -- HTTP ---------------------------------------------------------------------------


async def pass_request(address: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Pass a request to the process, and its answer back, piece by piece."""
    given: list[tuple[bytes, bytes]] = scope["headers"]
    announced = next((value.decode("latin-1") for name, value in given if name == b"content-length"), None)
    body = await RequestBody(receive, announced).read(
        BODY_BYTES_MAX, f"The body has more than {BODY_BYTES_MAX} bytes."
    )
    dropped = _HOP_BY_HOP | _OURS | {b"content-length", b"upgrade", b"expect"}
    headers = [(name, value) for name, value in given if name not in dropped]
    headers += [(b"connection", b"close"), (b"content-length", b"%d" % len(body))]
    url = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    client = scope.get("client") or ("", 0)
    head = _head(scope["method"].encode(), url, headers, scope["scheme"], client[0])
    try:
        reader, writer = await asyncio.open_unix_connection(address)
    except OSError as error:
        raise Unavailable("The portal does not answer.") from error
    try:
        writer.write(head + body)
        await _pass_answer(reader, send)
    except (OSError, TimeoutError, httptools.HttpParserError) as error:
        raise Unavailable("The portal does not answer.") from error
    finally:
        writer.close()


class _Answer:
    """What the parser has found since the last piece."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.headed = False
        self.ended = False
        self.pieces: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        # The server dates all its answers.
        if name.lower() not in _HOP_BY_HOP and name.lower() != b"date":
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.headed = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.ended = True


async def _pass_answer(reader: asyncio.StreamReader, send: Send) -> None:
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    started = False
    while not answer.ended:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            data = await reader.read(PIECE_BYTES)
        if not data:
            if not started:
                raise OSError("no answer")
            break
        parser.feed_data(data)
        if answer.headed and not started:
            started = True
            await send(
                {
                    "type": "http.response.start",
                    "status": parser.get_status_code(),
                    "headers": answer.headers,
                }
            )
        pieces, answer.pieces = answer.pieces, []
        if pieces:
            # Returns when the browser has taken most of it.
            await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# -- WebSockets ---------------------------------------------------------------------


class Tunnel(asyncio.Protocol):
    """The browser's end: what it sends goes to the process, and back."""

    def __init__(
        self,
        address: Callable[[], Awaitable[str]],
        method: bytes,
        url: bytes,
        headers: list[tuple[bytes, bytes]],
        scheme: str,
        tunnels: dict[Tunnel, None],
    ) -> None:
        self._address = address
        self._request = (method, url, [each for each in headers if each[0] not in _OURS], scheme)
        self._tunnels = tunnels
        self._browser: asyncio.Transport | None = None
        self._portal: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._browser = cast(asyncio.Transport, transport)
        # "Once a connection to the server has been established [...] the client MUST wait for a response from
        # the server before sending any further data." [RFC 6455 4.1]
        self._browser.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        method, url, headers, scheme = self._request
        assert self._browser is not None
        peer = (self._browser.get_extra_info("peername") or ("",))[0]
        try:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_unix_connection(lambda: _PortalEnd(self), await self._address())
        except (OSError, BrokerError):
            self._refuse(ServerBusy("The portal does not answer."))
            return
        if self._browser is None:
            transport.abort()
            return
        self._portal = transport
        transport.write(_head(method, url, headers, scheme, str(peer)))
        self._browser.resume_reading()

    def _refuse(self, reason: BrokerError) -> None:
        if self._browser is not None:
            body = reason.description.encode()
            self._browser.write(
                b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
                b"content-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            self._browser.close()

    def data_received(self, data: bytes) -> None:
        if self._portal is not None:
            self._portal.write(data)

    def pause_writing(self) -> None:
        """The browser takes no more: the process is not read meanwhile."""
        if self._portal is not None:
            self._portal.pause_reading()

    def resume_writing(self) -> None:
        if self._portal is not None:
            self._portal.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._browser = None
        self._tunnels.pop(self, None)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._portal is not None:
            self._portal.abort()

    def abort(self) -> None:
        if self._browser is not None:
            self._browser.abort()

    # -- the process's end --------------------------------------------------------

    def portal_sent(self, data: bytes) -> None:
        if self._browser is not None:
            self._browser.write(data)

    def portal_paused(self, paused: bool) -> None:
        if self._browser is not None and not self._browser.is_closing():
            if paused:
                self._browser.pause_reading()
            else:
                self._browser.resume_reading()

    def portal_left(self) -> None:
        self._portal = None
        if self._browser is not None:
            self._browser.close()


class _PortalEnd(asyncio.Protocol):
    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel

    def data_received(self, data: bytes) -> None:
        self._tunnel.portal_sent(data)

    def pause_writing(self) -> None:
        self._tunnel.portal_paused(True)

    def resume_writing(self) -> None:
        self._tunnel.portal_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tunnel.portal_left()
