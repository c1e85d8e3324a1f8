"""The load generator from Python: builds load.c once, runs it, reads its line of JSON.

What is measured, and how, is in load.c; which cases are run, in run.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

from process import CACHE, BrokerFailed, Endpoint, apt_install

__all__ = ["LoadFailed", "Measured", "build", "drain", "load"]

SOURCE = Path(__file__).with_name("load.c")
PROGRAM = CACHE / "load"
LIBRARY = "libqpid-proton"
PACKAGES = ("gcc", "libc6-dev", "pkg-config", "libqpid-proton11-dev", "libsasl2-modules")

# The program watches its own deadline; this much later it is taken to hang.
GRACE_S = 30


class LoadFailed(Exception):
    """A run that lost, doubled or refused messages, or did not end in time."""


class Measured(TypedDict, total=False):
    """One line of load.c: counts, seconds, messages a second, milliseconds."""

    mode: str
    window: int
    body_bytes: int
    accepted: int
    received: int
    send_seconds: float
    receive_seconds: float
    seconds: float
    rate: float
    ack_p50_ms: float
    ack_p99_ms: float
    end_to_end_p50_ms: float
    end_to_end_p99_ms: float
    client_cpu_s: float
    missing: int
    duplicates: int
    foreign: int
    errors: list[str]


def build() -> None:
    """Compiles the program when it is missing or older than its source."""
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > SOURCE.stat().st_mtime:
        return
    flags = _library_flags()
    if flags is None or shutil.which("cc") is None:
        apt_install(*PACKAGES)
        flags = _library_flags()
    if flags is None:
        raise BrokerFailed("Qpid Proton's development files are not here")
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-O2", "-Wall", "-pthread", str(SOURCE), "-o", str(PROGRAM), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerFailed(f"load.c does not compile:\n{done.stderr}")


def load(
    endpoint: Endpoint, address: str, mode: str, count: int, window: int, body_bytes: int, timeout_s: float
) -> Measured:
    """Moves `count` messages and returns what was measured; LoadFailed unless each arrived exactly once."""
    command = [str(PROGRAM), "--host", endpoint.host, "--port", str(endpoint.port), "--address", address]
    command += ["--user", endpoint.user, "--password", endpoint.password, "--mode", mode]
    command += ["--count", str(count), "--window", str(window), "--size", str(body_bytes)]
    command += ["--timeout", str(timeout_s)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s + GRACE_S, check=False
        )
    except subprocess.TimeoutExpired as hung:
        raise LoadFailed(f"the load generator hung ({mode}, window {window}, {address})") from hung
    if done.returncode not in (0, 1):
        raise LoadFailed(f"the load generator ended with {done.returncode}: {done.stderr.strip()}")
    measured: Measured = json.loads(done.stdout)
    if done.returncode:
        raise LoadFailed(f"{mode}, window {window}, {address}: {done.stdout.strip()}")
    return measured


def drain(endpoint: Endpoint, address: str, body_bytes: int, timeout_s: float) -> int:
    """Empties the queue and returns how many messages were still in it."""
    return load(endpoint, address, "drain", 1, 500, body_bytes, timeout_s)["received"]


def _library_flags() -> list[str] | None:
    if shutil.which("pkg-config") is None:
        return None
    command = ["pkg-config", "--cflags", "--libs", LIBRARY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else None
