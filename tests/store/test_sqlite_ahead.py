"""Commits that go straight to the database while earlier ones are still in the journal."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bendybus.domain.messages import Message, MessageState, Origin
from bendybus.errors import StoreCorrupted, StoreUnavailable
from bendybus.names import SequenceNumber
from bendybus.store.protocol import PartitionChanges
from bendybus.store.sqlite import ahead, commit_path, turnover
from bendybus.store.sqlite.ahead import Ahead
from bendybus.store.sqlite.journal import journals_of
from bendybus.store.sqlite.store import QUERIES, SqliteStore
from store.conftest import new_message
from store.test_sqlite_journal import killed, numbers

Bench = Any  # the Workbench of conftest.py


@pytest.fixture
def backlog(sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Ten messages in the journal. The store has noticed that they stay."""
    monkeypatch.setattr(turnover, "BACKLOG_BYTES", 1000)
    sent = [new_message(number, b"x" * 100) for number in range(1, 11)]
    for message in sent:
        sqlite_bench.commit([message], next_sequence_number=11)
    assert stored_in_database(sqlite_bench) == []
    return sent


def stored_in_database(bench: Bench) -> list[int]:
    with closing(sqlite3.connect(bench.store._path)) as connection:
        return [number for (number,) in connection.execute("SELECT sequence FROM message ORDER BY sequence")]


