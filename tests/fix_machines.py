"""Simulated machines: network namespaces on a bridge, between which the network can be cut.

A `Machine` is an address, and what a command begins with to run there. `LOOPBACK` is this machine.
`network` makes others, which needs root and iproute2, and takes them away again. Nothing leaves the
namespaces: the bridge is in a separate one, and no machine has a route to anywhere else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["LOOPBACK", "Machine", "Network", "NoNetwork", "network"]

# Set aside for tests of networks [RFC 2544]. Nobody has them.
ADDRESSES: Final = "198.18.0"
# No machine has this hardware address, so the bridge delivers what is sent to it to nobody.
NOWHERE: Final = "02:00:00:00:00:01"
CLONE_NEWNET: Final = 0x4000_0000
NAMESPACES: Final = Path("/run/netns")


class NoNetwork(Exception):
    """Namespaces cannot be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    address: str
    enter: tuple[str, ...] = ()
    """What a command begins with that is to run there."""


LOOPBACK: Final = Machine("this machine", "127.0.0.1")


class Network:
    """Machines that reach each other, unless the way from one to another is cut."""

    def __init__(self, prefix: str, names: Sequence[str]) -> None:
        self._prefix = prefix
        self._bridge = f"{prefix}-bridge"
        self.machines = {
            name: Machine(
                name,
                f"{ADDRESSES}.{number}",
                ("nsenter", f"--net={NAMESPACES / self._namespace(name)}"),
            )
            for number, name in enumerate(names, 1)
        }

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def make(self) -> None:
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "bridge", "up")
        for number, machine in enumerate(self.machines.values(), 1):
            there, port = self._namespace(machine.name), f"port{number}"
            _ip("netns", "add", there)
            made = ("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", there)
            _ip("-n", self._bridge, *made)
            _ip("-n", self._bridge, "link", "set", port, "master", "bridge", "up")
            _ip("-n", there, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            _ip("-n", there, "link", "set", "eth0", "up")
            _ip("-n", there, "link", "set", "lo", "up")

    def cut(self, one: str, other: str) -> None:
        """Everything that `one` sends to `other` is silently lost. The other direction is unchanged."""
        away = ("lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")
        _ip("-n", self._namespace(one), "neigh", "replace", self.machines[other].address, *away)

    def heal(self, one: str, other: str) -> None:
        _ip("-n", self._namespace(one), "neigh", "del", self.machines[other].address, "dev", "eth0")

    @contextlib.contextmanager
    def cut_between(self, ways: Sequence[tuple[str, str]]) -> Iterator[None]:
        """Cut these paths, each from the first machine to the second, and restore them at the end."""
        for one, other in ways:
            self.cut(one, other)
        try:
            yield
        finally:
            for one, other in ways:
                self.heal(one, other)

    def enter(self, name: str) -> None:
        """This process is on that machine from now on. Called before it has threads."""
        with (NAMESPACES / self._namespace(name)).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the namespace of {name}")

    def remove(self) -> None:
        for namespace in [self._bridge, *map(self._namespace, self.machines)]:
            for process in _ip("netns", "pids", namespace, check=False).split():
                if int(process) != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)
            _ip("netns", "delete", namespace, check=False)


@contextlib.contextmanager
def network(*names: str) -> Iterator[Network]:
    """Machines of these names; this process stays where it is. `NoNetwork` if they cannot be made."""
    missing = [program for program in ("ip", "nsenter") if shutil.which(program) is None]
    if os.geteuid() != 0:
        raise NoNetwork("only root can make network namespaces")
    if missing:
        raise NoNetwork(f"{' and '.join(missing)} is not installed")
    made = Network(f"bendybus-{os.getpid()}", names)
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            raise NoNetwork(f"'{' '.join(error.cmd)}' failed: {error.stderr.strip()}") from error
        yield made
    finally:
        made.remove()


def _ip(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check:
        done.check_returncode()
    return done.stdout
