"""A link (link.py) as asyncio's and uvloop's connections call it.

This module is not compiled: a compiled class cannot be one of asyncio's protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bendybus.cluster.link import PeerLink

__all__ = ["LinkProtocol"]


class LinkProtocol(asyncio.BufferedProtocol):
    def __init__(self, link: PeerLink, connected: Callable[[PeerLink], None] | None = None) -> None:
        """`connected`: called once there is a connection; never if the handshake of TLS fails."""
        self._link = link
        self._connected = connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._connected is not None:
            self._connected(self._link)
        self._link.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._link.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._link.arrived(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.connection_lost(exc)
