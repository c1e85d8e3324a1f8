"""A real server: a process that runs `bendybus serve`, and serves clients once it has printed `ready`.

`server` runs for the whole session, and `new_queue` hands out its queues, none of them twice;
`start_server` starts one that its test may stop, kill and start again. A traceback, an error or a
warning in a server's log fails the test that ran meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from bendybus.atom import QUEUE_DESCRIPTION, element
from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.client import ManagementClient
from fix_processes import BENDYBUS, Process, start
from fix_several_brokers import not_with_several
from set_ups import BROKERS, CLUSTER, ONE_BROKER, ClusterSetUp, is_refused, several_brokers

__all__ = ["Kind", "NewQueue", "Properties", "ServerProcess", "Shape", "StartServer", "namespace", "refusals"]

Properties: TypeAlias = Mapping[str, object]
"""Of a queue or a rule, named as in Config.json."""

# It takes half a second on an idle machine. A loaded machine may need much longer.
START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 60

# Lines that an operator would have to investigate.
TROUBLE: Final = re.compile(r"Traceback \(most recent| ERROR | CRITICAL |Warning: |Exception ignored")


class Kind(StrEnum):
    """Every behaviour must be shown on both kinds, because a receiver cannot tell the difference (P-05)."""

    UNPARTITIONED = "unpartitioned"
    PARTITIONED = "partitioned"
    """With 16 partitions, as in Standard."""


class Shape(StrEnum):
    """The differences between the session's queues other than their kind."""

    USUAL = "usual"
    BRIEF_LOCK = "brief-lock"
    DEAD_LETTERING = "dead-lettering"
    ONCE = "once"


SHAPES: Final[Mapping[Shape, Properties]] = {
    Shape.USUAL: {"LockDuration": "PT1M", "MaxDeliveryCount": 3},
    # The shortest that Service Bus allows.
    Shape.BRIEF_LOCK: {"LockDuration": "PT5S", "MaxDeliveryCount": 3},
    Shape.DEAD_LETTERING: {"DeadLetteringOnMessageExpiration": True},
    Shape.ONCE: {"RequiresDuplicateDetection": True},
}

# The namespace's rules other than the root rule: name -> key and rights.
RULES: Final[Mapping[str, tuple[str, list[str]]]] = {
    "Sends": ("key-of-those-who-send", ["Send"]),
    "Listens": ("key-of-those-who-listen", ["Listen"]),
}

# Queues of each shape and kind: together fewer than the hundred partitioned ones that a namespace may have.
# After that, a new queue replaces the second one, whose test ended long ago.
SPARES: Final[Mapping[Shape, int]] = {
    Shape.USUAL: 60,
    Shape.BRIEF_LOCK: 8,
    Shape.DEAD_LETTERING: 4,
    Shape.ONCE: 20,
}


def namespace(
    queues: Mapping[str, Properties],
    rules: Mapping[str, Sequence[Properties]] | None = None,
    topics: Sequence[Properties] = (),
) -> dict[str, object]:
    """The content of a Config.json with these queues; `rules` by queue, and under "" the namespace's own.

    `topics` are as they stand in the file.
    """
    rules = rules or {}
    described = [
        {"Name": name, "Properties": dict(properties), "AuthorizationRules": rules.get(name, [])}
        for name, properties in queues.items()
    ]
    only = {
        "Name": "interop",
        "Queues": described,
        "Topics": list(topics),
        "AuthorizationRules": rules.get("", []),
    }
    return {"UserConfig": {"Namespaces": [only]}}


