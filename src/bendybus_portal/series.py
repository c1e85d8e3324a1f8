"""Rates and their history, made of counters that are read again and again. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["Counters", "Series"]

# Five minutes at a reading every two seconds, and as many that are forgotten together: a drawn line then
# grows at its end, and only now and then has to be drawn again.
POINTS_KEPT: Final = 160
POINTS_MAX: Final = 2 * POINTS_KEPT

RECENT_S: Final = 15.0


class Series:
    """Values over time, the newest last."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self.drawn = ""
        """The points of a line in SVG, whose y grows downwards."""

    def add(self, at: float, value: float) -> None:
        self.points.append((at, value))
        if len(self.points) > POINTS_MAX:
            del self.points[:-POINTS_KEPT]
            self.drawn = " ".join(_drawn(*point) for point in self.points)
        else:
            self.drawn += (" " if self.drawn else "") + _drawn(at, value)

    @property
    def last(self) -> float | None:
        return self.points[-1][1] if self.points else None

    def recent(self, at: float) -> float | None:
        """The last value, unless it is out of date."""
        return self.last if self.points and at - self.points[-1][0] <= RECENT_S else None


def _drawn(at: float, value: float) -> str:
    return f"{at:.1f},{-value:.5g}"


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
