"""How a store's threads talk to the event loop: they schedule a call and do not wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

__all__ = ["call_in_loop"]


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object) -> None:
    """Schedule this call for the loop's next turn. Does nothing if the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)