class _Running:
    """A process that runs `bendybus serve`, up when it has said `ready`."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        reading, writing = os.pipe()
        with log.open("a") as file, open(os.devnull) as nothing, os.fdopen(writing, "w"):
            self._process: Process = start(
                command, nothing.fileno(), writing, file.fileno(), new_session=True
            )
        self._stdout = os.fdopen(reading)
        readable, _, _ = select.select([self._stdout], [], [], START_TIMEOUT_S)
        self.first_line = self._stdout.readline() if readable else ""
        word, _, self.connection_string = self.first_line.rstrip("\n").partition(" ")
        if word != "ready":
            self.send_signal(signal.SIGKILL)
            self.wait()
            said = log.read_text()
            if several_brokers() and (what := is_refused(said)) is not None:
                not_with_several(what)
            pytest.fail(f"the server said {self.first_line!r}; its log:\n{said}")
        found = re.search(r"Endpoint=sb://[\d.]+:(\d+)", self.connection_string)
        assert found is not None, self.connection_string
        self.port = int(found[1])

    @property
    def pid(self) -> int:
        return self._process.pid

    def next_line(self) -> str:
        """What it prints after `ready`."""
        return self._stdout.readline()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            pytest.fail(f"the server did not end in {STOP_TIMEOUT_S} s; its log:\n{self._log.read_text()}")
        finally:
            self._stdout.close()


class ServerProcess:
    """One data folder, and the process that serves it while there is one.

    For tests with a cluster (set_ups.py), all brokers of it: clients connect to a balancer before them.
    """

    may_be_cluster = True
    program: Sequence[str] = (BENDYBUS,)

    def __init__(self, folder: Path, config: Mapping[str, object], options: Sequence[str] = ()) -> None:
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.port = 0
        """Chosen at the first start and then kept, so that clients find the server again."""
        self.connection_string = ""
        self.first_line = ""
        self._config = folder / "Config.json"
        self.write_config(config)
        self._options = options
        self._log_read = 0
        self._running: list[_Running] = []
        self._cluster: ClusterSetUp | None = None
        if CLUSTER and self.may_be_cluster and "--brokers" not in options:
            if any(option.startswith("--store=") or option == "--store" for option in options):
                not_with_several(ONE_BROKER["stores"])
            self._cluster = ClusterSetUp(folder, options)

    def write_config(self, config: Mapping[str, object]) -> None:
        """The options of the next start."""
        self._config.write_text(json.dumps(config))

    def command(self) -> list[str]:
        """Of several brokers of a cluster, the first one's."""
        if self._cluster is not None:
            return [*self.program, *self._cluster.command(0, self._config, self._options)]
        return [
            *(*self.program, "serve", "--data", str(self.data), "--config", str(self._config)),
            *("--port", str(self.port), "--admin-port", "0"),
            *BROKERS,
            *self._options,
        ]

    def start(self) -> None:
        """Return when clients are served."""
        if self._cluster is not None:
            self._start_cluster(self._cluster)
            return
        process = _Running(self.command(), self.log)
        self._running = [process]
        self.first_line, self.connection_string = process.first_line, process.connection_string
        self.port = process.port

    def _start_cluster(self, cluster: ClusterSetUp) -> None:
        def start_broker(number: int) -> _Running:
            command = cluster.command(number, self._config, self._options)
            process = _Running([*self.program, *command], self.log)
            self._running.append(process)
            return process

        first = start_broker(0)
        cluster.share_certificate()
        with ThreadPoolExecutor(CLUSTER) as pool:
            list(pool.map(start_broker, range(1, CLUSTER)))
        cluster.balance()
        self.port = cluster.port
        here = f"127.0.0.1:{self.port}"
        self.connection_string = first.connection_string.replace(f"127.0.0.1:{first.port}", here)
        self.first_line = first.first_line.replace(f"127.0.0.1:{first.port}", here)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL, as if the power had failed."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def send_signal(self, number: signal.Signals) -> None:
        assert self._running
        for process in self._running:
            process.send_signal(number)

    def wait(self) -> int:
        """The exit code, of several brokers the worst."""
        assert self._running
        processes, self._running = self._running, []
        codes = [process.wait() for process in processes]
        if self._cluster is not None:
            self._cluster.stop()
        return max(codes, key=abs)

    @property
    def pid(self) -> int:
        (process, *_) = self._running
        return process.pid

    @property
    def running(self) -> bool:
        return bool(self._running)

    def next_line(self) -> str:
        """What it prints after `ready`, of several brokers the first."""
        (process, *_) = self._running
        return process.next_line()

    @property
    def certificate(self) -> Path:
        """Made by the server; clients need it to trust the server."""
        return self.data / "tls" / "server.crt"

    @property
    def key(self) -> str:
        """The root rule's."""
        found = re.search(r"SharedAccessKey=([^;]+)", self.connection_string)
        assert found is not None, self.connection_string
        return found[1]

    @property
    def fresh_log(self) -> str:
        """What it has logged since the test began."""
        return self.log.read_text()[self._log_read :]

    def take_fresh_log(self) -> str:
        """`fresh_log`, which is empty afterwards."""
        fresh = self.fresh_log
        self._log_read += len(fresh)
        return fresh

    def refuse_trouble(self) -> None:
        """Fail if the fresh log has a traceback, an error or a warning. It is empty afterwards."""
        fresh = self.take_fresh_log()
        if TROUBLE.search(fresh):
            pytest.fail(f"the server logged:\n{fresh}")

    def expect_trouble(self, *expected: str) -> None:
        """The fresh log has errors with these texts and no others. It is empty afterwards.

        A store that is expected to be away may also be said to be still away, if the test takes long.
        """
        fresh = self.take_fresh_log()
        troubles = [line for line in fresh.splitlines() if TROUBLE.search(line)]
        for text in expected:
            assert any(text in line for line in troubles), f"no '{text}' in:\n{fresh}"
        allowed = [*expected, *(" is still away: " for text in expected if " is away, " in text)]
        strange = [line for line in troubles if not any(text in line for text in allowed)]
        assert not strange, f"the server logged:\n{fresh}"


