"""The head of a message in a frame (frames.py), and the error of a frame that cannot be read.

This module is not compiled: msgspec reads annotations, which mypyc does not keep.
"""

from __future__ import annotations

import msgspec

from bendybus.domain.message_parts import Amendment, MessageState, SubQueue
from bendybus.errors import WireError
from bendybus.names import Instant, LockToken, SequenceNumber, SessionId

__all__ = ["FrameError", "MessageHead"]


class FrameError(WireError):
    """A frame between brokers is too large or malformed."""


class MessageHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message without its payload. A struct and not a tuple: msgspec prepares its type only once."""

    payload_at: int | None
    """Where the payload begins in the tail; None if only the store has it."""
    payload_size: int
    size: int
    expires_at: Instant | None
    session_id: SessionId | None
    origin: tuple[SequenceNumber, int, int] | None
    sequence_number: SequenceNumber
    enqueued_at: Instant
    delivery_count: int
    state: MessageState
    subqueue: SubQueue
    lock_token: LockToken | None
    locked_until: Instant
    amendment: Amendment | None
    row_id: int
