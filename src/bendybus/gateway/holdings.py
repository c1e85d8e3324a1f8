"""Holdings: what one connection makes the server keep, and whether its socket is read.

Counted in bytes, per socket read or batch. The sum is the connection's account in the memory budget
(memory_budget.py), which may hold the connection back. Bounds of the connection's own are here; those of half
deliveries and of frames are the engine's (engine/config.py).
"""

from __future__ import annotations

import asyncio
from typing import Final

from bendybus.engine.connection import Connection
from bendybus.gateway.memory_budget import MemoryAccount

__all__ = ["Holdings"]

# Messages taken from one client and not yet answered: past this its socket is not read, so that
# a client cannot fill our memory faster than the disk empties it.
UNANSWERED_BYTES_MAX: Final = 16 * 1024 * 1024
# With a small memory budget it is less, so that one client alone does not use it up.
UNANSWERED_SHARE: Final = 16

# How often a message is there while a store writes it: as it came, as the store's thread encodes it, and in
# the database's own memory. Measured: 64 MB of messages on their way made a server grow by 240 MB.
UNANSWERED_COPIES: Final = 3

# Answers written and not taken: past this, too, the socket of a client that does not read is not read.
# Far more than a client has open that sends on without looking at its answers for a while.
UNREAD_BYTES_MAX: Final = 4 * 1024 * 1024


class Holdings:
    __slots__ = (
        "_account",
        "_engine",
        "_enlisted_bytes",
        "_kept_bytes",
        "_unanswered_bytes",
        "_unanswered_max",
        "held_back",
        "input_bytes",
        "transport",
        "unread",
        "waits_for_turn",
    )

    def __init__(self, engine: Connection, account: MemoryAccount) -> None:
        self._engine = engine
        self._account = account
        self._enlisted_bytes = 0
        self._kept_bytes = 0
        self._unanswered_bytes = 0
        self._unanswered_max = min(UNANSWERED_BYTES_MAX, account.limit_bytes // UNANSWERED_SHARE)
        self.transport: asyncio.Transport | None = None
        self.input_bytes = 0
        """Read from the socket, and not handled yet."""
        self.unread = False
        """Whether the client reads more slowly than it is written to."""
        self.waits_for_turn = False
        self.held_back = False
        """By the memory budget."""

    @property
    def writable(self) -> bool:
        """Whether the client is to be sent more."""
        return not (self.unread or self.held_back)

    def admitted(self, size: int) -> None:
        """Messages of this many bytes are on their way to a store."""
        self._unanswered_bytes += size
        self.read_or_wait()

    def answered(self, size: int) -> None:
        self._unanswered_bytes -= size
        self.read_or_wait()
        self.account()

    def keep(self, size: int) -> None:
        """So many bytes more are kept for a link, or fewer: pages read ahead, replies."""
        self._kept_bytes += size
        self.account()

    def enlist(self, size: int) -> None:
        """So many bytes more are part of open transactions, or fewer. Those go with the client."""
        self._enlisted_bytes += size

    def leave(self) -> None:
        """The client is gone, or is told to go; what is on its way to a store is still held."""
        self.input_bytes = 0
        self._account.close()
        self.account()

    def account(self) -> None:
        """Bring the account up to date."""
        held = self._unanswered_bytes * UNANSWERED_COPIES + self._kept_bytes + self.input_bytes
        if self._account.is_open:
            held += self._engine.held_bytes + self._enlisted_bytes
        if self.transport is not None:
            held += self.transport.get_write_buffer_size()
        self._account.update(held)

    def read_or_wait(self) -> None:
        """Read from the client while we and the stores keep up with it, and it with its answers."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        ahead = (
            self.waits_for_turn
            or self.held_back
            or self._unanswered_bytes > self._unanswered_max
            or (self.unread and transport.get_write_buffer_size() > UNREAD_BYTES_MAX)
        )
        if ahead is transport.is_reading():
            if ahead:
                transport.pause_reading()
            else:
                transport.resume_reading()
