"""Files that are newer, foreign, torn or full: reported by name, and never made worse."""

from __future__ import annotations

import os
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bendybus.domain.messages import Message
from bendybus.errors import BrokerError, SchemaTooNew, StoreCorrupted, StoreError, StoreUnavailable
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber
from bendybus.store import encoding
from bendybus.store.protocol import PartitionChanges
from bendybus.store.sqlite import commit_path, files
from bendybus.store.sqlite.catalog import SqliteCatalog
from bendybus.store.sqlite.store import MESSAGING_STORE, SqliteStore

Bench = Any  # the Workbench of conftest.py
MakeMessage = Callable[..., Message]


@pytest.fixture
def closed(sqlite_bench: Bench, make_message: MakeMessage, tmp_path: Path) -> Path:
    """A store with some hundred messages, closed."""
    sqlite_bench.commit([make_message(number, os.urandom(1500)) for number in range(1, 200)])
    sqlite_bench.store.close()
    return tmp_path / "store-0.db"


@pytest.fixture
def no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """All commits go straight to the database."""
    monkeypatch.setattr(commit_path, "LARGE_COMMIT_BYTES", 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def use_everything(path: Path) -> list[bytes]:
    """Whatever a broker would ever read of the store."""
    store = SqliteStore(path)
    store.open()
    try:
        return [
            payload
            for record in store.partitions()
            for payload in store.read([message.row_id for message in store.load(record.key).messages])
        ]
    finally:
        store.close()


# -- whose file, and how new ----------------------------------------------------


@pytest.mark.parametrize("kind", ["store", "catalog"])
def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file.db"
    opened = SqliteStore(path) if kind == "store" else SqliteCatalog(path)
    opened.open()
    opened.close()
    with closing(sqlite3.connect(path)) as connection:
        (known,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA user_version = 99")
    before = contents(tmp_path)
    with pytest.raises(SchemaTooNew, match=rf"file\.db .*version 99; .* up to {known}"):
        opened.open()
    assert contents(tmp_path) == before


@pytest.mark.row("B-08")
def test_a_store_of_version_1_is_brought_up_to_date_with_its_messages(
    tmp_path: Path,
) -> None:
    path = tmp_path / "old.db"
    first = replace(
        MESSAGING_STORE,
        migrations=MESSAGING_STORE.migrations[:1],
        tables=frozenset({"partition", "message", "body"}),
    )
    with closing(files.open_file(path, first)) as connection:
        connection.execute("INSERT INTO partition VALUES (1, 'orders', 0, 2)")
        connection.execute("INSERT INTO body VALUES (5, x'6f6c64')")
        connection.execute(
            "INSERT INTO message (id, partition, sequence, body, enqueued_at, size) VALUES (5, 1, 1, 5, 0, 3)"
        )
    store = SqliteStore(path)
    store.open()
    (record,) = store.partitions()
    (message,) = store.load(record.key).messages
    assert store.read([message.body_row_id]) == [b"old"]
    changes = PartitionChanges(record.key, SequenceNumber(2), removed=[message])
    changes.remembered = [(Instant(5), [b"1" * 16])]
    store.commit([changes])
    assert store.load(record.key).identities == [(5, b"1" * 16)]
    assert store.read([message.body_row_id]) == [None]
    store.close()


def test_a_newer_version_that_stands_only_in_the_log_is_refused(closed: Path) -> None:
    with closing(sqlite3.connect(closed)) as connection:
        connection.execute("PRAGMA user_version = 99")
        # Still open, so the log has not been emptied into the file.
        with pytest.raises(SchemaTooNew, match="version 99"):
            SqliteStore(closed).open()


def test_another_program_s_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store-0.db")) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    before = contents(tmp_path)
    with pytest.raises(StoreError, match=r"store-0\.db is not a Bendybus messaging store"):
        SqliteStore(tmp_path / "store-0.db").open()
    assert contents(tmp_path) == before


def test_a_catalog_is_not_taken_for_a_messaging_store(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.open()
    catalog.close()
    with pytest.raises(StoreError, match="not a Bendybus messaging store"):
        SqliteStore(tmp_path / "catalog.db").open()


def test_an_older_file_is_brought_up_step_by_step(tmp_path: Path) -> None:
    def kind(*migrations: str) -> files.FileKind:
        return files.FileKind("thing", 7, migrations, frozenset({"thing"}))

    first, second = "CREATE TABLE thing (a);", "ALTER TABLE thing ADD COLUMN b; UPDATE thing SET b = a + 1;"
    path = tmp_path / "thing.db"
    with closing(files.open_file(path, kind(first))) as connection:
        connection.execute("INSERT INTO thing VALUES (1)")
    with closing(files.open_file(path, kind(first, second))) as connection:
        assert connection.execute("SELECT a, b FROM thing").fetchall() == [(1, 2)]
    broken = "ALTER TABLE thing ADD COLUMN c; INSERT INTO nowhere VALUES (1);"
    with pytest.raises(StoreError, match="nowhere"):
        files.open_file(path, kind(first, second, broken))
    with closing(files.open_file(path, kind(first, second))) as connection:
        assert connection.execute("SELECT * FROM thing").fetchall() == [(1, 2)]


def test_a_file_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = files.FileKind(
        "thing", 7, ("CREATE TABLE thing (a); INSERT INTO nowhere VALUES (1);",), frozenset()
    )
    with pytest.raises(StoreError, match="nowhere"):
        files.open_file(tmp_path / "thing.db", broken)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_made_for_its_owner_alone(closed: Path) -> None:
    assert closed.stat().st_mode & 0o777 == 0o600


# -- torn files -------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 50, 100, 8192, 100_000])
def test_a_cut_file_is_reported_by_name(closed: Path, size: int) -> None:
    os.truncate(closed, size)
    with pytest.raises(StoreCorrupted, match=r"store-0\.db"):
        SqliteStore(closed).open()


@pytest.mark.usefixtures("no_journal")
def test_a_cut_file_is_reported_although_its_log_is_whole(
    sqlite_bench: Bench, make_message: MakeMessage, tmp_path: Path
) -> None:
    sqlite_bench.commit([make_message(number, os.urandom(1500)) for number in range(1, 200)])
    sqlite_bench.reopen()
    sqlite_bench.commit([make_message(200)])
    # As after a crash: the last commit stands in the log alone.
    torn = tmp_path / "torn"
    torn.mkdir()
    for name in ("store-0.db", "store-0.db-wal"):
        (torn / name).write_bytes((tmp_path / name).read_bytes())
    os.truncate(torn / "store-0.db", 100_000)
    with pytest.raises(StoreCorrupted, match=r"torn/store-0\.db is cut short"):
        SqliteStore(torn / "store-0.db").open()


def test_garbage_is_reported_by_name(closed: Path) -> None:
    closed.write_bytes(os.urandom(50_000))
    with pytest.raises(StoreCorrupted, match=r"store-0\.db"):
        SqliteStore(closed).open()


def test_a_lost_table_is_reported_by_name(closed: Path) -> None:
    with closing(sqlite3.connect(closed)) as connection:
        connection.execute("DROP TABLE body")
    with pytest.raises(StoreCorrupted, match=r"store-0\.db .*table body is missing"):
        SqliteStore(closed).open()


def test_a_log_without_its_file_is_reported(closed: Path) -> None:
    closed.with_name("store-0.db-wal").write_bytes(b"something")
    closed.unlink()
    with pytest.raises(StoreCorrupted, match=r"store-0\.db is missing"):
        SqliteStore(closed).open()


def test_a_garbled_page_is_reported_by_name_or_does_no_harm(closed: Path) -> None:
    whole = closed.read_bytes()
    expected = use_everything(closed)
    reported = 0
    pages = len(whole) // files.PAGE_BYTES
    for page in range(pages):
        start = page * files.PAGE_BYTES
        flipped = bytes(byte ^ 0xFF for byte in whole[start : start + files.PAGE_BYTES])
        closed.write_bytes(whole[:start] + flipped + whole[start + files.PAGE_BYTES :])
        try:
            # The page map that lets files shrink, or the index of shared bodies, is not needed for reading.
            assert use_everything(closed) == expected
        except StoreCorrupted as error:
            assert "store-0.db" in str(error)
            reported += 1
    assert reported >= pages - 4


def test_a_garbled_digest_is_reported_by_name(closed: Path) -> None:
    with closing(sqlite3.connect(closed)) as connection:
        key = connection.execute("SELECT min(key) FROM partition").fetchone()[0]
        connection.execute("INSERT INTO identity VALUES (?, 5, 'no digest')", (key,))
        connection.commit()
    with pytest.raises(StoreCorrupted, match=r"store-0\.db is damaged: a digest"):
        use_everything(closed)


def test_a_garbled_row_is_reported_by_name(closed: Path) -> None:
    with closing(sqlite3.connect(closed)) as connection:
        connection.execute("UPDATE message SET state = 77 WHERE id = 5")
        connection.commit()
    with pytest.raises(StoreCorrupted, match=r"store-0\.db is damaged: a message"):
        use_everything(closed)


# -- full disks and broken ones ----------------------------------------------------


@contextmanager
def database_limit(bench: Bench) -> Iterator[None]:
    """SQLite believes the disk is full."""
    writer = bench.store._connections._opened()[0]
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    try:
        yield
    finally:
        writer.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def file_limit(bench: Bench) -> Iterator[None]:
    """The operating system refuses to let the log grow, in the middle of a commit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bench.store._path.stat().st_size + 100_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("no_journal")
@pytest.mark.parametrize("limit", [database_limit, file_limit])
@pytest.mark.parametrize("request_bytes_max", [encoding.REQUEST_BYTES_MAX, 10_000])
def test_a_full_disk_undoes_the_commit_whole_and_the_store_goes_on_when_there_is_space(
    sqlite_bench: Bench,
    make_message: MakeMessage,
    monkeypatch: pytest.MonkeyPatch,
    limit: Any,
    request_bytes_max: int,
) -> None:
    # The smaller number makes one commit of many requests.
    monkeypatch.setattr(encoding, "REQUEST_BYTES_MAX", request_bytes_max)
    kept = make_message(1)
    sqlite_bench.commit([kept], next_sequence_number=2)
    large = [make_message(number, b"x" * 1000) for number in range(2, 500)]
    kept.delivery_count = 5
    with limit(sqlite_bench), pytest.raises(StoreUnavailable, match=r"store-0\.db"):
        sqlite_bench.commit(large, updated=[kept], next_sequence_number=500)
    assert [message.row_id for message in large] == [0] * len(large)
    snapshot = sqlite_bench.store.load(sqlite_bench.keys[0])
    assert snapshot.next_sequence_number == 2
    assert [message.delivery_count for message in snapshot.messages] == [0]
    sqlite_bench.commit(large, updated=[kept], next_sequence_number=500)
    sqlite_bench.reopen()
    assert sqlite_bench.numbers() == list(range(1, 500))


@pytest.mark.row("P-18")
@pytest.mark.usefixtures("no_journal")
@pytest.mark.parametrize("request_bytes_max", [encoding.REQUEST_BYTES_MAX, 1])
def test_a_refused_row_undoes_the_commit_whole(
    sqlite_bench: Bench, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch, request_bytes_max: int
) -> None:
    monkeypatch.setattr(encoding, "REQUEST_BYTES_MAX", request_bytes_max)
    sqlite_bench.store._connections._opened()[0].execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON message WHEN NEW.sequence = 3 "
        "BEGIN SELECT RAISE(ABORT, 'refused'); END"
    )
    with pytest.raises(StoreError, match="refused"):
        sqlite_bench.commit([make_message(number) for number in range(1, 6)], next_sequence_number=6)
    sqlite_bench.reopen()
    assert sqlite_bench.numbers() == []
    assert sqlite_bench.store.load(sqlite_bench.keys[0]).next_sequence_number == 1
    with closing(sqlite3.connect(sqlite_bench.store._path)) as connection:
        assert connection.execute("SELECT count(*) FROM body").fetchone() == (0,)


# -- housekeeping --------------------------------------------------------------------


def test_a_dropped_partition_is_swept_by_the_commits_that_follow(
    sqlite_bench: Bench, make_message: MakeMessage
) -> None:
    store = sqlite_bench.store
    (bills,) = store.create_partitions(EntityPath("bills"), [PartitionNumber(0)])
    sqlite_bench.commit([make_message(number) for number in range(1, 5001)])
    store.drop_partitions(EntityPath("orders"))
    sqlite_bench.reopen()
    for _ in range(5):
        store.commit([PartitionChanges(bills.key, 1)])
    with closing(sqlite3.connect(store._path)) as connection:
        for table in ("message", "body"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM partition").fetchone() == (1,)


def test_space_is_given_back_once_most_of_a_large_file_is_free(
    sqlite_bench: Bench, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FREE_BYTES_KEPT", 1 << 20)
    messages = [make_message(number, b"x" * 8000) for number in range(1, 501)]
    sqlite_bench.commit(messages)
    sqlite_bench.commit(removed=messages[10:])
    sqlite_bench.reopen()
    before = sqlite_bench.store._path.stat().st_size
    while sqlite_bench.store.tidy():
        pass
    sqlite_bench.reopen()
    assert sqlite_bench.store._path.stat().st_size < before / 2
    assert len(sqlite_bench.store.read([message.row_id for message in sqlite_bench.loaded()])) == 10


def test_the_log_stays_bounded_under_steady_work(sqlite_bench: Bench, make_message: MakeMessage) -> None:
    log = sqlite_bench.store._path.with_name("store-0.db-wal")
    last: list[Message] = []
    for batch in range(60):
        messages = [make_message(batch * 500 + number, b"x" * 1000) for number in range(1, 501)]
        sqlite_bench.commit(messages, removed=last)
        last = messages
    assert log.stat().st_size < 2 * files.WAL_BYTES


def test_a_commit_is_synced_before_it_returns(sqlite_bench: Bench) -> None:
    writer = sqlite_bench.store._connections._opened()[0]
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    # 2 is FULL: "an additional sync operation of the WAL file happens after each transaction commit".
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)


def test_errors_while_opening_are_ours(tmp_path: Path) -> None:
    (tmp_path / "store-0.db").mkdir()
    with pytest.raises(BrokerError, match=r"store-0\.db"):
        SqliteStore(tmp_path / "store-0.db").open()


# -- closing -----------------------------------------------------------------------


def test_a_read_under_way_is_ended_before_its_connection_is_closed(sqlite_bench: Bench) -> None:
    store = sqlite_bench.store
    begun = threading.Event()

    def read_without_end() -> None:
        with store._connections.reading() as reader:
            reader.create_function("begun", 0, begun.set)
            endless = "WITH RECURSIVE n(i) AS (SELECT begun() UNION ALL SELECT 1 FROM n)"
            reader.execute(f"{endless} SELECT 1 FROM n WHERE i = 2").fetchone()

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read_without_end)
        assert begun.wait(10)
        store.close()
        assert "interrupted" in str(reading.exception(10))
    with pytest.raises(StoreUnavailable, match="is closed"):
        store.partitions()
