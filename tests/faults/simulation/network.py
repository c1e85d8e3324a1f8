"""The wire between clients and the server: bytes in order, in pieces, late, or never.

Each connection is two transports. What one writes arrives at the other after a
while, cut into other pieces; what is under way when a connection is cut or a
process dies arrives whole, in part or not at all, as the dice say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from zlib import crc32

from faults.simulation.loop import Loop
from faults.simulation.world import World

__all__ = ["Network"]

# How long bytes travel: within one building mostly.
LATENCY_S = (0.0001, 0.004)
# A peer that writes past this much and is not read is told to wait.
HIGH_WATER_BYTES = 16 * 1024


class Network:
    """Knows the server that is up, if one is, and every connection."""

    ends: type[End]
    """What a connection has two of."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listening: tuple[Loop, Callable[[], asyncio.Protocol]] | None = None
        self.wires: dict[Wire, None] = {}
        self.cuts = 0
        self._made = 0

    async def connect(
        self, loop: Loop, factory: Callable[[], asyncio.Protocol], host: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(self.world.between(*LATENCY_S))
        if self.listening is None:
            raise ConnectionRefusedError("no server listens")
        return self.join(loop, factory, *self.listening)

    def join(
        self,
        loop: Loop,
        factory: Callable[[], asyncio.Protocol],
        server_loop: Loop,
        accept: Callable[[], asyncio.Protocol],
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """A new connection between two processes."""
        self._made += 1
        wire = Wire(self, f"wire-{self._made}", loop, server_loop)
        self.wires[wire] = None
        protocol = factory()
        wire.client.protocol = protocol
        server_loop.call_soon(wire.server.accepted, accept)
        protocol.connection_made(wire.client)
        return wire.client, protocol

    def lose_server(self) -> None:
        """The server's process is gone: its ends of all connections are."""
        self.listening = None
        for wire in tuple(self.wires):
            wire.server.abort()

    def cut_one(self) -> None:
        """Some connection breaks."""
        if self.wires:
            self.cuts += 1
            wire = self.world.random.choice(tuple(self.wires))
            self.world.note(f"cut {wire.name}")
            wire.cut()


class Wire:
    """One connection: two ends."""

    def __init__(self, network: Network, name: str, client: Loop, server: Loop) -> None:
        self.network = network
        self.name = name
        self.client = network.ends(self, client, "client")
        self.server = network.ends(self, server, "server")
        self.client.peer, self.server.peer = self.server, self.client

    def cut(self) -> None:
        self.client.abort()
        self.server.abort()

    def end_lost(self) -> None:
        if all(end.lost or not end.loop.alive for end in (self.client, self.server)):
            self.network.wires.pop(self, None)


class End(asyncio.Transport):
    """One process's end of a connection."""

    def __init__(self, wire: Wire, loop: Loop, side: str) -> None:
        super().__init__({"peername": (wire.name, 0)})
        self.wire = wire
        self.world = wire.network.world
        self.loop = loop
        self.side = side
        self.peer: End
        self.protocol: asyncio.Protocol | asyncio.BufferedProtocol | None = None
        self.lost = False
        self._closing = False
        self._reading = True
        self._arrived: list[bytes] = []
        self._hears_end = False
        """The other side has gone; told when all that arrived before has been read."""
        self._under_way = 0
        """Bytes written here that the other side has not taken."""
        self._last_arrival = 0.0
        self._full = False
        self._dropping = False
        """What this side had written is not to arrive any more."""

    def accepted(self, accept: Callable[[], asyncio.Protocol]) -> None:
        self.protocol = accept()
        self.protocol.connection_made(self)
        if self._arrived:
            self._read()
        self._end_if_over()

    # -- asyncio.Transport ------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        for piece in self._pieces(bytes(data)):
            self._under_way += len(piece)
            self._last_arrival = max(self._last_arrival, self.world.now + self.world.between(*LATENCY_S))
            self.world.at(self._last_arrival, lambda piece=piece: self.peer.arrive(piece))
        if self._under_way > HIGH_WATER_BYTES and not self._full and self.protocol is not None:
            self._full = True
            self.protocol.pause_writing()

    def _pieces(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self.world.chance(0.8):
            return [data]
        place = self.world.random.randrange(1, len(data))
        return [data[:place], data[place:]]

    def close(self) -> None:
        """What was written still arrives."""
        if not self._closing:
            self._closing = True
            self.world.at(max(self._last_arrival, self.world.now), self.peer.hear_end)
            if self.loop.alive:
                self.loop.call_soon(self._lose)

    def abort(self) -> None:
        """At once; what is under way arrives or does not."""
        if self.lost:
            return
        self._dropping = self.world.chance(0.5)
        if self._closing:
            return
        self._closing = True
        self.world.later(self.world.between(*LATENCY_S), self.peer.hear_end)
        if self.loop.alive:
            self.loop.call_soon(self._lose)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._arrived or self._hears_end:
            self.loop.call_soon(self._read)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def get_write_buffer_size(self) -> int:
        return self._under_way

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.wire.name, 0) if name == "peername" else default

    # -- the wire's side --------------------------------------------------------------

    def arrive(self, piece: bytes) -> None:
        if self.peer._dropping or self._closing or not self.loop.alive:
            return
        self.world.note(f"{self.wire.name} {self.side} takes {len(piece)} {crc32(piece):08x}")
        self._arrived.append(piece)
        if len(self._arrived) == 1 and self._reading and self.protocol is not None:
            self.loop.call_soon(self._read)

    def hear_end(self) -> None:
        self._hears_end = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        over = self._hears_end and not self._arrived and not self._closing and self.protocol is not None
        if over and self.loop.alive:
            self._closing = True
            self.loop.call_soon(self._lose)

    def _read(self) -> None:
        if not self._reading or self._closing or self.protocol is None:
            return
        data, self._arrived = b"".join(self._arrived), []
        if data:
            self.peer._taken(len(data))
            self._give(self.protocol, data)
        self._end_if_over()

    @staticmethod
    def _give(protocol: asyncio.Protocol | asyncio.BufferedProtocol, data: bytes) -> None:
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
            return
        while data:
            room = protocol.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]

    def _taken(self, size: int) -> None:
        self._under_way -= size
        if self._full and self._under_way <= HIGH_WATER_BYTES // 4 and self.loop.alive:
            self._full = False
            if self.protocol is not None:
                self.loop.call_soon(self.protocol.resume_writing)

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._closing = True
        if self.protocol is not None:
            self.protocol.connection_lost(None)
        self.wire.end_lost()


Network.ends = End
