"""Who holds which session of a partition, so that they hear what becomes of it.

A holder is told of new messages in its session, and once when the session is
lost: because its lock ran out, or because the partition had to be read anew and
locks live in memory alone. Whether a lock still holds, only the partition knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from bendybus.domain.session_commands import SessionLock

__all__ = ["SessionHolder", "SessionHolders"]


class SessionHolder(Protocol):
    """A receiver that has accepted a session."""

    def wake(self) -> None:
        """The session has messages to give."""

    def lost(self) -> None:
        """The session is no longer held."""


class SessionHolders:
    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[SessionLock, SessionHolder] = {}

    def hold(self, lock: SessionLock, holder: SessionHolder) -> None:
        self._holders[lock] = holder

    def let_go(self, lock: SessionLock) -> None:
        self._holders.pop(lock, None)

    def wake(self, locks: Iterable[SessionLock]) -> None:
        for lock in locks:
            holder = self._holders.get(lock)
            if holder is not None:
                holder.wake()

    def lose(self, locks: Iterable[SessionLock]) -> None:
        for lock in locks:
            holder = self._holders.pop(lock, None)
            if holder is not None:
                holder.lost()

    def lose_all(self) -> None:
        self.lose(list(self._holders))
