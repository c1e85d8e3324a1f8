"""A messaging store in one SQLite file, with a journal in front of it.

A commit is a record in the journal (journal.py). The database gets it later, together with many others, as
one statement (queries.sql, `commit`), without messages that are removed by then (commit_path.py). All else
goes straight to the database, which first gets what is pending. One connection writes while another reads
(connections.py). Design and measurements: store/DESIGN.md.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Final

from bendybus.domain.messages import Message, Origin
from bendybus.errors import PartitionMoved, StoreCorrupted, StoreError, StoreUnavailable
from bendybus.names import (
    PARTITION_SHIFT,
    EntityPath,
    Epoch,
    Instant,
    PartitionNumber,
    SequenceNumber,
    SessionId,
)
from bendybus.store.encoding import collector_paused, to_json
from bendybus.store.protocol import (
    PartitionChanges,
    PartitionKey,
    PartitionRecord,
    SessionRecord,
    Snapshot,
    no_pause,
)
from bendybus.store.queries import load_queries, load_script
from bendybus.store.sqlite.commit_path import CommitPath
from bendybus.store.sqlite.connections import Connections
from bendybus.store.sqlite.encoding import decode_ids, decode_page, encode_ids
from bendybus.store.sqlite.files import (
    FileKind,
    give_back,
    look_into,
    open_file,
    reported,
    version_of,
)
from bendybus.store.sqlite.image import SqliteImage
from bendybus.store.sqlite.removals import Removals

__all__ = ["MESSAGING_STORE", "SqliteStore", "hand_over"]

logger = logging.getLogger(__name__)

QUERIES: Final = load_queries(__package__, "queries.sql")
MESSAGING_STORE: Final = FileKind(
    what="messaging store",
    application_id=0x42424D53,  # "BBMS"
    migrations=tuple(
        load_script(__package__, f"schema{n}.sql") for n in ("", "_2", "_3", "_4", "_5", "_6", "_7", "_8")
    ),
    tables=frozenset(
        {
            *("partition", "message", "body", "identity", "session", "transfer", "owner", "progress"),
            *("removal", "ahead"),
        }
    ),
    last_commit=QUERIES["last_commit"],
    ahead=QUERIES["ahead"],
)

# The version that has the table `owner`.
OWNED_SINCE: Final = 4

# One step of SQLite per page: enough rows that steps do not matter, few enough that the text stays small.
LOAD_PAGE_ROWS: Final = 2000
# How many messages of a dropped partition are swept at a time: about 10 ms of the writer's time.
SWEEP_ROWS: Final = 2000


class SqliteStore:
    """The methods are described in `MessagingStore`."""

    def __init__(self, path: Path, name: str | None = None, *, has_partitions: bool = False) -> None:
        """`has_partitions`: the file is known to contain some, so it must not be created if missing."""
        self._path = path
        self._name = name or path.stem
        self.namespace: str | None = None
        self._has_partitions = has_partitions
        self._removals = Removals(QUERIES)
        self._commits = CommitPath(path, QUERIES, self._removals)
        self._connections = Connections(path, QUERIES["count_commit"], self._commits.write_pending)
        self._epochs: dict[PartitionKey, Epoch] = {}
        """The partitions, and the claim under which each can be changed. Nobody else has the file."""
        self._dropped: list[PartitionKey] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def kind(self) -> str:
        return "sqlite"

    def examine(self) -> str:
        path = self._path.resolve()
        with reported(path):
            if not path.exists():
                folder = path.parent.stat()
                return f"sqlite:{folder.st_dev}/{folder.st_ino}/{path.name}"
            with closing(look_into(path, MESSAGING_STORE)) as connection:
                if version_of(connection) >= OWNED_SINCE:
                    self._owner(connection)
            file = path.stat()
            return f"sqlite:{file.st_dev}/{file.st_ino}"

    def open(self) -> None:
        assert not self._connections.is_open, f"{self._path} is open already"
        if self._has_partitions and not self._path.exists():
            raise StoreUnavailable(f"{self._path} is not there. Is its disk mounted, or was it removed?")
        if self.namespace is not None and self._path.exists():
            # Checked before an older file is migrated, because it may belong to another namespace.
            self.examine()
        writer = open_file(self._path, MESSAGING_STORE)
        try:
            with reported(self._path):
                if self._owner(writer) is None and self.namespace is not None:
                    writer.execute(QUERIES["adopt"], (self.namespace,))
                self._removals.open(writer)
                last_commit = MESSAGING_STORE.last_commit_of(writer)
                journals = self._commits.open(writer, last_commit, MESSAGING_STORE.ahead_of(writer))
                epochs = writer.execute(QUERIES["epochs"])
                self._epochs = {PartitionKey(key): Epoch(epoch) for key, epoch in epochs}
                dropped = writer.execute(QUERIES["dropped_partitions"])
                self._dropped = [PartitionKey(key) for (key,) in dropped]
                self._connections.open(writer, MESSAGING_STORE.last_commit_of(writer), journals)
            self._has_partitions = True
        except BaseException:
            self._commits.close()
            writer.close()
            raise

    def _owner(self, connection: sqlite3.Connection) -> str | None:
        """The namespace that owns the store. Refused if it is not ours."""
        row = connection.execute(QUERIES["owner"]).fetchone()
        if row is not None and self.namespace not in (None, row[0]):
            raise StoreError(f"{self._path} belongs to another namespace")
        return None if row is None else row[0]

    def close(self) -> None:
        try:
            if self._connections.is_open:
                self.write_out()
        except (StoreError, StoreUnavailable) as error:
            # Not lost: the journal is read when the store is opened again.
            logger.warning("%s: commits stay in the journal: %s", self._path, error)
        self._connections.close()
        self._commits.close()

    def image(self) -> SqliteImage:
        return SqliteImage(self._path, self._whole)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """For a transaction that is not a commit of messages."""
        with self._connections.changing() as writer:
            yield writer
        self._commits.number_used()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """The database has everything, and nothing is written meanwhile."""
        if not self._connections.is_open:
            # Another process has the store, and stands still.
            yield
            return
        with self._connections.writing() as writer:
            self._commits.write_pending(writer)
            yield

    # -- partitions -----------------------------------------------------------

    def partitions(self) -> list[PartitionRecord]:
        with self._connections.reading() as reader:
            return [_partition_record(row) for row in reader.execute(QUERIES["partitions"])]

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        asked = set(numbers)
        with self._changing() as writer:
            for number in numbers:
                writer.execute(QUERIES["create_partition"], (entity, number, (number << PARTITION_SHIFT) + 1))
            records = [_partition_record(row) for row in writer.execute(QUERIES["partitions_of"], (entity,))]
            epochs = dict(writer.execute(QUERIES["epochs"]))
        self._epochs.update((record.key, Epoch(epochs[record.key])) for record in records)
        return [record for record in records if record.number in asked]

    def drop_partitions(self, entity: EntityPath) -> None:
        with self._changing() as writer:
            keys = [PartitionKey(key) for key, _, _ in writer.execute(QUERIES["partitions_of"], (entity,))]
            writer.execute(QUERIES["drop_partitions"], (entity,))
        self._forget(keys)
        self._dropped += keys

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        with self._changing() as writer:
            dropped = writer.execute(QUERIES["discard"], (to_json(list(keys)),)).fetchall()
        self._forget(keys)
        self._dropped += [PartitionKey(key) for (key,) in dropped]

    def _forget(self, keys: Sequence[PartitionKey]) -> None:
        for key in keys:
            self._epochs.pop(key, None)

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        with self._changing() as writer:
            claimed = dict(writer.execute(QUERIES["claim"], (to_json(list(keys)),)))
            for key in keys:
                self._refuse_unknown(key, claimed)
        epochs = [Epoch(claimed[key]) for key in keys]
        self._epochs.update(zip(keys, epochs, strict=True))
        return epochs

    def _refuse_unknown(self, key: PartitionKey, known: Container[int]) -> None:
        if key not in known:
            raise StoreError(f"{self._path} holds no partition with the key {key}")

    def tidy(self) -> bool:
        self._commits.rest()
        if self._commits.pending:
            self._connections.check()
            with self._connections.writing() as writer:
                self._commits.write_part(writer)
            return True
        if self._dropped:
            self._sweep()
            return True
        if self._removals:
            self._delete_removed()
            return True
        with self._connections.writing() as writer:
            self._connections.witness.check()
            return give_back(writer)

    def write_out(self) -> None:
        if self._commits.pending:
            with self._whole():
                pass

    def settle(self) -> None:
        self._connections.note()

    def _sweep(self) -> None:
        """Remove some of a dropped partition."""
        key = self._dropped[-1]
        with self._changing() as writer:
            writer.execute(QUERIES["clear_bodies"], (key, SWEEP_ROWS))
            writer.execute(QUERIES["clear_messages"], (key, SWEEP_ROWS))
            writer.execute(QUERIES["clear_identities"], (key, SWEEP_ROWS))
            writer.execute(QUERIES["clear_sessions"], (key, SWEEP_ROWS))
            writer.execute(QUERIES["clear_transfers"], (key,))
            emptied = writer.execute(QUERIES["clear_partition"], (key,)).rowcount == 1
        if emptied:
            self._dropped.pop()

    def _delete_removed(self) -> None:
        """Delete some rows of messages that were removed before."""
        with self._changing() as writer:
            self._removals.delete_some(writer)
        self._removals.deleted()

    # -- messages -------------------------------------------------------------

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        for change in changes:
            self._refuse_unknown(change.key, self._epochs)
            if change.epoch != self._epochs[change.key]:
                raise PartitionMoved(f"{self._path}: partition {change.key} was claimed by another broker")
        if self._dropped:
            # A writer that is never idle still has to sweep.
            self._sweep()
        if self._removals.due:
            self._delete_removed()
        with self._connections.writing() as writer:
            self._commits.commit(writer, changes, self._connections.witness)

    # -- reading --------------------------------------------------------------

    def load(self, key: PartitionKey, between_pages: Callable[[], None] = no_pause) -> Snapshot:
        self.write_out()
        with self._connections.reading() as reader:
            counter = reader.execute(QUERIES["next_sequence"], (key,)).fetchone()
            removed = self._removals.noted_in(reader)
        if counter is None:
            raise StoreError(f"{self._path} holds no partition with the key {key}")
        with collector_paused():
            messages: list[Message] = []
            for page in self._pages(key):
                messages += page
                between_pages()
            if removed:
                messages = [message for message in messages if message.row_id not in removed]
            identities = list(self._identities(key))
        messages.sort(key=attrgetter("sequence_number"))
        with self._connections.reading() as reader:
            sessions = [SessionRecord(*row) for row in reader.execute(QUERIES["load_sessions"], (key,))]
            transferred = dict(reader.execute(QUERIES["load_transfers"], (key,)))
        return Snapshot(SequenceNumber(counter[0]), messages, identities, sessions, transferred)

    def _identities(self, key: PartitionKey) -> Iterator[tuple[Instant, bytes]]:
        last = 0, ""
        while True:
            with self._connections.reading() as reader:
                query = reader.execute(QUERIES["load_identities"], (key, *last, LOAD_PAGE_ROWS))
                page = json.loads(query.fetchone()[0])
            try:
                yield from ((Instant(accepted_at), bytes.fromhex(digest)) for accepted_at, digest in page)
            except (ValueError, TypeError) as error:
                raise StoreCorrupted(f"{self._path} is damaged: a digest after {last} is garbled") from error
            if len(page) < LOAD_PAGE_ROWS:
                return
            last = page[-1]

    def _pages(self, key: PartitionKey) -> Iterator[list[Message]]:
        """Page by page, each with a read of its own, so that the log can be emptied meanwhile."""
        sessions: dict[str, SessionId] = {}
        origins: dict[int, Origin] = {}
        last = 0
        while True:
            with self._connections.reading() as reader:
                (page,) = reader.execute(QUERIES["load_page"], (key, last, LOAD_PAGE_ROWS)).fetchone()
            try:
                messages = decode_page(page, sessions, origins)
            except (ValueError, TypeError, IndexError) as error:
                raise StoreCorrupted(f"{self._path} is damaged: a message after {last} is garbled") from error
            yield messages
            if len(messages) < LOAD_PAGE_ROWS:
                return
            last = messages[-1].row_id

    def read(self, row_ids: Sequence[int]) -> list[bytes | None]:
        pending, removals = self._commits.pending, self._removals
        if pending.releases_some(row_ids):
            # Only the database knows whether other messages share the body.
            self.write_out()
        gone = pending.gone_among(row_ids) | removals.among(row_ids)
        payloads = pending.payloads(row_ids)
        others = row_ids
        if gone or payloads:
            others = [row_id for row_id in row_ids if row_id not in gone and row_id not in payloads]
        if others:
            payloads |= _read(self._connections, others)
        return [None if row_id in gone else payloads.get(row_id) for row_id in row_ids]

    def at_hand(self, row_ids: Sequence[int]) -> list[bytes] | None:
        payloads: list[bytes] = []
        for row_id in row_ids:
            payload = self._commits.pending.payload(row_id)
            if payload is None:
                return None
            payloads.append(payload)
        return payloads

    def read_session_state(self, key: PartitionKey, session_id: SessionId) -> bytes | None:
        pending = self._commits.pending.session_state(key, session_id)
        if pending is not None:
            return pending[1]
        with self._connections.reading() as reader:
            row = reader.execute(QUERIES["session_state"], (key, session_id)).fetchone()
        return None if row is None else row[0]


def _read(connections: Connections, row_ids: Sequence[int]) -> dict[int, bytes]:
    try:
        with connections.reading() as reader:
            ids, sizes, joined = reader.execute(QUERIES["read"], (encode_ids(row_ids),)).fetchone()
    except StoreError as error:
        # More than SQLite returns as one value: read less at a time.
        if not isinstance(error.__cause__, sqlite3.DataError) or len(row_ids) < 2:
            raise
        half = len(row_ids) // 2
        return _read(connections, row_ids[:half]) | _read(connections, row_ids[half:])
    payloads, start = {}, 0
    for row_id, size in zip(decode_ids(ids), decode_ids(sizes), strict=True):
        payloads[row_id] = joined[start : start + size]
        start += size
    assert start == len(joined or b""), "payloads and their lengths must agree"
    return payloads


def hand_over(path: Path, namespace: str) -> None:
    """Assign a file that is not in use to another namespace."""
    with reported(path), closing(open_file(path, MESSAGING_STORE)) as writer:
        writer.execute(QUERIES["hand_over"], (namespace,))


def _partition_record(row: tuple[int, str, int]) -> PartitionRecord:
    key, entity, number = row
    return PartitionRecord(PartitionKey(key), EntityPath(entity), PartitionNumber(number))
