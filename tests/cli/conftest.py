"""The command itself, run as a process against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, new_elements
from fix_server import Kind, ServerProcess

COMMAND_TIMEOUT_S = 60

Bendybus: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
BendybusJson: TypeAlias = Callable[..., Any]
MakeQueue: TypeAlias = Callable[..., str]


def run_bendybus(
    *arguments: str, environment: dict[str, str], folder: Path, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """`bendybus ARGUMENTS`, in `folder`; nothing about servers is inherited from who runs the tests."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_CONNECTION_STRING") and name not in ("BENDYBUS_SAS_KEY", "BENDYBUS_TOKEN")
    }
    return subprocess.run(
        [str(Path(sys.executable).with_name("bendybus")), *arguments],
        input=given,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**inherited, **environment},
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


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
