"""The sessions of another broker that receivers here hold. Used by supply.py."""

from __future__ import annotations

from bendybus.broker.holders import SessionHolder
from bendybus.cluster.arrivals import Arrivals
from bendybus.domain.session_commands import SessionLock
from bendybus.names import LockToken, PartitionNumber

__all__ = ["HeldSession", "HeldSessions"]


class HeldSession(Arrivals):
    """What has arrived of one session."""

    __slots__ = ("holder", "lock", "number")

    def __init__(self, number: PartitionNumber, lock: SessionLock, holder: SessionHolder) -> None:
        super().__init__()
        self.number = number
        self.lock = lock
        self.holder = holder


class HeldSessions:
    """The sessions of one queue and one owner, by their lock tokens."""

    def __init__(self) -> None:
        self._by_token: dict[LockToken, HeldSession] = {}

    def all(self) -> list[HeldSession]:
        return list(self._by_token.values())

    def get(self, token: LockToken) -> HeldSession | None:
        return self._by_token.get(token)

    def hold(self, number: PartitionNumber, lock: SessionLock, holder: SessionHolder) -> None:
        self._by_token[lock.token] = HeldSession(number, lock, holder)

    def let_go(self, lock: SessionLock) -> None:
        """The receiver releases the session. Its messages that were not delivered go back with it."""
        self._by_token.pop(lock.token, None)

    def lose(self, token: LockToken) -> None:
        """The session's lock has ended."""
        session = self._by_token.pop(token, None)
        if session is not None:
            session.holder.lost()

    def lose_all(self) -> None:
        for token in list(self._by_token):
            self.lose(token)

    def leave(self, number: PartitionNumber) -> list[HeldSession]:
        """The owner has given up this partition. Returns its sessions."""
        left = [session for session in self._by_token.values() if session.number == number]
        for session in left:
            del self._by_token[session.lock.token]
        return left

    def wake(self, number: PartitionNumber) -> None:
        """The receivers that hold sessions of this partition may ask for messages."""
        for session in self.all():
            if session.number == number:
                session.holder.wake()
