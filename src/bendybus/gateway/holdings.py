"""Holdings: the memory that one connection uses, and whether its socket is read.

Counted in bytes, once per socket read or batch. The sum is the connection's account in the memory budget
(memory_budget.py), which may hold the connection back. The limits of a single connection are here; those of
incomplete deliveries and of frames are in engine/config.py.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bendybus.engine.connection import Connection
from bendybus.gateway.memory_budget import MemoryAccount

__all__ = ["Holdings"]

# Messages of one client that are not answered yet. Beyond this its socket is not read, so that a client
# cannot send faster than the store writes.
UNANSWERED_BYTES_MAX: Final = 16 * 1024 * 1024
# With a small memory budget the limit is lower, so that one client cannot use up the budget.
UNANSWERED_SHARE: Final = 16

# Copies of a message while a store writes it: as it arrived, as the store's thread encodes it, and in the
# database's own memory. Measured: 64 MB of messages on their way made a server grow by 240 MB.
UNANSWERED_COPIES: Final = 3

# Fewer answered bytes are taken off the account with the next socket read, or by the next tick.
ACCOUNTED_AT_ONCE_BYTES: Final = 16 * 1024

# Answers that the client has not read. Beyond this, too, its socket is not read. A client that sends for a
# while without reading its answers stays far below this limit.
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
        """Whether the client reads more slowly than we write."""
        self.waits_for_turn = False
        self.held_back = False
        """By the memory budget."""

    @property
    def writable(self) -> bool:
        """Whether the client can be sent more."""
        return not (self.unread or self.held_back)

    def admitted(self, size: int) -> None:
        """Messages of this many bytes are on their way to a store."""
        self._unanswered_bytes += size
        self.read_or_wait()

    def answered(self, size: int) -> None:
        self._unanswered_bytes -= size
        self.read_or_wait()
        if size >= ACCOUNTED_AT_ONCE_BYTES or self.held_back:
            self.account()

    def keep(self, size: int) -> None:
        """Add to the bytes that are kept for links: pages that were read, replies. Negative: released."""
        self._kept_bytes += size
        self.account()

    def enlist(self, size: int) -> None:
        """Add to the bytes in open transactions, which end with the client. Negative: released."""
        self._enlisted_bytes += size

    def leave(self) -> None:
        """The client is gone or is being disconnected. What is on its way to a store still counts."""
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
        """Read the socket only while the server keeps up with the client, and the client with its answers."""
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
