"""The holders of a partition's sessions, so that they can be notified.

A holder is notified of new messages in its session, and once when the session is
lost: because its lock expired, or because the partition was loaded again (locks
are only in memory). Whether a lock is still valid, only the partition knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from bendybus.domain.session_commands import SessionLock

__all__ = ["SessionHolder", "SessionHolders"]


class SessionHolder(Protocol):
    """A receiver that has accepted a session."""

    def wake(self) -> None:
        """The session has messages."""

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

    def __iter__(self) -> Iterator[SessionLock]:
        return iter(self._holders)

    def of(self, lock: SessionLock) -> SessionHolder | None:
        return self._holders.get(lock)

    def take_all(self) -> list[tuple[SessionLock, SessionHolder]]:
        """They are told nothing more: somebody else tells them."""
        taken, self._holders = list(self._holders.items()), {}
        return taken

    def lose_all(self) -> None:
        self.lose(list(self._holders))
