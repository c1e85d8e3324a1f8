"""The portal of a server: a separate process, which the first visit to `/portal` starts.

The process runs `python -m bendybus_portal` and listens on a socket in a private folder. Its settings, among
them the connection string that the one-time code stands for, are written to its standard input: arguments and
environments can be read by others. It ends when its standard input ends, so it never outlives the server.
Requests are passed on by portal_passing.py. A server without the extra `bendybus[portal]` says how to
install it.

Of several brokers on one machine, which share a port, the first one starts the process, and the others pass
requests on to the same socket. Each broker of a cluster has its own port, and so its own portal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from bendybus.errors import BrokerError, ServerBusy, Unavailable
from bendybus.server.portal_passing import Tunnel, pass_request

__all__ = ["PORTAL_PATH", "START_TIMEOUT_S", "Portal", "PortalTarget", "portal_is_installed"]

logger = logging.getLogger(__name__)

PORTAL_PATH: Final = "/portal"

# How clients of a namespace sign their requests. A queue may be called `portal`, and its clients sign.
SIGNATURES: Final = ("sharedaccesssignature", "bearer")

# NiceGUI is imported within a second or two; a machine that is loaded may need much longer.
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 5.0
# After a start that failed, the next visit does not try again at once.
START_AGAIN_AFTER_S: Final = 5.0

# A page loads a few dozen files, and a browser opens six connections at most.
REQUESTS_MAX: Final = 64
# One for each page that is open in a browser.
TUNNELS_MAX: Final = 256

HOW_TO_INSTALL: Final = """The portal of this Bendybus server is not installed.

Install it beside the server and restart the server:

    pip install 'bendybus[portal]'
"""

NO_SOCKETS: Final = """This system has no Unix sockets, so the server cannot show the portal here.

Run it beside the server: bendybus portal
"""


def portal_is_installed() -> bool:
    return find_spec("nicegui") is not None and find_spec("bendybus_portal") is not None


@dataclass(frozen=True, slots=True)
class PortalTarget:
    """What the portal's process is told about the server."""

    connection_string: str = field(repr=False)
    """Of the first namespace, with the root key. The one-time code stands for it."""
    certificate: str | None
    """The file with the server's self-made certificate, if clients have to use TLS."""
    with_code: bool
    """Whether a one-time code signs in: only where nobody else can reach the server."""


class Portal:
    def __init__(self, elsewhere: Callable[[], Awaitable[str]] | None = None) -> None:
        """`elsewhere`: asks the broker that starts the process for its address; None if this one does."""
        self._elsewhere = elsewhere
        self._target: PortalTarget | None = None
        self._code = ""
        self._starting: asyncio.Task[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None
        self._failed_at: float | None = None
        self._passing = 0
        self._tunnels: dict[Tunnel, None] = {}
        self._closed = False

    def serve(self, target: PortalTarget) -> str:
        """The server accepts connections now. Returns the one-time code, or an empty text."""
        self._target = target
        self._code = secrets.token_urlsafe(24) if target.with_code else ""
        return self._code

    @property
    def route(self) -> BaseRoute:
        """To be tried before the routes of namespaces."""
        return _PortalRoute(self)

    async def close(self) -> None:
        """Close what is open in browsers, and end the process."""
        self._closed = True
        for tunnel in tuple(self._tunnels):
            tunnel.abort()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._end_process()

    # -- requests -----------------------------------------------------------------

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request under `/portal`."""
        try:
            if not portal_is_installed():
                await PlainTextResponse(HOW_TO_INSTALL, 501)(scope, receive, send)
                return
            if not hasattr(asyncio, "open_unix_connection"):
                await PlainTextResponse(NO_SOCKETS, 501)(scope, receive, send)
                return
            if self._passing >= REQUESTS_MAX:
                raise ServerBusy("Too many requests to the portal are under way. Please retry.")
            self._passing += 1
            try:
                await pass_request(await self.address(), scope, receive, send)
            finally:
                self._passing -= 1
        except BrokerError as refusal:
            await _refusal(refusal)(scope, receive, send)

    def tunnel(
        self, method: bytes, url: bytes, headers: list[tuple[bytes, bytes]], scheme: str
    ) -> Tunnel | None:
        """For a WebSocket of the portal; None if it is not the portal's, or if there are too many."""
        path = url.partition(b"?")[0].decode("latin-1")
        text = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        if not is_for_portal(path, text) or self._closed or len(self._tunnels) >= TUNNELS_MAX:
            return None
        tunnel = Tunnel(self.address, method, url, headers, scheme, self._tunnels)
        self._tunnels[tunnel] = None
        return tunnel

    # -- the process --------------------------------------------------------------

    async def address(self) -> str:
        """The path of the process's socket. Starts the process if it does not run."""
        if self._elsewhere is not None and not self._closed:
            return await self._elsewhere()
        if self._closed or self._target is None:
            raise Unavailable("The server is starting or stopping.")
        starting = self._starting
        if starting is not None and starting.done() and not self._runs:
            starting = None
        if starting is None:
            at = asyncio.get_running_loop().time()
            if self._failed_at is not None and at < self._failed_at + START_AGAIN_AFTER_S:
                raise Unavailable("The portal could not be started; the server's log says why.")
            self._starting = starting = asyncio.create_task(self._start(self._target))
        return await asyncio.shield(starting)

    @property
    def _runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _start(self, target: PortalTarget) -> str:
        await self._end_process()
        self._folder = Path(tempfile.mkdtemp(prefix="bendybus-portal-"))
        address = str(self._folder / "portal.socket")
        # Another process, after this one has crashed, must not take the code a second time.
        code, self._code = self._code, ""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                process = self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "bendybus_portal"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
                assert process.stdin is not None and process.stdout is not None
                told = {
                    "socket": address,
                    "connection_string": target.connection_string,
                    "certificate": target.certificate,
                    "code": code,
                }
                process.stdin.write(json.dumps(told).encode() + b"\n")
                await process.stdin.drain()
                said = await process.stdout.readline()
            if said.strip() != b"ready":
                raise Unavailable("The portal ended before it was ready; the server's log says why.")
        # uvloop raises RuntimeError if the process has ended before it is written to.
        except (OSError, RuntimeError, TimeoutError, Unavailable) as error:
            self._failed_at = asyncio.get_running_loop().time()
            self._code = code
            logger.error("the portal could not be started: %s", error or "it took too long")
            await self._end_process()
            raise Unavailable("The portal could not be started; the server's log says why.") from error
        logger.info("the portal runs in process %d", process.pid)
        return address

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class _PortalRoute(BaseRoute):
    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        matches = scope["type"] == "http" and is_for_portal(scope["path"], Headers(scope=scope))
        return (Match.FULL if matches else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._portal.handle(scope, receive, send)


def is_for_portal(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request is a browser's to the portal, and not a client's to an entity of that name."""
    if path != PORTAL_PATH and not path.startswith(f"{PORTAL_PATH}/"):
        return False
    return not headers.get("authorization", "").lower().startswith(SIGNATURES)


def _refusal(refusal: BrokerError) -> Response:
    return PlainTextResponse(f"{refusal.description}\n", refusal.status, {"retry-after": "5"})
