"""Long work in slices, with a turn of the event loop for others in between."""

from __future__ import annotations

import asyncio
import time
from typing import Final

__all__ = ["Turns"]

# As long as a large batch of messages takes. Others wait longer by at most about this much.
TURN_S: Final = 0.002


class Turns:
    """`await turns.next()` between the steps of long work. A step takes far less than a turn."""

    __slots__ = ("_ends_at",)

    def __init__(self) -> None:
        self._ends_at = time.monotonic() + TURN_S

    async def next(self) -> None:
        """Continue at once while this turn lasts; otherwise after the others have had a turn."""
        if time.monotonic() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = time.monotonic() + TURN_S
