"""What may be asked of a partition, and what it answers.

Every command is shaped as a batch. Time is an argument of `apply`. Everything else that a partition has to
know is in the command: entropy for lock tokens, and for a topic the size of its subscriptions. So a log of
commands replays exactly. The description of the entity is the one input beside the commands; the host
replaces it when the entity is updated. Commands about sessions: session_commands.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bendybus.domain.deadletter import Cause
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.range_commands import RangeCommand, RangeReply
from bendybus.domain.session_commands import SessionCommand, SessionLock, SessionReply
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SequenceNumber, SessionId

__all__ = [
    "ENTROPY_PER_LOCK",
    "Abandon",
    "CancelScheduled",
    "Command",
    "Complete",
    "Confirm",
    "DeadLetter",
    "Defer",
    "DeleteOldest",
    "Deleted",
    "Done",
    "Enqueue",
    "Enqueued",
    "Given",
    "Lock",
    "LockDeferred",
    "LockThese",
    "MoveLockEnds",
    "Peek",
    "Post",
    "Publish",
    "Reassign",
    "Receive",
    "ReceiveDeferred",
    "Release",
    "Renew",
    "Renewed",
    "Reply",
    "Reserve",
    "Settled",
    "Tick",
    "Transfer",
    "Transferred",
    "Undeliverable",
]

# A lock token is 16 bytes: two for the partition's number, the rest random.
ENTROPY_PER_LOCK: Final = 14


@dataclass(frozen=True, slots=True)
class Transfer:
    """These messages come out of another partition's outbox (outbox.py), under these numbers there."""

    source: str
    numbers: Sequence[SequenceNumber]
    """Rising, one for each message."""


@dataclass(slots=True)
class Enqueue:
    """Store these messages, in this order, all or none. They are lockable once confirmed.

    `identities`: with duplicate detection, what each message is known by (duplicates.py).
    `shelved`: some of them already have a sub-queue: the dead letters, or the outbox with a posting.
    `transfer`: messages that have arrived before are dropped. `destination`: the messages go into the
    outbox, to be sent to that entity. `numbered`: all of them are scheduled and have their numbers from
    `Reserve`. `held_elsewhere`: bytes that count towards the quota and are not in this partition; for a
    topic, what its subscriptions hold. The host of a topic's partition sets it.
    `evaluated`: what the rules of a topic say about them, if they were asked before (evaluation.py).
    """

    messages: list[Message]
    identities: Sequence[str | None] | None = None
    transfer: Transfer | None = None
    destination: EntityPath | None = None
    numbered: bool = False
    shelved: bool = False
    held_elsewhere: int = 0
    evaluated: object = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class Reserve:
    """Set so many sequence numbers aside, for messages that a transaction will schedule."""

    count: int


@dataclass(slots=True)
class Confirm:
    """The store has made every message up to this sequence number durable."""

    sequence_number: SequenceNumber


@dataclass(slots=True)
class Lock:
    """Peek-lock up to `count` of the oldest available messages (`entropy`: 14 bytes for each)."""

    count: int
    entropy: bytes
    subqueue: SubQueue = SubQueue.MAIN


@dataclass(slots=True)
class LockThese:
    """Peek-lock those of these messages that are still available (`entropy`: 14 bytes for each)."""

    sequence_numbers: Sequence[SequenceNumber]
    entropy: bytes
    subqueue: SubQueue = SubQueue.MAIN


@dataclass(slots=True)
class Receive:
    """Receive and delete up to `count` of the oldest available messages."""

    count: int
    subqueue: SubQueue = SubQueue.MAIN


@dataclass(slots=True)
class LockDeferred:
    """Peek-lock these deferred messages, all or none; where messages have sessions, those of this one."""

    sequence_numbers: Sequence[SequenceNumber]
    entropy: bytes
    subqueue: SubQueue = SubQueue.MAIN
    session: SessionLock | None = None


@dataclass(slots=True)
class ReceiveDeferred:
    """Receive and delete these deferred messages, all or none; where they have sessions, of this one."""

    sequence_numbers: Sequence[SequenceNumber]
    subqueue: SubQueue = SubQueue.MAIN
    session: SessionLock | None = None


@dataclass(slots=True)
class Complete:
    """Done with: remove."""

    lock_tokens: Sequence[LockToken]


