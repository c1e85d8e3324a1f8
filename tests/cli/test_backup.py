"""Backups of a running server and what is made of them, from the command line and against real servers."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from bendybus.client import BusClient, ClientSettings, encode
from fix_postgres import Postgres
from fix_processes import run_bendybus
from fix_server import ServerProcess, StartServer, namespace

Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]

QUEUE = {"q": {"EnablePartitioning": True}}
BODIES = {f"message {number}".encode() for number in range(40)}


@pytest.fixture
def attempt(tmp_path: Path) -> Run:
    """`attempt("backup", ...)`: whatever comes of it."""
    return lambda *arguments: run_bendybus(*arguments, environment={}, folder=tmp_path)


@pytest.fixture
def done(attempt: Run) -> Callable[..., Any]:
    """The same, which succeeds; what it says."""

    def run(*arguments: str | Path) -> Any:
        told = attempt(*map(str, arguments), "--output", "json")
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    return run


def refused(told: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert told.returncode in (1, 2)
    for text in texts:
        assert text in told.stderr
    assert "Traceback" not in told.stderr


def client_of(server: ServerProcess, text: str = "") -> BusClient:
    return BusClient(ClientSettings.from_connection_string(text or server.connection_string))


def fill(server: ServerProcess, text: str = "") -> None:
    with client_of(server, text) as client:
        for body in sorted(BODIES):
            # One by one: each goes to the next partition, and so to all stores.
            client.sender("q").send([encode(body)])


def emptied(server: ServerProcess, text: str = "") -> set[bytes]:
    found: set[bytes] = set()
    with client_of(server, text) as client:
        receiver = client.receiver("q", deletes=True)
        while batch := receiver.receive(100, timeout_s=1.0):
            found |= {bytes(each.body) for each in batch}
    return found


def copy_at(folder: Path, *options: str) -> ServerProcess:
    """A server on the data folder that was restored there."""
    return ServerProcess(folder, namespace({}), options)


def files_of(folder: Path) -> dict[str, bytes]:
    """But for those in which SQLite keeps who looks at a file now."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def live(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    server = start_server(QUEUE, None, "--stores", "2", "--allow-store", str(tmp_path))
    fill(server)
    return server


@pytest.fixture
def backup(live: ServerProcess, done: Callable[..., Any], tmp_path: Path) -> Path:
    done("backup", tmp_path / "b", "--data", live.data)
    return tmp_path / "b"


def test_a_restored_server_has_the_messages_the_keys_and_the_certificate(
    live: ServerProcess, done: Callable[..., Any], tmp_path: Path
) -> None:
    made = done("backup", tmp_path / "b", "--data", live.data)
    assert (made["namespaces"], made["entities"], made["stores"], made["keys"]) == (1, 1, 2, True)
    # What is sent later is not in it.
    with client_of(live) as client:
        client.sender("q").send([encode(b"late")])
    told = done("restore", tmp_path / "b", "--data", tmp_path / "r" / "data")
    assert (told["entities"], told["stores"], told["madeAt"]) == (1, 2, made["madeAt"])
    copy = copy_at(tmp_path / "r")
    copy.start()
    assert copy.key == live.key
    assert copy.certificate.read_bytes() == live.certificate.read_bytes()
    assert emptied(copy) == BODIES
    assert copy.stop() == os.EX_OK
    copy.refuse_trouble()
    assert emptied(live) == BODIES | {b"late"}


def test_a_backup_is_for_its_owners_eyes_only(backup: Path) -> None:
    assert stat.S_IMODE(backup.stat().st_mode) == 0o700
    for name in ("namespaces/0/root.key", "tls/server.key", "namespaces/0/stores/store-0.db"):
        assert stat.S_IMODE((backup / name).stat().st_mode) == 0o600
    assert not list(backup.parent.glob("b.partial-*"))


