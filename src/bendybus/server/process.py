"""The server as a process: its log, its event loop, its signals, and the lines that it prints.

The line `ready <connection string>` on stdout means that clients are served now. The server itself: app.py.
Several processes of one server: supervisor.py and broker_process.py.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from itertools import islice
from typing import Final

from bendybus import audit
from bendybus.auth.connection_strings import ConnectionString
from bendybus.server.app import Server
from bendybus.server.cluster_member import ClusterMember, Membership
from bendybus.server.cluster_node import ClusterNode
from bendybus.server.cluster_part import ClusterPart
from bendybus.server.logs import start_log
from bendybus.server.settings import Settings
from bendybus.server.sockets import raise_descriptor_limit

__all__ = ["loop_factory", "run", "run_member"]

logger = logging.getLogger(__name__)

# Message records are many, long-lived and free of cycles. Scanning them again and again would cost a fifth of
# the throughput and find nothing. Young objects are still collected.
GC_THRESHOLDS: Final = (50_000, 50, 1000)

# Hosts that mean every address of the machine.
EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. For the command line; returns after draining."""
    _run(settings, None)


def run_member(membership: Membership) -> None:
    """`run` for one broker of several. It ends when its supervisor does."""
    _run(membership.settings, membership)


def _run(settings: Settings, membership: Membership | None) -> None:
    start_log(settings.log_level, settings.log_format, settings.audit_log)
    raise_descriptor_limit()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings, membership))


async def _serve(settings: Settings, membership: Membership | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    member: ClusterPart | None = None if settings.cluster is None else ClusterNode(settings)
    if membership is not None:
        member = ClusterMember(membership)
        # Nothing is ever written to it: it can be read when the supervisor has ended. Then nobody stops this
        # process in order, and the next start of the server waits for it. Everything that it acknowledged is
        # on disk.
        loop.add_reader(membership.supervisor, os._exit, 1)
    server = Server(settings, member)
    if not await _enter(server, stop):
        return
    async with AsyncExitStack() as exits:
        exits.push_async_exit(server)
        lines = _printed(server, settings)
        # A supervisor continues when it has read `ready`, so this must be the last line for it.
        sys.stdout.writelines(lines if membership is None else [*lines[1:], lines[0]])
        sys.stdout.flush()
        audit.record(
            "server-started",
            version=version("bendybus"),
            namespaces=",".join(server.connection_strings),
            ports=",".join(map(str, server.ports)),
        )
        await stop.wait()
        logger.info("stopping")
        if member is not None:
            await member.leave()
        audit.record("server-stopping")


async def _enter(server: Server, stop: asyncio.Event) -> bool:
    """Whether it was started. One that waits for other brokers may be told to stop before."""
    entering, stopping = asyncio.create_task(server.__aenter__()), asyncio.create_task(stop.wait())
    await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not entering.done():
        entering.cancel()
        await asyncio.wait((entering,))
        return False
    await entering
    return True


def _printed(server: Server, settings: Settings) -> list[str]:
    """The lines that are printed at the start, `ready` first."""
    lines = [f"ready {server.connection_string}\n"]
    for name, shown in islice(server.connection_strings.items(), 1, None):
        lines.append(f"namespace {name} {shown}\n")
    if settings.host in EVERY_ADDRESS and server.connection_string:
        # The line above is for this machine; others reach it by its name.
        own = ConnectionString.parse(server.connection_string, "unused").netloc
        elsewhere = f"{socket.gethostname()}:{server.ports[0]}"
        lines.append(f"network {server.connection_string.replace(own, elsewhere, 1)}\n")
    if server.portal_url:
        lines.append(f"portal {server.portal_url}\n")
    return lines


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes the fastest event loop that is installed."""
    try:
        import uvloop  # noqa: PLC0415 - where there is none (Windows), asyncio's own loop serves
    except ImportError:
        return None
    return uvloop.new_event_loop
