"""Random bytes for lock tokens, drawn in blocks.

Drawing them for each lock costs little by itself, but the call releases the interpreter lock, and the event
loop then waits for whatever the store's threads are doing.
"""

from __future__ import annotations

from os import urandom
from typing import Final

__all__ = ["EntropyPool"]

# Enough for some 2,300 locks. All queues of a namespace use one pool.
BLOCK_BYTES: Final = 32 * 1024


class EntropyPool:
    __slots__ = ("_block", "_used")

    def __init__(self) -> None:
        self._block = b""
        self._used = 0

    def take(self, count_bytes: int) -> bytes:
        """As many bytes, none of which is returned again."""
        start = self._used
        self._used = end = start + count_bytes
        if end > len(self._block):
            if count_bytes > BLOCK_BYTES:
                self._used = start
                return urandom(count_bytes)
            self._block, start, self._used = urandom(BLOCK_BYTES), 0, count_bytes
            end = count_bytes
        return self._block[start:end]
