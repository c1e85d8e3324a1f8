"""The load generator from Python: builds generator/ once, runs it, reads its line of JSON.

What is measured, and how, is in generator/main.c; which cases are run, in cases.py and shapes.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from measures import Measured
from process import CACHE, BrokerFailed, Endpoint, apt_install
from shape import PLAIN, Shape

__all__ = ["LoadFailed", "build", "drain", "load"]

SOURCES = Path(__file__).with_name("generator")
PROGRAM = CACHE / "load"
LIBRARY = "libqpid-proton"
PACKAGES = ("gcc", "libc6-dev", "pkg-config", "libqpid-proton11-dev", "libsasl2-modules")

# The program watches its own deadline; this much later it is taken to hang.
GRACE_S = 30


class LoadFailed(Exception):
    """A run that lost, doubled or refused messages, or did not end in time."""


def build() -> None:
    """Compiles the program when it is missing or older than its sources."""
    changed = max(file.stat().st_mtime for file in SOURCES.glob("*.[ch]"))
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > changed:
        return
    flags = _library_flags()
    if flags is None or shutil.which("cc") is None:
        apt_install(*PACKAGES)
        flags = _library_flags()
    if flags is None:
        raise BrokerFailed("Qpid Proton's development files are not here")
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    sources = [str(file) for file in sorted(SOURCES.glob("*.c"))]
    command = ["cc", "-O2", "-Wall", "-pthread", *sources, "-o", str(PROGRAM), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerFailed(f"the load generator does not compile:\n{done.stderr}")


def load(
    endpoint: Endpoint,
    address: str,
    mode: str,
    count: int,
    window: int,
    body_bytes: int,
    timeout_s: float,
    shape: Shape = PLAIN,
) -> Measured:
    """Moves `count` messages and returns what was measured; LoadFailed unless each arrived exactly once."""
    port = endpoint.tls_port if shape.tls and endpoint.tls_port else endpoint.port
    command = [str(PROGRAM), "--host", endpoint.host, "--address", address]
    command += [part for each in (port, *endpoint.further_ports) for part in ("--port", str(each))]
    command += ["--user", endpoint.user, "--password", endpoint.password, "--mode", mode]
    command += ["--count", str(count), "--window", str(window), "--size", str(body_bytes)]
    command += ["--timeout", str(timeout_s), *shape.arguments()]
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


def drain(endpoint: Endpoint, address: str, body_bytes: int, timeout_s: float, shape: Shape = PLAIN) -> int:
    """Empties the queue and returns how many messages were still in it."""
    return load(endpoint, address, "drain", 1, 500, body_bytes, timeout_s, shape)["received"]


def _library_flags() -> list[str] | None:
    if shutil.which("pkg-config") is None:
        return None
    command = ["pkg-config", "--cflags", "--libs", LIBRARY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else None
