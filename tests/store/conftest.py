"""Messaging stores to test, each kind behind the same small workbench."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from bendybus.domain.messages import Message
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber, SessionId
from bendybus.store.faults import FaultyStore
from bendybus.store.memory import MemoryStore
from bendybus.store.postgres.address import parse_address
from bendybus.store.postgres.store import PostgresStore
from bendybus.store.protocol import MessagingStore, PartitionChanges, PartitionKey
from bendybus.store.sqlite.store import SqliteStore


def _postgres_store(path: Path, request: pytest.FixtureRequest) -> MessagingStore:
    # Asked for here, so that a run of the other kinds starts no server.
    server = request.getfixturevalue("postgres")
    # One database for all, a schema for each: those are made quickly.
    schema = f"s{next(_SCHEMAS)}"
    return PostgresStore(parse_address(server.url("postgres", schema=schema)))


_SCHEMAS = count()

# Another kind of store joins the contract suite by one more line here.
KINDS: dict[str, Callable[[Path, pytest.FixtureRequest], MessagingStore]] = {
    "memory": lambda path, request: MemoryStore("memory"),
    "sqlite": lambda path, request: SqliteStore(path),
    "postgres": _postgres_store,
    "healed": lambda path, request: FaultyStore(MemoryStore("healed")),
}


class Workbench:
    """An open store with one entity of two partitions, and short words for what tests do to it."""

    def __init__(self, make: Callable[[], MessagingStore]) -> None:
        self.store = make()
        self.store.open()
        records = self.store.create_partitions(EntityPath("orders"), [PartitionNumber(0), PartitionNumber(1)])
        self.keys: list[PartitionKey] = [record.key for record in records]

    def reopen(self) -> None:
        self.store.close()
        self.store.open()

    def commit(
        self,
        stored: list[Message] | None = None,
        updated: list[Message] | None = None,
        removed: list[Message] | None = None,
        *,
        partition: int = 0,
        next_sequence_number: int = 1000,
    ) -> None:
        changes = PartitionChanges(
            self.keys[partition],
            SequenceNumber(next_sequence_number),
            stored or [],
            updated or [],
            removed or [],
        )
        self.store.commit([changes])

    def commit_all(self, stored: list[list[Message]]) -> None:
        """New messages in several partitions, in one commit."""
        self.store.commit(
            [
                PartitionChanges(self.keys[partition], SequenceNumber(1000), messages)
                for partition, messages in enumerate(stored)
            ]
        )

    def loaded(self, partition: int = 0) -> list[Message]:
        return self.store.load(self.keys[partition]).messages

    def numbers(self, partition: int = 0) -> list[int]:
        return [message.sequence_number for message in self.loaded(partition)]


def new_message(sequence: int, payload: bytes | None = b"payload", session: str | None = None) -> Message:
    session_id = None if session is None else SessionId(session)
    message = Message(payload, size=len(payload or b"") + 40, session_id=session_id)
    message.sequence_number = SequenceNumber(sequence)
    message.enqueued_at = Instant(1_700_000_000_000 + sequence)
    return message


@pytest.fixture
def make_message() -> Callable[..., Message]:
    return new_message


@pytest.fixture(params=KINDS)
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], MessagingStore]:
    """As many stores of one kind as a test wants, not yet opened and none of them twice."""
    numbers = count()
    return lambda: KINDS[request.param](tmp_path / f"store-{next(numbers)}.db", request)


@pytest.fixture
def make_bench(make_store: Callable[[], MessagingStore]) -> Iterator[Callable[[], Workbench]]:
    """As many fresh stores of one kind as a test wants."""
    benches: list[Workbench] = []

    def make() -> Workbench:
        benches.append(Workbench(make_store))
        return benches[-1]

    yield make
    for bench in benches:
        bench.store.close()


@pytest.fixture
def bench(make_bench: Callable[[], Workbench]) -> Workbench:
    return make_bench()


@pytest.fixture
def sqlite_bench(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench(lambda: SqliteStore(tmp_path / "store-0.db"))
    yield bench
    bench.store.close()


FIELDS = (
    "sequence_number",
    "size",
    "expires_at",
    "session_id",
    "enqueued_at",
    "delivery_count",
    "state",
    "subqueue",
    "amendment",
    "origin",
    "row_id",
)


def as_kept(message: Message) -> tuple[object, ...]:
    """What a store keeps of a message besides its payload."""
    return tuple(getattr(message, name) for name in FIELDS)
