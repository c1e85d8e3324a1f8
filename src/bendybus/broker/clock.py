"""The clocks: the machine's, and a namespace's own, which a test can move.

`now` is the machine's time. People and tokens use it: signatures expire by the machine's clock,
whatever a test does. `Clock` is the time of entities (lifetimes, locks, schedules,
times shown); it is the same unless it was moved. What then becomes due:
`Ticker.advance`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bendybus.names import Instant

__all__ = ["Clock", "now"]

# If the clock is set back by less than this, locks simply last longer by that much.
SET_BACK_MIN_MS: Final = 5_000


def now() -> Instant:
    return Instant(time.time_ns() // 1_000_000)


class Clock:
    """The time in one namespace: the machine's time plus the offset by which a test has moved it."""

    __slots__ = ("_ahead_ms", "_latest", "on_set_back")

    def __init__(self) -> None:
        self._ahead_ms = 0
        self._latest = Instant(0)
        self.on_set_back: Callable[[int], None] = _ignore
        """Called with the milliseconds by which the machine's clock was set back, before its time is used."""

    def now(self) -> Instant:
        at = Instant(time.time_ns() // 1_000_000 + self._ahead_ms)
        if at >= self._latest:
            self._latest = at
        elif self._latest - at >= SET_BACK_MIN_MS:
            by_ms, self._latest = self._latest - at, at
            self.on_set_back(by_ms)
        return at

    def move_on(self, by_ms: int) -> None:
        assert by_ms >= 0, "entities count on time that does not run backwards"
        self._ahead_ms += by_ms

    def set_right(self) -> None:
        """Return to the machine's time. Only for a namespace in which nothing has a time any more."""
        self._ahead_ms = 0
        self._latest = Instant(0)


def _ignore(_: int) -> None:
    """For a clock that nothing uses yet."""
