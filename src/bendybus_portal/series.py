"""Rates and their history, made of counters that are read again and again. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Counters", "Series"]

# Ten minutes at a reading every two seconds.
POINTS_MAX: Final = 300


class Series:
    """Values over time, the newest last."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self.points: deque[tuple[float, float]] = deque(maxlen=points_max)

    def add(self, at: float, value: float) -> None:
        self.points.append((at, value))

    @property
    def last(self) -> float | None:
        return self.points[-1][1] if self.points else None


class Counters:
    """Counters by name that only rise: how fast they rise, per second, between two readings."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def rate(self, name: str, at: float, value: int) -> float | None:
        """None at the first reading, and after a counter has begun again."""
        before = self._seen.get(name)
        if before is not None and at <= before[0]:
            return None
        self._seen[name] = (at, value)
        if before is None or value < before[1]:
            return None
        return (value - before[1]) / (at - before[0])
