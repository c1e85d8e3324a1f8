"""What a fuzzing target is, and the judgement of one input.

A target is a parser with a statement of what it may raise. Its `check` gives the parser an input and
asserts what must hold besides: what is written again reads the same, the fast path agrees with the
general one. An exception that the target does not name is a crash. So is an input that takes more CPU time
than its length explains (`Judge`). The targets are in targets/, the engines that make inputs in engines.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Final

from bendybus.errors import BrokerError

__all__ = ["Judge", "SlowInput", "Target", "refusals"]

# How many times the linear cost of its length an input may take. The linear cost is measured on the kept
# corpus, in the same process: instrumentation and the machine's speed are in it.
SLOW_FACTOR: Final = 50

# The cost of an empty input, in bytes: what a parser does whatever it is given.
FIXED_BYTES: Final = 64

# Below this CPU time nothing counts as slow: the garbage collector may take as long.
SLOW_S_MIN: Final = 0.02

# A slow input is run again, and its fastest run counts: the first may have paid for something else.
SLOW_RUNS: Final = 3

# CPU time after which an input is broken off.
HANG_S: Final = 20.0


class SlowInput(Exception):
    """An input took more CPU time than a linear parser would."""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    parses: str
    """For people: what is given the inputs."""
    check: Callable[[bytes], None]
    may_raise: tuple[type[Exception], ...]
    """What the parser may raise. `check` allows these where the parser is called, and nowhere else."""
    share: int
    """Of a thousand inputs of all targets; the slow targets get fewer."""
    words: tuple[bytes, ...] = ()
    """What the language consists of, for mutations to put in."""
    length_max: int = 1024


class refusals(AbstractContextManager[None]):  # noqa: N801  used like contextlib.suppress
    """Allow these errors, and look at what they say: a peer gets to read it."""

    def __init__(self, *allowed: type[Exception]) -> None:
        self._allowed = allowed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._allowed):
            return False
        if isinstance(error, BrokerError):
            # It goes to the peer as text, and to the log.
            error.description.encode()
        return True


class Judge:
    """Runs one target on one input after the other."""

    def __init__(self, target: Target, seeds: Sequence[bytes]) -> None:
        self.target = target
        self.inputs = 0
        self.slowest = 0.0
        """The highest cost so far, as a multiple of the linear one."""
        self._per_byte_s = 0.0
        signal.signal(signal.SIGVTALRM, _hangs)
        # The first round pays for imports and caches.
        for _ in range(2):
            costs = [self._run(seed) / (len(seed) + FIXED_BYTES) for seed in seeds]
        self._per_byte_s = median(costs)

    def __call__(self, data: bytes) -> None:
        """Raises whatever is wrong with the parser."""
        self.inputs += 1
        linear_s = self._per_byte_s * (len(data) + FIXED_BYTES)
        took_s = self._run(data)
        allowed_s = max(SLOW_S_MIN, SLOW_FACTOR * linear_s)
        if took_s > allowed_s:
            took_s = min(self._run(data) for _ in range(SLOW_RUNS))
            if took_s > allowed_s:
                raise SlowInput(
                    f"{len(data)} bytes took {took_s * 1000:.1f} ms, {took_s / linear_s:.0f} times as long "
                    f"as the kept inputs take for as many bytes; at most {SLOW_FACTOR} times are allowed"
                )
        self.slowest = max(self.slowest, took_s / linear_s)

    def _run(self, data: bytes) -> float:
        """The CPU time that it took."""
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
        started = time.thread_time()
        self.target.check(data)
        took_s = time.thread_time() - started
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return took_s


def _hangs(number: int, frame: object) -> None:
    raise SlowInput(f"not done after {HANG_S:g} s of CPU time")
