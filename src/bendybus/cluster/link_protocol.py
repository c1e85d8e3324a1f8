"""A link (link.py) as asyncio's and uvloop's connections call it.

This module is not compiled: a compiled class cannot be one of asyncio's protocols.
"""

from __future__ import annotations

import asyncio

from bendybus.cluster.link import PeerLink

__all__ = ["LinkProtocol"]


class LinkProtocol(asyncio.BufferedProtocol):
    def __init__(self, link: PeerLink) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._link.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._link.arrived(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.connection_lost(exc)