def test_nothing_is_overwritten(live: ServerProcess, backup: Path, attempt: Run, tmp_path: Path) -> None:
    before = files_of(backup)
    refused(attempt("backup", str(backup), "--data", str(live.data)), "not empty")
    refused(attempt("backup", str(live.data / "b"), "--data", str(live.data)), "inside the data folder")
    refused(attempt("backup", "nowhere/b", "--data", str(live.data)), "does not exist")
    refused(attempt("restore", str(backup), "--data", str(live.data)), "not empty")
    refused(attempt("restore", str(live.data), "--data", "r"), "is not a backup")
    refused(attempt("backup", "b2", "--data", "nowhere"), "no server runs on")
    assert files_of(backup) == before
    assert not (tmp_path / "r").exists() and not list(tmp_path.glob("*.partial-*"))
    assert emptied(live) == BODIES


@pytest.mark.parametrize("harm", ["changed", "missing", "stray", "unfinished"])
def test_a_damaged_backup_is_refused_whole(backup: Path, attempt: Run, tmp_path: Path, harm: str) -> None:
    store = backup / "namespaces" / "0" / "stores" / "store-1.db"
    content = store.read_bytes()
    expected = {"changed": "has changed", "missing": "is missing", "stray": "not made with it"}
    match harm:
        case "changed":
            store.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
        case "missing":
            store.unlink()
        case "stray":
            store.with_name("store-1.db-wal").write_bytes(b"of somebody else")
        case "unfinished":
            (backup / "manifest.json").unlink()
    refused(attempt("restore", str(backup), "--data", "r"), expected.get(harm, "is not a backup"))
    assert not (tmp_path / "r").exists() and not list(tmp_path.glob("r.partial-*"))


def test_a_restored_server_never_opens_the_live_stores(
    start_server: StartServer, done: Callable[..., Any], attempt: Run, tmp_path: Path
) -> None:
    # One by URL on the command line, under another name than its file's; no store of the folder's own.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    urls = [f"sqlite://{elsewhere}/{name}.db" for name in ("one", "store-0")]
    options = [option for url in urls for option in ("--store", url)]
    live = start_server(QUEUE, None, *options)
    fill(live)
    done("backup", tmp_path / "b", "--data", live.data)
    done("restore", tmp_path / "b", "--data", tmp_path / "r" / "data")
    live.kill()
    before = files_of(elsewhere)
    copy = copy_at(tmp_path / "r")
    copy.start()
    assert emptied(copy) == BODIES
    assert copy.stop() == os.EX_OK
    assert files_of(elsewhere) == before
    assert {path.name for path in copy.data.glob("**/*.db")} == {"catalog.db", "one.db", "store-0.db"}
    # Told to use the live ones it refuses, and the live server refuses the copies.
    told = attempt("serve", "--data", str(copy.data), "--port", "0", "--admin-port", "0", *options)
    refused(told, "belongs to another namespace")
    copies = [path for path in copy.data.glob("**/*.db") if path.name != "catalog.db"]
    ours = [option for path in copies for option in ("--store", f"sqlite://{path}")]
    told = attempt("serve", "--data", str(live.data), "--port", "0", "--admin-port", "0", *ours)
    refused(told, "belongs to another namespace")
    assert files_of(elsewhere) == before


def test_a_store_that_was_attached_and_one_that_was_retired_are_restored_as_such(
    live: ServerProcess, done: Callable[..., Any], tmp_path: Path
) -> None:
    url = f"sqlite://{tmp_path}/more.db"
    done("store", "attach", url, "--name", "third", "--data", live.data)
    done("store", "drain", "store-1", "--data", live.data)
    done("store", "retire", "store-1", "--data", live.data)
    done("backup", tmp_path / "b", "--data", live.data)
    done("restore", tmp_path / "b", "--data", tmp_path / "r" / "data")
    assert live.stop() == os.EX_OK
    (tmp_path / "more.db").rename(tmp_path / "hidden.db")
    copy = copy_at(tmp_path / "r")
    copy.start()
    names = [each["name"] for each in done("store", "list", "--data", copy.data)]
    assert sorted(names) == ["store-0", "third"]
    assert emptied(copy) == BODIES
    assert copy.stop() == os.EX_OK
    (tmp_path / "hidden.db").rename(tmp_path / "more.db")


