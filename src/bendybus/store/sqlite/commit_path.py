"""The path of a commit: into the journal, and later into the database, together with others.

A large commit goes straight to the database. So does the commit after a failed write. What failed may have
been written anyway, but its number is that of the next commit, so it is never read, or it is overwritten.

While most messages stay, the journal saves nothing (turnover.py). Then the database gets every commit that
stores messages. What is pending stays in the journal and may never reach the database (ahead.py). A commit
that changes something pending goes to the journal too, and the database gets a part of what is pending.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from bendybus.store.encoding import CommitRequest, requests_of, set_row_ids
from bendybus.store.protocol import PartitionChanges
from bendybus.store.sqlite.ahead import Ahead
from bendybus.store.sqlite.commits import CommitStatements
from bendybus.store.sqlite.encoding import EncodedRecords, encode_records
from bendybus.store.sqlite.files import transaction
from bendybus.store.sqlite.journal import Journal, read_records
from bendybus.store.sqlite.pending import Pending
from bendybus.store.sqlite.records import CommitRecord, decode_record, encode_head, make_record
from bendybus.store.sqlite.removals import Removals
from bendybus.store.sqlite.turnover import Turnover
from bendybus.store.sqlite.witness import Witness

__all__ = ["CommitPath"]

logger = logging.getLogger(__name__)

# A larger commit would fill the journal before its messages are removed, and be written once more than
# needed.
LARGE_COMMIT_BYTES: Final = 4 << 20
# If a commit cannot precede what is pending, this much of that is written to the database with it. It takes
# about 3 ms, and more than a commit usually has.
PART_BYTES: Final = 1 << 19
# This many messages are deleted from the database at once: about 2 ms of the writer's time. It is less than
# most clients have in flight, so they need not wait.
DELETED_AT_ONCE: Final = 400
# Of removals that wait for earlier commits. The journal would have room for a million, and memory would have
# to keep them.
REMOVED_MAX: Final = 4000
# A pending record takes 1.7 KB of memory besides its messages, and as few as 180 bytes of the journal. So the
# number of records is limited too. The oldest ones go to the database, some at once.
RECORDS_MAX: Final = 20_000
RECORDS_PART: Final = 10

_Statement: TypeAlias = tuple[str, tuple[int, ...]]
"""The name of a query, and its parameters."""


class CommitPath:
    """The commits of one store. Used with the lock of the writer's connection; all may read `pending`."""

    def __init__(self, path: Path, queries: Mapping[str, str], removals: Removals) -> None:
        self._path = path
        self._queries = queries
        self._removals = removals
        self.pending = Pending()
        self._opened: tuple[Journal, CommitStatements] | None = None
        self._ahead = Ahead()
        self._next_id = 1
        self._turnover = Turnover()

    def open(self, writer: sqlite3.Connection, last_commit: int, ahead: Ahead) -> Sequence[Path]:
        """Write what a process that was killed has left in the journal. Returns the journal's files.

        `last_commit`, `ahead`: the commits that the database has.
        """
        statements = CommitStatements(writer, self._queries)
        self.pending = Pending()
        self._ahead = ahead
        for found in read_records(self._path, last_commit, ahead):
            self.pending.add(decode_record(found), ())
        self._write(writer, statements, self.pending.all)
        if self._ahead.ranges:
            self._close_gap(writer)
        self._next_id = writer.execute(self._queries["last_id"]).fetchone()[0] + 1
        journal = Journal(self._path)
        self._opened = journal, statements
        return journal.files

    def _close_gap(self, writer: sqlite3.Connection) -> None:
        """The journal was removed, and the commits that only it had are lost. Continue without them."""
        logger.warning("%s continues without the commits of its journal, which was removed", self._path)
        last = self._ahead.last
        with transaction(writer):
            writer.execute(self._queries["count_commit"], (last,))
            writer.execute(self._queries["forget_ahead"], (last,))
        self._ahead.forget(last)

    def close(self) -> None:
        """What is pending stays in the journal."""
        if self._opened is not None:
            self._opened[0].close(empty=not self.pending)
            self._opened = None

    def commit(
        self, writer: sqlite3.Connection, changes: Sequence[PartitionChanges], witness: Witness
    ) -> None:
        journal, statements = self._parts()
        requests = list(requests_of(changes, self._next_id))
        record = make_record(witness.next_commit, requests[0], changes)
        if self._is_straight(writer, record, requests):
            more = [CommitRecord(record.number, request) for request in requests[1:]]
            journal.is_suspect = True
            self._write_straight(writer, statements, [record, *more])
            journal.is_suspect = False
            self._next_id = set_row_ids(changes, self._next_id)
        else:
            head = encode_head(record)
            # What is written before the slices is one byte (`CommitRequest.pieces`).
            body_bytes = record.request.offset - 1
            self._make_room(writer, len(head) + body_bytes)
            journal.append(record.number, head, record.request.pieces, body_bytes)
            self._next_id = set_row_ids(changes, self._next_id)
            self.pending.add(record, changes)
        self._turnover.note(record)
        witness.committed()

    def _is_straight(
        self, writer: sqlite3.Connection, record: CommitRecord, requests: Sequence[CommitRequest]
    ) -> bool:
        """Whether this commit goes straight to the database, which is made ready for it."""
        if self._parts()[0].is_suspect:
            self.write_pending(writer)
            return True
        is_large = _is_large(requests, record)
        stays = record.count > 0 and self._turnover.is_low
        if not (is_large or stays):
            return False
        if not self.pending:
            return True
        if self._ahead.has_room(record.number) and self.pending.is_independent(record, requests):
            return True
        if is_large:
            self.write_pending(writer)
        else:
            self.write_part(writer)
        return not self.pending

    def write_pending(self, writer: sqlite3.Connection) -> None:
        """Write everything that is pending to the database."""
        if self.pending:
            journal, statements = self._parts()
            self._write(writer, statements, self.pending.all)
            journal.start_again()

    def write_part(self, writer: sqlite3.Connection) -> None:
        """Write the oldest of what is pending to the database. After enough calls it has everything."""
        count = self.pending.count_within(PART_BYTES)
        if count == len(self.pending.all):
            self.write_pending(writer)
        else:
            self._write(writer, self._parts()[1], self.pending.all[:count])

    def rest(self) -> None:
        """There has been no commit for a while."""
        self._turnover.rest()

    def number_used(self) -> None:
        """The database has used the number that the journal's next record would have had."""
        self._parts()[0].is_suspect = False

    def _parts(self) -> tuple[Journal, CommitStatements]:
        assert self._opened is not None, "the store is open"
        return self._opened

    def _make_room(self, writer: sqlite3.Connection, size: int) -> None:
        journal, statements = self._parts()
        if not journal.has_room(size):
            self._write(writer, statements, self.pending.older)
            self.pending.begin_file()
            journal.use_other_file()
        elif self.pending.deletable >= DELETED_AT_ONCE:
            self._delete_removed(writer)
        elif self.pending.removed_before >= REMOVED_MAX:
            self.write_part(writer)
        elif len(self.pending.all) >= RECORDS_MAX:
            self._write(writer, statements, self.pending.all[: RECORDS_MAX // RECORDS_PART])
        elif due := self.pending.due(journal.used):
            self._write(writer, statements, self.pending.all[:due])

    def _delete_removed(self, writer: sqlite3.Connection) -> None:
        """Delete messages from the database that pending records remove. After a crash, this is repeated."""
        deletion = CommitRecord(0, CommitRequest(0))
        deletion.removed_before = self.pending.deletable_messages()
        self._execute_all(writer, self._parts()[1], [encode_records([deletion], 0)])
        self.pending.deleted()

    def _write(
        self, writer: sqlite3.Connection, statements: CommitStatements, records: Sequence[CommitRecord]
    ) -> None:
        """Write the oldest of the pending records, durably."""
        if not records:
            return
        last = records[-1].number
        number = self._ahead.reached(last)
        encoded = [encode_records(records, number)]
        if number == last:
            self._execute_all(writer, statements, encoded)
        else:
            self._execute_all(writer, statements, encoded, [("forget_ahead", (number,))])
            self._ahead.forget(number)
        self.pending.written(len(records))

    def _write_straight(
        self, writer: sqlite3.Connection, statements: CommitStatements, records: Sequence[CommitRecord]
    ) -> None:
        """Write the records of one commit, durably. They are not pending."""
        number = records[0].number
        is_ahead = bool(self.pending)
        for record in records:
            record.removed_before = record.request.removed
        encoded = [encode_records([record], number, is_ahead=is_ahead) for record in records]
        more: list[_Statement] = []
        if is_ahead and self._ahead.begins_range(number):
            more = [("end_ahead", each) for each in self._ahead.ranges[-1:]]
            more.append(("begin_ahead", (number,)))
        self._execute_all(writer, statements, encoded, more)
        if is_ahead:
            self._ahead.add(number)

    def _execute_all(
        self,
        writer: sqlite3.Connection,
        statements: CommitStatements,
        encoded: Sequence[EncodedRecords],
        more: Sequence[_Statement] = (),
    ) -> None:
        """Write records as a transaction: one statement, unless there is more. `more`: further ones."""
        first = encoded[0]
        if len(encoded) == 1 and not first.has_others and not more:
            writer.execute(statements.find(first.parameters), first.parameters)
        else:
            with transaction(writer):
                for each in encoded:
                    self._execute(writer, statements, each)
                for name, parameters in more:
                    writer.execute(self._queries[name], parameters)
        for each in encoded:
            self._removals.note(each.noted, each.noted_bytes)

    def _execute(
        self, writer: sqlite3.Connection, statements: CommitStatements, encoded: EncodedRecords
    ) -> None:
        """Write records inside a transaction."""
        queries = self._queries
        # Before new ones are added.
        for key, through in encoded.forgotten.items():
            writer.execute(queries["forget"], (key, through))
        writer.execute(statements.general, encoded.parameters)
        for (key, session_id), (updated_at, state) in encoded.session_states.items():
            if state is None:
                writer.execute(queries["forget_session_state"], (key, session_id))
            else:
                writer.execute(queries["save_session_state"], (key, session_id, updated_at, state))
        for (key, source), arrived in encoded.transferred.items():
            writer.execute(queries["mark_transferred"], (key, source, arrived))


def _is_large(requests: Sequence[CommitRequest], record: CommitRecord) -> bool:
    """Whether a commit is better written to the database at once."""
    size = requests[0].offset + sum([len(state or b"") for _, _, _, state in record.session_states])
    return len(requests) > 1 or size > LARGE_COMMIT_BYTES
