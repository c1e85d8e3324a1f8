"""Commits that the database has although it lacks earlier ones, which are still in the journal.

While most messages stay, a commit that stores messages goes straight to the database (turnover.py). Earlier
commits may be pending. Most of these need not be written first, because the new commit has nothing to do with
them (`Pending.is_independent`). The database then has a gap. So it records the numbers of the commits behind
the gap, in the table `ahead`, and its last commit remains the one before the gap. When the pending commits
are written, the gap closes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["Ahead"]

# Each gap is a row of a table. With many small gaps, it is better to write what is pending.
RANGES_MAX: Final = 50


class Ahead:
    """The numbers of such commits, as ranges."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = sorted(ranges)
        """The first number and the last one. There is a gap before each range."""

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    @property
    def last(self) -> int:
        """The last of these commits; 0 if there is none."""
        return self.ranges[-1][1] if self.ranges else 0

    def reached(self, number: int) -> int:
        """The last commit without a gap before it, if the database has all commits up to this one."""
        for first, last in self.ranges:
            if first > number + 1:
                break
            number = max(number, last)
        return number

    def has_room(self, number: int) -> bool:
        """Whether this commit can be added."""
        return len(self.ranges) < RANGES_MAX or not self.begins_range(number)

    def begins_range(self, number: int) -> bool:
        """Whether this commit, the latest one, does not follow the last of them."""
        return not self.ranges or number != self.last + 1

    def add(self, number: int) -> None:
        """The database has this commit, the latest one."""
        first = number if self.begins_range(number) else self.ranges.pop()[0]
        self.ranges.append((first, number))

    def forget(self, through: int) -> None:
        """The database has all commits up to this one, so there is no gap before them."""
        self.ranges = [each for each in self.ranges if each[1] > through]
