"""Whether a messaging store answers: how long is too long.

A busy disk is told from a dead one by what it did before: the patience is ten times its slowest commit of
late, within bounds. It is counted in turns of our own loop, so that a process that was itself held up
(suspended, starved) does not blame its stores. The states of a store: lifecycle.py. What follows from
them: stores.py.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LOAD_PATIENCE_S", "SLOW_AFTER_S", "STALL_AFTER_S", "Patience"]

SLOW_AFTER_S: Final = 1.0

# The least patience, unless set otherwise: a hundred times a commit on any healthy disk. Clients are
# told to allow 15 s, and a message without a key must be elsewhere well before.
STALL_AFTER_S: Final = 2.0
# The most, for a disk that was slow already; again, inside the clients' 15 s.
PATIENCE_MAX_S: Final = 10.0
PATIENCE_FACTOR: Final = 10.0
# Five times a second: half of it is forgotten after 14 s.
FORGETTING: Final = 0.99

# A million messages load in a second or two; who waits for more than that to be read waits so long.
LOAD_PATIENCE_S: Final = 10.0

# One turn counts for no more than this, however long it was.
TURN_MAX_S: Final = 0.5


class Patience:
    """Counts how long the calls of one store have been under way."""

    def __init__(self, stall_after_s: float = STALL_AFTER_S) -> None:
        self._least_s = stall_after_s
        self._slowest_s = 0.0
        self._turn_at: float | None = None
        self.clock_s = 0.0
        """Time as this store is given it."""
        self._began: dict[str, tuple[int, float]] = {}
        """Thread -> the call it is with, and since when."""

    @property
    def stall_after_s(self) -> float:
        usual = min(self._slowest_s * PATIENCE_FACTOR, PATIENCE_MAX_S)
        return max(self._least_s, usual)

    def turn(self, at: float, slowest_s: float) -> None:
        """Another turn of the loop, at this time; the slowest commit since the last one."""
        if self._turn_at is not None:
            self.clock_s += min(max(at - self._turn_at, 0.0), TURN_MAX_S)
        self._turn_at = at
        self._slowest_s = max(slowest_s, self._slowest_s * FORGETTING)

    def waited_s(self, thread: str, step: int | None) -> float:
        """How long this thread has been with this call; to be asked once a turn."""
        if step is None:
            self._began.pop(thread, None)
            return 0.0
        known = self._began.get(thread)
        if known is None or known[0] != step:
            self._began[thread] = step, self.clock_s
            return 0.0
        return self.clock_s - known[1]
