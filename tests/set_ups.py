"""What the tests of the SDKs run against: one broker, several processes, or a cluster of several brokers.

One broker is the default. `BENDYBUS_TEST_BROKERS=2` adds `--brokers 2` to every server. With
`BENDYBUS_TEST_CLUSTER=3`, every server is three `serve --cluster` processes on a PostgreSQL that is started
for the tests, behind a load balancer: each connection goes to the next broker, so the connections of one
client are spread over all of them. `make interop BROKERS=2` and `make interop CLUSTER=3` set these.

A test that meets something that several brokers refuse is not run, and counted by the reason: see REFUSED.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Final

from fix_postgres import Postgres
from fix_postgres import cluster as postgres_server

__all__ = ["BROKERS", "CLUSTER", "ONE_BROKER", "REFUSED", "ClusterSetUp", "is_refused", "several_brokers"]

_brokers: Final = os.environ.get("BENDYBUS_TEST_BROKERS")
BROKERS: Final = ("--brokers", _brokers) if _brokers else ()
CLUSTER: Final = int(os.environ.get("BENDYBUS_TEST_CLUSTER") or 0)

STORES: Final = 4
SPREAD_TIMEOUT_S: Final = 30

# What is refused with several brokers: the server's own words, and the line of docs/guides/brokers.md. A test
# that fails with such words is not counted as failed but under them. Every other refusal is a failure.
REFUSED: Final[Mapping[str, str]] = {
    "several namespaces cannot be used together yet": "several namespaces",
    "those serve one namespace": "several namespaces",
    "--development cannot be used together yet": "--development",
    "--store cannot be used together yet": "--store with --brokers",
    "--allow-store cannot be used together yet": "--allow-store",
    "attaching a messaging store cannot be used with several": "attaching, draining and retiring stores",
    "draining a messaging store cannot be used with several": "attaching, draining and retiring stores",
    "retiring a messaging store cannot be used with several": "attaching, draining and retiring stores",
    "forgetting a messaging store cannot be used with several": "attaching, draining and retiring stores",
    "a backup of a cluster cannot be made yet": "backups of a running cluster",
    "The root key cannot be changed yet": "new root keys",
    "emptying the namespace cannot be used with several": "emptying a namespace",
}

# Why a test shows nothing with several brokers: `pytest.mark.one_broker("files")`.
ONE_BROKER: Final[Mapping[str, str]] = {
    "namespaces": "several namespaces",
    "development": "--development",
    "files": "the test damages or counts the SQLite files of one process",
    "stores": "the test says which messaging stores its server has",
    "process": "the test changes or watches the one process of its server",
    "root keys": "new root keys",
}


def several_brokers() -> bool:
    return bool(BROKERS or CLUSTER)


def is_refused(text: str) -> str | None:
    """What was refused because there are several brokers, if the text says so."""
    return next((what for words, what in REFUSED.items() if words in text), None)


def _value(options: Sequence[str], name: str) -> str | None:
    return options[list(options).index(name) + 1] if name in options else None


class Balancer:
    """balancer.py, as a process."""

    def __init__(self, port: int, ports: Sequence[int]) -> None:
        command = [sys.executable, str(Path(__file__).with_name("balancer.py")), *map(str, (port, *ports))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@cache
def _postgres() -> Postgres:
    """One for all servers of this process."""
    exits = ExitStack()
    atexit.register(exits.close)
    return exits.enter_context(postgres_server(fsync=False, connections=800))


def _kept_port(owner: object) -> int:
    """A port that nobody else is given while its owner lives, even while nobody listens there.

    The system gives no port that is bound to others. Who listens there is to have SO_REUSEADDR, as asyncio's
    servers have.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    weakref.finalize(owner, kept.close)
    port: int = kept.getsockname()[1]
    return port


_databases: dict[Path, str] = {}
"""A server that is made anew in the same folder finds what was there."""


class ClusterSetUp:
    """The brokers of one server: their options, their folders and the balancer before them."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._folder = folder
        postgres = _postgres()
        if folder not in _databases:
            _databases[folder] = postgres.new_database()
        self._database = database = _databases[folder]
        self._stores = max(CLUSTER, int(_value(options, "--stores") or STORES))
        urls = [
            postgres.url(database, schema=f"s{number}", name=f"s{number}") for number in range(self._stores)
        ]
        self.options = ["--cluster", postgres.url(database), *(f"--store={url}" for url in urls)]
        self.port = _kept_port(self)
        """Where clients connect: to the balancer."""
        self.ports = [_kept_port(self) for _ in range(CLUSTER)]
        self._balancer: Balancer | None = None

    def data(self, number: int) -> Path:
        return self._folder / ("data" if number == 0 else f"data-{number}")

    def command(self, number: int, config: Path, options: Sequence[str]) -> list[str]:
        """How one of the brokers is started, with these options of the test's."""
        others = list(options)
        if "--stores" in others:
            at = others.index("--stores")
            del others[at : at + 2]
        return [
            *("serve", "--data", str(self.data(number)), "--broker", f"broker-{number}", *self.options),
            *("--config", str(config), "--port", str(self.ports[number]), "--admin-port", "0", *others),
        ]

    def share_certificate(self) -> None:
        """All brokers are behind one name, so all of them show the certificate of the first one."""
        made = self.data(0) / "tls"
        # A test that gives a certificate gives it to all.
        for number in range(1, CLUSTER) if made.exists() else ():
            shutil.copytree(made, self.data(number) / "tls", dirs_exist_ok=True)

    def balance(self) -> None:
        """All brokers have started: clients may connect."""
        self._await_spread()
        self._balancer = Balancer(self.port, self.ports)

    def stop(self) -> None:
        if self._balancer is not None:
            self._balancer.stop()
            self._balancer = None

    def _await_spread(self) -> None:
        """Until every broker owns stores: otherwise the first one might still have everything."""
        deadline = time.monotonic() + SPREAD_TIMEOUT_S
        query = " UNION ".join(f"SELECT broker FROM s{number}.owner" for number in range(self._stores))
        with _postgres().connect(self._database) as connection:
            while len(owners := connection.execute(query).fetchall()) < CLUSTER or ("",) in owners:
                assert time.monotonic() < deadline, f"the stores are not spread over the brokers: {owners}"
                time.sleep(0.05)
