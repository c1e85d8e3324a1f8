"""The memory budget: how many bytes all connections together may use.

Every connection has an account: incomplete deliveries, messages on their way to a store, output that the
client has not read, pages that were read for its receivers. The account is brought up to date once per socket
read or batch, never per message.

    above 80 %   the connections that hold most are held back: nothing is read from them or fetched for them.
                 The others may hold 70 % together at first, and less and less up to 90 %. Then only
                 connections that hold almost nothing continue.
    below 70 %   all connections continue.
    above 100 %  the connections that hold most are disconnected, until 80 % are left.

A connection that is held back for ten seconds is disconnected as well: it may hold incomplete deliveries,
which only more input could complete. What a client leaves behind, such as sends that a store has not answered
yet, is counted until it is gone, but no other connection is held back for it. Limits of a single connection:
holdings.py.
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
# From here on only connections that hold almost nothing continue. What was read already still has to fit.
SQUEEZE_PERCENT: Final = 90

# Of the 70 %: what connections with small holdings may always hold together.
ROOM_LEAST: Final = 0.02

# Far longer than a store takes for a commit, and less than clients wait for an answer.
HELD_BACK_MAX_TICKS: Final = 10


class Holder(Protocol):
    """A connection, as the budget sees it. It continues or closes in a later turn of the event loop."""

    def hold_back(self, held_back: bool) -> None:
        """Stop reading from the client and fetching for it, or continue."""
        ...

    def evict(self, reason: BrokerError) -> None:
        """Disconnect the client, with the reason."""
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
        """For how many seconds it has been held back."""

    @property
    def limit_bytes(self) -> int:
        """The bytes of all accounts."""
        return self._budget.limit_bytes

    def update(self, holds: int) -> None:
        """Set the bytes that the connection holds. It may be held back or disconnected at once."""
        if holds != self.holds:
            change = holds - self.holds
            self.holds = holds
            self._budget.changed(self, change)

    def close(self) -> None:
        """The client is gone or is being disconnected. What it leaves behind still counts (`update`)."""
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
        """The bytes of clients that are gone."""
        self._check_above_bytes = self._hold_back_bytes
        """Going through many accounts takes time, so it is done again only after another percent."""
        self._anybody_held_back = False

    @property
    def used_bytes(self) -> int:
        return self._open_bytes + self._left_bytes

    def open(self, holder: Holder) -> MemoryAccount:
        account = MemoryAccount(self, holder)
        self._accounts[account] = None
        return account

    def tick(self) -> None:
        """About once a second: decide which connections stay held back, and which have been for too long."""
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
        """Hold back the largest until the others fit; let the rest continue."""
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
