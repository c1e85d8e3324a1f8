"""A message as a partition knows it: everything except the meaning of its bytes.

The payload is opaque here. It never changes once it is stored, and it may be absent from memory (`payload is
None`); its messaging store then has it under `body_row_id`. What a settlement adds to a message is an
`Amendment` next to the payload. Every waiting message has one of these records, so the class is small:
docs/ARCHITECTURE.md has the byte count.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from bendybus.domain.message_parts import Amendment, MessageState, Posting, SubQueue
from bendybus.names import Instant, LockToken, SequenceNumber, SessionId

__all__ = ["UNASSIGNED", "Amendment", "Message", "MessageState", "Origin", "Posting", "SubQueue"]

UNASSIGNED: Final = SequenceNumber(0)

# Most messages of an application have one size. Sharing the number saves 32 of about 230 bytes per message.
_SIZES_SHARED_MAX: Final = 4096
_sizes: Final[dict[int, int]] = {}


def _share(size: int) -> int:
    """Cache a new size, while there is room."""
    if len(_sizes) < _SIZES_SHARED_MAX:
        _sizes[size] = size
    return size


class Origin:
    """The origin of a message that came from a topic or by forwarding.

    The copies that a topic's subscriptions take of one message share one origin, and so one stored
    body: the store keeps the payload once, however many copies there are.
    """

    __slots__ = ("body", "hops", "sequence_number")

    def __init__(self, sequence_number: SequenceNumber, *, hops: int = 0, body: int = 0) -> None:
        self.sequence_number = sequence_number
        """The message's number in the entity that it was first sent to."""
        self.hops = hops
        """How often it has been forwarded."""
        self.body = body
        """The row of the payload in the messaging store. The store sets it when it first commits a copy."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and (
            (self.sequence_number, self.hops, self.body) == (other.sequence_number, other.hops, other.body)
        )

    __hash__ = None  # type: ignore[assignment]  # it changes when it is stored

    def __repr__(self) -> str:
        return f"Origin({self.sequence_number:#x}, hops={self.hops}, body={self.body})"


# Initial values of every message, created once: each is a call or a slow look-up.
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
        session_id: SessionId | None = None,
        *,
        origin: Origin | None = None,
    ) -> None:
        self.payload = payload
        """The stored form, or None while only the messaging store has it."""
        self.size = _sizes.get(size) or _share(size)
        """The bytes that count towards the entity's quota."""
        self.expires_at = expires_at
        """Before `Enqueue`: the sender's limit, as an absolute time. After: the entity's limit too."""
        self.session_id = session_id
        self.origin = origin
        """None for a message that was sent to this entity directly."""
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
        """The row in the messaging store; 0 until the store sets it in a commit."""

    def __copy__(self) -> Message:
        message = Message(self.payload, self.size, self.expires_at, self.session_id, origin=self.origin)
        message.sequence_number = self.sequence_number
        message.enqueued_at = self.enqueued_at
        message.delivery_count = self.delivery_count
        message.state, message.subqueue = self.state, self.subqueue
        message.lock_token, message.locked_until = self.lock_token, self.locked_until
        message.amendment = self.amendment
        message.row_id = self.row_id
        return message

    def unsent(self) -> Message:
        """A copy that was never enqueued, to be sent to another partition.

        It must be a copy: a store that stalled may still read this message and set its row id.
        """
        message = copy(self)
        message.sequence_number, message.row_id = UNASSIGNED, 0
        if self.origin is not None:
            message.origin = Origin(self.origin.sequence_number, hops=self.origin.hops)
        return message

    def unlocked(self) -> Message:
        """A copy as the store knows the message: without a lock."""
        message = copy(self)
        message.lock_token, message.locked_until = None, _NOT_YET
        return message

    @property
    def body_row_id(self) -> int:
        """The row of the payload in the messaging store."""
        origin = self.origin
        return self.row_id if origin is None else origin.body

    def __repr__(self) -> str:
        where = f"{self.subqueue.name}/{self.state.name}"
        return f"<Message {self.sequence_number:#x} {where} x{self.delivery_count}>"
