"""Which of the processes that share a port takes the next connection: the one with the fewest connections.

The processes of `serve --brokers N` accept on the same sockets, and the kernel wakes all of them. Whichever
runs first would take a whole burst of connections, and clients keep their connections for hours. So each
process writes its number of connections into memory that all of them share. A process that has more than
another waits for a moment, and then takes the connections that no other process has taken (listener.py).
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

__all__ = ["AcceptTurns"]

_SLOT_SIZE: Final = 8
_FILE: Final = "connections"
# The number of a process that accepts nothing: no other process waits for it.
_AWAY: Final = 2**63


class AcceptTurns:
    """The number of connections of each process, as one of them sees it."""

    def __init__(self, folder: Path, processes: int, own: int) -> None:
        """`folder`: the same for all processes, and for nobody else. `own`: which of them this is."""
        size = processes * _SLOT_SIZE
        # Whichever process is the first makes the file. For the others it has its size already.
        descriptor = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._slots = memoryview(self._memory).cast("Q")
        self._own = own
        self.note(0)

    def note(self, connections: int) -> None:
        """This process has this many connections now."""
        self._slots[self._own] = connections

    @property
    def is_anothers(self) -> bool:
        """Whether another process has fewer connections than this one."""
        return min(self._slots) < self._slots[self._own]

    def leave(self) -> None:
        """This process accepts nothing any more."""
        self.note(_AWAY)
