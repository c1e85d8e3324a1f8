"""`bendybus` as a process: forked from one that has imported it (fork_server.py), or started from scratch.

`start` returns what can be waited for; `run_bendybus` waits for it and has what it printed.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["BENDYBUS", "Process", "run_bendybus", "start"]

BENDYBUS: Final = str(Path(sys.executable).with_name("bendybus"))
COMMAND_TIMEOUT_S: Final = 60

# A child may have other values of these than its parent: they are read when the command is called. If
# anything else differs (a path, the terminal's width), the command is started from scratch.
OWN_VARIABLES: Final = ("BENDYBUS_", "SERVICEBUS_", "AZURE_", "PYTEST_", "XDG_STATE_HOME")


class ForkedProcess:
    """A child of the fork server, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, connection: socket.socket, arguments: Sequence[str]) -> None:
        self.returncode: int | None = None
        self._arguments = arguments
        self._connection = connection
        self._lines = connection.makefile("r")
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(list(self._arguments), timeout or 0)
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # The process may have ended just now.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _ForkServer:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bendybus-fork-")
        self._address = str(Path(self._folder.name, "socket"))
        self.environment = dict(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py")), self._address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        atexit.register(self.close)

    def start(
        self, arguments: Sequence[str], files: Sequence[int], environment: Mapping[str, str],
        folder: Path, *, new_session: bool,
    ) -> ForkedProcess:  # fmt: skip
        request = {
            "arguments": arguments, "environment": dict(environment), "folder": str(folder),
            "new_session": new_session,
        }  # fmt: skip
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], files)
        return ForkedProcess(connection, arguments)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()


@cache
def _fork_server() -> _ForkServer:
    return _ForkServer()


Process: TypeAlias = ForkedProcess | subprocess.Popen[bytes]


def start(
    command: Sequence[str], stdin: int, stdout: int, stderr: int,
    *, environment: Mapping[str, str] | None = None, folder: Path | None = None, new_session: bool = False,
) -> Process:  # fmt: skip
    """`stdin`, `stdout` and `stderr` are file descriptors, which stay the caller's to close."""
    environment = os.environ if environment is None else environment
    folder = Path.cwd() if folder is None else folder
    if command[0] == BENDYBUS and _is_as_imported(environment):
        files = (stdin, stdout, stderr)
        return _fork_server().start(command[1:], files, environment, folder, new_session=new_session)
    return subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, cwd=folder,
        start_new_session=new_session,
    )  # fmt: skip


def _is_as_imported(environment: Mapping[str, str]) -> bool:
    there = _fork_server().environment
    differing = dict(environment.items() ^ there.items())
    return all(name.startswith(OWN_VARIABLES) for name in differing)


def run_bendybus(
    *arguments: str, environment: Mapping[str, str], folder: Path, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """`bendybus ARGUMENTS`, in `folder`; nothing about servers is inherited from the environment of the
    tests."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_CONNECTION_STRING") and name not in ("BENDYBUS_SAS_KEY", "BENDYBUS_TOKEN")
    }
    inherited["XDG_STATE_HOME"] = str(folder / "state")
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
    ):
        stdin.write(given)
        stdin.seek(0)
        process = start(
            [BENDYBUS, *arguments], stdin.fileno(), stdout.fileno(), stderr.fileno(),
            environment={**inherited, **environment}, folder=folder,
        )  # fmt: skip
        try:
            code = process.wait(COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess([BENDYBUS, *arguments], code, stdout.read(), stderr.read())
