"""`bendybus fault entity`, `detach` and `lose-locks`, against a real server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError
from bendybus.management.json_api import ask_json
from fix_processes import run_bendybus
from fix_server import ServerProcess, StartServer


@pytest.fixture
def own(start_server: StartServer) -> ServerProcess:
    return start_server({"orders": {"EnablePartitioning": True}}, None, "--development")


def test_an_entity_is_made_busy_and_healed(own: ServerProcess, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"BENDYBUS_CONNECTION_STRING": own.connection_string}
        return run_bendybus(*arguments, environment=environment, folder=tmp_path)

    wrong = ("--busy", "1", "--latency-ms", "5", "--throttle", "3")
    faulty = run("fault", "entity", "orders", *wrong, "-o", "json")
    assert faulty.returncode == 0, faulty.stderr
    shown = {"entity": "orders", "busyShare": 1, "latencyMs": 5, "throttledPartitions": [3]}
    assert json.loads(faulty.stdout) == shown
    refused = run("send", "orders", "--body", "hello")
    assert refused.returncode == 1
    assert "busy, because a test has asked for it" in refused.stderr
    assert run("fault", "entity", "orders", "--heal").stderr == "orders: healed\n"
    assert run("send", "orders", "--body", "hello").returncode == 0
    assert run("fault", "detach", "orders").stderr == "orders: links detached\n"
    assert run("fault", "lose-locks", "orders").stderr == "orders: locks ended\n"
    nothing = run("fault", "entity", "orders")
    assert (nothing.returncode, "--heal" in nothing.stderr) == (2, True)
    unknown = run("fault", "entity", "orders", "--throttle", "16")
    assert (unknown.returncode, "has no partition 16" in unknown.stderr) == (1, True)


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("PUT", {"busy": 1}),
        ("PUT", {"busyShare": "1"}),
        ("PUT", {"throttledPartitions": ["3"]}),
        ("PUT", []),
        ("POST", {"action": "explode"}),
        ("POST", {"action": "detach", "when": "now"}),
    ],
)
def test_what_is_not_known_is_refused(own: ServerProcess, method: str, body: object) -> None:
    namespace = ConnectionString.parse(own.connection_string)
    with pytest.raises(ArgumentError):
        ask_json(namespace, method, "/$faults/entities/orders", body)
    assert ask_json(namespace, "GET", "/$faults/entities") == {"entities": []}


def test_a_server_that_is_not_for_development_refuses(server: ServerProcess) -> None:
    namespace = ConnectionString.parse(server.connection_string)
    with pytest.raises(ArgumentError, match="only on a server that was started with --development"):
        ask_json(namespace, "GET", "/$faults/entities")
