"""Changes: what one command did, gathered so that each kind of effect is told once.

The steps inside `Partition.apply` write here; `effects` turns it into data.
"""

from __future__ import annotations

from collections.abc import Iterable

from bendybus.domain.effects import (
    DurableEffect,
    Effect,
    MessagesAvailable,
    RemoveMessages,
    StoreMessages,
    UpdateMessages,
)
from bendybus.domain.messages import Message, SubQueue
from bendybus.names import SequenceNumber

__all__ = ["Changes"]


class Changes:
    __slots__ = ("available", "history", "removed", "stored", "transferred", "updated")

    def __init__(self) -> None:
        self.stored: list[Message] = []
        self.updated: dict[SequenceNumber, Message] = {}
        """By number, since one command may change a message twice (a lock ends, then its time to live)."""
        self.removed: list[Message] = []
        self.history: DurableEffect | None = None
        """What became of the duplicate history: no command both remembers and forgets."""
        self.transferred: DurableEffect | None = None
        self.available: set[SubQueue] = set()

    def update(self, messages: Iterable[Message]) -> None:
        self.updated.update((message.sequence_number, message) for message in messages)

    def effects(self) -> list[Effect]:
        """Durable ones first, in the order in which a store applies them."""
        effects: list[Effect] = []
        if self.stored:
            effects.append(StoreMessages(self.stored))
        if self.updated:
            for message in self.removed:
                self.updated.pop(message.sequence_number, None)
            if self.updated:
                effects.append(UpdateMessages(list(self.updated.values())))
        if self.removed:
            effects.append(RemoveMessages(self.removed))
        if self.history is not None:
            effects.append(self.history)
        if self.transferred is not None:
            effects.append(self.transferred)
        effects += [MessagesAvailable(subqueue) for subqueue in sorted(self.available)]
        return effects
