"""What every broker under test has in common: a process tree with an endpoint, started and stopped.

All measuring of a broker from outside (CPU seconds, resident memory) lives here, so that all
brokers are measured alike. Who they are: bendybus_server.py, rabbitmq.py and artemis.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from shape_entities import Address, Entity

__all__ = ["CACHE", "PROJECT", "Broker", "BrokerFailed", "Endpoint", "apt_install", "free_port"]

PROJECT = Path(__file__).resolve().parents[2]
# Data of all brokers lives here and not in /tmp, which may be memory: fsync must mean the same disk.
CACHE = PROJECT / ".cache" / "bench"

STOP_TIMEOUT_S = 20
POLL_INTERVAL_S = 0.05


class BrokerFailed(Exception):
    """A broker that could not be provided or did not come up; the message says why."""


@dataclass(slots=True, frozen=True)
class Endpoint:
    """Where and as whom the load generator connects. `tls_port`: None if TLS has no port of its own.

    `further_ports`: of further brokers that serve the same queues; connections take turns.
    """

    port: int
    user: str
    password: str
    host: str = "127.0.0.1"
    tls_port: int | None = None
    further_ports: tuple[int, ...] = ()


class Broker:
    """A broker as a process tree. Subclasses say how it starts; as a context manager it also stops."""

    name = "broker"
    label = "Broker"

    def __init__(self) -> None:
        self.data = CACHE / f"{self.name}-data"
        self.log = CACHE / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Endpoint:
        raise NotImplementedError

    def version(self) -> str:
        raise NotImplementedError

    def address(self, entity: Entity) -> Address:
        """How this broker calls an entity that it was started with."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.endpoint = self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def spawn(self, command: Sequence[str | os.PathLike[str]], **environment: str) -> None:
        """Starts the process with its output in the log; it leads a process group of its own."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def clean_data(self) -> Path:
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        return self.data

    def wait_for_line(self, marker: str, timeout_s: float) -> str:
        """The first line of the log that holds the marker; BrokerFailed with the log's end if none comes."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            running = self._process.poll() is None  # asked first: a last line may come before the end
            for line in self.log.read_text(errors="replace").splitlines(keepends=True):
                if marker in line and line.endswith("\n"):
                    return line.strip()
            if not running:
                break
            time.sleep(POLL_INTERVAL_S)
        state = "ended" if self._process.poll() is not None else f"was not ready after {timeout_s:.0f} s"
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        self.stop()
        raise BrokerFailed(f"{self.name} {state}; its log ends:\n{tail}")

    def stop(self) -> None:
        """Ends the process and removes its data."""
        self.end()
        shutil.rmtree(self.data, ignore_errors=True)

    def end(self) -> None:
        """Asks the process to end, then ends its group."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def cpu_seconds(self) -> float:
        """User and system time of the whole tree so far, children that have ended included."""
        total = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def resident_bytes(self) -> int:
        """Memory the tree holds. Proportional share (PSS) where readable: pages shared count once."""
        total = 0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                try:
                    total += process.memory_full_info().pss
                except (psutil.AccessDenied, AttributeError):
                    total += process.memory_info().rss
        return total

    def disk_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.data.rglob("*") if path.is_file())

    def children(self) -> list[psutil.Process]:
        """Direct children of the started process; none once it has ended."""
        if self._process is None or self._process.poll() is not None:
            return []
        children: list[psutil.Process] = psutil.Process(self._process.pid).children()
        return children

    def _tree(self) -> list[psutil.Process]:
        assert self._process is not None
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def apt_install(*packages: str) -> None:
    """Installs Debian packages; BrokerFailed says why when this machine cannot."""
    if shutil.which("apt-get") is None:
        raise BrokerFailed(f"no apt-get here to install {' '.join(packages)}")
    if os.geteuid() != 0:
        raise BrokerFailed(f"not root, so apt-get cannot install {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    done = subprocess.run(install, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:  # an old package index is the usual cause
        subprocess.run(["apt-get", "update"], env=environment, capture_output=True, check=False)
        done = subprocess.run(install, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerFailed(f"apt-get install {' '.join(packages)} failed: {done.stderr.strip()[-500:]}")
