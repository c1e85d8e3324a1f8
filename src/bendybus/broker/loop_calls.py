"""How a store's threads talk to the event loop: they ask it to call something, and do not wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

__all__ = ["call_in_loop"]


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object) -> None:
    """Call this in the loop's next turn. Once the loop is closed nobody is left to be told."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)
