"""Whether a messaging store answers, and how long is too long.

The history of a store distinguishes a busy disk from a dead one: the patience is ten times the slowest recent
commit, within bounds. It is counted in turns of our own event loop, so that a process that was itself held up
(suspended, starved) does not blame its stores. The states of a store: lifecycle.py. What follows from
them: stores.py.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LOAD_PATIENCE_S", "SLOW_AFTER_S", "STALL_AFTER_S", "Patience", "writing_s"]

SLOW_AFTER_S: Final = 1.0

# The default minimum patience: a hundred times a commit on any healthy disk. Clients are
# told to allow 15 s, and a message without a key must be elsewhere well before that.
STALL_AFTER_S: Final = 2.0
# The maximum, for a disk that was slow already. Again, it is within the clients' 15 s.
PATIENCE_MAX_S: Final = 10.0
PATIENCE_FACTOR: Final = 10.0
# Applied five times a second, so an old value is halved after 14 s.
FORGETTING: Final = 0.99

# A large commit may take longer: its bytes at the speed of a busy disk, so 5 s for a message of 100 MB.
BUSY_DISK_BYTES_PER_S: Final = 20 * 1024 * 1024
WRITING_MAX_S: Final = 6.0

# A million messages load in a second or two. Commands wait this long for a longer load.
LOAD_PATIENCE_S: Final = 10.0

# One turn counts for at most this long, however long it really was.
TURN_MAX_S: Final = 0.5


class Patience:
    """Measures how long the calls of one store have been under way."""

    def __init__(self, stall_after_s: float = STALL_AFTER_S) -> None:
        self._least_s = stall_after_s
        self._slowest_s = 0.0
        self.turned_at: float | None = None
        self.clock_s = 0.0
        """The time that counts for this store."""
        self._began: dict[str, tuple[int, float]] = {}
        """Thread -> its current call, and since when."""

    @property
    def stall_after_s(self) -> float:
        usual = min(self._slowest_s * PATIENCE_FACTOR, PATIENCE_MAX_S)
        return max(self._least_s, usual)

    def turn(self, at: float, slowest_s: float) -> None:
        """Note a turn of the loop at this time, with the slowest commit since the last turn."""
        if self.turned_at is not None:
            self.clock_s += min(max(at - self.turned_at, 0.0), TURN_MAX_S)
        self.turned_at = at
        self._slowest_s = max(slowest_s, self._slowest_s * FORGETTING)

    def waited_s(self, thread: str, step: int | None) -> float:
        """How long this thread has been in this call. To be called once a turn."""
        if step is None:
            self._began.pop(thread, None)
            return 0.0
        known = self._began.get(thread)
        if known is None or known[0] != step:
            self._began[thread] = step, self.clock_s
            return 0.0
        return self.clock_s - known[1]


def writing_s(size_bytes: int) -> float:
    """How long a healthy disk may take to write this many bytes."""
    return min(size_bytes / BUSY_DISK_BYTES_PER_S, WRITING_MAX_S)
