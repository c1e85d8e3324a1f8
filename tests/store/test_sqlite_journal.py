"""The journal of an SQLite store: what it holds back from the database, and what it gives after a crash."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import sqlite3
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bendybus.build import is_compiled
from bendybus.domain.messages import Message, MessageState, Origin
from bendybus.errors import StoreCorrupted, StoreError, StoreUnavailable
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber, SessionId
from bendybus.store.memory import MemoryStore
from bendybus.store.protocol import (
    NEVER_CLAIMED,
    MessagingStore,
    PartitionChanges,
    PartitionKey,
    SessionState,
)
from bendybus.store.sqlite import ahead, commit_path, journal, turnover
from bendybus.store.sqlite.ahead import Ahead
from bendybus.store.sqlite.journal import journals_of, read_records
from bendybus.store.sqlite.pending import Pending
from bendybus.store.sqlite.records import CommitRecord
from bendybus.store.sqlite.store import SqliteStore
from store.conftest import as_kept, new_message

Bench = Any  # the Workbench of conftest.py
Checksum = Callable[[bytes], int]


def rows(bench: Bench) -> tuple[int, int]:
    """How many messages and bodies the database has."""
    with closing(sqlite3.connect(bench.store._path)) as connection:
        count = "SELECT (SELECT count(*) FROM message), (SELECT count(*) FROM body)"
        messages, bodies = connection.execute(count).fetchone()
        return messages, bodies


def killed(bench: Bench, to: Path) -> Path:
    """The files as a killed process leaves them."""
    path: Path = bench.store._path
    to.mkdir()
    for file in path.parent.iterdir():
        if file.is_file() and not file.name.endswith("-shm"):
            shutil.copy(file, to)
    return to / path.name


def end_of_records(file: Path) -> int:
    """The file grows ahead of them."""
    return len(file.read_bytes().rstrip(b"\0"))


def numbers(path: Path) -> list[int]:
    store = SqliteStore(path)
    store.open()
    try:
        return sorted(m.sequence_number for r in store.partitions() for m in store.load(r.key).messages)
    finally:
        store.close()


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the journal has room for a few commits."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1500)
    monkeypatch.setattr(turnover, "BACKLOG_BYTES", 1 << 30)


@pytest.mark.parametrize("writes", [zlib.crc32, journal.crc32])
@pytest.mark.parametrize("reads", [zlib.crc32, journal.crc32])
def test_a_journal_is_read_where_checksums_come_from_another_library(
    sqlite_bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: Checksum, reads: Checksum
) -> None:
    monkeypatch.setattr(journal, "crc32", writes)
    sqlite_bench.commit([new_message(1, b"x" * 10_000), new_message(2)])
    path = killed(sqlite_bench, tmp_path / "killed")
    monkeypatch.setattr(journal, "crc32", reads)
    assert numbers(path) == [1, 2]


# -- what the database gets ------------------------------------------------------------


def test_what_only_the_journal_has_is_at_hand(sqlite_bench: Bench) -> None:
    sent = [new_message(number) for number in range(1, 4)]
    sqlite_bench.commit(sent)
    row_ids = [message.row_id for message in sent]
    assert sqlite_bench.store.at_hand(row_ids) == [message.payload for message in sent]
    sqlite_bench.store.write_out()
    assert sqlite_bench.store.at_hand(row_ids) is None


def test_a_message_that_is_removed_soon_never_reaches_the_database(sqlite_bench: Bench) -> None:
    writer = sqlite_bench.store._connections._opened()[0]
    for table in ("message", "body"):
        refuse = f"CREATE TEMP TRIGGER refuse_{table} BEFORE INSERT ON main.{table}"
        writer.execute(f"{refuse} BEGIN SELECT RAISE(ABORT, 'it reached the database'); END")
    sent = [new_message(number) for number in range(1, 11)]
    sqlite_bench.commit(sent)
    sqlite_bench.commit(removed=sent[:4])
    sqlite_bench.commit(removed=sent[4:])
    assert sqlite_bench.store.tidy()
    snapshot = sqlite_bench.store.load(sqlite_bench.keys[0])
    assert (snapshot.messages, snapshot.next_sequence_number) == ([], 1000)
    sqlite_bench.commit([new_message(11)])
    with pytest.raises(StoreError, match="it reached the database"):
        sqlite_bench.store.tidy()
    for table in ("message", "body"):
        writer.execute(f"DROP TRIGGER refuse_{table}")


def test_a_file_that_is_full_goes_to_the_database_and_is_used_again(
    sqlite_bench: Bench, small_files: None
) -> None:
    sent = [new_message(number, b"x" * 100) for number in range(1, 101)]
    for message in sent:
        sqlite_bench.commit([message])
    sizes = [file.stat().st_size for file in journals_of(sqlite_bench.store._path)]
    assert max(sizes) <= 1500
    assert 80 < rows(sqlite_bench)[0] < 100
    assert sqlite_bench.store.read([message.row_id for message in sent]) == [b"x" * 100] * 100
    assert sqlite_bench.numbers() == list(range(1, 101))


def test_a_file_grows_ahead_of_its_records(sqlite_bench: Bench) -> None:
    """To write inside a file takes less time than to make it longer."""
    file = journals_of(sqlite_bench.store._path)[0]
    sqlite_bench.commit([new_message(1)])
    assert file.stat().st_size == journal.GROWTH_BYTES
    sqlite_bench.commit([new_message(2)])
    assert file.stat().st_size == journal.GROWTH_BYTES
    sqlite_bench.commit([new_message(3, b"x" * journal.GROWTH_BYTES)])
    assert journal.GROWTH_BYTES < file.stat().st_size < 3 * journal.GROWTH_BYTES


def test_no_write_waits_for_the_disk_while_a_file_grows(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the file system cannot do it, the C library writes into each new block."""
    grown: list[tuple[int, int]] = []

    def written(descriptor: int, start: int, size: int) -> None:
        assert not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DSYNC
        grown.append((start, start + size))
        for at in range(start + 4095, start + size, 4096):
            assert os.pread(descriptor, 1, at) in (b"", b"\0")
            os.pwrite(descriptor, b"\0", at)

    monkeypatch.setattr(os, "posix_fallocate", written)
    for number in range(1, 4):
        sqlite_bench.commit([new_message(number, b"x" * (journal.GROWTH_BYTES // 2))])
    assert len(grown) >= 2
    # Nothing is done again.
    assert [start for start, _ in grown] == [0, *(end for _, end in grown[:-1])]
    assert numbers(killed(sqlite_bench, tmp_path / "killed")) == [1, 2, 3]


def test_a_file_that_cannot_grow_ahead_is_written_all_the_same(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    sqlite_bench.commit([new_message(1)])
    assert numbers(killed(sqlite_bench, tmp_path / "killed")) == [1]


def test_what_a_superseded_record_has_stored_is_forgotten(sqlite_bench: Bench, tmp_path: Path) -> None:
    sent = [new_message(number) for number in range(1, 5)]
    store = sqlite_bench.store
    sqlite_bench.commit(sent[:3])
    sqlite_bench.commit(sent[3:])
    tracemalloc.start()
    try:
        large = [new_message(number, bytes(100_000)) for number in range(11, 31)]
        sqlite_bench.commit(large)
        sqlite_bench.commit(removed=large)
        del large
        # 2 MB were stored.
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    sqlite_bench.commit(removed=sent[:2])
    assert store.at_hand([sent[2].row_id, sent[3].row_id]) == [sent[2].payload, sent[3].payload]
    sqlite_bench.commit(removed=sent[2:3])
    assert store.at_hand([sent[2].row_id]) is None
    assert numbers(killed(sqlite_bench, tmp_path / "killed")) == [4]
    store.write_out()
    assert sqlite_bench.numbers() == [4]
    assert store.read([sent[3].row_id]) == [sent[3].payload]


@pytest.mark.skipif(is_compiled(), reason="compiled code calls its own methods directly")
def test_a_record_is_forgotten_once_however_its_messages_are_removed(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes time for each of its messages: with two records of 2,000, it took 140 ms in all."""
    forgotten: list[int] = []
    forget = Pending._forget_messages

    def counted(pending: Pending, record: CommitRecord) -> None:
        forgotten.append(record.number)
        forget(pending, record)

    monkeypatch.setattr(Pending, "_forget_messages", counted)
    sent = [new_message(number) for number in range(1, 21)]
    sqlite_bench.commit(sent[:10])
    sqlite_bench.commit(sent[10:])
    in_turns = [message for pair in zip(sent[:10], sent[10:], strict=True) for message in pair]
    sqlite_bench.commit(removed=in_turns)
    assert len(forgotten) == len(set(forgotten)) == 2


def test_under_steady_work_the_database_sees_no_message(sqlite_bench: Bench, small_files: None) -> None:
    last: list[Message] = []
    seen = 0
    for number in range(1, 200):
        message = new_message(number, b"x" * 100)
        sqlite_bench.commit([message], removed=last, next_sequence_number=number + 1)
        last = [message]
        seen = max(seen, rows(sqlite_bench)[0])
    assert seen == 0
    assert sqlite_bench.numbers() == [199]


def test_records_that_the_database_has_are_not_kept_in_memory(sqlite_bench: Bench, small_files: None) -> None:
    """Each one removes the message of the one before, and so refers to it while both are pending."""

    def kept() -> int:
        gc.collect()
        return sum(type(each) is CommitRecord for each in gc.get_objects())

    before = kept()
    last: list[Message] = []
    for number in range(1, 200):
        message = new_message(number, b"x" * 100)
        sqlite_bench.commit([message], removed=last, next_sequence_number=number + 1)
        last = [message]
    # The oldest pending record may refer to the one before it, but not to all that were before.
    assert kept() - before <= len(sqlite_bench.store._commits.pending.all) + 1


def test_a_body_that_a_later_message_shares_stays_when_the_first_is_removed(
    sqlite_bench: Bench, tmp_path: Path
) -> None:
    origin = Origin(SequenceNumber(7))
    first, second = new_message(1, b"shared"), new_message(2, b"shared")
    first.origin = second.origin = origin
    sqlite_bench.commit([first])
    second.payload = None
    sqlite_bench.commit([second])
    sqlite_bench.commit(removed=[first])
    assert sqlite_bench.store.read([origin.body]) == [b"shared"]
    sqlite_bench.reopen()
    (found,) = sqlite_bench.loaded()
    assert sqlite_bench.store.read([found.body_row_id]) == [b"shared"]
    sqlite_bench.commit(removed=[found])
    assert sqlite_bench.store.read([found.body_row_id]) == [None]


def test_of_two_changes_to_a_message_the_last_counts(sqlite_bench: Bench) -> None:
    message = new_message(1)
    sqlite_bench.commit([message])
    for count in (1, 2):
        message.delivery_count = count
        sqlite_bench.commit(updated=[message])
    assert [each.delivery_count for each in sqlite_bench.loaded()] == [2]


def test_a_message_that_is_removed_twice_takes_no_other_with_it(sqlite_bench: Bench) -> None:
    first, second = new_message(1), new_message(2)
    sqlite_bench.commit([first, second])
    sqlite_bench.commit(removed=[first])
    sqlite_bench.commit(removed=[first])
    assert sqlite_bench.numbers() == [2]


def test_digests_are_forgotten_that_never_reached_the_database(sqlite_bench: Bench) -> None:
    key = sqlite_bench.keys[0]
    for at, forgotten in ((5, None), (7, 6), (8, None)):
        change = PartitionChanges(key, SequenceNumber(at), remembered=[(Instant(at), [b"%016d" % at])])
        change.forgotten_through = None if forgotten is None else Instant(forgotten)
        sqlite_bench.store.commit([change])
    assert [at for at, _ in sqlite_bench.store.load(key).identities] == [7, 8]


def test_reads_show_what_is_pending(sqlite_bench: Bench, small_files: None) -> None:
    """The database has an earlier record and not the later one, which removes or changes the same."""
    key, session = sqlite_bench.keys[0], SessionId("s")

    def set_state(state: bytes) -> None:
        change = PartitionChanges(key, SequenceNumber(1000))
        change.session_states.append(SessionState(session, state, Instant(5)))
        sqlite_bench.store.commit([change])

    message = new_message(1, b"x" * 200)
    sqlite_bench.commit([message, new_message(10, b"x" * 200)])
    set_state(b"old")
    sqlite_bench.commit([new_message(2, b"x" * 500)])
    sqlite_bench.commit([new_message(3, b"x" * 500)])
    sqlite_bench.commit(removed=[message])
    set_state(b"new")
    for number in (4, 5, 6):
        sqlite_bench.commit([new_message(number, b"x" * 300)])
        assert sqlite_bench.store.read([message.row_id]) == [None]
        assert sqlite_bench.store.read_session_state(key, session) == b"new"
    with closing(sqlite3.connect(sqlite_bench.store._path)) as connection:
        assert connection.execute("SELECT state FROM session").fetchall() == [(b"old",)]
        assert connection.execute("SELECT count(*) FROM message WHERE sequence = 1").fetchone() == (1,)


def test_a_large_commit_goes_straight_to_the_database(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_path, "LARGE_COMMIT_BYTES", 10_000)
    first = new_message(1)
    sqlite_bench.commit([first])
    assert rows(sqlite_bench) == (0, 0)
    sqlite_bench.commit([new_message(2, b"x" * 20_000)])
    assert rows(sqlite_bench) == (1, 1)
    # It removes a message that the database does not have yet.
    sqlite_bench.commit([new_message(3, b"x" * 20_000)], removed=[first])
    assert rows(sqlite_bench) == (2, 2)
    assert not sqlite_bench.store._commits.pending
    assert sqlite_bench.numbers() == [2, 3]


def test_large_messages_that_are_removed_soon_never_reach_the_database(sqlite_bench: Bench) -> None:
    previous: list[Message] = []
    for number in range(1, 101):
        message = new_message(number, b"x" * 200_000)
        sqlite_bench.commit([message], removed=previous)
        previous = [message]
        assert rows(sqlite_bench) == (0, 0)


def test_while_most_messages_stay_they_go_straight_to_the_database(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnover, "WINDOW_BYTES", 2000)
    monkeypatch.setattr(turnover, "BACKLOG_BYTES", 1000)
    sent = [new_message(number, b"x" * 100) for number in range(1, 200)]
    waiting: list[Message] = []
    for message in sent[:50]:
        sqlite_bench.commit([message])
        waiting.append(message)
    # The journal has those that were sent before it was noticed.
    before = 50 - rows(sqlite_bench)[0]
    assert 0 < before <= 10
    # Behind them, too, although one is removed for each that is stored.
    for message in sent[50:100]:
        sqlite_bench.commit([message], removed=[waiting.pop(0)])
        waiting.append(message)
    assert rows(sqlite_bench)[0] == 50
    # None waits any more.
    sqlite_bench.commit(removed=waiting)
    sqlite_bench.store.write_out()
    last: list[Message] = []
    for message in sent[100:150]:
        sqlite_bench.commit([message], removed=last)
        last = [message]
    # The database has the last one that went straight to it, and its removal is in the journal.
    assert rows(sqlite_bench) == (1, 1)
    sqlite_bench.commit(sent[150:], removed=last)
    assert sqlite_bench.numbers() == list(range(151, 200))


def test_a_burst_that_is_received_soon_never_reaches_the_database(sqlite_bench: Bench) -> None:
    burst = [new_message(number, b"x" * 4096) for number in range(1, 2001)]
    for start in range(0, 2000, 100):
        sqlite_bench.commit(burst[start : start + 100])
    for start in range(0, 2000, 100):
        sqlite_bench.commit(removed=burst[start : start + 100])
        assert rows(sqlite_bench) == (0, 0)
    assert sqlite_bench.numbers() == []


def test_commits_that_cannot_precede_what_is_pending_write_it_to_the_database_in_parts(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turnover, "BACKLOG_BYTES", 100_000)
    monkeypatch.setattr(commit_path, "PART_BYTES", 10_000)
    before = 0
    for number in range(1, 201):
        message = new_message(number, b"x" * 1000)
        change = PartitionChanges(sqlite_bench.keys[0], SequenceNumber(1000), [message])
        change.session_states.append(SessionState(SessionId("s"), b"%d" % number, Instant(number)))
        sqlite_bench.store.commit([change])
        after = rows(sqlite_bench)[0]
        # A part, and perhaps the commit itself.
        assert after - before <= 12
        before = after
        if number == 105:
            assert 0 < after < number
            assert numbers(killed(sqlite_bench, tmp_path / "killed")) == list(range(1, number + 1))
    assert before == 200


def test_after_a_rest_the_journal_is_used_again(sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnover, "BACKLOG_BYTES", 100_000)
    for number in range(1, 201):
        sqlite_bench.commit([new_message(number, b"x" * 1000)])
    before = rows(sqlite_bench)[0]
    assert before >= 90
    sqlite_bench.store.tidy()
    assert rows(sqlite_bench)[0] == 200
    sqlite_bench.commit([new_message(201)])
    assert rows(sqlite_bench)[0] == 200


def test_the_end_of_a_backlog_is_noticed_after_a_hundred_messages(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnover, "BACKLOG_BYTES", 512 << 10)
    backlog = [new_message(number, b"x" * 4096) for number in range(1, 201)]
    for start in range(0, 200, 10):
        sqlite_bench.commit(backlog[start : start + 10])
    sqlite_bench.commit(removed=backlog)
    waiting: list[Message] = []
    for number in range(201, 302):
        message = new_message(number, b"small")
        sqlite_bench.commit([message], removed=waiting)
        waiting = [message]
    # Only the journal has the last one.
    assert sqlite_bench.store.at_hand([waiting[0].body_row_id]) == [b"small"]
    assert sqlite_bench.numbers() == [301]


def test_removals_are_journalled_while_messages_go_straight_to_the_database(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turnover, "BACKLOG_BYTES", 250)
    sent = [new_message(number, b"x" * 100) for number in range(1, 21)]
    for message in sent:
        sqlite_bench.commit([message])
    before = rows(sqlite_bench)[0]
    assert before >= 15
    sqlite_bench.commit(removed=sent[:10])
    assert rows(sqlite_bench)[0] == before
    assert numbers(killed(sqlite_bench, tmp_path / "killed")) == list(range(11, 21))
    sqlite_bench.commit([new_message(21)])
    assert rows(sqlite_bench)[0] == before + 1


def test_no_more_than_some_removals_wait(sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take up little of the journal, but much memory."""
    monkeypatch.setattr(commit_path, "DELETED_AT_ONCE", 10)
    sent = [new_message(number) for number in range(1, 51)]
    sqlite_bench.commit(sent)
    sqlite_bench.store.write_out()
    for message in sent:
        sqlite_bench.commit(removed=[message])
        assert sqlite_bench.store._commits.pending.removed_before <= 10
    assert sqlite_bench.numbers() == []
    assert sqlite_bench.store._commits.pending.removed_before == 0


def test_no_more_than_some_records_wait(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A journal full of small ones would need ten times as much memory."""
    monkeypatch.setattr(commit_path, "RECORDS_MAX", 20)
    last: list[Message] = []
    for number in range(1, 101):
        message = new_message(number)
        sqlite_bench.commit([message], removed=last, next_sequence_number=number + 1)
        last = [message]
        assert len(sqlite_bench.store._commits.pending.all) <= 20
        assert rows(sqlite_bench) == (0, 0)
    assert numbers(killed(sqlite_bench, tmp_path / "killed")) == [100]
    assert sqlite_bench.numbers() == [100]


def test_large_states_of_sessions_go_straight_to_the_database(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_path, "LARGE_COMMIT_BYTES", 10_000)
    change = PartitionChanges(sqlite_bench.keys[0], SequenceNumber(1000))
    change.session_states.append(SessionState(SessionId("s"), b"x" * 20_000, Instant(5)))
    sqlite_bench.store.commit([change])
    with closing(sqlite3.connect(sqlite_bench.store._path)) as connection:
        assert connection.execute("SELECT length(state) FROM session").fetchall() == [(20_000,)]


def test_a_store_that_is_closed_has_everything_in_the_database(sqlite_bench: Bench) -> None:
    sqlite_bench.commit([new_message(1)])
    sqlite_bench.store.close()
    assert [file.stat().st_size for file in journals_of(sqlite_bench.store._path)] == [0, 0]
    assert rows(sqlite_bench) == (1, 1)
    sqlite_bench.store.open()


# -- after a crash -----------------------------------------------------------------------


@pytest.mark.row("B-08", "P-23")
def test_what_is_in_the_journal_is_there_after_a_kill(sqlite_bench: Bench, tmp_path: Path) -> None:
    sent = [new_message(number) for number in range(1, 6)]
    sqlite_bench.commit(sent)
    sqlite_bench.commit(removed=sent[:2])
    dead = killed(sqlite_bench, tmp_path / "dead")
    for _ in range(2):
        assert numbers(dead) == [3, 4, 5]


def test_the_journal_is_read_again_if_the_process_is_killed_while_it_reads(
    sqlite_bench: Bench, tmp_path: Path
) -> None:
    sqlite_bench.commit([new_message(1)])
    dead = killed(sqlite_bench, tmp_path / "dead")
    content = {file: file.read_bytes() for file in journals_of(dead)}
    assert numbers(dead) == [1]
    # As if the database were done and the journal not yet emptied.
    for file, old in content.items():
        file.write_bytes(old)
    assert numbers(dead) == [1]


def test_a_commit_that_was_not_written_whole_is_left_out(sqlite_bench: Bench, tmp_path: Path) -> None:
    sqlite_bench.commit([new_message(1)])
    # The witness knows of this commit, and not of the next one.
    sqlite_bench.store.settle()
    file = journals_of(sqlite_bench.store._path)[0]
    whole = end_of_records(file)
    sqlite_bench.commit([new_message(2)])
    end = end_of_records(file)
    assert whole < end
    for size in range(whole, end):
        # The file ends there, or what follows has not been written since the file grew.
        for rest in (b"", bytes(4096)):
            dead = killed(sqlite_bench, tmp_path / f"dead-{size}-{len(rest)}")
            journals_of(dead)[0].write_bytes(file.read_bytes()[:size] + rest)
            witness = dead.with_name(dead.name + "-witness")
            witness.unlink()
            assert numbers(dead) == [1]


def test_older_records_after_the_newest_are_left_out(sqlite_bench: Bench, tmp_path: Path) -> None:
    """A file that is used again still has them."""
    for number in (1, 2, 3):
        sqlite_bench.commit([new_message(number)])
    sqlite_bench.store.tidy()
    sqlite_bench.commit([new_message(4)])
    found = read_records(sqlite_bench.store._path, 4, Ahead())
    assert [record.number for record in found] == [5]
    assert numbers(killed(sqlite_bench, tmp_path / "dead")) == [1, 2, 3, 4]


def test_a_message_that_looks_like_records_is_not_read_as_records(
    sqlite_bench: Bench, tmp_path: Path
) -> None:
    """A sender knows what records look like. The newest record may end in the middle of an older message."""
    rest = (1 << 40).to_bytes(8, "big") + bytes(8)
    forged = b"BBcr" + zlib.crc32(rest).to_bytes(4, "big") + rest
    sent = []
    for shift in range(len(forged)):
        sqlite_bench.commit([new_message(2 * shift + 1, forged * 100)])
        sqlite_bench.store.write_out()
        sqlite_bench.commit([new_message(2 * shift + 2, b"x" * (300 + shift))])
        sent += [2 * shift + 1, 2 * shift + 2]
        assert numbers(killed(sqlite_bench, tmp_path / f"dead-{shift}")) == sent
        sqlite_bench.store.write_out()


def test_a_journal_that_does_not_continue_the_database_is_refused(
    sqlite_bench: Bench, tmp_path: Path
) -> None:
    before = killed(sqlite_bench, tmp_path / "before")
    sqlite_bench.commit([new_message(1)])
    sqlite_bench.store.tidy()
    sqlite_bench.commit([new_message(2)])
    dead = killed(sqlite_bench, tmp_path / "dead")
    for suffix in ("", "-wal"):
        shutil.copy(before.with_name(before.name + suffix), dead.with_name(dead.name + suffix))
    with pytest.raises(StoreCorrupted, match="its journal continues with 3"):
        SqliteStore(dead).open()


# -- errors ---------------------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Whether the disk is full when the journal is written: half of a record fits."""
    write = os.pwritev
    is_full = False

    def pwritev(descriptor: int, pieces: Any, offset: int) -> int:
        if not is_full:
            return write(descriptor, pieces, offset)
        content = b"".join(pieces)
        return write(descriptor, [content[: len(content) // 2]], offset)

    def fill(full: bool) -> None:
        nonlocal is_full
        is_full = full

    monkeypatch.setattr(journal.os, "pwritev", pwritev)
    yield fill


def test_a_commit_that_does_not_fit_on_the_disk_has_not_happened(
    sqlite_bench: Bench, tmp_path: Path, full_disk: Callable[[bool], None]
) -> None:
    sqlite_bench.commit([new_message(1)])
    full_disk(True)
    lost = new_message(2)
    with pytest.raises(StoreUnavailable, match=r"store-0\.db cannot be used now: No space left"):
        sqlite_bench.commit([lost])
    assert lost.row_id == 0
    full_disk(False)
    sqlite_bench.commit([new_message(3)])
    sqlite_bench.commit([new_message(4)])
    assert numbers(killed(sqlite_bench, tmp_path / "dead")) == [1, 3, 4]
    assert sqlite_bench.numbers() == [1, 3, 4]


def test_a_record_that_failed_and_is_there_all_the_same_is_not_read_after_the_next_commit(
    sqlite_bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev

    def written_and_not_synced(descriptor: int, pieces: Any, offset: int) -> int:
        write(descriptor, pieces, offset)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(journal.os, "pwritev", written_and_not_synced)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            sqlite_bench.commit([new_message(1)])
    # Until then it may be there: its sender was not told that it is not.
    assert numbers(killed(sqlite_bench, tmp_path / "before")) == [1]
    sqlite_bench.store.load(sqlite_bench.keys[1])
    sqlite_bench.store.claim(sqlite_bench.keys[1:])
    assert numbers(killed(sqlite_bench, tmp_path / "after")) == []
    sqlite_bench.commit([new_message(2)])
    assert numbers(killed(sqlite_bench, tmp_path / "later")) == [2]


def test_no_number_is_used_twice_after_a_record_that_failed_and_is_there_all_the_same(
    sqlite_bench: Bench, small_files: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev

    def written_and_not_synced(descriptor: int, pieces: Any, offset: int) -> int:
        write(descriptor, pieces, offset)
        raise OSError(5, "Input/output error")

    sqlite_bench.commit([new_message(1, b"x" * 1000)])
    with monkeypatch.context() as patched:
        patched.setattr(journal.os, "pwritev", written_and_not_synced)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            sqlite_bench.commit([new_message(2)])
    # This one does not fit into the same file.
    sqlite_bench.commit([new_message(3, b"x" * 1000)])
    assert numbers(killed(sqlite_bench, tmp_path / "dead")) == [1, 3]


def test_what_the_database_has_no_room_for_stays_in_the_journal(sqlite_bench: Bench, tmp_path: Path) -> None:
    writer = sqlite_bench.store._connections._opened()[0]
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    sqlite_bench.commit([new_message(number, b"x" * 1000) for number in range(1, 50)])
    with pytest.raises(StoreUnavailable, match="full"):
        sqlite_bench.store.load(sqlite_bench.keys[0])
    sqlite_bench.commit([new_message(50)])
    dead = killed(sqlite_bench, tmp_path / "dead")
    assert numbers(dead) == list(range(1, 51))
    writer.execute("PRAGMA max_page_count = 1000000")
    assert sqlite_bench.numbers() == list(range(1, 51))


def test_a_store_on_a_full_disk_can_be_closed(sqlite_bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    store = sqlite_bench.store
    writer = store._connections._opened()[0]
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    sqlite_bench.commit([new_message(number, b"x" * 1000) for number in range(1, 50)])
    store.close()
    assert "commits stay in the journal" in caplog.text
    assert not store._connections.is_open
    store.open()
    assert sqlite_bench.numbers() == list(range(1, 50))


# -- any history -------------------------------------------------------------------------------


class Twins:
    """The same commits in an SQLite store, which is killed now and then, and in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = 0
        self.sqlite: SqliteStore = SqliteStore(folder / "0" / "store.db")
        self._kept: MessagingStore = MemoryStore("memory")
        (folder / "0").mkdir(parents=True)
        self._next = [1, (1 << 48) + 1]
        self._alive: list[list[tuple[Message, Message]]] = [[], []]
        """By partition: each message in both stores."""
        self.keys: list[list[PartitionKey]] = []
        self._epochs = [[NEVER_CLAIMED] * 2, [NEVER_CLAIMED] * 2]
        for store in self.stores:
            store.open()
            made = store.create_partitions(EntityPath("q"), [PartitionNumber(0), PartitionNumber(1)])
            self.keys.append([record.key for record in made])

    @property
    def stores(self) -> tuple[MessagingStore, MessagingStore]:
        return self.sqlite, self._kept

    def commit(self, partition: int, count: int, removed: list[int], extras: set[str]) -> None:
        alive = self._alive[partition]
        gone = [alive[index % len(alive)] for index in removed] if alive else []
        gone = list({id(pair): pair for pair in gone}.values())
        new = [self._new(partition, extras) for _ in range(count)]
        if "shares" in extras and count:
            for store in range(2):
                origin = Origin(SequenceNumber(5))
                for pair in new:
                    pair[store].origin, pair[store].payload = origin, new[0][store].payload
        if "copies" in extras:
            new += self._copies(partition)
        updated = alive[:3] if "updates" in extras else []
        for pair in updated:
            for message in pair:
                message.delivery_count += 1
                message.state = MessageState.DEFERRED
        if "removes its own" in extras:
            gone += new[:1]
        for index, store in enumerate(self.stores):
            change = PartitionChanges(
                self.keys[index][partition],
                SequenceNumber(self._next[partition]),
                [pair[index] for pair in new],
                [pair[index] for pair in updated],
                [pair[index] for pair in gone],
                epoch=self._epochs[index][partition],
            )
            self._add_others(change, extras)
            store.commit([change])
        self._alive[partition] = [pair for pair in [*alive, *new] if pair not in gone]

    def _new(self, partition: int, extras: set[str]) -> tuple[Message, Message]:
        number = self._next[partition]
        self._next[partition] += 1
        payload = b"%d " % number * (900 if "large" in extras else 5)
        session = f"s{number % 3}" if "sessions" in extras and "shares" not in extras else None
        return new_message(number, payload, session), new_message(number, payload, session)

    def _copies(self, partition: int) -> list[tuple[Message, Message]]:
        """New messages that share bodies which are stored already."""
        copies = []
        for pair in self._alive[1 - partition][:2]:
            if pair[0].origin is not None and pair[0].origin.body:
                copy = self._new(partition, set())
                for message, source in zip(copy, pair, strict=True):
                    message.origin = source.origin
                copies.append(copy)
        return copies

    def _add_others(self, change: PartitionChanges, extras: set[str]) -> None:
        at = Instant(1_700_000_000_000 + change.next_sequence_number % 1000)
        if "remembers" in extras:
            change.remembered.append((at, [b"%016d" % change.next_sequence_number]))
        if "forgets" in extras:
            change.forgotten_through = Instant(at - 3)
        if "states" in extras:
            state = b"%d" % change.next_sequence_number if change.next_sequence_number % 4 else None
            change.session_states.append(SessionState(SessionId(f"s{at % 2}"), state, at))
        if "arrives" in extras:
            change.transferred[f"source-{at % 2}"] = change.next_sequence_number

    def claim(self, partition: int) -> None:
        for index, store in enumerate(self.stores):
            (self._epochs[index][partition],) = store.claim([self.keys[index][partition]])

    def kill(self) -> None:
        """Go on with a copy of the files. What is in memory belongs to the broker, and stays."""
        self._lives += 1
        to = self._folder / str(self._lives)
        to.mkdir()
        old = self.sqlite
        for file in old._path.parent.iterdir():
            if not file.name.endswith("-shm"):
                shutil.copy(file, to)
        self.sqlite = SqliteStore(to / "store.db")
        self.sqlite.open()
        old.close()

    def check(self) -> None:
        for partition in range(2):
            mine, other = (
                store.load(keys[partition]) for store, keys in zip(self.stores, self.keys, strict=True)
            )
            assert [as_kept(each)[:-1] for each in mine.messages] == [
                as_kept(each)[:-1] for each in other.messages
            ] or self._same_but_for_bodies(mine.messages, other.messages)
            assert mine.next_sequence_number == other.next_sequence_number
            assert mine.identities == other.identities
            assert mine.transferred == other.transferred
            assert sorted(mine.sessions, key=str) == sorted(other.sessions, key=str)
            payloads = self.sqlite.read([each.body_row_id for each in mine.messages])
            assert payloads == self._kept.read([each.body_row_id for each in other.messages])
            assert None not in payloads

    @staticmethod
    def _same_but_for_bodies(mine: list[Message], other: list[Message]) -> bool:
        names = ("sequence_number", "size", "state", "delivery_count", "session_id", "enqueued_at")
        return [[getattr(each, name) for name in names] for each in mine] == [
            [getattr(each, name) for name in names] for each in other
        ]

    def read_now(self) -> None:
        """Payloads and states while commits are pending."""
        for pairs in self._alive:
            for message, other in pairs:
                found = self.sqlite.read([message.body_row_id])
                assert found == self._kept.read([other.body_row_id])
        for partition in range(2):
            for session in ("s0", "s1"):
                states = [
                    store.read_session_state(keys[partition], SessionId(session))
                    for store, keys in zip(self.stores, self.keys, strict=True)
                ]
                assert states[0] == states[1]


EXTRAS = (
    "large",
    "sessions",
    "shares",
    "copies",
    "updates",
    "removes its own",
    "remembers",
    "forgets",
    "states",
    "arrives",
)
STEPS = st.one_of(
    st.tuples(
        st.just("commit"),
        st.integers(0, 1),
        st.integers(0, 4),
        st.lists(st.integers(0, 20), max_size=6),
        st.sets(st.sampled_from(EXTRAS), max_size=3),
    ),
    st.tuples(st.sampled_from(["kill", "tidy", "reopen", "check", "read"])),
    st.tuples(st.just("claim"), st.integers(0, 1)),
)


@pytest.mark.row("B-08", "P-23")
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(STEPS, min_size=3, max_size=30),
    files=st.sampled_from([1500, 6000, 1 << 20]),
    window=st.sampled_from([200, 2000, 1 << 30]),
    part=st.sampled_from([100, 4 << 20]),
    removed_max=st.sampled_from([2, 4000]),
    deleted_at_once=st.sampled_from([1, 5, 400]),
    records_max=st.sampled_from([10, 20_000]),
    ranges_max=st.sampled_from([1, 50]),
)
def test_any_history_of_commits_and_kills_leaves_what_was_committed(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Any],
    files: int,
    window: int,
    part: int,
    removed_max: int,
    deleted_at_once: int,
    records_max: int,
    ranges_max: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "SEGMENT_BYTES", files)
        patch.setattr(turnover, "WINDOW_BYTES", window)
        patch.setattr(turnover, "BACKLOG_BYTES", window)
        patch.setattr(commit_path, "PART_BYTES", part)
        patch.setattr(commit_path, "REMOVED_MAX", removed_max)
        patch.setattr(commit_path, "DELETED_AT_ONCE", deleted_at_once)
        patch.setattr(commit_path, "RECORDS_MAX", records_max)
        patch.setattr(ahead, "RANGES_MAX", ranges_max)
        folder = tmp_path_factory.mktemp("twins")
        twins = Twins(folder)
        try:
            for step, *arguments in steps:
                if step == "commit":
                    twins.commit(*arguments)
                elif step == "claim":
                    twins.claim(*arguments)
                elif step == "kill":
                    twins.kill()
                elif step == "tidy":
                    twins.sqlite.tidy()
                elif step == "reopen":
                    twins.sqlite.close()
                    twins.sqlite.open()
                elif step == "read":
                    twins.read_now()
                else:
                    twins.check()
            twins.kill()
            twins.check()
        finally:
            twins.sqlite.close()
            shutil.rmtree(folder)
