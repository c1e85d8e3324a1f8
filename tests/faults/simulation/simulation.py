"""One simulation of a server that is alone: its process, its disks, and how both fail. The play: play.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from bendybus.broker.lifecycle import Availability
from faults.simulation.ledger import Ledger
from faults.simulation.mirror import compare
from faults.simulation.network import Network
from faults.simulation.plan import Plan
from faults.simulation.play import Outcome, Play, undisturbed
from faults.simulation.server import ENDPOINT, Server
from faults.simulation.stores import Disk, DiskFaults, VirtualCatalog, VirtualStore
from fix_client import Endpoint

__all__ = ["Simulation", "simulate"]


class Simulation(Play):
    steps_max = 100_000

    def __init__(self, seed: int, *, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, tell=tell)
        self.plan = Plan.of(random.Random(f"plan {seed}"))
        self.ledger = Ledger(self.world, self.plan)
        self.network = Network(self.world)
        self.disk = Disk(self.world, DiskFaults())
        self.stores = [VirtualStore(f"store-{number}", self.disk) for number in range(self.plan.stores)]
        self.catalog: VirtualCatalog = VirtualCatalog(self.disk)
        for store in self.stores:
            store.watcher = self.ledger.observe
            store.doubter = self.doubt
        self.disk.on_stall = self.ledger.fault
        self.clients.network = self.network
        self.server: Server = Server(
            self.world, self.network, self.disk, self.stores, self.catalog, self.plan.tier, self.complain
        )

    def endpoint(self, dice: random.Random) -> Endpoint:
        return ENDPOINT

    def deleted(self, entity: str, asked_at: float, *, answered: bool) -> None:
        """Whatever is left of it is removed when the server starts again."""

    def faults(self) -> dict[str, int]:
        disk = self.disk
        return {
            "crashes": self.server.crashes,
            "restarts": self.server.lives - 1 - self.server.crashes,
            "connections cut": self.network.cuts,
            "torn commits": disk.torn,
            "lost replies": disk.lost_replies,
            "stalls": disk.stalls,
            "failed reads": disk.unreadable,
            "outages": self.outages,
            "clock jumps": self.jumps,
        }

    def look(self) -> None:
        if self.server.broker is not None:
            compare(self.ledger, self.server.broker)

    async def ready(self) -> None:
        while self.server.broker is None:
            await asyncio.sleep(0.1)

    async def last_life(self) -> None:
        await self.ready()
        before = self.server.loop
        self._end_life()
        while self.server.loop is before or self.server.broker is None:
            await asyncio.sleep(0.1)
        broker = self.server.broker
        for entity in (*broker.entities.sources(), *broker.topics):
            for host in entity.hosts:
                while host.availability is not Availability.AVAILABLE:
                    await asyncio.sleep(0.1)
        compare(self.ledger, broker, everything=True)

    # -- faults ---------------------------------------------------------------------

    def clear_up(self) -> None:
        self.disk.faults = DiskFaults()
        for store in self.stores:
            store.come_back()

    def forecast(self) -> None:
        rates = self.plan.fault_rates
        self.disk.faults = rates.disk
        self.every(rates.crash_every_s, self._end_life)
        self.every(rates.cut_every_s, self.network.cut_one)
        self.every(rates.outage_every_s, self._outage)
        self.every(rates.jump_every_s, self.jump)

    def _end_life(self) -> None:
        """Crash or stop, and start again a little later."""
        server = self.server
        if not server.loop.alive:
            return
        if server.broker is not None:
            compare(self.ledger, server.broker, everything=True)
        self.ledger.fault()
        if self.world.chance(self.plan.fault_rates.orderly_share):
            server.stop()
            # Should it not come to an end by itself, it is killed.
            loop = server.loop
            self.world.later(30, lambda: server.crash() if loop.alive else None)
        else:
            server.crash()
        self._start_when_down()

    def _start_when_down(self) -> None:
        if self.server.loop.alive:
            self.world.later(0.1, self._start_when_down)
        else:
            self.world.later(self.world.between(0.01, 2), self._start_if_down)

    def _start_if_down(self) -> None:
        if not self.server.loop.alive:
            self.server.start()

    def _outage(self) -> None:
        self.outages += 1
        self.ledger.fault()
        self.world.random.choice(self.stores).go_away(self.world.between(0.5, 20))


def simulate(seed: int, *, tell: Callable[[str], None] | None = None) -> Outcome:
    """Play this seed; the same seed gives the same outcome, to the last byte."""
    with undisturbed():
        return Simulation(seed, tell=tell).run()
