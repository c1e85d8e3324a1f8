"""A messaging store in memory, for tests. Its contents end with the process.

It keeps every promise of the protocol except durability, and can simulate an
outage (`outage`). Contents survive `close` and `open`, so that a test can
restart a broker. The durable stores: sqlite/, postgres/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from operator import attrgetter

from bendybus.domain.messages import Message
from bendybus.errors import BrokerError, PartitionMoved, StoreError
from bendybus.names import (
    PARTITION_SHIFT,
    EntityPath,
    Epoch,
    Instant,
    PartitionNumber,
    SequenceNumber,
    SessionId,
)
from bendybus.store.protocol import (
    NEVER_CLAIMED,
    PartitionChanges,
    PartitionKey,
    PartitionRecord,
    SessionRecord,
    SessionState,
    Snapshot,
    StoreImage,
    no_pause,
    nothing_at_hand,
)

__all__ = ["MemoryStore"]


class _Partition:
    __slots__ = (
        "epoch",
        "identities",
        "messages",
        "next_sequence_number",
        "record",
        "session_states",
        "transferred",
    )

    def __init__(self, record: PartitionRecord) -> None:
        self.record = record
        self.next_sequence_number = SequenceNumber((record.number << PARTITION_SHIFT) + 1)
        self.messages: dict[int, Message] = {}
        self.identities: set[tuple[Instant, bytes]] = set()
        self.session_states: dict[SessionId, SessionState] = {}
        self.transferred: dict[str, SequenceNumber] = {}
        self.epoch = NEVER_CLAIMED


class MemoryStore:
    """The methods are described in `MessagingStore`."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self.namespace: str | None = None
        self._owner: str | None = None
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._bodies: dict[int, bytes] = {}
        self._copies: Counter[int] = Counter()
        """How many messages refer to a body that may be shared."""
        self._next_key = 1
        self._next_row_id = 1
        self.outage: BrokerError | None = None
        """While set, every call except `close` raises it."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def kind(self) -> str:
        return "memory"

    def examine(self) -> str:
        self._check_available()
        if None not in (self.namespace, self._owner) and self.namespace != self._owner:
            raise StoreError(f"{self._name} belongs to another namespace")
        return f"memory:{id(self)}"

    def open(self) -> None:
        self.examine()
        self._owner = self._owner or self.namespace

    def close(self) -> None:
        pass

    def image(self) -> StoreImage:
        raise StoreError(f"{self._name} keeps its messages in memory, and they cannot be backed up")

    def partitions(self) -> list[PartitionRecord]:
        self._check_available()
        return [partition.record for partition in self._partitions.values()]

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        known = {record.number: record for record in self.partitions() if record.entity == entity}
        for number in numbers:
            if number not in known:
                record = PartitionRecord(PartitionKey(self._next_key), entity, number)
                self._partitions[record.key] = _Partition(record)
                self._next_key += 1
                known[number] = record
        return [known[number] for number in sorted(set(numbers))]

    def drop_partitions(self, entity: EntityPath) -> None:
        self.discard([record.key for record in self.partitions() if record.entity == entity])

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        self._check_available()
        for key in keys:
            dropped = self._partitions.pop(key, None)
            for message in () if dropped is None else dropped.messages.values():
                self._release_body(message)

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        self._check_available()
        claimed = [self._partition(key) for key in keys]
        for partition in claimed:
            partition.epoch = Epoch(partition.epoch + 1)
        return [partition.epoch for partition in claimed]

    def tidy(self) -> bool:
        self._check_available()
        return False

    def settle(self) -> None:
        """There is nothing to record in memory."""

    def write_out(self) -> None:
        """Nothing to do: no other process can see it."""

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        self._check_available()
        partitions = [self._partition(change.key) for change in changes]
        for partition, change in zip(partitions, changes, strict=True):
            if partition.epoch != change.epoch:
                raise PartitionMoved(f"{self._name}: {partition.record} was claimed by another broker.")
        _check_storable(changes)
        for partition, change in zip(partitions, changes, strict=True):
            for message in change.stored:
                self._keep_body(message)
                message.row_id = self._take_row_id()
                if message.origin is None:
                    assert message.payload is not None
                    self._bodies[message.row_id] = message.payload
                partition.messages[message.row_id] = _at_rest(message)
        for partition, change in zip(partitions, changes, strict=True):
            for message in change.updated:
                if message.row_id in partition.messages:
                    partition.messages[message.row_id] = _at_rest(message)
            for message in change.removed:
                if partition.messages.pop(message.row_id, None) is not None:
                    self._release_body(message)
            if (through := change.forgotten_through) is not None:
                partition.identities = {entry for entry in partition.identities if entry[0] > through}
            for accepted_at, digests in change.remembered:
                partition.identities.update((accepted_at, digest) for digest in digests)
            for state in change.session_states:
                partition.session_states.pop(state.session_id, None)
                if state.state is not None:
                    partition.session_states[state.session_id] = state
            partition.transferred |= change.transferred
            partition.next_sequence_number = change.next_sequence_number

    def _take_row_id(self) -> int:
        self._next_row_id += 1
        return self._next_row_id - 1

    def _keep_body(self, message: Message) -> None:
        """Keep the body of a message with an origin, if this is the first message with that origin."""
        origin = message.origin
        if origin is None:
            return
        if not origin.body:
            assert message.payload is not None
            origin.body = self._take_row_id()
            self._bodies[origin.body] = message.payload
        self._copies[origin.body] += 1

    def _release_body(self, message: Message) -> None:
        """Release the body of a removed message, unless another message shares it."""
        body = message.body_row_id
        if message.origin is not None:
            self._copies[body] -= 1
            if self._copies[body]:
                return
            del self._copies[body]
        del self._bodies[body]

    def load(self, key: PartitionKey, between_pages: Callable[[], None] = no_pause) -> Snapshot:
        self._check_available()
        partition = self._partition(key)
        # A commit may run meanwhile in another thread. Copying the list is one atomic step.
        messages = sorted(map(copy, list(partition.messages.values())), key=attrgetter("sequence_number"))
        between_pages()
        return Snapshot(
            partition.next_sequence_number,
            messages,
            sorted(partition.identities),
            [
                SessionRecord(each.session_id, len(each.state or b""), each.updated_at)
                for each in list(partition.session_states.values())
            ],
            dict(partition.transferred),
        )

    @property
    def body_count(self) -> int:
        """How many bodies are kept; copies of a message share one."""
        return len(self._bodies)

    def read(self, row_ids: Sequence[int]) -> list[bytes | None]:
        self._check_available()
        return [self._bodies.get(row_id) for row_id in row_ids]

    at_hand = nothing_at_hand

    def read_session_state(self, key: PartitionKey, session_id: SessionId) -> bytes | None:
        self._check_available()
        kept = self._partition(key).session_states.get(session_id)
        return None if kept is None else kept.state

    def _check_available(self) -> None:
        if self.outage is not None:
            raise self.outage

    def _partition(self, key: PartitionKey) -> _Partition:
        partition = self._partitions.get(key)
        if partition is None:
            raise StoreError(f"{self._name} holds no partition with the key {key}")
        return partition


def _check_storable(changes: Sequence[PartitionChanges]) -> None:
    """Raise every error here, before anything has changed."""
    new = {id(message) for change in changes for message in change.stored}
    for change in changes:
        for message in change.stored:
            if message.payload is None and not (message.origin and message.origin.body):
                raise ValueError(f"{message!r} cannot be stored without its payload")
            if message.session_id is not None:
                message.session_id.encode()
        for message in (*change.updated, *change.removed):
            if not message.row_id and id(message) not in new:
                raise ValueError(f"{message!r} was never stored")


def _at_rest(message: Message) -> Message:
    """The message as a store keeps it: no payload, no lock."""
    kept = message.unlocked()
    kept.payload = None
    return kept
