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
    SaveSessionState,
    SessionsLost,
    SessionsReady,
    StoreMessages,
    UpdateMessages,
)
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import SessionLock
from bendybus.names import SequenceNumber

__all__ = ["Changes"]


class SessionChanges:
    """What became of sessions: made only when something did."""

    __slots__ = ("lost", "ready", "saved")

    def __init__(self) -> None:
        self.ready: dict[SessionLock, None] = {}
        self.lost: list[SessionLock] = []
        self.saved: SaveSessionState | None = None

    def effects(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.saved is not None:
            effects.append(self.saved)
        if self.lost:
            effects.append(SessionsLost(self.lost))
        if self.ready:
            effects.append(SessionsReady([*self.ready]))
        return effects


class Changes:
    __slots__ = ("_sessions", "available", "history", "removed", "stored", "transferred", "updated")

    def __init__(self) -> None:
        self.stored: list[Message] = []
        self.updated: dict[SequenceNumber, Message] = {}
        """By number, since one command may change a message twice (a lock ends, then its time to live)."""
        self.removed: list[Message] = []
        self.history: DurableEffect | None = None
        """What became of the duplicate history: no command both remembers and forgets."""
        self.transferred: DurableEffect | None = None
        self.available: dict[SubQueue, list[Message]] = {}
        """Where something became available; the messages among it that had been so before."""
        self._sessions: SessionChanges | None = None

    @property
    def sessions(self) -> SessionChanges:
        if self._sessions is None:
            self._sessions = SessionChanges()
        return self._sessions

    def offer(self, subqueue: SubQueue, returned: Iterable[Message] = ()) -> None:
        self.available.setdefault(subqueue, []).extend(returned)

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
        if self._sessions is not None:
            effects += self._sessions.effects()
        effects += [
            MessagesAvailable(subqueue, self.available[subqueue]) for subqueue in sorted(self.available)
        ]
        return effects
