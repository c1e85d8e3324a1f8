"""A store that is lost for good: `store forget` through kill -9 at each step, and `delete --force`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fix_postgres import Postgres
from fix_processes import run_bendybus
from fix_server import ServerProcess, StartServer, namespace

TOPIC = {"Name": "t", "Properties": {"EnablePartitioning": True}, "Subscriptions": [{"Name": "s"}]}
SOURCES = ("q", "t/Subscriptions/s")

# Where the process ends itself with SIGKILL: the object, its function, at which call, before or after it.
STEPS = {
    "before anything": ("bendybus.broker.forgetting", "_make", 1, "before"),
    "with some partitions made": ("bendybus.broker.forgetting", "_make", 5, "after"),
    "with all partitions made": ("bendybus.broker.forgetting", "replace_records", 1, "before"),
    "with the catalog changed": ("bendybus.broker.forgetting", "replace_records", 1, "after"),
    "before the list of stores": ("bendybus.store.folder.DataFolder", "keep_store_list", 1, "before"),
    "with the list of stores changed": ("bendybus.store.folder.DataFolder", "keep_store_list", 1, "after"),
    "before the store is let go": ("bendybus.broker.broker.Drains", "forget", 1, "after"),
}

KILLED = """
import inspect, os, pydoc, signal, sys
name, function, at, when = {step!r}
owner = pydoc.locate(name)
original, calls = getattr(owner, function), [0]

def die(moment):
    if calls[0] == at and when == moment:
        os.kill(os.getpid(), signal.SIGKILL)

def ended(*arguments):
    calls[0] += 1
    die("before")
    result = original(*arguments)
    die("after")
    return result

async def ended_later(*arguments):
    calls[0] += 1
    die("before")
    result = await original(*arguments)
    die("after")
    return result

