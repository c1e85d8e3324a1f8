"""Parts of a message that are plain data: its state, its sub-queue, and what was added after it was sent.

This module is not compiled. Amendments pass between brokers, and msgspec reads the annotations of their
fields, which mypyc does not keep (pyproject.toml).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from bendybus.errors import ArgumentError
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber

__all__ = ["Amendment", "Cause", "MessageState", "Posting", "SubQueue"]

# "up to 4096 chars": the bound the SDKs check before they send.
TEXT_LENGTH_MAX: Final = 4096


class MessageState(IntEnum):
    """The numbers are those of the annotation x-opt-message-state."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class SubQueue(IntEnum):
    """The main queue of an entity, and its sub-queues."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2
    OUTBOX = 3
    """Messages on their way to another entity (outbox.py). No receiver can access them."""
    COMPLETED = 4
    """Messages that were completed and are kept for a while (completed.py). Nobody can receive them."""


@dataclass(slots=True)
class Posting:
    """Where a message in the outbox is going, and what it was when it was posted."""

    destination: EntityPath
    sequence_number: SequenceNumber
    """Its number at that time; 0 for a message that a transaction sends through this entity."""
    subqueue: SubQueue = SubQueue.MAIN
    partition: PartitionNumber | None = None
    """The chosen partition of the destination; None if the key or number decides."""

    @property
    def sent_through(self) -> bool:
        """Whether a transaction sent the message through this entity: it was never in its main queue."""
        return not self.sequence_number


@dataclass(slots=True)
class Amendment:
    """Changes to a message after it was sent, shown to its next receivers.

    `properties` are encoded maps of application properties, oldest first; a later
    map overrides an earlier one. Only the protocol adapters decode them.
    """

    properties: tuple[bytes, ...] = ()
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    posting: Posting | None = None
    """Set while the message is in the outbox."""
    completed_at: Instant | None = None
    """Set while the message is kept after its completion."""
    earlier_number: SequenceNumber | None = None
    """The number that the message had before it became due or was put back (vacant.py)."""

    @property
    def is_shown(self) -> bool:
        """Whether receivers see anything of it."""
        reason, description = self.dead_letter_reason, self.dead_letter_description
        return bool(self.properties) or reason is not None or description is not None

    @property
    def size(self) -> int:
        """The size of the properties in bytes."""
        return sum(map(len, self.properties))

    def with_properties(self, encoded: bytes | None) -> Amendment:
        return self if not encoded else replace(self, properties=(*self.properties, encoded))


@dataclass(frozen=True, slots=True)
class Cause:
    """The values of the properties DeadLetterReason and DeadLetterErrorDescription."""

    reason: str | None
    description: str | None

    def __post_init__(self) -> None:
        texts = {"DeadLetterReason": self.reason, "DeadLetterErrorDescription": self.description}
        for name, text in texts.items():
            if text is not None and len(text) > TEXT_LENGTH_MAX:
                raise ArgumentError(f"{name} has {len(text)} characters; at most {TEXT_LENGTH_MAX}.")
