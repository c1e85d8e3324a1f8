"""Which messaging stores this broker cannot reach.

The broker lists them in the catalog's database, so that a broker that can reach them owns them
(membership.py). It tries again after a while, unless something else has shown that the store can be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Final

__all__ = ["Reach"]

UNREACHED_AFTER_S: Final = 5.0
TRY_AGAIN_AFTER_S: Final = 30.0


class Reach:
    def __init__(self) -> None:
        self._failing_since: dict[str, float] = {}
        """By the loop's clock."""

    def tries(self, name: str) -> None:
        """The store is being tried, or does not answer."""
        self._failing_since.setdefault(name, asyncio.get_running_loop().time())

    def reached(self, name: str) -> None:
        self._failing_since.pop(name, None)

    def unreached(self, tried: Container[str]) -> list[str]:
        """The stores that were not reached for a while. `tried`: those that are still tried."""
        now = asyncio.get_running_loop().time()
        for name, since in list(self._failing_since.items()):
            if name not in tried and now - since > UNREACHED_AFTER_S + TRY_AGAIN_AFTER_S:
                del self._failing_since[name]
        return sorted(name for name, since in self._failing_since.items() if now - since >= UNREACHED_AFTER_S)
