"""The processes of `--brokers N`: started, restarted, and stopped at any moment."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from bendybus.server import supervisor as supervisor_module
from bendybus.server.cluster_member import Membership
from bendybus.server.settings import Settings
from bendybus.server.supervisor import Supervisor

# Stands for a broker that serves until it is stopped.
SERVES = "import sys, time; sys.stdin.buffer.read(); print('ready x', flush=True); time.sleep(1000)"


class Processes:
    """Starts what a test wants instead of brokers."""

    def __init__(self) -> None:
        self.start = asyncio.create_subprocess_exec
        self.failures = 0
        """How many of the next ones cannot be started."""
        self.started: list[asyncio.subprocess.Process] = []
        self.before = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, *_: str, pass_fds: Any, **options: Any) -> asyncio.subprocess.Process:
        self.before.set()
        await self.go_on.wait()
        if self.failures:
            self.failures -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.started.append(await self.start(sys.executable, "-c", SERVES, **options))
        return self.started[-1]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    processes = Processes()
    monkeypatch.setattr(supervisor_module.asyncio, "create_subprocess_exec", processes)
    return processes


def membership(folder: Path) -> Membership:
    return Membership(Settings(), "0", ("0",), {}, "c", b"", "", folder, ())


def keep(supervisor: Supervisor, folder: Path) -> asyncio.Task[None]:
    supervisor._ready["0"] = asyncio.get_running_loop().create_future()
    return asyncio.create_task(supervisor._keep(membership(folder), ()))


async def test_a_broker_that_is_just_being_started_is_stopped_too(
    tmp_path: Path, processes: Processes
) -> None:
    supervisor = Supervisor(Settings(), 1)
    processes.go_on.clear()
    keeping = keep(supervisor, tmp_path)
    await processes.before.wait()

    supervisor._stopping.set()
    await supervisor._stop_all()
    processes.go_on.set()

    try:
        await asyncio.wait_for(asyncio.shield(keeping), 5)
    finally:
        for process in processes.started:
            if process.returncode is None:
                process.kill()
        await keeping


async def test_a_broker_that_has_just_ended_does_not_keep_the_others_running(processes: Processes) -> None:
    supervisor = Supervisor(Settings(), 2)
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    for name in "01":
        supervisor._running[name] = await processes(pass_fds=(), **pipes)
    ended, running = processes.started
    ended.kill()
    assert ended.stdin is not None and ended.stdout is not None
    ended.stdin.close()
    await ended.stdout.read()
    await ended.wait()
    await asyncio.sleep(0.01)

    try:
        await supervisor._stop_all()
        assert running.returncode == -signal.SIGTERM
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


async def test_a_broker_that_cannot_be_started_again_is_tried_until_it_can(
    tmp_path: Path, processes: Processes
) -> None:
    supervisor = Supervisor(Settings(), 1)
    keeping = keep(supervisor, tmp_path)
    await supervisor._ready["0"]
    processes.failures = 2

    processes.started[0].kill()
    try:
        async with asyncio.timeout(5):
            while len(processes.started) < 2:
                await asyncio.sleep(0.01)
    finally:
        supervisor._stopping.set()
        await supervisor._stop_all()
    await keeping


async def test_a_broker_that_cannot_be_started_at_first_ends_the_server(
    tmp_path: Path, processes: Processes
) -> None:
    supervisor = Supervisor(Settings(), 1)
    processes.failures = 1
    keeping = keep(supervisor, tmp_path)

    assert await asyncio.wait_for(supervisor._failed, 5)
    await keeping
