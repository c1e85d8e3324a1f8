"""The world of one simulation: its time, its dice, its diary, and whose turn it is.

Everything that happens is a step: one callback of one event loop, or one virtual
thread up to where it next waits. Which of those that could go on does is drawn
from the seed; a callback never overtakes another of its own loop, since asyncio
promises that. Time stands still but for a little at each step, and leaps when
nobody has anything to do. Threads: threads.py. The loops of asyncio: loop.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

__all__ = ["Deadlock", "Runnable", "World"]

# A callback takes some microseconds on a real machine, so that timers may run out while others are busy.
STEP_S_MAX = 50e-6

# Where the wall clock of every simulation begins: some day, the same one for all.
EPOCH_MS = 1_700_000_000_000


class Deadlock(AssertionError):
    """Somebody waits, and nobody has anything left to do."""


class Runnable(Protocol):
    """Somebody who can take a turn: a loop or a thread."""

    def is_ready(self) -> bool: ...
    def take_turn(self) -> None: ...
    def next_due(self) -> float | None:
        """When it will be ready again by time alone."""


class World:
    def __init__(self, seed: int, *, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0.0
        """Seconds since the beginning: what `loop.time` and `time.monotonic` say."""
        self.steps = 0
        self.runnables: dict[Runnable, None] = {}
        self._wall_ahead_ms = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._diary = blake2b(digest_size=16)
        self._tell = tell

    # -- time -----------------------------------------------------------------------

    @property
    def wall_ms(self) -> int:
        """The wall clock, which can be moved."""
        return EPOCH_MS + int(self.now * 1000) + self._wall_ahead_ms

    def move_wall(self, by_ms: int) -> None:
        self._wall_ahead_ms += by_ms

    def at(self, when: float, call: Callable[[], None]) -> None:
        heappush(self._agenda, (when, next(self._order), call))

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now + delay_s, call)

    # -- chance ---------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def between(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)

    def entropy(self, count_bytes: int) -> bytes:
        return self.random.randbytes(count_bytes)

    # -- the diary ------------------------------------------------------------------

    def note(self, what: str) -> None:
        """Part of what must be the same whenever this seed is played."""
        line = f"{self.now:.6f} {what}"
        self._diary.update(line.encode())
        if self._tell is not None:
            self._tell(line)

    @property
    def fingerprint(self) -> str:
        return self._diary.hexdigest()

    # -- turns ----------------------------------------------------------------------

    def step(self) -> None:
        """Let somebody go on, or time pass until somebody can."""
        if self._agenda and self._agenda[0][0] <= self.now:
            self._do_what_is_due()
        ready = [each for each in self.runnables if each.is_ready()]
        while not ready:
            self._leap()
            self._do_what_is_due()
            ready = [each for each in self.runnables if each.is_ready()]
        self.steps += 1
        self.now += self.random.random() * STEP_S_MAX
        (ready[0] if len(ready) == 1 else self.random.choice(ready)).take_turn()

    def _do_what_is_due(self) -> None:
        agenda = self._agenda
        while agenda and agenda[0][0] <= self.now:
            heappop(agenda)[2]()

    def _leap(self) -> None:
        """To the next moment at which something happens by itself."""
        moments = [due for each in self.runnables if (due := each.next_due()) is not None]
        if self._agenda:
            moments.append(self._agenda[0][0])
        if not moments:
            raise Deadlock("nobody has anything left to do")
        self.now = max(self.now, min(moments))
