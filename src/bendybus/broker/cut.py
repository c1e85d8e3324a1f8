"""A consistent cut through all stores of a namespace: what a power failure at that moment would leave.

Each store's writer fixes the image of its store between two commits, and then waits until all writers
have done so. So the images contain no half of a transfer between stores: they are as consistent with
each other as the stores are after a crash, and a start can recover from them. Writers wait for
milliseconds. If one does not arrive, the others continue and all try again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from bendybus.broker.stores import AttachedStore

__all__ = ["cut"]

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
