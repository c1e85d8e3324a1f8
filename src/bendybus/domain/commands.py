"""The commands a partition accepts, and its replies.

Every command is a batch. Time is an argument of `apply`. Everything else that a partition has to
know is in the command: entropy for lock tokens, and for a topic the size of its subscriptions. So a log of
commands replays exactly. The only other input is the description of the entity; the host
replaces it when the entity is updated. Commands about sessions: session_commands.py. Why
nothing here is frozen: effects.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bendybus.domain.deadletter import Cause
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.range_commands import RangeCommand, RangeReply
from bendybus.domain.session_commands import SessionCommand, SessionLock, SessionReply
from bendybus.errors import BrokerError
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
    "EnqueuedApart",
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


@dataclass(slots=True)
class Transfer:
    """These messages come from another partition's outbox (outbox.py), where they have these numbers."""

    source: str
    numbers: Sequence[SequenceNumber]
    """One for each message, in ascending order."""


@dataclass(slots=True)
class Enqueue:
    """Store these messages, in this order, all or none. They can be locked once they are confirmed.

    `identities`: with duplicate detection, the identity of each message (duplicates.py).
    `shelved`: some messages already have their place: they are deferred, in the dead-letter queue, or in the
    outbox with a posting.
    `transfer`: messages that have arrived before are dropped. `destination`: the messages go into the
    outbox, to be sent to that entity. `numbered`: all of them are scheduled and have their numbers from
    `Reserve`. `generation`: of the entity when the numbers were reserved (broker/transactions.py).
    `held_elsewhere`: bytes that count towards the quota and are not in this partition; for a
    topic, what its subscriptions hold. The host of a topic's partition sets it.
    `evaluated`: the results of the topic's rules, if they were evaluated before (evaluation.py).
    `deliveries`: the messages are several deliveries of a client, each of this many messages. If all
    together are refused, the broker that owns the partition of another broker tries each of them alone
    (cluster/asked.py), and answers with `EnqueuedApart`.
    """

    messages: list[Message]
    identities: Sequence[str | None] | None = None
    transfer: Transfer | None = None
    destination: EntityPath | None = None
    numbered: bool = False
    shelved: bool = False
    held_elsewhere: int = 0
    evaluated: object = field(default=None, repr=False, compare=False)
    generation: str = ""
    deliveries: Sequence[int] = ()


@dataclass(slots=True)
class Reserve:
    """Reserve this many sequence numbers for messages that a transaction will schedule.

    A client is told the numbers at once, so they stay taken even if the partition is loaded again.
    """

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
    """Peek-lock these deferred messages, all or none. With sessions, all must be in this session."""

    sequence_numbers: Sequence[SequenceNumber]
    entropy: bytes
    subqueue: SubQueue = SubQueue.MAIN
    session: SessionLock | None = None


@dataclass(slots=True)
class ReceiveDeferred:
    """Receive and delete these deferred messages, all or none. With sessions, all must be in this session."""

    sequence_numbers: Sequence[SequenceNumber]
    subqueue: SubQueue = SubQueue.MAIN
    session: SessionLock | None = None


@dataclass(slots=True)
class Complete:
    """Remove these messages: they have been processed."""

    lock_tokens: Sequence[LockToken]


@dataclass(slots=True)
class Abandon:
    """Return messages as failed deliveries. The delivery count grows; at its limit they are dead-lettered.

    `delay_ms`: they are not handed out again before; None: as the entity says (resting.py).
    """

    lock_tokens: Sequence[LockToken]
    properties: bytes | None = None
    delay_ms: int | None = None


@dataclass(slots=True)
class Release:
    """Return messages as if they had never been delivered. The delivery count does not change."""

    lock_tokens: Sequence[LockToken]


@dataclass(slots=True)
class LoseLocks:
    """End all locks of messages and sessions, as if their time was over."""


@dataclass(slots=True)
class Defer:
    """Set messages aside. From now on they can be received only by sequence number."""

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
    """Restart the lock duration."""

    lock_tokens: Sequence[LockToken]


@dataclass(slots=True)
class Peek:
    """Read messages in any state, from this sequence number upwards. Nothing changes.

    With a `session_id`, only messages of that session; no session lock is needed.
    """

    from_sequence_number: SequenceNumber
    count: int
    subqueue: SubQueue = SubQueue.MAIN
    session_id: SessionId | None = None


@dataclass(slots=True)
class DeleteOldest:
    """Remove up to `count` of the oldest available messages that were enqueued before this time.

    `session_id`: only those of this session.
    """

    count: int
    enqueued_before: Instant
    subqueue: SubQueue = SubQueue.MAIN
    session_id: SessionId | None = None


@dataclass(slots=True)
class CancelScheduled:
    """Remove these scheduled messages, all or none.

    `generation`: of the entity when a transaction began to cancel them; empty outside of transactions.
    """

    sequence_numbers: Sequence[SequenceNumber]
    generation: str = ""


@dataclass(slots=True)
class Publish:
    """Publish these scheduled messages of a topic. They are due, and their payloads are in memory."""

    messages: list[Message]
    evaluated: object = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class Post:
    """Move up to `count` of the oldest available messages into the outbox, to be sent to this entity."""

    count: int
    destination: EntityPath
    subqueue: SubQueue = SubQueue.MAIN


@dataclass(slots=True)
class Reassign:
    """Assign these messages of the outbox, none of which was ever sent, to this partition."""

    sequence_numbers: Sequence[SequenceNumber]
    partition: PartitionNumber


@dataclass(slots=True)
class Transferred:
    """These messages of the outbox are durable at their destination. Remove them here."""

    sequence_numbers: Sequence[SequenceNumber]


@dataclass(slots=True)
class Undeliverable:
    """The destination cannot take these messages of the outbox. Dead-letter them."""

    sequence_numbers: Sequence[SequenceNumber]
    cause: Cause


@dataclass(slots=True)
class Tick:
    """Time has passed. End expired locks, expire messages, and enqueue scheduled messages that are due."""


@dataclass(slots=True)
class MoveLockEnds:
    """The clock was set back by this much. A lock lasts for a duration, so it ends earlier on the new clock.

    All other times are clock times and stay as they are.
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
    | LoseLocks
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


@dataclass(slots=True)
class Done:
    """A reply without content."""


@dataclass(slots=True)
class Enqueued:
    """This many messages have numbers from `first` on: sent, or (by `Tick`) scheduled earlier and now due.

    `scheduled`: some of them wait for their scheduled time. `duplicates`: the indexes, in the command, of
    messages that were dropped; they have no number and are not counted.
    """

    first: SequenceNumber
    count: int
    scheduled: bool = False
    duplicates: tuple[int, ...] = ()


@dataclass(slots=True)
class EnqueuedApart:
    """Together the deliveries of a command were refused, so each was tried alone."""

    refused: dict[int, BrokerError]
    """By the index of the delivery. The messages of all others are enqueued."""


@dataclass(slots=True)
class Given:
    """Messages handed out (locked, removed or peeked), oldest first. There may be none."""

    messages: list[Message]


@dataclass(slots=True)
class Settled:
    """`lost`: the tokens whose lock is unknown or has expired. The other messages are settled."""

    lost: list[LockToken]


@dataclass(slots=True)
class Renewed:
    """The new end of each lock, in the order of the command; None for a lock that is lost."""

    locked_until: list[Instant | None]


@dataclass(slots=True)
class Deleted:
    """How many messages were removed."""

    count: int


Reply: TypeAlias = (
    Done | Enqueued | EnqueuedApart | Given | Settled | Renewed | Deleted | SessionReply | RangeReply
)
