"""Changes: what one command did, collected so that each kind of effect is reported once.

The steps of `Partition.apply` record changes here; `effects` turns them into data.
"""

from __future__ import annotations

from collections.abc import Iterable

from bendybus.domain.effects import (
    DurableEffect,
    Effect,
    MessagesAvailable,
    RemoveMessages,
    SaveNextNumber,
    SaveSessionState,
    SessionsLost,
    SessionsReady,
    StoreMessages,
    UpdateMessages,
)
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import SessionLock
from bendybus.names import SequenceNumber, SessionKey

__all__ = ["Changes"]


class SessionChanges:
    """Changes to sessions. Created only when a session changes."""

    __slots__ = ("lost", "ready", "saved")

    def __init__(self) -> None:
        self.ready: dict[SessionKey, SessionLock] = {}
        self.lost: list[SessionLock] = []
        self.saved: SaveSessionState | None = None

    def effects(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.saved is not None:
            effects.append(self.saved)
        if self.lost:
            effects.append(SessionsLost(self.lost))
        if self.ready:
            effects.append(SessionsReady([*self.ready.values()]))
        return effects


class Changes:
    __slots__ = (
        *("_sessions", "available", "history", "removed", "reserved", "stored", "transferred"),
        "updated",
    )

    def __init__(self) -> None:
        self.stored: list[Message] = []
        self.updated: dict[SequenceNumber, Message] = {}
        """By number, because one command may change a message twice (its lock ends, then it expires)."""
        self.removed: list[Message] = []
        self.history: DurableEffect | None = None
        """The change to the duplicate history. No command both remembers and forgets identities."""
        self.transferred: DurableEffect | None = None
        self.reserved = False
        """Whether numbers were taken that no message has yet."""
        self.available: dict[SubQueue, list[Message]] = {}
        """Sub-queues where messages became available, with those messages that had been available before."""
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
        """The effects. Durable ones come first, in the order in which a store applies them."""
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
        if self.reserved:
            effects.append(SaveNextNumber())
        if self._sessions is not None:
            effects += self._sessions.effects()
        effects += [
            MessagesAvailable(subqueue, self.available[subqueue]) for subqueue in sorted(self.available)
        ]
        return effects
