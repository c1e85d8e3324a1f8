"""Acknowledged commits that are no longer in the file, and files that are gone, are noticed.

SQLite ends its log at the first frame whose checksum is wrong and says nothing of what follows, and so does
the journal at its first record.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bendybus.domain.messages import Message
from bendybus.errors import StoreCorrupted, StoreUnavailable
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.catalog import EntityRecord
from bendybus.store.sqlite import commit_path, witness
from bendybus.store.sqlite.catalog import SqliteCatalog
from bendybus.store.sqlite.store import SqliteStore
from store.conftest import Workbench

Bench = Any  # the Workbench of conftest.py
MakeMessage = Callable[..., Message]
Damage = Callable[[Path], None]

COMMITS = 30


def end_of_records(log: Path) -> int:
    """Files of the journal grow ahead of their records."""
    return len(log.read_bytes().rstrip(b"\0"))


def flip_a_bit(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[end_of_records(log) * 2 // 3] ^= 1
    log.write_bytes(content)


def flip_a_bit_of_the_last_commit(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[end_of_records(log) - 20] ^= 1
    log.write_bytes(content)


def zero(log: Path) -> None:
    log.write_bytes(bytes(log.stat().st_size))


def cut(log: Path) -> None:
    os.truncate(log, end_of_records(log) // 2)


def remove(log: Path) -> None:
    log.unlink()


LOG_DAMAGE: list[Damage] = [flip_a_bit, flip_a_bit_of_the_last_commit, zero, cut, remove]


def copied(folder: Path, to: Path) -> Path:
    """The files as a killed process leaves them."""
    to.mkdir()
    for file in folder.iterdir():
        if file.is_file() and not file.name.endswith("-shm"):
            shutil.copy(file, to)
    return to


@pytest.fixture
def killed(sqlite_bench: Bench, make_message: MakeMessage, tmp_path: Path) -> Path:
    """A store after thirty small commits and kill -9."""
    for number in range(1, COMMITS + 1):
        sqlite_bench.commit([make_message(number)], next_sequence_number=number + 1)
    sqlite_bench.store.settle()
    return copied(tmp_path, tmp_path / "killed") / "store-0.db"


def numbers(path: Path) -> list[int]:
    store = SqliteStore(path)
    store.open()
    try:
        return [m.sequence_number for r in store.partitions() for m in store.load(r.key).messages]
    finally:
        store.close()


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def journal_of(path: Path) -> Path:
    return path.with_name(path.name + "-commits-0")


def witness_of(path: Path) -> Path:
    return path.with_name(path.name + "-witness")


# -- at the start --------------------------------------------------------------------


@pytest.mark.parametrize("damage", LOG_DAMAGE)
def test_a_store_that_ends_before_an_acknowledged_commit_is_reported(killed: Path, damage: Damage) -> None:
    damage(journal_of(killed))
    last = COMMITS + 1  # the first one made the partitions
    with pytest.raises(
        StoreCorrupted, match=rf"store-0\.db ends before commit {last}, which was acknowledged"
    ):
        SqliteStore(killed).open()


@pytest.mark.parametrize("damage", LOG_DAMAGE)
def test_the_same_for_commits_that_went_straight_to_the_database(
    make_message: MakeMessage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    monkeypatch.setattr(commit_path, "LARGE_COMMIT_BYTES", 0)
    bench = Workbench(lambda: SqliteStore(tmp_path / "store-0.db"))
    for number in range(1, COMMITS + 1):
        bench.commit([make_message(number)], next_sequence_number=number + 1)
    bench.store.settle()
    dead = copied(tmp_path, tmp_path / "dead") / "store-0.db"
    bench.store.close()
    damage(log_of(dead))
    with pytest.raises(StoreCorrupted, match=r"ends before commit 31, which was acknowledged"):
        SqliteStore(dead).open()


@pytest.mark.parametrize("damage", LOG_DAMAGE)
def test_what_a_damaged_log_has_lost_is_found_in_the_journal(
    sqlite_bench: Bench, make_message: MakeMessage, tmp_path: Path, damage: Damage
) -> None:
    sqlite_bench.reopen()
    for number in range(1, COMMITS + 1):
        sqlite_bench.commit([make_message(number)], next_sequence_number=number + 1)
    # The database has all of them now, and the journal's space has not been used again.
    assert sqlite_bench.numbers() == list(range(1, COMMITS + 1))
    sqlite_bench.store.settle()
    dead = copied(tmp_path, tmp_path / "dead") / "store-0.db"
    damage(log_of(dead))
    assert numbers(dead) == list(range(1, COMMITS + 1))


def test_a_refused_store_is_left_as_it_is(killed: Path) -> None:
    flip_a_bit(journal_of(killed))
    before = {file.name: file.read_bytes() for file in killed.parent.iterdir()}
    store = SqliteStore(killed)
    store.namespace = "ours"
    for _ in range(2):
        with pytest.raises(StoreCorrupted, match="ends before commit"):
            store.open()
    with pytest.raises(StoreCorrupted, match="ends before commit"):
        store.examine()
    kept = {file.name: file.read_bytes() for file in killed.parent.iterdir() if "-shm" not in file.name}
    assert kept == before


def test_a_whole_store_opens_after_a_kill_and_after_a_clean_end(killed: Path) -> None:
    for _ in range(3):
        assert numbers(killed) == list(range(1, COMMITS + 1))


def test_a_witness_that_lags_behind_does_no_harm(killed: Path) -> None:
    """As after a power failure: the log is synced, the witness is not."""
    old = witness_of(killed).read_bytes()
    store = SqliteStore(killed)
    store.open()
    store.create_partitions(EntityPath("bills"), [PartitionNumber(0)])
    store.close()
    witness_of(killed).write_bytes(old)
    assert numbers(killed) == list(range(1, COMMITS + 1))


def test_the_loss_is_accepted_by_removing_the_witness(killed: Path) -> None:
    flip_a_bit(journal_of(killed))
    witness_of(killed).unlink()
    left = numbers(killed)
    assert left == list(range(1, len(left) + 1)) and 0 < len(left) < COMMITS
    assert numbers(killed) == left


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(64), "flipped"])
def test_a_damaged_witness_does_not_keep_a_store_from_opening(killed: Path, content: bytes | str) -> None:
    file = witness_of(killed)
    if isinstance(content, str):
        content = file.read_bytes().replace(b"31", b"91")
    file.write_bytes(content)
    assert numbers(killed) == list(range(1, COMMITS + 1))


def test_an_older_copy_of_the_file_is_reported(killed: Path, tmp_path: Path) -> None:
    before = copied(killed.parent, tmp_path / "before")
    store = SqliteStore(killed)
    store.open()
    store.create_partitions(EntityPath("bills"), [PartitionNumber(0)])
    store.close()
    for name in ("store-0.db", "store-0.db-wal"):
        shutil.copy(before / name, killed.parent)
    with pytest.raises(StoreCorrupted, match="ends before commit"):
        SqliteStore(killed).open()


def test_a_witness_is_for_its_owner_alone(killed: Path) -> None:
    assert witness_of(killed).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", LOG_DAMAGE)
def test_a_catalog_that_ends_before_an_acknowledged_change_is_reported(
    tmp_path: Path, damage: Damage
) -> None:
    """Entities that it has forgotten would be swept from the stores, with their messages."""
    folder = tmp_path / "live"
    folder.mkdir()
    catalog = SqliteCatalog(folder / "catalog.db")
    catalog.open()
    for number in range(10):
        record = EntityRecord(EntityPath(f"queue-{number}"), "queue", {}, 1, ("store-0",), 0, 0, "")
        catalog.add(record)
    dead = copied(folder, tmp_path / "dead") / "catalog.db"
    catalog.close()
    damage(log_of(dead))
    with pytest.raises(StoreCorrupted, match=r"catalog\.db ends before commit 10, which was acknowledged"):
        SqliteCatalog(dead).open()
    again = SqliteCatalog(folder / "catalog.db")
    again.open()
    assert len(again.entities()) == 10
    again.close()


# -- while it runs -------------------------------------------------------------------


@pytest.fixture
def checked_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "CHECK_EVERY_S", 0.0)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def move_away(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


@pytest.mark.usefixtures("checked_always")
@pytest.mark.parametrize("name", ["store-0.db", "store-0.db-wal", "store-0.db-commits-0"])
@pytest.mark.parametrize("loss", [delete, replace, move_away])
def test_nothing_is_acknowledged_into_a_file_that_is_gone(
    sqlite_bench: Bench, make_message: MakeMessage, tmp_path: Path, name: str, loss: Damage
) -> None:
    sqlite_bench.commit([make_message(1)])
    loss(tmp_path / name)
    with pytest.raises(StoreUnavailable, match=rf"{name} (is gone|is not the file)"):
        sqlite_bench.commit([make_message(2)])
    with pytest.raises(StoreUnavailable, match=name):
        sqlite_bench.store.claim(sqlite_bench.keys)
    with pytest.raises(StoreUnavailable, match=name):
        sqlite_bench.store.tidy()


@pytest.mark.usefixtures("checked_always")
def test_a_file_that_is_put_back_is_used_again(
    sqlite_bench: Bench, make_message: MakeMessage, tmp_path: Path
) -> None:
    sqlite_bench.commit([make_message(1)])
    move_away(tmp_path / "store-0.db")
    with pytest.raises(StoreUnavailable):
        sqlite_bench.store.tidy()
    (tmp_path / "elsewhere").rename(tmp_path / "store-0.db")
    sqlite_bench.commit([make_message(2)])
    sqlite_bench.reopen()
    assert sqlite_bench.numbers() == [1, 2]


def test_files_that_are_slow_to_look_at_are_looked_at_from_time_to_time(
    sqlite_bench: Bench, make_message: MakeMessage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [witness.monotonic()]
    look = witness._identity

    def slow_look(file: Path) -> tuple[int, int] | None:
        clock[0] += 0.01
        return look(file)

    monkeypatch.setattr(witness, "monotonic", lambda: clock[0])
    monkeypatch.setattr(witness, "_identity", slow_look)
    clock[0] += witness.CHECK_EVERY_S
    sqlite_bench.commit([make_message(1)])
    (tmp_path / "store-0.db").unlink()
    sqlite_bench.commit([make_message(2)])
    clock[0] += witness.CHECK_EVERY_S
    with pytest.raises(StoreUnavailable, match="is gone"):
        sqlite_bench.commit([make_message(3)])


@pytest.mark.usefixtures("checked_always")
def test_no_store_is_made_in_place_of_one_that_was_deleted(sqlite_bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "store-0.db").unlink()
    sqlite_bench.store.close()
    with pytest.raises(StoreUnavailable, match="is not there"):
        sqlite_bench.store.open()
    assert not (tmp_path / "store-0.db").exists()


@pytest.mark.usefixtures("checked_always")
def test_closing_a_store_leaves_another_file_in_its_place_alone(
    sqlite_bench: Bench, make_message: MakeMessage, tmp_path: Path
) -> None:
    sqlite_bench.commit([make_message(1)])
    for name in ("store-0.db", "store-0.db-wal", "store-0.db-shm"):
        (tmp_path / name).unlink()
    with closing(sqlite3.connect(tmp_path / "store-0.db")) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE theirs (a)")
        before = {
            p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name in ("store-0.db", "store-0.db-wal")
        }
        sqlite_bench.store.close()
        assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.usefixtures("checked_always")
def test_a_catalog_whose_file_is_gone_acknowledges_nothing(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.open()
    (tmp_path / "catalog.db").unlink()
    record = EntityRecord(EntityPath("orders"), "queue", {}, 1, ("store-0",), 0, 0, "")
    with pytest.raises(StoreUnavailable, match=r"catalog\.db is gone"):
        catalog.add(record)
    catalog.close()
