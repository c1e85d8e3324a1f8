"""A message as a partition knows it: everything but what its bytes mean.

The payload is opaque here. It never changes once it is stored, and it may be absent from memory (`payload is
None`); its messaging store then has it under `body_row_id`. What settlement adds to a message is an
`Amendment` beside the payload. There is one record for each waiting message, so this class is kept small: see
docs/ARCHITECTURE.md for the byte count.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SequenceNumber, SessionId

__all__ = ["UNASSIGNED", "Amendment", "Message", "MessageState", "Origin", "Posting", "SubQueue"]

UNASSIGNED: Final = SequenceNumber(0)

# Messages of one kind mostly have one size. Sharing the number saves 32 of some 230 bytes a message.
_SIZES_SHARED_MAX: Final = 4096
_sizes: Final[dict[int, int]] = {}


def _share(size: int) -> int:
    """Remember a size that was not met before, while there is room."""
    if len(_sizes) < _SIZES_SHARED_MAX:
        _sizes[size] = size
    return size


class MessageState(IntEnum):
    """The numbers are those of the annotation x-opt-message-state."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class SubQueue(IntEnum):
    """An entity's own messages, and the shelves beside them."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2
    OUTBOX = 3
    """On their way to another entity (outbox.py). Nobody else can get at them."""


@dataclass(frozen=True, slots=True)
class Posting:
    """Where a message in the outbox is going, and what it was when it was posted."""

    destination: EntityPath
    sequence_number: SequenceNumber
    """Its number at the time; for one that a transaction sends through here, 0."""
    subqueue: SubQueue = SubQueue.MAIN
    partition: PartitionNumber | None = None
    """The partition of the destination that was decided upon; None for the one that key or number says."""

    @property
    def sent_through(self) -> bool:
        """Whether a transaction sent the message through this entity: it was never one of its own."""
        return not self.sequence_number


@dataclass(frozen=True, slots=True)
class Amendment:
    """What happened to a message after it was sent, to be shown to whoever receives it next.

    `properties` are encoded maps of application properties, oldest first; a later
    map overrides an earlier one. Only the protocol adapters look inside them.
    """

    properties: tuple[bytes, ...] = ()
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    posting: Posting | None = None
    """While the message is in the outbox."""

    @property
    def size(self) -> int:
        """Of the properties, in bytes."""
        return sum(map(len, self.properties))

    def with_properties(self, encoded: bytes | None) -> Amendment:
        return self if not encoded else replace(self, properties=(*self.properties, encoded))


class Origin:
    """Whence a message came that was not sent to this entity itself: from a topic, or by forwarding.

    The copies that a topic's subscriptions take of one message share one origin, and with it one stored
    body: however many there are, their store keeps the payload once.
    """

    __slots__ = ("body", "hops", "sequence_number")

    def __init__(self, sequence_number: SequenceNumber, *, hops: int = 0, body: int = 0) -> None:
        self.sequence_number = sequence_number
        """The message's number in the entity it was first sent to."""
        self.hops = hops
        """How often it has been forwarded."""
        self.body = body
        """Where its messaging store keeps the payload; the store sets this when it first commits a copy."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and (
            (self.sequence_number, self.hops, self.body) == (other.sequence_number, other.hops, other.body)
        )

    __hash__ = None  # type: ignore[assignment]  # it changes when it is stored

    def __repr__(self) -> str:
        return f"Origin({self.sequence_number:#x}, hops={self.hops}, body={self.body})"


# What every message begins with. Made once: each is a call or a slow look-up, and messages are many.
_NOT_YET: Final = Instant(0)
_ACTIVE: Final = MessageState.ACTIVE
_MAIN: Final = SubQueue.MAIN


class Message:
    """One message in one partition.

    Mutable. The domain changes what the message means: number, state, sub-queue, counts, times, lock. The
    store sets the row ids when it commits. The broker drops payloads that the store has and reads them back,
    and changes row ids when a partition moves to another store. tests/unit/test_message_fields.py has the
    modules that may set each field.
    """

    __slots__ = (
        "amendment",
        "delivery_count",
        "enqueued_at",
        "expires_at",
        "lock_token",
        "locked_until",
        "origin",
        "payload",
        "row_id",
        "sequence_number",
        "session_id",
        "size",
        "state",
        "subqueue",
    )

    def __init__(
        self,
        payload: bytes | None,
        size: int,
        expires_at: Instant | None = None,
        *,
        session_id: SessionId | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.payload = payload
        """The stored form, or None while only the messaging store has it."""
        self.size = _sizes.get(size) or _share(size)
        """Bytes the message counts for in the entity's quota."""
        self.expires_at = expires_at
        """Before `Enqueue`: the sender's own limit, already absolute. After: the entity's applied too."""
        self.session_id = session_id
        self.origin = origin
        """None for a message that was sent to this entity itself."""
        self.sequence_number: SequenceNumber = UNASSIGNED
        self.enqueued_at = _NOT_YET
        """While the message is scheduled: when it is due (schedule.py)."""
        self.delivery_count = 0
        """How many earlier deliveries failed."""
        self.state: MessageState = _ACTIVE
        self.subqueue: SubQueue = _MAIN
        self.lock_token: LockToken | None = None
        self.locked_until = _NOT_YET
        self.amendment: Amendment | None = None
        self.row_id = 0
        """Its row in the messaging store; 0 until the store sets it in a commit."""

    def unsent(self) -> Message:
        """A copy that was never enqueued, to be sent to another partition.

        It has to be a copy: a store that stalled may still read this message, and set its row id.
        """
        message = copy(self)
        message.sequence_number, message.row_id = UNASSIGNED, 0
        if self.origin is not None:
            message.origin = Origin(self.origin.sequence_number, hops=self.origin.hops)
        return message

    def unlocked(self) -> Message:
        """A copy as a store knows the message: without a lock."""
        message = copy(self)
        message.lock_token, message.locked_until = None, _NOT_YET
        return message

    @property
    def body_row_id(self) -> int:
        """The row in which its messaging store keeps the payload."""
        origin = self.origin
        return self.row_id if origin is None else origin.body

    def __repr__(self) -> str:
        where = f"{self.subqueue.name}/{self.state.name}"
        return f"<Message {self.sequence_number:#x} {where} x{self.delivery_count}>"
