"""The command itself, run as a process against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from fix_server import ServerProcess

COMMAND_TIMEOUT_S = 60

Bendybus: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
BendybusJson: TypeAlias = Callable[..., Any]


def run_bendybus(
    *arguments: str, environment: dict[str, str], folder: Path, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """`bendybus ARGUMENTS`, in `folder`; nothing about servers is inherited from who runs the tests."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_CONNECTION_STRING") and name != "BENDYBUS_SAS_KEY"
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