def test_all_namespaces_of_a_server_are_in_its_backup(
    start_server: StartServer, done: Callable[..., Any], tmp_path: Path
) -> None:
    live = start_server(QUEUE, None, "--namespace", "bank")
    fill(live)
    made = done("backup", tmp_path / "b", "--data", live.data)
    assert (made["namespaces"], made["stores"]) == (2, 4)
    done("restore", tmp_path / "b", "--data", tmp_path / "r" / "data")
    copy = copy_at(tmp_path / "r")
    copy.start()
    for name in ("root.key", "namespaces/bank/root.key", "namespaces.json"):
        assert (copy.data / name).read_bytes() == (live.data / name).read_bytes()
    assert emptied(copy) == BODIES
    assert copy.stop() == os.EX_OK
    identities = set()
    for server in (live, copy):
        for catalog in server.data.glob("**/catalog.db"):
            with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as connection:
                (described,) = connection.execute("SELECT description FROM namespace").fetchone()
            identities.add(json.loads(described)["id"])
    assert len(identities) == 4


def test_a_key_that_the_operator_keeps_is_said_to_be_missing(
    tmp_path: Path, attempt: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENDYBUS_SAS_KEY", "kept-elsewhere")
    live = ServerProcess(tmp_path, namespace(QUEUE))
    live.start()
    try:
        # The operator needs no key of a namespace.
        told = attempt("backup", "b", "--data", str(live.data))
        assert told.returncode == 0 and "BENDYBUS_SAS_KEY" in told.stderr
    finally:
        assert live.stop() == os.EX_OK
    assert "kept-elsewhere" not in "".join(map(repr, files_of(tmp_path / "b").values()))
    assert "BENDYBUS_SAS_KEY" in attempt("restore", "b", "--data", "r").stderr


def test_no_backup_is_made_while_a_store_is_away(
    start_server: StartServer, attempt: Run, tmp_path: Path
) -> None:
    live = start_server(QUEUE, None, "--development")
    switch = ("fault", "store", "store-0", "--data", str(live.data))
    assert attempt(*switch, "fail").returncode == 0
    # Sends go elsewhere; one with a key may not.
    with client_of(live) as client:
        for _ in range(20):
            client.sender("q").send([encode(b"x")])
    refused(attempt("backup", "b", "--data", str(live.data)), "No backup was made", "store-0")
    assert not list(tmp_path.glob("b*"))
    assert attempt(*switch, "heal").returncode == 0
    live.expect_trouble("store store-0 is", "no backup was made")


@pytest.mark.usefixtures("postgres_tools")
def test_postgresql_and_sqlite_are_backed_up_together(
    postgres: Postgres, start_server: StartServer, done: Callable[..., Any], attempt: Run, tmp_path: Path
) -> None:
    database = postgres.new_database()
    urls = [postgres.url(database, name="pg"), f"sqlite://{tmp_path}/files.db"]
    live = start_server(QUEUE, None, *(option for url in urls for option in ("--store", url)))
    fill(live)
    done("backup", tmp_path / "b", "--data", live.data)
    refused(attempt("restore", "b", "--data", "r"), "say which database", "--store pg=")
    told = attempt("restore", "b", "--data", "r", "--store", f"pg={postgres.url(database)}")
    refused(told, "has a schema bendybus already")
    assert not (tmp_path / "r").exists()
    target = postgres.url(postgres.new_database())
    done("restore", tmp_path / "b", "--data", tmp_path / "c" / "data", "--store", f"pg={target}")
    copy = copy_at(tmp_path / "c")
    copy.start()
    assert emptied(copy) == BODIES
    assert copy.stop() == os.EX_OK
    assert emptied(live) == BODIES
