"""What a process takes from its machine, replaced while a simulation runs: clocks, dice, threads.

The broker is not changed for this. Every module of it that has imported, say,
`os.urandom` finds the world's dice under that name instead, wherever it is; so a
module that is added tomorrow is simulated tomorrow. The domain and the engine
have none of these: time and entropy come to them as arguments.
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from faults.simulation.threads import Threading
from faults.simulation.world import World

__all__ = ["substituted"]

PACKAGE = "bendybus"


class _Module:
    """A module with some of its names replaced."""

    def __init__(self, original: ModuleType, **replaced: object) -> None:
        self._original = original
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


@contextmanager
def substituted(world: World, threads: Callable[[], Threading]) -> Iterator[None]:
    """`threads` gives those of the process that is running now."""

    def uuid4() -> uuid.UUID:
        return uuid.UUID(bytes=world.entropy(16), version=4)

    def of_process(name: str) -> Callable[..., Any]:
        def make(*arguments: Any, **how: Any) -> Any:
            return getattr(threads(), name)(*arguments, **how)

        return make

    def monotonic() -> float:
        return world.now

    def time_ns() -> int:
        return world.wall_ms * 1_000_000

    def wall() -> float:
        return world.wall_ms / 1000

    executor = of_process("Executor")
    stand_ins: list[tuple[object, object]] = [
        (time.time, wall),
        (time.time_ns, time_ns),
        (time.monotonic, monotonic),
        (time.perf_counter, monotonic),
        (os.urandom, world.entropy),
        (uuid.uuid4, uuid4),
        (queue.SimpleQueue, _Generic(of_process("SimpleQueue"))),
        (concurrent.futures.ThreadPoolExecutor, executor),
        (
            time,
            _Module(
                time,
                time=wall,
                time_ns=time_ns,
                monotonic=monotonic,
                perf_counter=monotonic,
                sleep=_nobody_sleeps,
            ),
        ),
        (os, _Module(os, urandom=world.entropy)),
        (uuid, _Module(uuid, uuid4=uuid4)),
        (random, _Module(random, uniform=world.random.uniform)),
        (
            threading,
            SimpleNamespace(Thread=of_process("Thread"), Condition=of_process("Condition")),
        ),
    ]
    replaced: list[tuple[ModuleType, str, object]] = []
    try:
        for module in [each for name, each in sys.modules.items() if name.split(".")[0] == PACKAGE]:
            for name, value in list(vars(module).items()):
                for original, stand_in in stand_ins:
                    if value is original:
                        replaced.append((module, name, value))
                        setattr(module, name, stand_in)
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


class _Generic:
    """A class that is only ever made, or written with its type in brackets."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **how: Any) -> Any:
        return self._make(*arguments, **how)

    def __getitem__(self, _: object) -> _Generic:
        return self


def _nobody_sleeps(_: float) -> None:
    raise AssertionError("nothing that runs in a simulation may sleep by itself")
