"""A messaging store that forgets when the process ends: for tests.

It keeps every promise of the protocol but durability, and can be told to be
away (`outage`). Contents live through `close` and `open`, so that a test can
start a broker anew. The stores that keep things: sqlite/.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from operator import attrgetter

from bendybus.domain.messages import Message
from bendybus.errors import BrokerError, StoreError
from bendybus.names import PARTITION_SHIFT, EntityPath, Instant, PartitionNumber, SequenceNumber
from bendybus.store.protocol import PartitionChanges, PartitionKey, PartitionRecord, Snapshot

__all__ = ["MemoryStore"]


class _Partition:
    __slots__ = ("identities", "messages", "next_sequence_number", "record")

    def __init__(self, record: PartitionRecord) -> None:
        self.record = record
        self.next_sequence_number = SequenceNumber((record.number << PARTITION_SHIFT) + 1)
        self.messages: dict[int, Message] = {}
        self.identities: set[tuple[Instant, bytes]] = set()


class MemoryStore:
    """See `MessagingStore` for what the methods promise."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._bodies: dict[int, bytes] = {}
        self._next_key = 1
        self._next_place = 1
        self.outage: BrokerError | None = None
        """While set, every call but `close` raises it."""

    @property
    def name(self) -> str:
        return self._name

    def open(self) -> None:
        self._check_available()

    def close(self) -> None:
        pass

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
        for record in self.partitions():
            if record.entity == entity:
                for place in self._partitions.pop(record.key).messages:
                    del self._bodies[place]

    def tidy(self) -> bool:
        self._check_available()
        return False

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        self._check_available()
        partitions = [self._partition(change.key) for change in changes]
        _check_storable(changes)
        for partition, change in zip(partitions, changes, strict=True):
            for message in change.stored:
                assert message.payload is not None
                message.place = self._next_place
                self._next_place += 1
                self._bodies[message.place] = message.payload
                partition.messages[message.place] = _at_rest(message)
            for message in change.updated:
                if message.place in partition.messages:
                    partition.messages[message.place] = _at_rest(message)
            for message in change.removed:
                if partition.messages.pop(message.place, None) is not None:
                    del self._bodies[message.place]
            if (through := change.forgotten_through) is not None:
                partition.identities = {entry for entry in partition.identities if entry[0] > through}
            for accepted_at, digests in change.remembered:
                partition.identities.update((accepted_at, digest) for digest in digests)
            partition.next_sequence_number = change.next_sequence_number

    def load(self, key: PartitionKey) -> Snapshot:
        self._check_available()
        partition = self._partition(key)
        messages = sorted(map(copy, partition.messages.values()), key=attrgetter("sequence_number"))
        return Snapshot(partition.next_sequence_number, messages, sorted(partition.identities))

    def read(self, places: Sequence[int]) -> list[bytes | None]:
        self._check_available()
        return [self._bodies.get(place) for place in places]

    def _check_available(self) -> None:
        if self.outage is not None:
            raise self.outage

    def _partition(self, key: PartitionKey) -> _Partition:
        partition = self._partitions.get(key)
        if partition is None:
            raise StoreError(f"{self._name} holds no partition with the key {key}")
        return partition


def _check_storable(changes: Sequence[PartitionChanges]) -> None:
    """Whatever would fail half-way fails here, before anything has changed."""
    new = {id(message) for change in changes for message in change.stored}
    for change in changes:
        for message in change.stored:
            if message.payload is None:
                raise ValueError(f"{message!r} cannot be stored without its payload")
            if message.session_id is not None:
                message.session_id.encode()
        for message in (*change.updated, *change.removed):
            if not message.place and id(message) not in new:
                raise ValueError(f"{message!r} was never stored")


def _at_rest(message: Message) -> Message:
    """What a store remembers: no payload, no lock."""
    kept = copy(message)
    kept.payload = None
    kept.lock_token = None
    kept.locked_until = Instant(0)
    return kept
