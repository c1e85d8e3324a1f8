"""A messaging store in a schema of a PostgreSQL database.

One connection writes, from the writer's thread; another reads, from the
reader's. A commit is one call of a function in the database (schema.sql,
`commit_changes`): one round trip, one transaction. The same function checks
that the partitions are still ours, so a broker that was displaced cannot
write, however late it wakes up. Design and measurements: store/DESIGN.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import attrgetter
from typing import Any, Final

import psycopg

from bendybus.domain.messages import Message, Origin
from bendybus.errors import StoreCorrupted, StoreError
from bendybus.names import (
    PARTITION_SHIFT,
    EntityPath,
    Epoch,
    Instant,
    PartitionNumber,
    SequenceNumber,
    SessionId,
)
from bendybus.store.encoding import allocate, collector_paused, has_more_than_messages, requests_of
from bendybus.store.postgres import schema
from bendybus.store.postgres.address import StoreAddress
from bendybus.store.postgres.connections import QUERIES, Connection, Line, connect, translated
from bendybus.store.postgres.encoding import array, decode_page, encode_request
from bendybus.store.postgres.image import PostgresImage
from bendybus.store.protocol import (
    PartitionChanges,
    PartitionKey,
    PartitionRecord,
    SessionRecord,
    Snapshot,
    StoreOwner,
    no_pause,
    nothing_at_hand,
)

__all__ = ["PostgresStore"]

# Each opening has 2^32 ids of its own. There are 2^31 such blocks, which limits how often a store is opened.
ID_BLOCK_SHIFT: Final = 32

LOAD_PAGE_ROWS: Final = 5000
# How many messages of a dropped partition are swept at a time.
SWEEP_ROWS: Final = 2000
CLEARING: Final = (
    "lock_bodies",
    "clear_bodies",
    "clear_messages",
    "clear_identities",
    "clear_sessions",
    "clear_transfers",
    "clear_partition",
)

# A transaction that conflicts with another is retried this often, after up to this long, doubled each time.
RETRIES_MAX: Final = 6
RETRY_WITHIN_S: Final = 0.02

# How often an idle database is checked. With a second until the writer counts as idle and
# two until a call counts as stalled, health reports a database that is gone within ten seconds.
PROBE_EVERY_S: Final = 5.0


class PostgresStore:
    """The methods are described in `MessagingStore`."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self.namespace: str | None = None
        self._writer = Line(address)
        self._reader = Line(address)
        self._next_id = 0
        self._last_id = 0
        self._dropped: list[PartitionKey] = []
        self._probe_due_at = 0.0
        self._term: int | None = None
        """The term under which a broker of a cluster owns the store; None for a server that is alone."""

    @property
    def name(self) -> str:
        return self._address.name

    @property
    def kind(self) -> str:
        return "postgresql"

    def examine(self) -> str:
        try:
            with closing(connect(self._address)) as connection:
                return schema.examine(connection, self._address, self.namespace)
        except psycopg.Error as error:
            raise translated(error, self.name) from error

    def open(self) -> None:
        try:
            with self._writer.use() as writer:
                schema.prepare(writer, self._address, self.namespace)
                self._take_ids(writer)
                self._dropped = [
                    PartitionKey(key) for (key,) in writer.execute(QUERIES["dropped_partitions"])
                ]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    def image(self) -> PostgresImage:
        return PostgresImage(self._address)

    def _take_ids(self, writer: Connection) -> None:
        block = writer.execute(QUERIES["take_ids"]).fetchone()
        assert block is not None
        self._next_id = block[0] << ID_BLOCK_SHIFT
        self._last_id = self._next_id + (1 << ID_BLOCK_SHIFT) - 1

    # -- the broker that owns the store (`SharedStore`) ------------------------

    def owner(self) -> StoreOwner:
        ((broker, instance, term),) = self._fetch("owner")
        return StoreOwner(broker, instance, term)

    def take(self, broker: str, instance: str, after: int) -> int | None:
        with self._writer.use() as writer:
            row = writer.execute(QUERIES["take"], (broker, instance, after)).fetchone()
        self._term = None if row is None else row[0]
        return self._term

    def release(self) -> None:
        with self._writer.use() as writer:
            writer.execute(QUERIES["release"], (self._term,))

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """The writer's connection, for a change that a broker that was displaced must not make."""
        with self._writer.use() as writer:
            if self._term is None:
                yield writer
            else:
                with writer.transaction():
                    writer.execute(QUERIES["refuse_displaced"], (self._term,))
                    yield writer

    # -- partitions -----------------------------------------------------------

    def partitions(self) -> list[PartitionRecord]:
        return [_partition_record(row) for row in self._fetch("partitions")]

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        asked = sorted(set(numbers))
        counters = array((number << PARTITION_SHIFT) + 1 for number in asked)
        with self._changing() as writer, writer.transaction():
            writer.execute(QUERIES["create_partitions"], (entity, array(asked), counters))
            rows = writer.execute(QUERIES["partitions_of"], (entity, array(asked))).fetchall()
        return [_partition_record(row) for row in rows]

    def drop_partitions(self, entity: EntityPath) -> None:
        with self._changing() as writer:
            keys = writer.execute(QUERIES["drop_partitions"], (entity,)).fetchall()
        self._dropped += [PartitionKey(key) for (key,) in keys]

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        with self._changing() as writer:
            dropped = writer.execute(QUERIES["discard"], (array(keys),)).fetchall()
        self._dropped += [PartitionKey(key) for (key,) in dropped]

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        with self._changing() as writer, writer.transaction():
            claimed = dict(writer.execute(QUERIES["claim"], (array(keys),)).fetchall())
            for key in keys:
                if key not in claimed:
                    raise StoreError(f"{self.name} holds no partition with the key {key}")
        return [Epoch(claimed[key]) for key in keys]

    def tidy(self) -> bool:
        if self._dropped:
            self._sweep()
            return True
        if time.monotonic() >= self._probe_due_at:
            self._probe_due_at = time.monotonic() + PROBE_EVERY_S
            with self._writer.use() as writer:
                writer.execute("SELECT 1")
        return False

    def settle(self) -> None:
        """Nothing to do: the database records its own commits."""

    def write_out(self) -> None:
        """Nothing to do: the database shows them to all."""

    def _sweep(self) -> None:
        """Remove some of a dropped partition."""
        key = self._dropped[-1]
        with self._writer.use() as writer:
            _persistently(lambda: _clear_some(writer, key))
            # Another broker may have finished the sweep meanwhile.
            if (key,) not in writer.execute(QUERIES["dropped_partitions"]).fetchall():
                self._dropped.remove(key)

    # -- messages -------------------------------------------------------------

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        if self._dropped:
            # A writer that is never idle still has to sweep.
            self._sweep()
        first, allocated = self._allocate(changes)
        with self._writer.use() as writer:
            if self._next_id > self._last_id:
                self._take_ids(writer)
                first, allocated = self._allocate(changes)
            self._commit(writer, changes, first)
        for message, row_id in allocated:
            message.row_id = row_id
            if message.origin is not None and not message.origin.body:
                message.origin.body = row_id - 1

    def _allocate(self, changes: Sequence[PartitionChanges]) -> tuple[int, list[tuple[Message, int]]]:
        """The first id, and each stored message with its id. Ids are used up even if the commit fails."""
        first = self._next_id
        allocated = list(allocate(changes, first))
        if allocated:
            self._next_id = allocated[-1][1] + 1
        return first, allocated

    def _commit(self, writer: Connection, changes: Sequence[PartitionChanges], first: int) -> None:
        requests = map(encode_request, requests_of(changes, first))
        request, another = next(requests), next(requests, None)
        others = [change for change in changes if has_more_than_messages(change)]
        if another is None and not others:
            _persistently(lambda: _call(writer, request))
            return
        parts = [request] if another is None else [request, another, *requests]
        _persistently(lambda: _commit_together(writer, parts, others))

    # -- reading --------------------------------------------------------------

    def load(self, key: PartitionKey, between_pages: Callable[[], None] = no_pause) -> Snapshot:
        counter = self._fetch("next_sequence", key)
        if not counter:
            raise StoreError(f"{self.name} holds no partition with the key {key}")
        with collector_paused():
            messages: list[Message] = []
            for page in self._pages(key):
                messages += page
                between_pages()
            identities = list(self._identities(key))
        messages.sort(key=attrgetter("sequence_number"))
        sessions = [
            SessionRecord(SessionId(session_id.decode()), size, Instant(updated_at))
            for session_id, size, updated_at in self._fetch("load_sessions", key)
        ]
        transferred = {
            source: SequenceNumber(number) for source, number in self._fetch("load_transfers", key)
        }
        return Snapshot(SequenceNumber(counter[0][0]), messages, identities, sessions, transferred)

    def _identities(self, key: PartitionKey) -> Iterator[tuple[Instant, bytes]]:
        last: tuple[int, bytes] = 0, b""
        while True:
            page = self._fetch("load_identities", key, *last, LOAD_PAGE_ROWS)
            yield from ((Instant(accepted_at), digest) for accepted_at, digest in page)
            if len(page) < LOAD_PAGE_ROWS:
                return
            last = page[-1][0], page[-1][1]

    def _pages(self, key: PartitionKey) -> Iterator[list[Message]]:
        """Page by page, each with a read of its own, so that dead rows can be vacuumed meanwhile."""
        sessions: dict[str, SessionId] = {}
        origins: dict[int, Origin] = {}
        last = 0
        while True:
            rows = self._fetch("load_page", key, last, LOAD_PAGE_ROWS)
            try:
                messages = decode_page(rows, sessions, origins)
            except (ValueError, TypeError, IndexError) as error:
                raise StoreCorrupted(f"{self.name} is damaged: a message after {last} is garbled") from error
            yield messages
            if len(messages) < LOAD_PAGE_ROWS:
                return
            last = messages[-1].row_id

    def read(self, row_ids: Sequence[int]) -> list[bytes | None]:
        payloads = dict(self._fetch("read", array(row_ids)))
        return [payloads.get(row_id) for row_id in row_ids]

    at_hand = nothing_at_hand

    def read_session_state(self, key: PartitionKey, session_id: SessionId) -> bytes | None:
        rows = self._fetch("session_state", key, session_id.encode())
        return rows[0][0] if rows else None

    def _fetch(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self._reader.use() as reader:
            return reader.execute(QUERIES[query], parameters, binary=True).fetchall()


# -- commits --------------------------------------------------------------------


def _call(writer: Connection, request: list[object]) -> None:
    writer.execute(QUERIES["commit"], request)


def _commit_together(
    writer: Connection, parts: Sequence[list[object]], others: Sequence[PartitionChanges]
) -> None:
    """Run several statements in one transaction, sent without waiting for each other's results."""
    with writer.pipeline(), writer.transaction():
        for part in parts:
            _call(writer, part)
        for change in others:
            _commit_others(writer, change)


def _clear_some(writer: Connection, key: PartitionKey) -> None:
    """Remove some of what a dropped partition holds, and the partition itself once it is empty."""
    with writer.pipeline(), writer.transaction():
        for query in CLEARING:
            writer.execute(QUERIES[query], {"key": key, "rows": SWEEP_ROWS})


def _commit_others(writer: Connection, change: PartitionChanges) -> None:
    """Write what few entities have."""
    execute, key = writer.execute, change.key
    if change.forgotten_through is not None:
        execute(QUERIES["forget"], (key, change.forgotten_through))
    for accepted_at, digests in change.remembered:
        execute(QUERIES["remember"], (key, accepted_at, digests))
    for each in change.session_states:
        if each.state is None:
            execute(QUERIES["forget_session_state"], (key, each.session_id.encode()))
        else:
            parameters = (key, each.session_id.encode(), each.updated_at, each.state)
            execute(QUERIES["save_session_state"], parameters)
    for source, number in change.transferred.items():
        execute(QUERIES["mark_transferred"], (key, source, number))


def _persistently(commit: Callable[[], None]) -> None:
    """Try again after a conflict with another transaction: nothing of this one has happened then."""
    for attempt in range(RETRIES_MAX):
        try:
            commit()
            return
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            if attempt == RETRIES_MAX - 1:
                raise
            time.sleep(random.uniform(0, RETRY_WITHIN_S * 2**attempt))


def _partition_record(row: tuple[Any, ...]) -> PartitionRecord:
    key, entity, number = row
    return PartitionRecord(PartitionKey(key), EntityPath(entity), PartitionNumber(number))
