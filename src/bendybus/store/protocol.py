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
    "SharedStore",
    "StoreImage",
    "StoreOwner",
    "no_pause",
    "nothing_at_hand",
]

NEVER_CLAIMED: Final = Epoch(0)
"""The epoch of a new partition. Its creator is its first owner."""

PartitionKey = NewType("PartitionKey", int)
"""A store's own short number for one partition of one entity."""


def no_pause() -> None:
    """Nothing is to be done between two pages of a load."""


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition that a store holds."""

    key: PartitionKey
    entity: EntityPath
    number: PartitionNumber


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a session, to be stored; None deletes it."""

    session_id: SessionId
    state: bytes | None
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session whose state is in the store. The state itself is left on disk."""

    session_id: SessionId
    size: int
    updated_at: Instant


@dataclass(slots=True)
class PartitionChanges:
    """One partition's share of a commit.

    The store reads the messages while it commits and stores their values at that time.
    Lists are applied in the order stored, updated, removed. A message may be
    in several of them (for example, stored and removed before this commit ran). An update
    may give a message another sequence number; its `row_id` stays.
    `next_sequence_number` is the next number that the partition will give out.
    Old entries of the duplicate history are forgotten before new ones are added.

    A stored message with an `Origin` keeps its payload under the origin, once for all messages that share
    it, until the last of them is removed. If `Origin.body` is set, the payload is already stored.
    """

    key: PartitionKey
    next_sequence_number: SequenceNumber
    stored: list[Message] = field(default_factory=list)
    updated: list[Message] = field(default_factory=list)
    removed: list[Message] = field(default_factory=list)
    remembered: list[tuple[Instant, list[bytes]]] = field(default_factory=list)
    """Digests of accepted messages, and when they were accepted."""
    forgotten_through: Instant | None = None
    """Digests accepted up to this time are no longer needed."""
    session_states: list[SessionState] = field(default_factory=list)
    """In this order: the last state of a session counts."""
    transferred: dict[str, SequenceNumber] = field(default_factory=dict)
    """For each source, the number up to which its outbox has arrived here."""
    epoch: Epoch = NEVER_CLAIMED
    """The claim under which these changes were made."""


@dataclass(slots=True)
class Snapshot:
    """A partition in its store: messages by sequence number, with payloads left on disk.

    `identities`: the duplicate history, oldest first.
    """

    next_sequence_number: SequenceNumber
    messages: list[Message]
    identities: list[tuple[Instant, bytes]] = field(default_factory=list)
    sessions: list[SessionRecord] = field(default_factory=list)
    transferred: dict[str, SequenceNumber] = field(default_factory=dict)


class StoreImage(Protocol):
    """A store at one moment, to be copied while others write to it. Used by one thread at a time."""

    @property
    def suffix(self) -> str:
        """The suffix of its file's name."""

    def fix(self) -> None:
        """Fix the moment. Takes milliseconds; to be called once."""

    def write(self, file: Path, copied: Callable[[int], None]) -> None:
        """Write the store as it was at that moment into a new file, without syncing.

        `copied` is called now and then with the bytes copied so far. An exception from it ends the copying.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreOwner:
    """The broker of a cluster that owns a store."""

    broker: str
    instance: str
    """The process of the broker. Empty, as is the broker, while nobody owns the store."""
    term: int
    """Each new owner raises it."""


class MessagingStore(Protocol):
    @property
    def name(self) -> str:
        """For people: in errors, metrics and the entity's overview."""

    @property
    def kind(self) -> str:
        """For people: `sqlite`, `postgresql`."""

    namespace: str | None
    """The namespace that is to own the store when it is opened; None for any."""

    def examine(self) -> str:
        """Examine the store before it is opened, without writing. Raises what `open` would raise.

        The text identifies the store, whatever its address: two stores with the same text are one.
        """

    def open(self) -> None:
        """Open the store. A store without an owner is assigned to the namespace.

        `StoreError` (by name) if the store is newer, torn, not ours or another namespace's; then
        nothing has been written. `StoreUnavailable` if it is away and may come back.
        """

    def close(self) -> None: ...

    def image(self) -> StoreImage:
        """For a backup. May be called from any thread. `StoreError` says why there can be none."""

    def partitions(self) -> list[PartitionRecord]: ...

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        """Create partitions. Atomic; an existing partition is returned as it is."""

    def drop_partitions(self, entity: EntityPath) -> None:
        """Drop an entity's partitions with all their messages. Atomic; an unknown entity is no error."""

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        """Drop only these partitions, with all their messages. Atomic; an unknown key is no error.

        Bodies that other partitions share stay.
        """

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        """Become the owner of these partitions: from now on no commit under an earlier epoch succeeds.

        Atomic and durable. `StoreError` if one of them is not here.
        """

    def tidy(self) -> bool:
        """Do some maintenance while the writer is idle. Returns True if there may be more to do."""

    def settle(self) -> None:
        """The writer has answered all commits and is idle: do what is not urgent."""

    def write_out(self) -> None:
        """Write what is committed to where an image that another process makes will find it."""

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        """Commit everything, durably, or nothing. Sets `row_id` of every stored message.

        `StoreUnavailable` if the store cannot commit now (a full disk, for example), `StoreCorrupted` if it
        has met damage, `PartitionMoved` if a partition has been claimed since, `StoreError` if one is
        not, or no longer, here.
        """

    def load(self, key: PartitionKey, between_pages: Callable[[], None] = no_pause) -> Snapshot:
        """Everything except the payloads, by sequence number.

        A store that reads a partition in pages calls `between_pages` after each one. It may call `read` and
        `read_session_state`.

        The result may contain some of what is committed to the partition meanwhile. It contains everything
        that was there before and has not changed since. `StoreError` if the partition is not here.
        """

    def read(self, row_ids: Sequence[int]) -> list[bytes | None]:
        """Payloads by `Message.body_row_id`, in the order asked; None for one that has been removed."""

    def at_hand(self, row_ids: Sequence[int]) -> list[bytes] | None:
        """The payloads of messages that are here, if all of them are in memory.

        Called by the event loop, so it waits for nothing.
        """

    def read_session_state(self, key: PartitionKey, session_id: SessionId) -> bytes | None:
        """The session's stored state; None if there is none."""


def nothing_at_hand(_self: object, _wanted: Sequence[object]) -> None:
    """`at_hand` of a store that must be asked for every payload."""


class SharedStore(MessagingStore, Protocol):
    """A store that the brokers of a cluster can reach. One of them owns it, and with it all partitions in it.

    A displaced owner gets `PartitionMoved` for every call that writes: for commits because the new owner has
    claimed the partitions, for other calls because its term is over.
    """

    def owner(self) -> StoreOwner:
        """The owner that the store knows. May be asked for by the reader's thread."""

    def take(self, broker: str, instance: str, after: int) -> int | None:
        """Become the owner. Returns the new term; None if somebody else became it since the term `after`."""

    def release(self) -> None:
        """Nobody owns the store any more. Does nothing if it was taken over."""
