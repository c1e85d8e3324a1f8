"""Waiting for a state: a task continues when what it waits for may have become true.

The owner of a state calls `notify` at each change of it. Changes of state are rare (a store fails, a
partition is loaded), so this costs nothing per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["StateChanges"]


class StateChanges:
    __slots__ = ("_listeners", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this at each change."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """Something has changed. To be called in the event loop."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        for listener in self._listeners:
            listener()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once this holds. It is evaluated now and after each change."""
        while not holds():
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