def refusals(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """The output of a server that did not start. Other brokers of several may have reported their own end."""
    lines = ended.stderr.splitlines()
    return [line for line in lines if line.startswith("bendybus: ")] if several_brokers() else lines


NewQueue: TypeAlias = Callable[..., str]
StartServer: TypeAlias = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def _namespace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    queues = {
        f"{shape}-{kind}-{number}": {**properties, "EnablePartitioning": kind is Kind.PARTITIONED}
        for shape, properties in SHAPES.items()
        for kind in Kind
        for number in range(SPARES[shape])
    }
    rules = [{"Name": name, "PrimaryKey": key, "Rights": rights} for name, (key, rights) in RULES.items()]
    # A disk that all tests share may stall for seconds, which these tests are not about.
    server = ServerProcess(
        tmp_path_factory.mktemp("server"), namespace(queues, {"": rules}), ("--stall-after", "20")
    )
    server.start()
    yield server
    assert server.stop() == os.EX_OK
    server.refuse_trouble()


@pytest.fixture
def server(_namespace_server: ServerProcess) -> Iterator[ServerProcess]:
    """The session's server; its queues: `new_queue`."""
    yield _namespace_server
    _namespace_server.refuse_trouble()


@pytest.fixture(scope="session")
def new_queue(_namespace_server: ServerProcess) -> NewQueue:
    """A queue of the session's server that no test has used yet: `new_queue(kind, shape)`."""
    numbers = {(shape, kind): count() for shape in Shape for kind in Kind}

    def take(kind: Kind, shape: Shape = Shape.USUAL) -> str:
        number = next(numbers[shape, kind])
        name = f"{shape}-{kind}-{number}"
        if number >= SPARES[shape]:
            properties = {**SHAPES[shape], "EnablePartitioning": kind is Kind.PARTITIONED}
            children = [element(key, value) for key, value in properties.items()]
            with ManagementClient(ConnectionString.parse(_namespace_server.connection_string)) as management:
                # Some tests know the first one by its name.
                management.delete(f"{shape}-{kind}-{number - SPARES[shape] + 1}")
                management.create(name, QUEUE_DESCRIPTION, children)
        return name

    return take


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts a server of the test's own: `start_server(queues, rules)`, as for `namespace`, and options."""
    servers: list[ServerProcess] = []

    def start(
        queues: Mapping[str, Properties],
        rules: Mapping[str, Sequence[Properties]] | None = None,
        *options: str,
        topics: Sequence[Properties] = (),
    ) -> ServerProcess:
        folder = tmp_path / f"server-{len(servers)}"
        folder.mkdir()
        server = ServerProcess(folder, namespace(queues, rules, topics), options)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        if server.running:
            server.kill()
        server.refuse_trouble()


@pytest.fixture(params=list(Kind))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Runs the test once for each kind of queue."""
    assert isinstance(request.param, Kind)
    return request.param
