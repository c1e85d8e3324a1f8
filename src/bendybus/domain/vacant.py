"""Vacant numbers: sequence numbers under which no reader misses a message.

A reader that keeps its own position (handlers/ranges.py) finds numbers without messages. Usually somebody has
removed the messages, and a reader that has not read them has lost them. Under a vacant number it has lost
nothing:

- A scheduled message had the number, and was cancelled or got a new number when it was due.
- A kept message had the number, and got a new one when it was put back.
- The number was given to something that was never in the main queue: a message for another entity, a message
  that was a dead letter from the beginning, or a reservation.

A number that is vacant stays so. Vacant numbers are only in memory. A message that got a new number is stored
with its earlier one (`Amendment.earlier_number`), so these are known after a load. The others are then
forgotten, and count as lost.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from bendybus.names import SequenceNumber

__all__ = ["RUNS_MAX", "VacantNumbers"]

# A run is two numbers of eight bytes, so this is 256 KB for a partition. Requests of readers forget what is
# below the oldest message. An entity that nobody reads by ranges keeps its newest runs.
RUNS_MAX: Final = 16_384


class VacantNumbers:
    """Vacant numbers as runs, in order and not adjacent."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")
        """The number after each run."""

    def __len__(self) -> int:
        """The number of runs."""
        return len(self._starts)

    def add(self, first: int, count: int) -> None:
        """These consecutive numbers are vacant."""
        if count <= 0:
            return
        starts, ends, end = self._starts, self._ends, first + count
        # The runs that touch the new one become part of it.
        left, right = bisect_left(ends, first), bisect_right(starts, end)
        if left < right:
            first, end = min(first, starts[left]), max(end, ends[right - 1])
        starts[left:right] = array("q", (first,))
        ends[left:right] = array("q", (end,))
        if len(starts) > RUNS_MAX:
            del starts[: RUNS_MAX // 2], ends[: RUNS_MAX // 2]

    def add_each(self, numbers: Iterable[int]) -> None:
        """These numbers are vacant."""
        first = following = 0
        for number in sorted(numbers):
            if number != following:
                self.add(first, following - first)
                first = number
            following = number + 1
        self.add(first, following - first)

    def lowest_below(self, number: SequenceNumber) -> SequenceNumber:
        """The lowest number from which all up to this one are vacant; this one itself if there is none."""
        index = bisect_left(self._starts, number) - 1
        if index >= 0 and self._ends[index] >= number:
            return SequenceNumber(self._starts[index])
        return number

    def forget_below(self, number: SequenceNumber) -> None:
        """Forget the runs that begin below this number."""
        index = bisect_left(self._starts, number)
        del self._starts[:index], self._ends[:index]
