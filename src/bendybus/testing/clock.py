"""The time machine: moves a namespace's clock forward, and returns when everything due has happened.

The clock moves only forward, in one leap, as if the machine that runs the broker had slept for that
time. Clients are not affected, and their tokens expire by the real time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from bendybus.broker.clock import Clock

__all__ = ["TimeMachine"]


class TimeMachine:
    """The clock of one namespace. Locks, lifetimes and schedules use it."""

    def __init__(self, clock: Clock, advance_ms: Callable[[int], None]) -> None:
        self._clock = clock
        self._advance_ms = advance_ms

    def now(self) -> datetime:
        """The namespace's time. Use it to schedule messages once the clock has been moved."""
        return datetime.fromtimestamp(self._clock.now() / 1000, UTC)

    def advance(self, by: float | timedelta) -> None:
        """Let this many seconds pass: locks expire, messages expire, scheduled messages are enqueued."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValueError(f"the clock cannot be moved back, by {-seconds:g} seconds")
        self._advance_ms(round(seconds * 1000))

    def travel_to(self, when: datetime) -> None:
        """Let time pass until then. The time must have a time zone."""
        if when.tzinfo is None:
            raise ValueError(f"{when} has no time zone: say which, such as datetime.UTC")
        self.advance(when - self.now())
