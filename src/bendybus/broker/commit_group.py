"""The contents of one commit: what partitions add to it, and who waits for it. Used by writer.py."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from bendybus.domain.effects import (
    DurableEffect,
    ForgetIdentities,
    MarkTransferred,
    RememberIdentities,
    RemoveMessages,
    SaveNextNumber,
    SaveSessionState,
    StoreMessages,
)
from bendybus.names import Epoch, SequenceNumber
from bendybus.store.protocol import PartitionChanges, PartitionKey, SessionState

__all__ = ["LARGE_COMMAND", "CommitGroup", "OnCommitted", "Share", "is_large"]

OnCommitted: TypeAlias = Callable[[Exception | None], None]

# A command with this many messages begins a commit at once, without waiting for the end of the turn. When all
# commands waited, messages without a key were slower by a tenth, because the two threads took turns. A full
# socket read has 256 messages of 1 KB; if they have keys, each of 16 partitions gets 16, and these are one
# commit.
LARGE_COMMAND: Final = 64


class Share(NamedTuple):
    """What one partition adds to a commit."""

    key: PartitionKey
    epoch: Epoch
    next_sequence_number: SequenceNumber
    effects: Sequence[DurableEffect]


@dataclass(slots=True)
class CommitGroup:
    """What was submitted since the last commit began."""

    changes: dict[PartitionKey, PartitionChanges] = field(default_factory=dict)
    callbacks: list[OnCommitted] = field(default_factory=list)
    answered: bool = False

    def add(self, shares: Sequence[Share], committed: OnCommitted) -> None:
        for key, epoch, next_sequence_number, effects in shares:
            changes = self.changes.get(key)
            if changes is None:
                changes = self.changes[key] = PartitionChanges(key, next_sequence_number, epoch=epoch)
            changes.next_sequence_number = next_sequence_number
            for effect in effects:
                _add_effect(changes, effect)
        self.callbacks.append(committed)


def is_large(shares: Sequence[Share]) -> bool:
    """Whether a command should begin a commit at once."""
    for share in shares:
        for effect in share.effects:
            if isinstance(effect, StoreMessages | RemoveMessages) and len(effect.messages) >= LARGE_COMMAND:
                return True
    return False


def _add_effect(changes: PartitionChanges, effect: DurableEffect) -> None:
    if isinstance(effect, StoreMessages):
        changes.stored += effect.messages
    elif isinstance(effect, RemoveMessages):
        changes.removed += effect.messages
    elif isinstance(effect, RememberIdentities):
        changes.remembered.append((effect.accepted_at, effect.digests))
    elif isinstance(effect, ForgetIdentities):
        changes.forgotten_through = effect.accepted_through
    elif isinstance(effect, SaveSessionState):
        changes.session_states.append(SessionState(effect.session_id, effect.state, effect.at))
    elif isinstance(effect, MarkTransferred):
        changes.transferred[effect.source] = effect.number
    elif isinstance(effect, SaveNextNumber):
        # Every commit stores the next number.
        return
    else:
        # The partition may change these again before the thread reads them, so copy the current values.
        changes.updated += map(copy.copy, effect.messages)
