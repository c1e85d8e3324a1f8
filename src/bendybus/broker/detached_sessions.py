"""Sessions of clients without a connection, which present the lock with each request (rest/sessions.py).

Such a session has a holder like any other, so it is not free when its partition gets another owner. The
holder lasts until the lock ends. Requests that wait for a message of the session wait for its holder.
"""

from __future__ import annotations

import asyncio

__all__ = ["DetachedSession"]


class DetachedSession:
    """`SessionHolder` for all requests of one client."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def news(self, timeout_s: float) -> None:
        """Return when something has changed, or after this time."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = None
        try:
            await asyncio.wait([woken], timeout=timeout_s)
        finally:
            self._waiting.pop(woken, None)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)

    def lost(self) -> None:
        # Requests find out by themselves, and from the next owner if there is one.
        self.wake()
