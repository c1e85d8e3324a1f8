"""Stores from the command line, against a real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from fix_processes import run_bendybus
from fix_server import ServerProcess, StartServer

Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def own_server(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    allowed = ("--allow-store", str(tmp_path), "--allow-store", "postgresql://127.0.0.1:1/x")
    return start_server({"q": {"EnablePartitioning": True}}, None, "--stores", "2", *allowed)


@pytest.fixture
def store(own_server: ServerProcess, tmp_path: Path) -> Run:
    """`store("list")`: whatever comes of it."""
    environment = {"BENDYBUS_CONNECTION_STRING": own_server.connection_string}
    return lambda *arguments: run_bendybus("store", *arguments, environment=environment, folder=tmp_path)


def told(run: Run, *arguments: str) -> Any:
    done = run(*arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.row("P-02")
def test_a_store_is_attached_emptied_and_retired(
    store: Run, own_server: ServerProcess, tmp_path: Path
) -> None:
    before = {each["name"]: each for each in told(store, "list")}
    assert [each["partitions"] for each in before.values()] == [8, 8]
    assert {(each["kind"], each["state"], each["draining"]) for each in before.values()} == {
        ("sqlite", "available", False)
    }
    added = told(store, "attach", f"sqlite://{tmp_path}/more.db", "--name", "third")
    assert (added["name"], added["partitions"]) == ("third", 0)
    done = store("drain", "store-0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "store-0: drained\n")
    table = store("list").stdout.splitlines()
    assert table[0].split() == ["Name", "Kind", "State", "Since", "Partitions", "Bytes", "Draining"]
    assert [line.split()[0] for line in table[2:]] == ["store-0", "store-1", "third"]
    assert [each["partitions"] for each in told(store, "list")] == [0, 8, 8]
    assert told(store, "retire", "store-0") == {"name": "store-0", "retired": True}
    own_server.stop()
    own_server.start()
    assert [each["name"] for each in told(store, "list")] == ["store-1", "third"]


def test_a_drain_can_be_begun_without_waiting_and_called_off(store: Run) -> None:
    assert told(store, "drain", "store-1", "--no-wait")["draining"] is True
    # Asked again, it waits for the one that is under way.
    assert told(store, "drain", "store-1")["partitions"] == 0
    done = store("drain", "store-1", "--stop")
    assert (done.returncode, done.stderr) == (0, "store-1: in use\n")
    assert [each["draining"] for each in told(store, "list")] == [False, False]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("drain", "nowhere"), "There is no messaging store 'nowhere'; there are store-0, store-1."),
        (("retire", "store-0"), "keeps 8 partitions; drain it first"),
        (("attach", "sqlite://relative.db"), "absolute path"),
        (
            ("attach", "sqlite:///nowhere/b.db"),
            "allows a folder or a URL when the server starts: --allow-store",
        ),
        (("attach", "postgresql://ann:hush@127.0.0.1:1/x"), "cannot be attached now"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    store: Run, arguments: tuple[str, ...], complaint: str
) -> None:
    done = store(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bendybus: ") and done.stderr.count("\n") == 1
    assert complaint in done.stderr and "hush" not in done.stderr


@pytest.mark.row("P-04")
def test_a_server_without_one_of_its_files_starts_and_gives_it_up(
    own_server: ServerProcess, store: Run, tmp_path: Path
) -> None:
    """The night's work: a file is gone, the server runs, the operator gives the store up."""
    environment = {"BENDYBUS_CONNECTION_STRING": own_server.connection_string}

    def bendybus(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_bendybus(*arguments, environment=environment, folder=tmp_path)

    assert bendybus("queue", "create", "old").returncode == 0
    assert bendybus("send", "q", "--body", "x", "--count", "160").returncode == 0
    own_server.stop()
    lost = {path: path.read_bytes() for path in own_server.data.glob("store-1.db*")}
    for path in lost:
        path.unlink()
    own_server.start()
    away = {each["name"]: each for each in told(store, "list")}["store-1"]
    assert away["state"] == "away"
    assert away["loss"]["partitions"] == away["loss"]["uncounted"] == away["partitions"]

    listed = bendybus("queue", "list")
    assert "(partial)" in listed.stdout
    assert "Counts of old, q are partial" in listed.stderr
    refused = bendybus("queue", "delete", "old", "--yes")
    assert refused.returncode == 1
    assert bendybus("queue", "delete", "old", "--yes", "--force").returncode == 0

    refused = store("forget", "store-0", "--yes")
    assert refused.returncode == 1
    assert "is available, so it must not be given up" in refused.stderr
    assert store("forget", "store-1").returncode == 2
    done = store("forget", "store-1", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "store-1: forgotten, and with it 8 partitions and an unknown number of messages\n"
    assert bendybus("send", "q", "--body", "y", "--count", "32").returncode == 0
    peeked = bendybus("peek", "q", "--max", "500", "-o", "json").stdout.splitlines()

    # Should the file be found again, it is not used: what is in it stays given up.
    own_server.stop()
    for path, content in lost.items():
        path.write_bytes(content)
    own_server.start()
    assert [(each["name"], each["partitions"]) for each in told(store, "list")] == [("store-0", 16)]
    again = bendybus("peek", "q", "--max", "500", "-o", "json").stdout.splitlines()
    assert len(again) == len(peeked)
    assert [json.loads(line)["body"] for line in again].count("y") == 32
    own_server.expect_trouble("store store-1 is away", "store-1.db is not there")
