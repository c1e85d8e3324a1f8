"""Several brokers on one machine: starts a process for each, and restarts a process that ends.

The supervisor holds the data folder's lock and the listening sockets, and serves nobody itself. All processes
accept connections on the same sockets, so clients see one server, and a process that dies takes no waiting
connection with it. Each messaging store belongs to one process (cluster/assignment.py), so two processes
never open the same file. If the supervisor dies, its processes end too; the lock is theirs as well, so no
other server can use the folder before they have.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bendybus.cluster.assignment import assign
from bendybus.errors import ConfigError, DataFolderInUse
from bendybus.server.announcement import announce, withdraw
from bendybus.server.cluster_member import Membership
from bendybus.server.emulator_config import load_config
from bendybus.server.logs import start_log
from bendybus.server.settings import STORES_DEFAULT, Settings
from bendybus.server.sockets import bind, raise_descriptor_limit
from bendybus.server.stores import messaging_stores
from bendybus.server.tls import self_made_certificate
from bendybus.store.folder import DataFolder, make_key

__all__ = ["supervise"]

logger = logging.getLogger(__name__)

# A process that ends again and again is started less and less often.
RESTART_AFTER_S: Final = 0.05
RESTART_AFTER_MAX_S: Final = 5.0
# A process that has run this long has started successfully.
SETTLED_AFTER_S: Final = 10.0
STOP_TIMEOUT_S: Final = 30.0
FOLDER_PATIENCE_S: Final = 2.0


class Supervisor:
    def __init__(self, settings: Settings, brokers: int) -> None:
        self._settings = settings
        self._names = tuple(str(number) for number in range(brokers))
        self._stopping = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._ready: dict[str, asyncio.Future[str]] = {}
        self._lines: list[str] = []
        """What the first broker prints beside `ready`."""
        self._failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        async with AsyncExitStack() as exits:
            keeping = await self._start(exits)
            shown = await self._all_ready()
            if shown is None:
                self._stopping.set()
            else:
                sys.stdout.writelines([f"ready {shown}\n", *self._lines])
                sys.stdout.flush()
                await self._stopping.wait()
                logger.info("stopping")
            self._stopping.set()
            await self._stop_all()
            await asyncio.gather(*keeping)
        return self._failed.result() if self._failed.done() else 0

    async def _start(self, exits: AsyncExitStack) -> list[asyncio.Task[None]]:
        settings = self._settings
        folder = DataFolder(settings.data)
        await _open_folder(folder)
        exits.callback(folder.close)
        refuse_unsupported(settings, folder)
        # At least one store for each broker in a new data folder.
        count = len(folder.store_paths(settings.stores, max(STORES_DEFAULT, len(self._names))))
        settings = replace(settings, stores=count)
        stores = [store.name for store in messaging_stores(settings, folder)]
        if len(stores) < len(self._names):
            logger.warning(
                "%d brokers share %d messaging stores: some own no partition. --stores %d adds stores",
                len(self._names),
                len(stores),
                len(self._names),
            )
        if settings.tls_cert is None:
            # Once, before there are processes that would each make one.
            self_made_certificate(settings.data, (settings.host, *settings.host_names))
        listening = [bind(host, port) for host, port in settings.addresses]
        metrics = bind(settings.host, settings.metrics_port) if settings.metrics_port is not None else []
        for each in (*(each for sockets in listening for each in sockets), *metrics):
            exits.callback(each.close)
        sockets = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="bendybus-")))
        alive, watched = os.pipe()
        exits.callback(os.close, alive)
        exits.callback(os.close, watched)
        operator_key = make_key()
        common = Membership(
            settings=settings,
            broker="",
            brokers=self._names,
            owners=assign(stores, self._names),
            cluster=uuid.uuid4().hex,
            secret=secrets.token_bytes(32),
            operator_key=operator_key,
            folder=sockets,
            listening=tuple(tuple(each.fileno() for each in address) for address in listening),
            supervisor=alive,
        )
        keeping: list[asyncio.Task[None]] = []
        for name in self._names:
            membership = replace(common, broker=name)
            if membership.has_catalog:
                membership = replace(membership, metrics=tuple(each.fileno() for each in metrics))
            self._ready[name] = asyncio.get_running_loop().create_future()
            inherited = [alive, folder.lock, *(fd for fds in membership.listening for fd in fds)]
            inherited += membership.metrics
            keeping.append(asyncio.create_task(self._keep(membership, inherited)))
        self._announce(listening, operator_key, exits)
        self._folder, self._stores = folder, count
        return keeping

    def _announce(
        self, listening: Sequence[Sequence[socket.socket]], operator_key: str, exits: AsyncExitStack
    ) -> None:
        settings = self._settings
        announce(
            settings.data,
            settings.host,
            listening[0][0].getsockname()[1],
            sas_key=settings.sas_key,
            operator_key=operator_key,
            tls=settings.require_tls,
        )
        exits.callback(withdraw, settings.data)

    async def _all_ready(self) -> str | None:
        """The connection string, once every broker serves; None if that will not be."""
        ready = asyncio.create_task(asyncio.wait(self._ready.values()))
        stopped = asyncio.create_task(self._stopping.wait())
        waited_for: list[asyncio.Future[Any]] = [ready, stopped, self._failed]
        await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ready.done():
            ready.cancel()
            return None
        self._folder.record_stores(self._stores)
        return self._ready[self._names[0]].result()

    # -- one process --------------------------------------------------------------

    async def _keep(self, membership: Membership, inherited: Sequence[int]) -> None:
        """Run a broker, again and again, until the server stops."""
        name, delay_s = membership.broker, RESTART_AFTER_S
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            try:
                code = await self._run(membership, inherited)
            except OSError as reason:
                # The machine has no memory or no process left for it, perhaps for a moment only.
                logger.error("broker %s cannot be started: %s", name, reason)
                code = os.EX_OSERR
            if self._stopping.is_set():
                return
            if not self._ready[name].done():
                # It never served: the settings are wrong, and its own error says why.
                if not self._failed.done():
                    self._failed.set_result(code or 1)
                return
            logger.error("broker %s has ended with %d and is started again", name, code)
            delay_s = RESTART_AFTER_S if loop.time() - started > SETTLED_AFTER_S else delay_s * 2
            try:
                await asyncio.wait_for(self._stopping.wait(), min(delay_s, RESTART_AFTER_MAX_S))
            except TimeoutError:
                continue

    async def _run(self, membership: Membership, inherited: Sequence[int]) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bendybus.server.broker_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=inherited,
        )
        name = membership.broker
        self._running[name] = process
        if self._stopping.is_set():
            # The others were told to end when this one was not there yet.
            _signal(process, signal.SIGTERM)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(pickle.dumps(membership))
            await process.stdin.drain()
            process.stdin.close()
        except ConnectionError:
            logger.debug("broker %s ended before it was told what it is", name)
        async for line in process.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            if self._ready[name].done():
                continue
            if word == "ready":
                self._ready[name].set_result(rest)
            elif membership.has_catalog:
                self._lines.append(f"{word} {rest}\n")
        code = await process.wait()
        self._running.pop(name, None)
        return code

    async def _stop_all(self) -> None:
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        waiting = [asyncio.create_task(process.wait()) for process in self._running.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=STOP_TIMEOUT_S)
            if late:
                for process in list(self._running.values()):
                    _signal(process, signal.SIGKILL)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    # It may have ended a moment ago.
    with suppress(ProcessLookupError):
        process.send_signal(number)


async def _open_folder(folder: DataFolder) -> None:
    """Open it, once the processes of a supervisor that was killed have ended."""
    deadline = asyncio.get_running_loop().time() + FOLDER_PATIENCE_S
    while True:
        try:
            folder.open()
            return
        except DataFolderInUse:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(RESTART_AFTER_S)


def refuse_unsupported(settings: Settings, folder: DataFolder) -> None:
    """`ConfigError` for what does not work with several brokers yet."""
    names = {*folder.namespaces(), *settings.namespaces}
    if settings.config is not None:
        names |= {config.name for config in load_config(settings.config)}
    refused = {
        "several namespaces": len(names) > 1,
        "--development": settings.development,
        "--store": bool(settings.store_urls),
        "--allow-store": bool(settings.allowed_stores),
    }
    for what, is_used in refused.items():
        if is_used:
            raise ConfigError(f"--brokers and {what} cannot be used together yet")
    if sys.platform == "win32":
        raise ConfigError("--brokers needs a system with Unix sockets")


def supervise(settings: Settings, brokers: int) -> int:
    """For the command line; returns the exit code after everything has ended."""
    start_log(settings.log_level, settings.log_format, settings.audit_log)
    raise_descriptor_limit()

    async def run() -> int:
        return await Supervisor(settings, brokers).run()

    return asyncio.run(run())
