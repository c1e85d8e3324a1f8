"""What the suites in other languages share: a real server, its certificate, and how a missing tool is told.

Each language has a folder with a run.py of its own, started by `make interop`. What is downloaded
and built goes into .cache, not into the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fix_server import ServerProcess, namespace

__all__ = [
    "BENDYBUS",
    "CACHE",
    "Certificate",
    "are_installed",
    "certificate",
    "left_out",
    "run_suite",
    "serving",
]

CACHE: Final = Path(__file__).parents[2] / ".cache"
BENDYBUS: Final = str(Path(sys.executable).with_name("bendybus"))

# Long for a suite on a loaded machine with an empty cache, short for a hang.
TIMEOUT_S: Final = 2400


def are_installed(sdk: str, *tools: str) -> bool:
    """Whether all are; says which is not, since Python is all that the other tests need."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        sys.stdout.write(f"skipped: the {sdk} SDK, because there is no {' and no '.join(missing)} here\n")
    return not missing


@dataclass(frozen=True, slots=True)
class Certificate:
    """What `bendybus cert` made: for the server, and for those who are to trust it."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "server.crt"

    @property
    def options(self) -> list[str]:
        return ["--tls-cert", str(self.file), "--tls-key", str(self.folder / "server.key")]


@contextmanager
def certificate() -> Iterator[Certificate]:
    with tempfile.TemporaryDirectory(prefix="bendybus-cert-") as folder:
        subprocess.run([BENDYBUS, "cert", "--out", folder], capture_output=True, check=True)
        yield Certificate(Path(folder))


@contextmanager
def serving(trusted: Certificate, *options: str) -> Iterator[str]:
    """A server with a data folder of its own; its connection string. Of several brokers, if so set up."""
    with tempfile.TemporaryDirectory(prefix="bendybus-interop-") as folder:
        server = ServerProcess(
            Path(folder), namespace({}), ["--log-level", "warning", *trusted.options, *options]
        )
        server.start()
        try:
            yield server.connection_string
        finally:
            server.stop()
            sys.stderr.write(server.log.read_text())


def left_out(what: str) -> None:
    """Say that something of a suite shows nothing with several brokers."""
    sys.stdout.write(f"left out, {what}\n")


def run_suite(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Its exit code."""
    whole = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=whole, check=False, timeout=TIMEOUT_S).returncode