setattr(owner, function, ended_later if inspect.iscoroutinefunction(original) else ended)
from bendybus.cli.main import app
app()
"""


class KilledServer(ServerProcess):
    """Kills itself at a step of `store forget`, if it is told one."""

    step: tuple[object, ...] | None = None

    def command(self) -> list[str]:
        command = super().command()
        if self.step is None:
            return command
        return [sys.executable, "-c", KILLED.format(step=self.step), *command[1:]]


def bendybus(server: ServerProcess, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"BENDYBUS_CONNECTION_STRING": server.connection_string}
    return run_bendybus(*arguments, environment=environment, folder=server.log.parent, given=given)


def stores(server: ServerProcess) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(bendybus(server, "store", "list", "-o", "json").stdout)}


def fill(server: ServerProcess, body: str) -> None:
    """64 messages with as many keys, so that every store has some."""
    lines = [json.dumps({"body": body, "partitionKey": f"key-{number}"}) for number in range(64)]
    for target in ("q", "t"):
        done = bendybus(server, "send", target, "--json", given="\n".join(lines))
        assert done.returncode == 0, done.stderr


def held(server: ServerProcess, source: str) -> list[tuple[int, str]]:
    """Sequence numbers and bodies of all messages that can be seen."""
    found = bendybus(server, "peek", source, "--max", "500", "-o", "json")
    assert found.returncode == 0, found.stderr
    messages = [json.loads(line) for line in found.stdout.splitlines()]
    return sorted((int(each["sequenceNumber"]), each["body"]) for each in messages)


def lose(server: ServerProcess, store: str) -> None:
    server.stop()
    for path in server.data.glob(f"{store}.db*"):
        path.unlink()


@pytest.mark.parametrize("step", STEPS)
def test_kill_9_in_the_middle_of_forgetting_loses_nothing_of_other_stores(tmp_path: Path, step: str) -> None:
    server = KilledServer(
        tmp_path, namespace({"q": {"EnablePartitioning": True}}, topics=[TOPIC]), ["--stores", "2"]
    )
    server.start()
    fill(server, "kept")
    lose(server, "store-1")
    server.step = STEPS[step]
    server.start()
    before = {source: held(server, source) for source in SOURCES}
    assert all(before.values())
    assert bendybus(server, "store", "forget", "store-1", "--yes").returncode != 0
    server.wait()
    server.step = None
    server.start()
    # Before or after, and nothing in between: what the other store has is there, once.
    assert {source: held(server, source) for source in SOURCES} == before
    lost = stores(server).get("store-1")
    if lost is not None and lost["state"] == "away":
        done = bendybus(server, "store", "forget", "store-1", "--yes")
        assert done.returncode == 0, done.stderr
    assert {source: held(server, source) for source in SOURCES} == before
    fill(server, "new")
    for source in SOURCES:
        assert [body for _, body in held(server, source)].count("new") == 64
    server.stop()
    server.start()
    for source in SOURCES:
        now = held(server, source)
        assert [each for each in now if each[1] == "kept"] == before[source]
        assert len(now) == len(before[source]) + 64
    server.stop()


def test_a_lost_postgresql_store_is_forgotten(own_postgres: Postgres, start_server: StartServer) -> None:
    url = own_postgres.url(own_postgres.new_database())
    server = start_server({}, None, "--stores", "1", "--allow-store", url)
    assert bendybus(server, "store", "attach", url, "--name", "pg").returncode == 0
    for kind, name in (("queue", "q"), ("topic", "t")):
        assert bendybus(server, kind, "create", name).returncode == 0
    assert bendybus(server, "subscription", "create", "t", "s").returncode == 0
    fill(server, "kept")
    everything = {source: held(server, source) for source in SOURCES}
    assert stores(server)["pg"]["partitions"] == 24
    own_postgres.kill()
    deadline = time.monotonic() + 60
    while stores(server)["pg"]["state"] != "away":
        assert time.monotonic() < deadline, "the store is not away"
    done = bendybus(server, "store", "forget", "pg", "--yes")
    assert done.returncode == 0, done.stderr
    left = {source: held(server, source) for source in SOURCES}
    for source in SOURCES:
        assert 0 < len(left[source]) < 64 and set(left[source]) < set(everything[source])
    # The database comes back, with what was given up in it; a restart does not look for it.
    own_postgres.start()
    fill(server, "new")
    server.stop()
    server.start()
    assert [*stores(server)] == ["store-0"]
    for source in SOURCES:
        now = held(server, source)
        assert [each for each in now if each[1] == "kept"] == left[source]
        assert len(now) == len(left[source]) + 64
    server.expect_trouble("pg")


@pytest.mark.parametrize(
    ("command", "again"),
    [
        (("queue", "delete", "q"), ("queue", "create", "q")),
        (("topic", "delete", "t"), ("topic", "create", "t")),
        (("subscription", "delete", "t", "s"), ("subscription", "create", "t", "s")),
    ],
    ids=["queue", "topic", "subscription"],
)
def test_an_entity_is_deleted_by_force_while_a_store_is_away(
    start_server: StartServer, command: tuple[str, ...], again: tuple[str, ...]
) -> None:
    server = start_server({"q": {"EnablePartitioning": True}}, None, "--stores", "2", topics=[TOPIC])
    fill(server, "old")
    server.stop()
    kept = {path: path.read_bytes() for path in server.data.glob("store-1.db*")}
    for path in kept:
        path.unlink()
    # The description in Config.json would make it anew at the next start.
    server.write_config(namespace({}))
    server.start()
    refused = bendybus(server, *command, "--yes")
    assert refused.returncode == 1 and "unavailable" in refused.stderr
    assert bendybus(server, *command, "--yes", "--force").returncode == 0
    server.stop()
    # The store comes back; what it kept of the entity is gone, also under the same name.
    for path, content in kept.items():
        path.write_bytes(content)
    server.start()
    assert {each["state"] for each in stores(server).values()} == {"available"}
    assert bendybus(server, *again).returncode == 0
    if again[0] == "topic":
        assert bendybus(server, "subscription", "create", "t", "s").returncode == 0
    source = "q" if again[0] == "queue" else SOURCES[1]
    assert held(server, source) == []
    other = SOURCES[1] if again[0] == "queue" else "q"
    assert len(held(server, other)) == 64
    server.expect_trouble("store-1")
