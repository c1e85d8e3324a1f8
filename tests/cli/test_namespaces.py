"""Namespaces of a running server from the command line: created, used, kept over a restart, deleted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import BrokerError, Unauthorized
from bendybus.management.json_api import ask_json
from fix_processes import run_bendybus
from fix_server import ServerProcess, StartServer


class Operator:
    """Whoever can read the data folder."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self._server = server
        self._folder = folder

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_bendybus(
            "namespace", *arguments, "--data", str(self._server.data), environment={}, folder=self._folder
        )

    def __call__(self, *arguments: str) -> Any:
        done = self.attempt(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def own(start_server: StartServer) -> ServerProcess:
    return start_server({"orders": {}})


@pytest.fixture
def operator(own: ServerProcess, tmp_path: Path) -> Operator:
    return Operator(own, tmp_path)


def bendybus(connection_string: str, folder: Path, *arguments: str) -> str:
    environment = {"BENDYBUS_CONNECTION_STRING": connection_string}
    done = run_bendybus(*arguments, environment=environment, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_namespace_is_created_used_and_kept(own: ServerProcess, operator: Operator, tmp_path: Path) -> None:
    (first,) = operator("list")
    assert (first["name"], first["queues"], first["first"]) == ("interop", 1, True)
    made = operator("create", "shop", "--tier", "premium", "--premium-messaging-partitions", "4")
    assert (made["tier"], made["first"]) == ("premium", False)
    bendybus(made["connectionString"], tmp_path, "queue", "create", "parcels")
    bendybus(made["connectionString"], tmp_path, "send", "parcels", "--body", "hello")
    # The first namespace does not have it.
    assert "parcels" not in bendybus(own.connection_string, tmp_path, "queue", "list")
    own.stop()
    own.start()
    names = {each["name"]: each for each in operator("list")}
    assert (names["shop"]["queues"], names["shop"]["tier"]) == (1, "premium")
    received = bendybus(names["shop"]["connectionString"], tmp_path, "receive", "parcels", "-o", "json")
    assert json.loads(received)["body"] == "hello"


def test_a_deleted_namespace_is_gone_and_may_be_created_again_empty(
    own: ServerProcess, operator: Operator, tmp_path: Path
) -> None:
    made = operator("create", "shop")
    bendybus(made["connectionString"], tmp_path, "queue", "create", "parcels")
    assert operator("delete", "shop", "--dry-run") == {"name": "shop", "deleted": False}
    asked = operator.attempt("delete", "shop")
    assert (asked.returncode, "1 queues" in asked.stderr) == (2, True)
    with BusClient(ClientSettings.from_connection_string(made["connectionString"])) as client:
        client.sender("parcels").send([encode(b"x")])
        assert operator("delete", "shop", "--yes") == {"name": "shop", "deleted": True}
        with pytest.raises(BrokerError):
            client.sender("parcels").send([encode(b"y")])
    assert not (own.data / "namespaces" / "shop").exists()
    assert [each["name"] for each in operator("list")] == ["interop"]
    again = operator("create", "Shop")
    assert again["queues"] == 0
    assert again["connectionString"] != made["connectionString"]
    operator("delete", "shop", "--yes")
    own.stop()
    own.start()
    assert [each["name"] for each in operator("list")] == ["interop"]


def test_a_deletion_that_was_cut_off_is_completed_by_the_next_start(
    own: ServerProcess, operator: Operator
) -> None:
    operator("create", "shop")
    own.stop()
    file = own.data / "namespaces.json"
    file.write_text(json.dumps({"format": 1, "names": ["interop"], "removing": ["shop"]}))
    own.start()
    assert [each["name"] for each in operator("list")] == ["interop"]
    assert not (own.data / "namespaces" / "shop").exists()
    assert json.loads(file.read_text())["removing"] == []


def test_what_cannot_be_done_is_told_in_one_line(operator: Operator) -> None:
    operator("create", "shop")
    for arguments, complaint in (
        (("create", "SHOP"), "The namespace 'SHOP' already exists."),
        (("create", "9lives"), "it must be part of a host name"),
        (("create", "bank", "--premium-messaging-partitions", "2"), "its tier is standard"),
        (("delete", "interop", "--yes"), "it cannot be deleted"),
        (("delete", "nowhere", "--yes"), "There is no namespace 'nowhere'."),
    ):
        refused = operator.attempt(*arguments)
        assert (refused.returncode, refused.stdout) == (1, ""), arguments
        assert complaint in refused.stderr and refused.stderr.count("\n") == 1
    assert [each["name"] for each in operator("list")] == ["interop", "shop"]


def test_a_namespaces_key_is_not_enough(own: ServerProcess) -> None:
    """The routes are for the operator's key, which is in the data folder alone."""
    with pytest.raises(Unauthorized):
        ask_json(ConnectionString.parse(own.connection_string), "GET", "/$namespaces")


def test_a_command_uses_the_namespace_that_it_names(own: ServerProcess, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_bendybus(*arguments, "--data", str(own.data), environment={}, folder=tmp_path)

    assert run("namespace", "create", "shop").returncode == 0
    assert run("queue", "create", "parcels", "--namespace", "Shop").returncode == 0
    assert run("send", "parcels", "--body", "hello", "--namespace", "shop").returncode == 0
    assert "hello" in run("receive", "parcels", "--namespace", "shop").stdout
    assert "parcels" not in run("queue", "list").stdout
    unknown = run("queue", "list", "--namespace", "nowhere")
    assert unknown.returncode == 2
    assert "the server has no namespace 'nowhere'; it has" in unknown.stderr
    both = run("queue", "list", "--namespace", "shop", "--connection-string", own.connection_string)
    assert both.returncode == 2
    assert "a connection string has its own" in both.stderr
