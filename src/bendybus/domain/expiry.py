"""Message expiry: when to look for messages whose time to live is over.

There is no data structure per message, only a lower bound of all expiry times and the time of the last sweep.
Before the bound nothing can have expired. After it, commands that hand out messages check those messages, and
`Tick` checks everything, at most once in `SWEEP_INTERVAL_MS`. What happens to expired messages: stock.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bendybus.domain.messages import Message
from bendybus.names import Instant

__all__ = ["NEVER", "ExpiryWatch", "split_expired"]

# Later than any instant that a 64-bit AMQP timestamp can represent.
NEVER: Final = Instant(1 << 63)

# A sweep reads the whole backlog, at about 30 ns per message, and with steady sends something always expires.
# Sweeping once a second keeps a backlog of a million messages under 3 % of a core.
SWEEP_INTERVAL_MS: Final = 1000


class ExpiryWatch:
    __slots__ = ("_earliest", "_resting_until")

    def __init__(self) -> None:
        self._earliest = NEVER
        self._resting_until = Instant(0)

    def expect(self, expires_at: Instant | None) -> None:
        """Note that a message with this expiry time is now waiting."""
        if expires_at is not None and expires_at < self._earliest:
            self._earliest = expires_at

    def expect_all(self, waiting: Iterable[Message]) -> None:
        for message in waiting:
            self.expect(message.expires_at)

    def may_have_expired(self, at: Instant) -> bool:
        return self._earliest <= at

    @property
    def next_sweep(self) -> Instant:
        return max(self._earliest, self._resting_until)

    def swept(self, at: Instant, waiting: Iterable[Message]) -> None:
        """Note that all expired messages are gone and these are left."""
        self._resting_until = Instant(at + SWEEP_INTERVAL_MS)
        self._earliest = NEVER
        self.expect_all(waiting)


def split_expired(messages: Iterable[Message], at: Instant) -> tuple[list[Message], list[Message]]:
    """The messages still alive, and the expired ones."""
    alive: list[Message] = []
    expired: list[Message] = []
    for message in messages:
        expires_at = message.expires_at
        (alive if expires_at is None or expires_at > at else expired).append(message)
    return alive, expired
