"""The command itself, run as a process against a real server."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, new_elements
from fix_processes import run_bendybus
from fix_server import Kind, ServerProcess

Bendybus: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
BendybusJson: TypeAlias = Callable[..., Any]
MakeQueue: TypeAlias = Callable[..., str]


@pytest.fixture
def attempt(server: ServerProcess, tmp_path: Path) -> Bendybus:
    """`attempt("queue", "list")`: whatever comes of it."""

    def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        environment = {"BENDYBUS_CONNECTION_STRING": server.connection_string}
        return run_bendybus(*arguments, environment=environment, folder=tmp_path, given=given)

    return run


@pytest.fixture
def bendybus(attempt: Bendybus) -> Bendybus:
    """`bendybus("queue", "list")`, which succeeds."""

    def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        done = attempt(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def bendybus_json(bendybus: Bendybus) -> BendybusJson:
    """The same with `--output json`, read."""
    return lambda *arguments: json.loads(bendybus(*arguments, "--output", "json").stdout)


@pytest.fixture
def make_queue(server: ServerProcess) -> Iterator[MakeQueue]:
    """A queue for this test alone: `make_queue(kind, RequiresDuplicateDetection=True)`."""
    made: list[str] = []
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:

        def make(kind: Kind, **properties: object) -> str:
            made.append(f"cli-{uuid.uuid4().hex[:8]}")
            described = {"EnablePartitioning": kind is Kind.PARTITIONED, **properties}
            management.create(made[-1], QUEUE.element, new_elements(QUEUE, described))
            return made[-1]

        yield make
    # Anew: a test may have taken longer than the server keeps an idle connection.
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        for name in made:
            management.delete(name)


@pytest.fixture
def queue(kind: Kind, make_queue: MakeQueue) -> str:
    """One that is empty, of either kind (P-05)."""
    return make_queue(kind)


@pytest.fixture
def partitioned(make_queue: MakeQueue) -> str:
    return make_queue(Kind.PARTITIONED)
