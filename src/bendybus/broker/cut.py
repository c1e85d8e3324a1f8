"""One moment for all stores of a namespace: what a power failure at that moment would leave.

Each store's writer fixes the image of its store between two commits, and then stands still until all
have. So nothing that goes from one store to another is half in the images: they are as consistent with
each other as the stores are after a crash, which every start can take up. Writers stand still for
milliseconds; if one does not come, the others go on and all try again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from bendybus.broker.stores import AttachedStore

__all__ = ["cut"]

# Well before anybody would call the store slow (health.py).
STAND_STILL_MAX_S: Final = 0.5


async def cut(images: Mapping[AttachedStore, Callable[[], None]], catalog: Callable[[], None]) -> bool:
    """Fix all of these and the catalog's at one moment; False when the stores did not come together.

    Each call is made in its store's writer, the catalog's while all of them stand still. What one of them
    raises is raised. Images that were fixed in vain cannot be used again.
    """
    together = threading.Barrier(len(images), catalog)
    errands = (store.run(partial(_stand_still, fix, together)) for store, fix in images.items())
    outcomes = await asyncio.gather(*errands, return_exceptions=True)
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    # What broke the barrier says more than that it was broken.
    for failure in failures:
        if not isinstance(failure, threading.BrokenBarrierError):
            raise failure
    return not failures


def _stand_still(fix: Callable[[], None], together: threading.Barrier) -> None:
    """In a store's writer: its share of the cut."""
    try:
        fix()
    except BaseException:
        together.abort()
        raise
    together.wait(STAND_STILL_MAX_S)
