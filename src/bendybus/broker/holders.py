"""The holders of a partition's sessions, so that they can be notified.

A holder is notified of new messages in its session, and once when the session is lost: because its lock
expired, or because the partition was loaded again (locks are only in memory). Only the partition knows
whether a lock is still valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from bendybus.domain.session_commands import SessionLock
from bendybus.names import LockToken

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
        self._holders: dict[LockToken, tuple[SessionLock, SessionHolder]] = {}
        """By the token of the lock, which no other lock has."""

    def hold(self, lock: SessionLock, holder: SessionHolder) -> None:
        self._holders[lock.token] = lock, holder

    def let_go(self, lock: SessionLock) -> SessionHolder | None:
        """Returns the holder, if there was one. It is not informed."""
        held = self._holders.pop(lock.token, None)
        return None if held is None else held[1]

    def wake(self, locks: Iterable[SessionLock]) -> None:
        for lock in locks:
            held = self._holders.get(lock.token)
            if held is not None:
                held[1].wake()

    def lose(self, locks: Iterable[SessionLock]) -> None:
        for lock in locks:
            held = self._holders.pop(lock.token, None)
            if held is not None:
                held[1].lost()

    def __iter__(self) -> Iterator[SessionLock]:
        return (lock for lock, _ in self._holders.values())

    def of(self, lock: SessionLock) -> SessionHolder | None:
        held = self._holders.get(lock.token)
        return None if held is None else held[1]

    def take_all(self) -> list[tuple[SessionLock, SessionHolder]]:
        """Stop informing them: another object does so from now on."""
        taken, self._holders = list(self._holders.values()), {}
        return taken

    def lose_all(self) -> None:
        self.lose(list(self))
