"""A consistent cut through all stores of a namespace: what a power failure at that moment would leave.

Each store's writer fixes the image of its store between two commits, and then waits until all writers
have done so. So the images contain no half of a transfer between stores: they are as consistent with
each other as the stores are after a crash, and a start can recover from them. Writers wait for
milliseconds. If one does not arrive, the others continue and all try again.

With several brokers, the cut is made by one of them while the others stand still (`StandStill`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from bendybus.broker.stores import AttachedStore
from bendybus.store.protocol import MessagingStore

__all__ = ["StandStill", "cut"]

# Well before a store would count as slow (health.py).
STAND_STILL_MAX_S: Final = 0.5


async def cut(images: Mapping[AttachedStore, Callable[[], None]], catalog: Callable[[], None]) -> bool:
    """Fix all these images and the catalog's at one moment. Returns False if one came too late.

    Each call is made in its store's writer, the catalog's while all writers wait. An exception of a call
    is raised here. Images that were fixed in vain cannot be used again.
    """
    together = threading.Barrier(len(images), catalog)
    errands = (store.run(partial(_stand_still, fix, together)) for store, fix in images.items())
    outcomes = await asyncio.gather(*errands, return_exceptions=True)
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    # The error that broke the barrier says more than the broken barrier.
    for failure in failures:
        if not isinstance(failure, threading.BrokenBarrierError):
            raise failure
    return not failures


def _stand_still(fix: Callable[[], None], together: threading.Barrier) -> None:
    """One store's part of the cut. Runs in its writer."""
    try:
        fix()
    except BaseException:
        together.abort()
        raise
    together.wait(STAND_STILL_MAX_S)


class StandStill:
    """The writers of these stores wait between two commits, from `begin` to `end`."""

    def __init__(self, stores: Sequence[AttachedStore]) -> None:
        self._stores = stores
        self._arrived = threading.Semaphore(0)
        self._go_on = threading.Event()
        self._standing: list[asyncio.Task[bool]] = []
        self._all_came = False

    async def begin(self) -> bool:
        """Return once all of them wait, or False if one came too late. None waits for long."""
        loop = asyncio.get_running_loop()
        self._standing = [
            loop.create_task(store.run(partial(self._stand, store.store))) for store in self._stores
        ]
        self._all_came = await asyncio.to_thread(self._await_all)
        return self._all_came

    def _await_all(self) -> bool:
        return all(self._arrived.acquire(timeout=STAND_STILL_MAX_S) for _ in self._stores)

    def _stand(self, store: MessagingStore) -> bool:
        """In a store's writer."""
        store.write_out()
        self._arrived.release()
        return self._go_on.wait(STAND_STILL_MAX_S)

    async def end(self) -> bool:
        """Let them continue. Returns whether all of them have waited until now."""
        self._go_on.set()
        stood = await asyncio.gather(*self._standing, return_exceptions=True)
        return self._all_came and all(each is True for each in stood)
