"""The messaging-store protocol: the one seam between partitions and disks.

A store keeps the messages of many partitions. All calls block, so the broker makes them from threads: one
thread reads (`load`, `read`, `read_session_state`) and one writes. A commit is atomic: all of it happens or
none. When it returns, it is durable (fsync). When it raises, its outcome is uncertain: a store that stalled
or lost its connection may still have written it. Only `load` tells what is true (broker/uncertain.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NewType, Protocol

from bendybus.domain.messages import Message
from bendybus.names import EntityPath, Epoch, Instant, PartitionNumber, SequenceNumber, SessionId

__all__ = [
    "NEVER_CLAIMED",
    "MessagingStore",
    "PartitionChanges",
    "PartitionKey",
    "PartitionRecord",
    "SessionRecord",
    "SessionState",
    "Snapshot",
    "StoreImage",
]

NEVER_CLAIMED: Final = Epoch(0)
"""The epoch of a partition just made: who made it is its first owner."""

PartitionKey = NewType("PartitionKey", int)
"""A store's own short number for one partition of one entity."""


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition that a store holds."""

    key: PartitionKey
    entity: EntityPath
    number: PartitionNumber


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a session, to be kept; None to forget it."""

    session_id: SessionId
    state: bytes | None
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session whose state a store keeps; the state itself is left on disk."""

    session_id: SessionId
    size: int
    updated_at: Instant


@dataclass(slots=True)
class PartitionChanges:
    """One partition's share of a commit.

    The store reads the messages while it commits: what they say then is kept.
    Lists are applied in the order stored, updated, removed; a message may stand
    in several of them (stored and removed before this commit ran, say). An update
    may give a message another sequence number; its `row_id` stays.
    `next_sequence_number` is what the partition's counter will give out next.
    What duplicate detection remembers is forgotten by age before more is added.

    A stored message with an `Origin` keeps its payload under the origin, once for all messages that share
    it, until the last of them is removed. Where `Origin.body` is set the payload is kept already.
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
    session_states: list[SessionState] = field(default_factory=list)
    """In this order: the last of a session counts."""
    transferred: dict[str, SequenceNumber] = field(default_factory=dict)
    """Up to which number each source's outbox has arrived here."""
    epoch: Epoch = NEVER_CLAIMED
    """Under which claim these changes were made."""


@dataclass(slots=True)
class Snapshot:
    """A partition as its store knows it: messages by sequence number, payloads left on disk.

    `identities`: what duplicate detection remembers, the oldest first.
    """

    next_sequence_number: SequenceNumber
    messages: list[Message]
    identities: list[tuple[Instant, bytes]] = field(default_factory=list)
    sessions: list[SessionRecord] = field(default_factory=list)
    transferred: dict[str, SequenceNumber] = field(default_factory=dict)


class StoreImage(Protocol):
    """A store as it is at one moment, to be copied while others write to it. For one thread at a time."""

    @property
    def suffix(self) -> str:
        """How the name of its file ends."""

    def fix(self) -> None:
        """This is the moment. Takes milliseconds; to be called once."""

    def write(self, file: Path, copied: Callable[[int], None]) -> None:
        """Write the store as it was at that moment into a new file, unsynced.

        `copied` is told now and then how many bytes are done; what it raises ends the copying.
        """

    def close(self) -> None: ...


class MessagingStore(Protocol):
    @property
    def name(self) -> str:
        """For people: in errors, metrics and the entity's overview."""

    @property
    def kind(self) -> str:
        """For people: `sqlite`, `postgresql`."""

    namespace: str | None
    """Whose the store is to be, when it is opened; None for those who do not care."""

    def examine(self) -> str:
        """Look at the store before it is opened, writing nothing: raises what `open` would raise.

        The text tells stores apart, by whatever address they were given: two that say the same are one.
        """

    def open(self) -> None:
        """Make ready; a store that is nobody's yet becomes the namespace's.

        `StoreError` (by name) when the store is newer, torn, not ours or another namespace's, and then
        nothing has been written; `StoreUnavailable` when it is away and may come back.
        """

    def close(self) -> None: ...

    def image(self) -> StoreImage:
        """For a backup; may be asked from any thread. `StoreError` says why there can be none."""

    def partitions(self) -> list[PartitionRecord]: ...

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        """Atomic; a partition that is there already is returned as it is."""

    def drop_partitions(self, entity: EntityPath) -> None:
        """Atomic, with all their messages; an unknown entity is no error."""

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        """Drop these partitions alone: atomic, with all their messages; an unknown key is no error.

        Bodies that other partitions share stay.
        """

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        """Become the owner of these partitions: from now on no commit under an earlier epoch succeeds.

        Atomic and durable; `StoreError` when one of them is not here.
        """

    def tidy(self) -> bool:
        """Some housekeeping, for when the writer has nothing else to do; True if there may be more."""

    def settle(self) -> None:
        """The writer has answered all commits and has nothing to do: a moment for what need not be prompt."""

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        """All of it, durably, or none of it. Sets `row_id` of every stored message.

        `StoreUnavailable` when the store cannot take it now (a full disk, say), `StoreCorrupted` when it
        has met damage, `PartitionMoved` when a partition has been claimed since, `StoreError` when one is
        not, or no longer, here.
        """

    def load(self, key: PartitionKey) -> Snapshot:
        """Everything but the payloads, by sequence number.

        What is committed to the partition meanwhile may be in it or not, in parts; what was there before
        and is left alone is in it. `StoreError` when it is not here.
        """

    def read(self, row_ids: Sequence[int]) -> list[bytes | None]:
        """Payloads by `Message.body_row_id`, in the order asked; None where it has been removed meanwhile."""

    def read_session_state(self, key: PartitionKey, session_id: SessionId) -> bytes | None:
        """What was last saved for the session; None if nothing was, or it was forgotten."""
