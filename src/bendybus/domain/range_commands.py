"""Commands for readers that keep their own position, and the replies.

What such a reader can rely on: handlers/ranges.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.shelf import Counts
from bendybus.names import Instant, SequenceNumber, SessionId

__all__ = [
    "Browse",
    "Browsed",
    "Discard",
    "DiscardThrough",
    "Discarded",
    "Purge",
    "Purged",
    "RangeCommand",
    "RangeReply",
    "Replay",
    "Replayable",
    "Survey",
    "Surveyed",
]


@dataclass(slots=True)
class Survey:
    """Ask for the range of sequence numbers."""

    subqueue: SubQueue = SubQueue.MAIN


@dataclass(slots=True)
class Browse:
    """Read the messages from `first` to `last` that have one of these states. Nothing changes."""

    first: SequenceNumber
    last: SequenceNumber
    count: int
    size_max: int
    """The maximum total size in bytes. The first message is returned even if it is larger."""
    states: Collection[MessageState]
    subqueue: SubQueue = SubQueue.MAIN
    session_id: SessionId | None = None
    enqueued_from: Instant | None = None
    enqueued_before: Instant | None = None


@dataclass(slots=True)
class DiscardThrough:
    """Remove every message up to this number that has one of these states."""

    number: SequenceNumber
    states: Collection[MessageState]
    subqueue: SubQueue = SubQueue.MAIN


@dataclass(slots=True)
class Discard:
    """Remove these messages. It is not an error if some are already gone."""

    numbers: Sequence[SequenceNumber]
    subqueue: SubQueue = SubQueue.MAIN


@dataclass(slots=True)
class Purge:
    """Remove up to `count` messages that pass this filter and that nobody has locked.

    `numbers`: only these. `dead_letters`: do not remove them but move them to the dead-letter queue, with
    this reason and description.
    """

    count: int
    states: Collection[MessageState]
    subqueue: SubQueue = SubQueue.MAIN
    session_id: SessionId | None = None
    enqueued_from: Instant | None = None
    enqueued_before: Instant | None = None
    numbers: Sequence[SequenceNumber] | None = None
    dead_letters: bool = False
    reason: str | None = None
    description: str | None = None


@dataclass(slots=True)
class Replay:
    """Put up to `count` messages that were completed and are kept back into the queue, by their numbers.

    Those of this session, of these numbers, or completed or enqueued in these times. The answer is
    `Enqueued`; after a `dry_run`, in which nothing is moved, `Replayable`.
    """

    count: int
    session_id: SessionId | None = None
    completed_from: Instant | None = None
    completed_before: Instant | None = None
    enqueued_from: Instant | None = None
    enqueued_before: Instant | None = None
    numbers: Sequence[SequenceNumber] | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Replayable:
    """This many messages would be put back."""

    count: int


@dataclass(frozen=True, slots=True)
class Purged:
    count: int
    locked: int
    """How many pass the filter and stay, because receivers have locked them."""
    more: bool
    """Whether there may be more: as many were taken as the command allows."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    first: SequenceNumber
    """The number of the oldest message; if there is none, the next number to be given."""
    next: SequenceNumber
    stable: SequenceNumber
    """No message will appear at or below this number any more."""
    counts: Counts
    vacant_from: SequenceNumber | None = None
    """From this number up to `first`, all numbers are vacant (vacant.py). None from an older broker."""


@dataclass(frozen=True, slots=True)
class Browsed:
    messages: list[Message]
    next: SequenceNumber | None
    """Where to continue; None at the end of the range."""


@dataclass(frozen=True, slots=True)
class Discarded:
    count: int


RangeCommand: TypeAlias = Survey | Browse | DiscardThrough | Discard | Purge | Replay
RangeReply: TypeAlias = Surveyed | Browsed | Discarded | Purged | Replayable
