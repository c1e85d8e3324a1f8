"""The memory budget: how many bytes all connections together may make the server keep.

Every connection has an account: parts of deliveries, messages on their way to a store, output that the client
has not read, pages that were read ahead for its receivers. The account is brought up to date once per socket
read or batch, never per message.

    above 80 %   those that hold most are held back: nothing is read from them, and nothing fetched for them.
                 The others hold 70 % together when it begins, and ever less up to 90 %: then only those that
                 hold next to nothing go on.
    below 70 %   everybody goes on.
    above 100 %  those that hold most are disconnected, until 80 % are left.

A client that is held back for ten seconds is disconnected as well: it may hold half deliveries, which
only more input could complete. What a client leaves behind, such as sends that a store has yet to answer, is
counted until it is gone, but nobody else is held back for it. Bounds of one connection alone: holdings.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from bendybus.errors import BrokerError, MemoryLimitReached

__all__ = ["MEMORY_DEFAULT_BYTES", "Holder", "MemoryAccount", "MemoryBudget"]

# Where no limit is given: in tests and simulations. A server's limit: server/memory_limit.py.
MEMORY_DEFAULT_BYTES: Final = 1024 * 1024 * 1024

HOLD_BACK_PERCENT: Final = 80
RELEASE_PERCENT: Final = 70
# From here on only those that hold next to nothing go on. What has been read already still has to fit.
SQUEEZE_PERCENT: Final = 90

# Of the 70 %: what those that hold little may hold together, however close the limit is.
ROOM_LEAST: Final = 0.02

# Far longer than a store needs for what it was sent, and less than clients wait for an answer.
HELD_BACK_MAX_TICKS: Final = 10


class Holder(Protocol):
    """A connection, as far as the budget is concerned. It goes on or hangs up in a later turn of the loop."""

    def hold_back(self, held_back: bool) -> None:
        """Take nothing more from the client and fetch nothing more for it; or go on."""
        ...

    def evict(self, reason: BrokerError) -> None:
        """Tell the client, and hang up."""
        ...


class MemoryAccount:
    """What one connection holds. Made by `MemoryBudget.open`."""

    __slots__ = ("_budget", "_holder", "holds", "is_held_back", "is_open", "ticks")

    def __init__(self, budget: MemoryBudget, holder: Holder) -> None:
        self._budget = budget
        self._holder = holder
        self.holds = 0
        self.is_open = True
        self.is_held_back = False
        self.ticks = 0
        """For how many seconds it has been."""

    @property
    def limit_bytes(self) -> int:
        """Of all accounts together."""
        return self._budget.limit_bytes

    def update(self, holds: int) -> None:
        """The connection holds this many bytes now; it may be held back or disconnected for it at once."""
        if holds != self.holds:
            change = holds - self.holds
            self.holds = holds
            self._budget.changed(self, change)

    def close(self) -> None:
        """The client is gone, or is told to go. What is left is still counted, by `update`."""
        if self.is_open:
            self.is_open = False
            self._budget.closed(self)

    def hold_back(self) -> None:
        if not self.is_held_back:
            self.is_held_back, self.ticks = True, 0
            self._holder.hold_back(True)

    def release(self) -> None:
        if self.is_held_back:
            self.is_held_back = False
            self._holder.hold_back(False)

    def evict(self, reason: BrokerError) -> None:
        self.close()
        self._holder.evict(reason)


class MemoryBudget:
    """All accounts of one server."""

    def __init__(self, limit_bytes: int = MEMORY_DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.evictions = 0
        self._hold_back_bytes = limit_bytes * HOLD_BACK_PERCENT // 100
        self._release_bytes = limit_bytes * RELEASE_PERCENT // 100
        self._squeeze_bytes = limit_bytes * SQUEEZE_PERCENT // 100
        self._step_bytes = limit_bytes // 100
        self._accounts: dict[MemoryAccount, None] = {}
        self._open_bytes = 0
        self._left_bytes = 0
        """Of clients that are gone."""
        self._check_above_bytes = self._hold_back_bytes
        """Looking through all accounts takes a while where they are many: it waits for another percent."""
        self._anybody_held_back = False

    @property
    def used_bytes(self) -> int:
        return self._open_bytes + self._left_bytes

    def open(self, holder: Holder) -> MemoryAccount:
        account = MemoryAccount(self, holder)
        self._accounts[account] = None
        return account

    def tick(self) -> None:
        """Once a second or so: see who is still to be held back, and who has been for too long."""
        if not self._anybody_held_back:
            return
        self._hold_back_largest()
        held_back = [each for each in self._largest() if each.is_held_back]
        for account in held_back:
            account.ticks += 1
        late = next((each for each in held_back if each.ticks > HELD_BACK_MAX_TICKS), None)
        if late is not None:
            self._evict(late)

    # -- what accounts call ----------------------------------------------------------

    def changed(self, account: MemoryAccount, change: int) -> None:
        if not account.is_open:
            self._left_bytes += change
            return
        self._open_bytes += change
        if self._open_bytes > self._check_above_bytes:
            if self._open_bytes > self.limit_bytes:
                self._evict_largest()
            self._hold_back_largest()
        elif self._anybody_held_back and self._open_bytes < self._release_bytes:
            self._hold_back_largest()

    def closed(self, account: MemoryAccount) -> None:
        del self._accounts[account]
        self._open_bytes -= account.holds
        self._left_bytes += account.holds

    # -- inside ----------------------------------------------------------------------

    def _largest(self) -> Iterator[MemoryAccount]:
        """All accounts of connections, the largest first."""
        return iter(sorted(self._accounts, key=lambda account: account.holds, reverse=True))

    def _evict_largest(self) -> None:
        for account in self._largest():
            if self._open_bytes <= self._hold_back_bytes:
                return
            self._evict(account)

    def _evict(self, account: MemoryAccount) -> None:
        self.evictions += 1
        account.evict(
            MemoryLimitReached(
                "The server's memory for connections is used up "
                f"({self._open_bytes} of {self.limit_bytes} bytes). This connection holds {account.holds}: "
                "messages that are incomplete, not stored yet, or not read by the client. Please retry."
            )
        )

    def _hold_back_largest(self) -> None:
        """Hold the largest back, until the others fit; let the rest go on."""
        room = (self._squeeze_bytes - self._open_bytes) / (self._squeeze_bytes - self._hold_back_bytes)
        too_many = self._open_bytes - self._release_bytes * min(max(room, ROOM_LEAST), 1.0)
        if self._open_bytes <= self._hold_back_bytes and not self._anybody_held_back:
            return
        self._check_above_bytes = min(
            max(self._hold_back_bytes, self._open_bytes + self._step_bytes), self.limit_bytes
        )
        held_back: list[MemoryAccount] = []
        go_on: list[MemoryAccount] = []
        for account in self._largest():
            (held_back if too_many > 0 else go_on).append(account)
            too_many -= account.holds
        self._anybody_held_back = bool(held_back)
        for account in held_back:
            account.hold_back()
        for account in go_on:
            account.release()
