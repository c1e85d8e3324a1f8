"""The messaging-store protocol: the one seam between partitions and disks.

A store keeps the messages of many partitions. All calls block; the broker
makes them from threads: `load`, `read` and `partitions` from the store's
reader, all else from its one writer. A commit is atomic and durable (fsync) when it returns;
when it raises, nothing of it has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol

from bendybus.domain.messages import Message
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber

__all__ = ["MessagingStore", "PartitionChanges", "PartitionKey", "PartitionRecord", "Snapshot"]

PartitionKey = NewType("PartitionKey", int)
"""A store's own short number for one partition of one entity."""


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition that a store holds."""

    key: PartitionKey
    entity: EntityPath
    number: PartitionNumber


@dataclass(slots=True)
class PartitionChanges:
    """One partition's share of a commit.

    The store reads the messages while it commits: what they say then is kept.
    Lists are applied in the order stored, updated, removed; a message may stand
    in several of them (stored and removed before this commit ran, say). An update
    may give a message another sequence number; its `place` stays.
    `next_sequence_number` is what the partition's counter will give out next.
    What duplicate detection remembers is forgotten by age before more is added.
    """

    key: PartitionKey
    next_sequence_number: SequenceNumber
    stored: list[Message] = field(default_factory=list)
    updated: list[Message] = field(default_factory=list)
    removed: list[Message] = field(default_factory=list)
    remembered: list[tuple[Instant, list[bytes]]] = field(default_factory=list)
    """Digests of accepted messages, and when that was."""
    forgotten_through: Instant | None = None
    """Digests of what was accepted up to then are of no more use."""


@dataclass(slots=True)
class Snapshot:
    """A partition as its store knows it: messages by sequence number, payloads left on disk.

    `identities`: what duplicate detection remembers, the oldest first.
    """

    next_sequence_number: SequenceNumber
    messages: list[Message]
    identities: list[tuple[Instant, bytes]] = field(default_factory=list)


class MessagingStore(Protocol):
    @property
    def name(self) -> str:
        """For people: in errors, metrics and the entity's overview."""

    def open(self) -> None:
        """Make ready; raises `StoreError` (by name) when the store is newer, torn or not ours."""

    def close(self) -> None: ...

    def partitions(self) -> list[PartitionRecord]: ...

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        """Atomic; a partition that is there already is returned as it is."""

    def drop_partitions(self, entity: EntityPath) -> None:
        """Atomic, with all their messages; an unknown entity is no error."""

    def tidy(self) -> bool:
        """Some housekeeping, for when the writer has nothing else to do; True if there may be more."""

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        """All of it, durably, or none of it. Sets `place` of every stored message.

        `StoreUnavailable` when the store cannot take it now (a full disk, say), `StoreCorrupted` when it
        has met damage, `StoreError` when a partition is not, or no longer, here.
        """

    def load(self, key: PartitionKey) -> Snapshot:
        """Everything but the payloads, by sequence number.

        Nothing may be committed to the partition meanwhile. `StoreError` when it is not here.
        """

    def read(self, places: Sequence[int]) -> list[bytes | None]:
        """Payloads, in the order asked; None for a message that has been removed meanwhile."""
