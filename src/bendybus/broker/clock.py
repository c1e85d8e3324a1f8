"""The clocks: the machine's, and a namespace's own, which a test can move.

`now` is what people and tokens go by: signatures run out by the machine's clock,
whatever a test does. `Clock` is what entities go by (lifetimes, locks, schedules,
times shown); it is the same time unless somebody moved it. What then falls due:
`Ticker.advance`.
"""

from __future__ import annotations

import time

from bendybus.names import Instant

__all__ = ["Clock", "now"]


def now() -> Instant:
    return Instant(time.time_ns() // 1_000_000)


class Clock:
    """The time in one namespace: the machine's, and as much more as it was moved on."""

    __slots__ = ("_ahead_ms",)

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now(self) -> Instant:
        return Instant(time.time_ns() // 1_000_000 + self._ahead_ms)

    def move_on(self, by_ms: int) -> None:
        assert by_ms >= 0, "entities count on time that does not run backwards"
        self._ahead_ms += by_ms

    def set_right(self) -> None:
        """Back to the machine's time: only for a namespace in which nothing has a time any more."""
        self._ahead_ms = 0