def ranges(path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(QUERIES["ahead"]).fetchall()


def is_pending(bench: Bench, message: Message) -> bool:
    return bench.store.at_hand([message.body_row_id]) is not None


def test_the_database_gets_new_messages_before_those_in_the_journal(
    sqlite_bench: Bench, backlog: list[Message]
) -> None:
    sqlite_bench.commit([new_message(11, session="s"), new_message(12)])
    sqlite_bench.commit([new_message(13)])
    assert stored_in_database(sqlite_bench) == [11, 12, 13]
    assert all(is_pending(sqlite_bench, message) for message in backlog)
    assert sqlite_bench.numbers() == list(range(1, 14))
    assert ranges(sqlite_bench.store._path) == []


@pytest.mark.row("B-08")
def test_after_a_kill_both_are_there(sqlite_bench: Bench, backlog: list[Message], tmp_path: Path) -> None:
    sqlite_bench.commit([new_message(11), new_message(12)], removed=[], next_sequence_number=13)
    sqlite_bench.commit(removed=backlog[:3], next_sequence_number=13)
    sqlite_bench.commit([new_message(13)], next_sequence_number=14)
    dead = killed(sqlite_bench, tmp_path / "dead")
    assert len(ranges(dead)) == 2
    for _ in range(2):
        assert numbers(dead) == list(range(4, 14))
        assert ranges(dead) == []


def test_messages_in_the_journal_that_are_received_then_never_reach_the_database(
    sqlite_bench: Bench, backlog: list[Message]
) -> None:
    writer = sqlite_bench.store._connections._opened()[0]
    sqlite_bench.commit([new_message(11)])
    sqlite_bench.commit(removed=backlog)
    writer.execute(
        "CREATE TEMP TRIGGER refuse_message BEFORE INSERT ON main.message "
        "BEGIN SELECT RAISE(ABORT, 'it reached the database'); END"
    )
    assert sqlite_bench.numbers() == [11]
    writer.execute("DROP TRIGGER refuse_message")


def test_numbers_that_messages_in_the_database_have_are_not_assigned_again(
    sqlite_bench: Bench, backlog: list[Message], tmp_path: Path
) -> None:
    sqlite_bench.commit([new_message(11)], next_sequence_number=12)
    dead = SqliteStore(killed(sqlite_bench, tmp_path / "dead"))
    dead.open()
    try:
        assert dead.load(sqlite_bench.keys[0]).next_sequence_number == 12
    finally:
        dead.close()
    assert sqlite_bench.store.load(sqlite_bench.keys[0]).next_sequence_number == 12


def test_removals_of_messages_in_the_database_need_not_wait(
    sqlite_bench: Bench, backlog: list[Message]
) -> None:
    first, second = new_message(11), new_message(12)
    sqlite_bench.commit([first])
    sqlite_bench.commit([second], removed=[first])
    assert stored_in_database(sqlite_bench) == [12]
    assert sqlite_bench.numbers() == [*range(1, 11), 12]


def removes(bench: Bench, waiting: Message) -> PartitionChanges:
    return PartitionChanges(bench.keys[0], SequenceNumber(1000), [new_message(11)], removed=[waiting])


def updates(bench: Bench, waiting: Message) -> PartitionChanges:
    waiting.state = MessageState.DEFERRED
    return PartitionChanges(bench.keys[0], SequenceNumber(1000), [new_message(11)], updated=[waiting])


def marks_an_arrival(bench: Bench, waiting: Message) -> PartitionChanges:
    change = PartitionChanges(bench.keys[0], SequenceNumber(1000), [new_message(11)])
    change.transferred["source"] = SequenceNumber(7)
    return change


@pytest.mark.parametrize("change", [removes, updates, marks_an_arrival])
def test_a_commit_that_changes_more_is_written_after_those_in_the_journal(
    sqlite_bench: Bench, backlog: list[Message], change: Callable[[Bench, Message], PartitionChanges]
) -> None:
    sqlite_bench.store.commit([change(sqlite_bench, backlog[4])])
    found = stored_in_database(sqlite_bench)
    assert 11 not in found or found[:3] == [1, 2, 3]
    assert ranges(sqlite_bench.store._path) == []
    wanted = [number for number in range(1, 12) if change is not removes or number != 5]
    assert sqlite_bench.numbers() == wanted


def body_after_a_kill(bench: Bench, number: int, to: Path) -> bytes | None:
    dead = SqliteStore(killed(bench, to))
    dead.open()
    try:
        copy = next(m for m in dead.load(bench.keys[0]).messages if m.sequence_number == number)
        (body,) = dead.read([copy.body_row_id])
        return body
    finally:
        dead.close()


def copies() -> tuple[Message, Message]:
    """Two messages with one body, which is stored with the first."""
    origin = Origin(SequenceNumber(7))
    first, second = new_message(11, b"shared"), new_message(12, b"shared")
    first.origin = second.origin = origin
    second.payload = None
    return first, second


def send_until_they_stay(bench: Bench) -> None:
    for number in range(20, 40):
        bench.commit([new_message(number, b"x" * 100)])
    assert 39 in stored_in_database(bench)


def test_a_copy_whose_body_is_in_the_journal_is_written_after_it(
    sqlite_bench: Bench, backlog: list[Message], tmp_path: Path
) -> None:
    first, second = copies()
    sqlite_bench.store.tidy()
    sqlite_bench.commit([first])
    send_until_they_stay(sqlite_bench)
    assert is_pending(sqlite_bench, first)
    sqlite_bench.commit([second])
    sqlite_bench.commit(removed=[first])
    assert body_after_a_kill(sqlite_bench, 12, tmp_path / "dead") == b"shared"


def test_a_body_stays_while_a_copy_of_it_is_in_the_journal(
    sqlite_bench: Bench, backlog: list[Message], tmp_path: Path
) -> None:
    first, second = copies()
    sqlite_bench.commit([first])
    assert 11 in stored_in_database(sqlite_bench)
    sqlite_bench.store.tidy()
    sqlite_bench.commit([second])
    send_until_they_stay(sqlite_bench)
    assert 12 not in stored_in_database(sqlite_bench)
    sqlite_bench.commit([new_message(40)], removed=[first])
    assert body_after_a_kill(sqlite_bench, 12, tmp_path / "dead") == b"shared"


def test_messages_are_deleted_before_earlier_ones_are_written(
    sqlite_bench: Bench, backlog: list[Message], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commit_path, "DELETED_AT_ONCE", 3)
    later = [new_message(number) for number in range(11, 16)]
    sqlite_bench.commit(later)
    sqlite_bench.commit(removed=later[:3])
    sqlite_bench.commit(removed=later[3:4])
    assert stored_in_database(sqlite_bench) == [14, 15]
    assert all(is_pending(sqlite_bench, message) for message in backlog)
    assert sqlite_bench.store.read([message.row_id for message in later]) == [None] * 4 + [b"payload"]
    assert numbers(killed(sqlite_bench, tmp_path / "dead")) == [*range(1, 11), 15]
    assert sqlite_bench.numbers() == [*range(1, 11), 15]


def test_a_shared_body_is_not_deleted_before_a_copy_of_it_is_written(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The database still has the second copy when the first one's removal is written."""
    monkeypatch.setattr(commit_path, "DELETED_AT_ONCE", 1)
    monkeypatch.setattr(commit_path, "RECORDS_MAX", 10)
    first, second = copies()
    third = new_message(13, None)
    third.origin = first.origin
    sqlite_bench.commit([first, second])
    sqlite_bench.store.write_out()
    sqlite_bench.commit(removed=[first])
    sqlite_bench.commit([third])
    sqlite_bench.commit(removed=[second])
    written = 20
    while len(sqlite_bench.store._commits.pending.all) < 10:
        sqlite_bench.commit([new_message(written)])
        written += 1
    # Now the oldest record is written, which removes the first copy.
    sqlite_bench.commit([new_message(written)])
    assert sqlite_bench.store._commits.pending.all[0].count == 1
    assert body_after_a_kill(sqlite_bench, 13, tmp_path / "dead") == b"shared"


def test_only_so_many_gaps_are_kept(
    sqlite_bench: Bench, backlog: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "RANGES_MAX", 2)
    for number in range(11, 15):
        sqlite_bench.commit([new_message(number)])
        sqlite_bench.commit(removed=[backlog.pop()])
    assert len(ranges(sqlite_bench.store._path)) <= 2
    assert sqlite_bench.numbers() == [*range(1, 7), *range(11, 15)]


# -- what is lost is noticed ---------------------------------------------------------------


def test_a_store_without_the_journal_of_its_gap_is_refused(
    sqlite_bench: Bench, backlog: list[Message], tmp_path: Path
) -> None:
    sqlite_bench.commit([new_message(11)])
    dead = killed(sqlite_bench, tmp_path / "dead")
    for file in journals_of(dead):
        file.write_bytes(b"")
    with pytest.raises(StoreCorrupted, match="ends with commit 1, but it has commit 12"):
        SqliteStore(dead).open()


def test_a_store_can_continue_without_its_journal_if_the_operator_wants_it(
    sqlite_bench: Bench, backlog: list[Message], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_bench.commit([new_message(11)], next_sequence_number=12)
    sqlite_bench.store.settle()
    dead = killed(sqlite_bench, tmp_path / "dead")
    for file in journals_of(dead):
        file.unlink()
    with pytest.raises(StoreCorrupted, match="ends before commit 12, which was acknowledged; it has 1"):
        SqliteStore(dead).open()
    witness = dead.with_name(dead.name + "-witness")
    witness.unlink()
    assert numbers(dead) == [11]
    assert "continues without the commits of its journal" in caplog.text
    # From now on it is like any other store.
    store = SqliteStore(dead)
    store.open()
    key = sqlite_bench.keys[0]
    store.commit([PartitionChanges(key, SequenceNumber(13), [new_message(12)])])
    dead_again = tmp_path / "again"
    dead_again.mkdir()
    for found in dead.parent.iterdir():
        if not found.name.endswith("-shm"):
            shutil.copy(found, dead_again)
    store.close()
    assert numbers(dead_again / dead.name) == [11, 12]


def test_a_store_whose_log_has_lost_such_commits_is_refused(
    sqlite_bench: Bench, backlog: list[Message], tmp_path: Path
) -> None:
    sqlite_bench.commit([new_message(11)])
    before = killed(sqlite_bench, tmp_path / "before")
    sqlite_bench.commit([new_message(12)])
    sqlite_bench.commit(removed=backlog[:1])
    dead = killed(sqlite_bench, tmp_path / "dead")
    for suffix in ("", "-wal"):
        shutil.copy(before.with_name(before.name + suffix), dead.with_name(dead.name + suffix))
    with pytest.raises(StoreCorrupted, match="ends with commit 12, but its journal continues with 14"):
        SqliteStore(dead).open()


def test_after_a_failed_write_of_the_database_the_next_commit_goes_there_too(
    sqlite_bench: Bench, backlog: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed one may be in the log, under a number that the journal would use again."""
    writer = sqlite_bench.store._connections._opened()[0]
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StoreUnavailable, match="full"):
        sqlite_bench.commit([new_message(11, b"x" * 50_000)])
    writer.execute("PRAGMA max_page_count = 1000000")
    sqlite_bench.commit(removed=backlog[:1])
    assert not sqlite_bench.store._commits.pending
    assert sqlite_bench.numbers() == list(range(2, 11))


# -- ranges ------------------------------------------------------------------------------------


def test_ranges_grow_and_close() -> None:
    found = Ahead()
    for number in (5, 6, 9):
        found.add(number)
    assert (found.ranges, found.last) == ([(5, 6), (9, 9)], 9)
    assert [number for number in range(4, 11) if number in found] == [5, 6, 9]
    assert [found.reached(number) for number in (3, 4, 7, 8, 9)] == [3, 6, 7, 9, 9]
    found.forget(6)
    assert found.ranges == [(9, 9)]


def test_a_range_is_continued_by_the_next_number_only() -> None:
    found = Ahead([(5, 6)])
    assert [found.begins_range(number) for number in (7, 8)] == [False, True]
    assert Ahead().begins_range(1)
