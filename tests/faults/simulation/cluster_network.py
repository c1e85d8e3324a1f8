"""The network of a virtual cluster: clients, brokers and databases, and what does not get through.

Each direction between two machines can be blocked by itself. What is written meanwhile arrives, in its order,
when the block ends, as with TCP; neither side is told. New connections time out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from faults.simulation.loop import Loop
from faults.simulation.network import LATENCY_S, End, Network
from faults.simulation.world import World

__all__ = ["CLIENTS", "ClusterNetwork"]

CLIENTS = "clients"
"""The machine on which all clients are."""

CONNECT_TIMEOUT_S = 5.0


class ClusterNetwork(Network):
    def __init__(self, world: World, lost: Callable[[], None]) -> None:
        """`lost` is called when a connection between two brokers ends."""
        super().__init__(world)
        self._listeners: dict[str, tuple[Loop, Callable[[], asyncio.Protocol]]] = {}
        self._blocked: dict[tuple[str, str], list[Callable[[], None]]] = {}
        """Directions in which nothing gets through, and what waits there."""
        self.lost = lost
        self.blocks = 0

    # -- connections ----------------------------------------------------------------------

    def listen(self, host: str, loop: Loop, accept: Callable[[], asyncio.Protocol]) -> None:
        self._listeners[host] = loop, accept

    def hang_up(self, host: str) -> None:
        """No new connections to there."""
        self._listeners.pop(host, None)

    async def connect(
        self, loop: Loop, factory: Callable[[], asyncio.Protocol], host: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(self.world.between(*LATENCY_S))
        listener = self._listeners.get(host)
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens at {host}")
        ways = (loop.machine, listener[0].machine), (listener[0].machine, loop.machine)
        if any(self.is_blocked(*way) for way in ways):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise TimeoutError(f"{host} does not answer")
        return self.join(loop, factory, *listener)

    def lose(self, loop: Loop) -> None:
        """A process is gone: its ends of all connections are."""
        self._listeners = {host: each for host, each in self._listeners.items() if each[0] is not loop}
        for wire in tuple(self.wires):
            for end in (wire.client, wire.server):
                if end.loop is loop:
                    end.abort()

    # -- blocks ---------------------------------------------------------------------------

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    @property
    def is_whole(self) -> bool:
        return not self._blocked

    def block(self, source: str, target: str) -> None:
        if (source, target) not in self._blocked:
            self.blocks += 1
            self.world.note(f"nothing gets from {source} to {target}")
            self._blocked[source, target] = []

    def unblock(self, source: str, target: str) -> None:
        waiting = self._blocked.pop((source, target), None)
        if waiting is not None:
            self.world.note(f"everything gets from {source} to {target}")
            for happen in waiting:
                happen()

    def heal(self) -> None:
        for way in tuple(self._blocked):
            self.unblock(*way)

    def carry(self, source: str, target: str, happen: Callable[[], None]) -> None:
        """Let it happen at the target, as soon as that can be."""
        waiting = self._blocked.get((source, target))
        if waiting is None:
            happen()
        else:
            waiting.append(happen)


class _End(End):
    """One process's end of a connection that may be blocked."""

    @property
    def _between_brokers(self) -> bool:
        return CLIENTS not in (self.loop.machine, self.peer.loop.machine)

    def arrive(self, piece: bytes) -> None:
        self._carry(lambda: End.arrive(self, piece))

    def hear_end(self) -> None:
        self._carry(lambda: End.hear_end(self))

    def _carry(self, happen: Callable[[], None]) -> None:
        network = self.wire.network
        assert isinstance(network, ClusterNetwork)
        network.carry(self.peer.loop.machine, self.loop.machine, happen)

    def abort(self) -> None:
        super().abort()
        self._tell()

    def _lose(self) -> None:
        super()._lose()
        self._tell()

    def _tell(self) -> None:
        network = self.wire.network
        assert isinstance(network, ClusterNetwork)
        if self._between_brokers:
            network.lost()


ClusterNetwork.ends = _End