@dataclass(slots=True)
class Abandon:
    """Give back as a failed delivery: the delivery count grows, and at the limit it is dead-lettered."""

    lock_tokens: Sequence[LockToken]
    properties: bytes | None = None


@dataclass(slots=True)
class Release:
    """Give back as never delivered: the delivery count stays."""

    lock_tokens: Sequence[LockToken]


@dataclass(slots=True)
class Defer:
    """Set aside; from now on reachable only by sequence number."""

    lock_tokens: Sequence[LockToken]
    properties: bytes | None = None


@dataclass(slots=True)
class DeadLetter:
    """Move to the dead-letter queue."""

    lock_tokens: Sequence[LockToken]
    reason: str | None = None
    description: str | None = None
    properties: bytes | None = None


@dataclass(slots=True)
class Renew:
    """Start the lock duration anew."""

    lock_tokens: Sequence[LockToken]


@dataclass(slots=True)
class Peek:
    """Look, from this sequence number upwards, at messages in any state; nothing changes.

    With a `session_id`, only at that session's; no lock is needed for it.
    """

    from_sequence_number: SequenceNumber
    count: int
    subqueue: SubQueue = SubQueue.MAIN
    session_id: SessionId | None = None


@dataclass(slots=True)
class DeleteOldest:
    """Remove up to `count` of the oldest available messages that were enqueued before then.

    `session_id`: only those of this session.
    """

    count: int
    enqueued_before: Instant
    subqueue: SubQueue = SubQueue.MAIN
    session_id: SessionId | None = None


@dataclass(slots=True)
class CancelScheduled:
    """Remove these scheduled messages, all or none."""

    sequence_numbers: Sequence[SequenceNumber]


@dataclass(slots=True)
class Publish:
    """Scheduled messages of a topic that are due and at hand, payload and all: pass them on."""

    messages: list[Message]
    evaluated: object = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class Post:
    """Put up to `count` of the oldest available messages into the outbox, for this entity to have."""

    count: int
    destination: EntityPath
    subqueue: SubQueue = SubQueue.MAIN


@dataclass(slots=True)
class Reassign:
    """These messages of the outbox, none of which was ever sent, are for this partition from now on."""

    sequence_numbers: Sequence[SequenceNumber]
    partition: PartitionNumber


@dataclass(slots=True)
class Transferred:
    """These messages of the outbox are durable at their destination: remove them here."""

    sequence_numbers: Sequence[SequenceNumber]


@dataclass(slots=True)
class Undeliverable:
    """These messages of the outbox cannot be had by their destination: dead-letter them."""

    sequence_numbers: Sequence[SequenceNumber]
    cause: Cause


@dataclass(slots=True)
class Tick:
    """Time has passed: end the locks and messages whose time is up; enqueue scheduled ones that are due."""


@dataclass(slots=True)
class MoveLockEnds:
    """The clock was set back by this much. Locks have durations, so they end earlier on the new clock.

    All other times are times of the clock and stay as they are.
    """

    by_ms: int


Command: TypeAlias = (
    Enqueue
    | Reserve
    | Confirm
    | Lock
    | LockThese
    | Receive
    | LockDeferred
    | ReceiveDeferred
    | Complete
    | Abandon
    | Release
    | Defer
    | DeadLetter
    | Renew
    | Peek
    | DeleteOldest
    | CancelScheduled
    | Publish
    | Post
    | Reassign
    | Transferred
    | Undeliverable
    | Tick
    | MoveLockEnds
    | SessionCommand
    | RangeCommand
)


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to say."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """So many messages have numbers from `first` on: sent, or (by `Tick`) scheduled earlier and now due.

    `scheduled`: some of them only wait for their time. `duplicates`: the indexes, in the command, of
    messages that were dropped; they have no number and are not counted.
    """

    first: SequenceNumber
    count: int
    scheduled: bool = False
    duplicates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """Messages handed out (locked, removed or peeked), oldest first; perhaps none."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Settled:
    """`lost`: the tokens among those given whose lock is unknown or has run out; the others are settled."""

    lost: list[LockToken]


@dataclass(frozen=True, slots=True)
class Renewed:
    """The new end of each lock, in the order asked; None where the lock is lost."""

    locked_until: list[Instant | None]


@dataclass(frozen=True, slots=True)
class Deleted:
    """So many messages were removed."""

    count: int


Reply: TypeAlias = Done | Enqueued | Given | Settled | Renewed | Deleted | SessionReply | RangeReply
