"""Changes to entities that links start and that continue without them.

A task of a connection is cancelled when the connection ends. An entity must not be left half created or
half deleted by that, so the broker owns these tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

__all__ = ["Background"]

T = TypeVar("T")

# Creating or deleting an entity takes milliseconds, unless a store or the catalog does not answer.
STOP_MAX_S: Final = 5.0


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """The broker stops: wait a while for the running tasks."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_MAX_S)
            for task in late:
                task.cancel()
