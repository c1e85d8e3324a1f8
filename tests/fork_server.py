"""A process that has imported `bendybus` once and forks a child for each call of the command.

The tests call the command more than a thousand times and would import the same modules as often, which takes
longer than most of the calls. A child is a process of its own: it has the caller's arguments, environment,
folder and files, it ends with an exit code, and it can be killed. Only its imports have been done before.

`fix_processes.py` starts this program and talks to it: one connection to its socket for each child. The
request is one line of JSON together with three file descriptors. The answers are two lines: the child's
process id, and its exit code (negative: the number of a signal) once it has ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any, Final

from bendybus.cli.lazy import Deferred
from bendybus.cli.main import app

REQUEST_BYTES_MAX: Final = 1 << 20
# It imports Spark, which few calls need.
NOT_IMPORTED: Final = "pipeline"


class ForkServer:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, socket.socket] = {}
        self._ended, wakes = socket.socketpair()
        wakes.setblocking(False)
        self._ended.setblocking(False)
        self._wakes = wakes
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)

    def run(self) -> dict[str, Any] | None:
        """Serve until nobody is left who could call: None. In a child, what it is to run."""
        with selectors.DefaultSelector() as selector:
            for source in (self._listener, self._ended, sys.stdin.buffer):
                selector.register(source, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._ended in ready:
                    self._reap()
                if self._listener in ready and (request := self._fork()) is not None:
                    return request
                # The process that runs the tests holds the other end. Nobody will stop what it has left.
                if sys.stdin.buffer in ready:
                    for pid in self._children:
                        os.kill(pid, signal.SIGKILL)
                    return None

    def _fork(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        text, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
        while not text.endswith(b"\n"):
            text += connection.recv(REQUEST_BYTES_MAX)
        request: dict[str, Any] = json.loads(text)
        pid = os.fork()
        if pid:
            for each in files:
                os.close(each)
            self._children[pid] = connection
            connection.sendall(b"%d\n" % pid)
            return None
        self._become_child(connection, files, request)
        return request

    def _become_child(self, connection: socket.socket, files: list[int], request: dict[str, Any]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (connection, self._listener, self._ended, self._wakes, *self._children.values()):
            each.close()
        if request["new_session"]:
            os.setsid()
        for number, each in enumerate(files):
            os.dup2(each, number)
            os.close(each)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._ended.recv(REQUEST_BYTES_MAX)
        for pid in [*self._children]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                with self._children.pop(pid) as connection, contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def main() -> None:
    for name, command in app.commands.items():
        if isinstance(command, Deferred) and name != NOT_IMPORTED:
            command.load()
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        request = ForkServer(listener).run()
    if request is not None:
        sys.argv = ["bendybus", *request["arguments"]]
        sys.exit(app())


if __name__ == "__main__":
    main()
