"""Removed messages whose rows are deleted later: they are gone at once, and their rows in the end."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bendybus.domain.messages import Message
from bendybus.errors import PartitionMoved
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber
from bendybus.store.protocol import PartitionChanges, PartitionKey
from bendybus.store.sqlite import commit_path, removals
from bendybus.store.sqlite.removals import are_far_apart
from bendybus.store.sqlite.store import SqliteStore

COUNT = 400
EVERY = 20


class Bench:
    """A store with many messages in one partition."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = SqliteStore(path)
        self.store.open()
        (record,) = self.store.create_partitions(EntityPath("orders"), [PartitionNumber(0)])
        self.key: PartitionKey = record.key
        self.messages = [self.message(number) for number in range(1, COUNT + 1)]
        self.commit(stored=self.messages)

    def message(self, number: int) -> Message:
        message = Message(b"%d" % number, size=100)
        message.sequence_number, message.enqueued_at = SequenceNumber(number), Instant(5)
        return message

    def commit(self, stored: list[Message] | None = None, removed: list[Message] | None = None) -> None:
        changes = PartitionChanges(self.key, SequenceNumber(10_000), stored or [], [], removed or [])
        self.store.commit([changes])

    def loaded(self) -> list[int]:
        return [message.sequence_number for message in self.store.load(self.key).messages]

    def rows(self) -> tuple[int, int, int]:
        """Of messages, of bodies, and notes of removed ones."""
        with closing(sqlite3.connect(self.path)) as connection:
            count = (
                "SELECT (SELECT count(*) FROM message), (SELECT count(*) FROM body), count(*) FROM removal"
            )
            messages, bodies, notes = connection.execute(count).fetchone()
            return messages, bodies, notes


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(removals, "SPAN_MIN", COUNT // 2)
    monkeypatch.setattr(removals, "DELETED_AT_ONCE", 8)
    # All commits go straight to the database.
    monkeypatch.setattr(commit_path, "LARGE_COMMIT_BYTES", 0)
    bench = Bench(tmp_path / "store.db")
    yield bench
    bench.store.close()


def test_only_ids_with_many_others_between_them_are_far_apart() -> None:
    assert are_far_apart(range(0, 100_000, 100))
    assert not are_far_apart(range(0, 100_000, 4))
    assert not are_far_apart(range(500, 1500))
    assert not are_far_apart([1, 100_000])
    assert not are_far_apart(range(0, 2000, 100))
    assert not are_far_apart([])


@pytest.mark.row("B-08")
def test_messages_that_lie_far_apart_are_gone_at_once_and_their_rows_later(bench: Bench) -> None:
    removed = bench.messages[::EVERY]
    left = [message for message in bench.messages if message not in removed]
    bench.commit(removed=removed)
    assert bench.rows() == (COUNT, COUNT, 1)
    assert bench.loaded() == [message.sequence_number for message in left]
    read = bench.store.read([message.row_id for message in bench.messages[:3]])
    assert read == [None, b"2", b"3"]
    while bench.store.tidy():
        pass
    assert bench.rows() == (len(left), len(left), 0)
    assert bench.loaded() == [message.sequence_number for message in left]
    assert bench.store.read([left[0].row_id]) == [b"2"]


def test_they_stay_gone_when_the_file_is_opened_again_while_some_rows_are_deleted(bench: Bench) -> None:
    removed = bench.messages[::EVERY]
    bench.commit(removed=removed)
    bench.store.tidy()
    assert bench.rows() == (COUNT - 8, COUNT - 8, 1)
    bench.store.close()
    bench.store.open()
    assert len(bench.loaded()) == COUNT - len(removed)
    assert bench.store.read([removed[-1].row_id]) == [None]
    while bench.store.tidy():
        pass
    assert bench.rows() == (COUNT - len(removed), COUNT - len(removed), 0)


def test_the_ids_of_removed_messages_are_not_given_out_again(bench: Bench) -> None:
    bench.commit(removed=bench.messages[EVERY - 1 :: EVERY])
    highest = bench.messages[-1].row_id
    with closing(sqlite3.connect(bench.path)) as connection, connection:
        connection.execute("DELETE FROM message WHERE id > ?", (highest - EVERY,))
        connection.execute("DELETE FROM body WHERE id > ?", (highest - EVERY,))
    bench.store.close()
    bench.store.open()
    new = bench.message(5000)
    bench.commit(stored=[new])
    assert new.row_id > highest
    while bench.store.tidy():
        pass
    assert 5000 in bench.loaded()


def test_a_writer_that_is_never_idle_deletes_them_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "NOTED_MAX", 30)
    bench.commit(removed=bench.messages[::EVERY])
    bench.commit(stored=[bench.message(6000)])
    assert bench.rows() == (COUNT + 1, COUNT + 1, 1)
    bench.commit(removed=bench.messages[1::EVERY])
    for number in range(6001, 6010):
        bench.commit(stored=[bench.message(number)])
    assert bench.rows() == (COUNT - 40 + 10, COUNT - 40 + 10, 0)
    assert len(bench.loaded()) == COUNT - 40 + 10


def test_a_commit_that_fails_notes_nothing(bench: Bench) -> None:
    removed = bench.messages[::EVERY]
    changes = PartitionChanges(bench.key, SequenceNumber(10_000), [], [], removed)
    changes.epoch = bench.store.claim([bench.key])[0] - 1
    with pytest.raises(PartitionMoved):
        bench.store.commit([changes])
    assert bench.rows() == (COUNT, COUNT, 0)
    assert len(bench.loaded()) == COUNT
    assert None not in bench.store.read([message.row_id for message in removed])


def test_a_partition_can_be_dropped_while_removed_messages_have_rows(bench: Bench) -> None:
    bench.commit(removed=bench.messages[::EVERY])
    bench.store.drop_partitions(EntityPath("orders"))
    while bench.store.tidy():
        pass
    assert bench.rows() == (0, 0, 0)
