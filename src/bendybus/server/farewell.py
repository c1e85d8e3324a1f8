"""Transports whose `close` lets the peer read what was written last.

A socket that is closed with input unread is reset, and a peer that is reset may lose what it has not read:
the close frame with the reason, or the answer with the status. So `close` ends only our direction at first.
Further input is discarded until the peer closes too, for a second at most. A peer that sends too much
meanwhile is cut off. The connection counts as open all the while (listener.py). TLS has no end of one
direction: the peer reads the last word, and the end when both sides close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

__all__ = ["LINGER_BYTES_MAX", "LINGER_S", "FarewellTransport"]

# How long a peer may take to read the last word, and what it may still send meanwhile: a round trip, and what
# fits into a socket's buffers.
LINGER_S: Final = 1.0
LINGER_BYTES_MAX: Final = 256 * 1024


class FarewellTransport:
    """A transport with its own `close`. Protocols use it as their transport."""

    def __init__(self, transport: asyncio.Transport, linger_s: float = LINGER_S) -> None:
        self._transport = transport
        self._linger_s = linger_s
        self._closing = False
        # Bound once, so that nothing stands between a protocol and its transport.
        self.write = transport.write
        self.writelines = transport.writelines
        self.resume_reading = transport.resume_reading
        self.is_reading = transport.is_reading
        self.abort = transport.abort
        self.can_write_eof = transport.can_write_eof
        self.write_eof = transport.write_eof
        self.get_extra_info = transport.get_extra_info
        self.get_protocol = transport.get_protocol
        self.set_protocol = transport.set_protocol
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.get_write_buffer_limits = transport.get_write_buffer_limits
        self.set_write_buffer_limits = transport.set_write_buffer_limits

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        if not self._closing:
            self._transport.pause_reading()

    def close(self) -> None:
        """Write what is to be written, then an end; close when the peer has read it, or its time is over."""
        if self.is_closing():
            return
        self._closing = True
        self.write = _drop
        self.writelines = _drop_lines
        transport = self._transport
        transport.set_protocol(_Lingering(transport, self._linger_s))
        if transport.can_write_eof():
            # The peer may be gone already.
            with suppress(OSError):
                transport.write_eof()
        if not transport.is_reading():
            transport.resume_reading()


class _Lingering(asyncio.Protocol):
    """Discards further input for a while. Then the connection's own protocol is told of the end."""

    def __init__(self, transport: asyncio.Transport, linger_s: float) -> None:
        self._transport = transport
        self._protocol = transport.get_protocol()
        self._left = LINGER_BYTES_MAX
        self._timer = asyncio.get_running_loop().call_later(linger_s, transport.close)

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._protocol.connection_lost(exc)


# What is written after the close goes nowhere, as with any transport.


def _drop(data: bytes | bytearray | memoryview[Any]) -> None: ...


def _drop_lines(list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None: ...
