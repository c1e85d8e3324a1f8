"""The portal as an application and as a process: sign-in and pages behind the guard, under `/portal`.

The server starts `python -m bendybus_portal`, writes one line of settings to its standard input and waits for
`ready` (bendybus/server/portal.py). The process ends when its standard input does. `bendybus portal` runs the
same application on a port.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from bendybus.auth.connection_strings import ConnectionString

__all__ = ["PortalSettings", "make_app", "run_alone", "run_for_server"]

THREADS_MAX: Final = 32

# Below the broker, which shares the machine: of a busy core the portal gets a third of what the broker gets.
NICENESS: Final = 5


@dataclass(frozen=True, slots=True)
class PortalSettings:
    connection_string: str = field(repr=False)
    """The server, and the key that the one-time code stands for; the key may be missing."""
    certificate: str | None = None
    code: str = field(default="", repr=False)

    @property
    def target(self) -> ConnectionString:
        # A server whose keys are all refused has none to show.
        without_key = "sharedaccesskey=" not in self.connection_string.lower()
        return ConnectionString.parse(self.connection_string, "none" if without_key else "")


def make_app(settings: PortalSettings) -> ASGIApp:
    # NiceGUI keeps what it stores in files; nothing of ours is stored there.
    os.environ.setdefault(
        "NICEGUI_STORAGE_PATH", os.path.join(tempfile.gettempdir(), "bendybus-portal-unused")
    )
    # Imported here: they take a second, and a caller may want to say something before.
    from fastapi import FastAPI  # noqa: PLC0415
    from nicegui import ui  # noqa: PLC0415

    from bendybus_portal.guard import ROOT, Guard  # noqa: PLC0415
    from bendybus_portal.pages import add_pages  # noqa: PLC0415
    from bendybus_portal.sessions import Sessions  # noqa: PLC0415
    from bendybus_portal.signing_in import SignIn  # noqa: PLC0415
    from bendybus_portal.theme import ICON  # noqa: PLC0415

    sessions = Sessions(settings.target, settings.certificate)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.router.routes.extend(SignIn(sessions, settings.code).routes)
    add_pages()
    ui.run_with(
        app,
        mount_path=ROOT,
        title="Bendybus",
        favicon=ICON,
        dark=None,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        # A page survives a short interruption; after a longer one it is loaded again.
        reconnect_timeout=10.0,
        binding_refresh_interval=None,
    )
    return Guard(app, sessions)


def run_for_server() -> None:
    """For `python -m bendybus_portal`."""
    told = json.loads(sys.stdin.buffer.readline())
    settings = PortalSettings(told["connection_string"], told["certificate"], told["code"])
    server = _server(make_app(settings), uds=told["socket"])

    def wait() -> None:
        # Nothing more is written: this returns when the server has ended or wants the portal to end.
        sys.stdin.buffer.read()
        server.should_exit = True

    threading.Thread(target=wait, name="until-the-server-ends", daemon=True).start()
    asyncio.run(_serve(server, _begin))


def _begin() -> None:
    _yield_to_the_broker()
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _yield_to_the_broker() -> None:
    """Called late, because somebody waits for the first page. New threads inherit the priority."""
    with suppress(OSError):
        os.nice(NICENESS)
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            # Waking up does not interrupt the broker.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def run_alone(settings: PortalSettings, host: str, port: int, tell: Callable[[int], None]) -> None:
    """Serve on a port until SIGTERM or Ctrl+C. `tell` is given the port when it is ready."""
    server = _server(make_app(settings), host=host, port=port)
    asyncio.run(_serve(server, lambda: tell(server.servers[0].sockets[0].getsockname()[1])))


def _server(app: ASGIApp, uds: str | None = None, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        uds=uds,
        host=host,
        port=port,
        ws="wsproto",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Open pages must not delay the end.
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


async def _serve(server: uvicorn.Server, tell: Callable[[], None]) -> None:
    # Pages wait for servers, which may be slow, in threads.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS_MAX, "portal"))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        tell()
    await serving
