"""One simulation of several brokers: their processes, the network, the databases, and how all of these fail.

Everything that a server alone must keep, a cluster must keep too. In addition at most one broker at a time
may write to a messaging store (fences.py), and when nothing goes wrong any more, every broker must soon reach
every partition again. Processes are killed, stopped in order, and paused for longer than it takes to be
presumed dead.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from bendybus.broker.placing import placed_in, unplaced
from bendybus.cluster import sweeping
from faults.simulation.brokers import START_AGAIN_S, Brokers, ClusterBroker, Machines
from faults.simulation.cluster_ledger import ClusterLedger, ClusterSessionStates
from faults.simulation.cluster_network import CLIENTS, ClusterNetwork
from faults.simulation.cluster_plan import ClusterPlan
from faults.simulation.databases import CATALOG, CatalogDatabase, StoreAccess, StoreDatabase
from faults.simulation.fences import Fence
from faults.simulation.ledger import Invariant
from faults.simulation.mirror import compare
from faults.simulation.play import Outcome, Play, undisturbed
from faults.simulation.stores import DiskFaults
from fix_client import Endpoint

__all__ = ["ClusterSimulation", "simulate_cluster"]

# How long each lasts.
PAUSE_S = (0.5, 12.0)
BLOCK_S = (0.5, 10.0)
OUTAGE_S = (0.5, 10.0)
DOWN_S = (0.01, 8.0)
FAILOVER_S = (0.1, 6.0)
DRAINED_S = (0.5, 8.0)
STOP_WITHIN_S = 30.0

# When nothing goes wrong any more, all partitions are reached from everywhere after so long: a stall takes up
# to two minutes, and a store that failed several times is left alone for half a minute.
WHOLE_WITHIN_S = 200.0

# Sweeps meet everything else only if there are many of them.
SWEEPS = {"SETTLED_AFTER_S": 0.2, "AGAIN_AFTER_S": 1.0, "EVERY_S": 1.0}


class ClusterSimulation(Play):
    steps_max = 400_000

    def __init__(self, seed: int, brokers: int, *, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, tell=tell)
        planned = ClusterPlan.of(random.Random(f"plan {seed} of {brokers} brokers"), brokers)
        self.plan, self.fault_rates = planned.plan, planned.fault_rates
        self.ledger: ClusterLedger = ClusterLedger(self.world, self.plan, self._disturbed)
        self.states = ClusterSessionStates(self._misremembered, self.ledger)
        self.network = ClusterNetwork(self.world, self.ledger.lose_connection)
        self.clients.network = self.network
        assert self.clients.machine == CLIENTS
        self.fence = Fence(lambda what: self.ledger.violate(Invariant.TWO_OWNERS, what), self.ledger.disturb)
        self.catalog: CatalogDatabase = CatalogDatabase()
        self.stores = [StoreDatabase(f"store-{number}") for number in range(self.plan.stores)]
        machines = Machines(
            self.world,
            self.network,
            self.catalog,
            self.stores,
            self.fence,
            self.plan.tier,
            self.complain,
            self._watch,
        )
        machines.on_stall = self.ledger.fault
        self.server: Brokers = Brokers(planned.brokers, machines)
        self.catalog_outages = self.failovers = 0

    def _watch(self, access: StoreAccess) -> None:
        access.watcher = self.ledger.observe
        access.doubter = self.doubt

    def _disturbed(self) -> bool:
        return not self.network.is_whole or any(each.paused for each in self.server.all) or self.fence.unaware

    def endpoint(self, dice: random.Random) -> Endpoint:
        """Any broker; when all is over, one that is up."""
        up = self.server.up if self.over else []
        return self.server.endpoint(dice.choice(up or self.server.all))

    def deleted(self, entity: str, asked_at: float, *, answered: bool) -> None:
        partitions = [record for store in self.stores for record in store.partitions()]
        left = [record for record in partitions if record.entity == entity]
        # The owner of a store that stalls has given it up, and answers without it.
        stalled = any(each.disk.is_stalled for each in self.server.all)
        self.ledger.delete(left, asked_at, answered=answered and not stalled)

    def faults(self) -> dict[str, int]:
        all_brokers, disks = self.server.all, [each.disk for each in self.server.all]
        return {
            "kills": sum(each.crashes for each in all_brokers),
            "orderly ends": sum(each.stops for each in all_brokers),
            "pauses": sum(each.pauses for each in all_brokers),
            "stores that moved": self.fence.moves,
            "connections cut": self.network.cuts,
            "directions blocked": self.network.blocks,
            "torn commits": sum(each.torn for each in disks),
            "lost replies": sum(each.lost_replies for each in disks),
            "stalls": sum(each.stalls for each in disks),
            "failed reads": sum(each.unreadable for each in disks),
            "outages of stores": self.outages,
            "outages of the catalog": self.catalog_outages,
            "standbys that took over": self.failovers,
            "brokers drained": sum(each.drains for each in all_brokers),
            "clock jumps": self.jumps,
        }

    def look(self) -> None:
        for each in self.server.up:
            self._compare(each)

    def _compare(self, each: ClusterBroker, *, everything: bool = False) -> None:
        if each.broker is not None:
            compare(self.ledger, each.broker, everything=everything, owned=self.fence.owns)

    # -- the play --------------------------------------------------------------------------

    async def ready(self) -> None:
        await self._whole("before anything went wrong")

    async def _whole(self, when: str) -> None:
        """Every broker is up and reaches every partition, and every store has an owner."""
        ends_at = self.world.now + WHOLE_WITHIN_S
        while True:
            missing = [f"{each.name}: {each.missing()}" for each in self.server.all if each.missing()]
            missing += [f"nobody owns {store.name}" for store in self.stores if not store.owner.instance]
            if not missing:
                return
            if self.world.now > ends_at:
                self.ledger.violate(Invariant.STUCK, f"{when}: {'; '.join(missing)}")
                return
            await asyncio.sleep(0.5)

    async def last_life(self) -> None:
        await self._whole("after everything went wrong")
        for each in self.server.up:
            self._compare(each, everything=True)
        for each in self.server.all:
            each.supervised = False
            if each.is_up:
                each.crash()
        self.ledger.disturb()
        last = self.world.random.choice(self.server.all)
        last.start()
        ends_at = self.world.now + WHOLE_WITHIN_S
        while last.missing() or last.owned != len(self.stores):
            if self.world.now > ends_at:
                raise AssertionError(f"{last.name} does not own everything alone: {last.missing()}")
            await asyncio.sleep(0.1)
        self._compare(last, everything=True)
        await self._swept(ends_at)

    async def _swept(self, ends_at: float) -> None:
        """The leader has removed the partitions that belong to no entity (cluster/sweeping.py)."""
        while True:
            placed = placed_in(self.catalog.entities())
            left = [
                f"partition {record.number} of '{record.entity}' in {store.name}"
                for store in self.stores
                for record in unplaced(store.partitions(), placed.get(store.name, set()))
            ]
            if not left:
                return
            if self.world.now > ends_at:
                self.ledger.violate(Invariant.STUCK, f"belongs to no entity: {'; '.join(left)}")
                return
            await asyncio.sleep(0.5)

    # -- faults -----------------------------------------------------------------------

    def forecast(self) -> None:
        rates = self.fault_rates
        for each in self.server.all:
            each.disk.faults = self.plan.fault_rates.disk
        self.every(rates.end_every_s, self._end_one)
        self.every(rates.pause_every_s, self._pause_one)
        self.every(rates.cut_every_s, self.network.cut_one)
        self.every(rates.block_every_s, self._block)
        self.every(rates.outage_every_s, self._outage)
        self.every(rates.catalog_outage_every_s, self._catalog_outage)
        self.every(rates.jump_every_s, self.jump)
        self.every(rates.failover_every_s, self._fail_over)
        self.every(rates.drain_every_s, self._drain_one)

    def clear_up(self) -> None:
        self.network.heal()
        for store in self.stores:
            store.away_until = 0.0
        self.catalog.away_until = 0.0
        for each in self.server.all:
            each.disk.faults = DiskFaults()
            each.resume()
            each.drain(draining=False)
        self.ledger.disturb()

    def _any(self) -> ClusterBroker | None:
        able = [each for each in self.server.up if not each.paused]
        return self.world.random.choice(able) if able else None

    def _end_one(self) -> None:
        chosen = self._any()
        if chosen is None:
            return
        self._compare(chosen, everything=True)
        self.ledger.fault()
        self.ledger.doubt_unanswered()
        loop = chosen.loop
        if chosen.broker is not None and self.world.chance(self.fault_rates.orderly_share):
            chosen.stop()
            # Should it not come to an end by itself, it is killed.
            self.world.later(STOP_WITHIN_S, lambda: chosen.crash() if loop.alive else None)
        else:
            chosen.crash()

        def start_again() -> None:
            if loop.alive:
                self.world.later(START_AGAIN_S, start_again)
            else:
                chosen.start_again()

        self.world.later(self.world.between(*DOWN_S), start_again)

    def _pause_one(self) -> None:
        chosen = self._any()
        if chosen is None:
            return
        loop = chosen.loop
        chosen.pause()
        self.ledger.disturb()

        def resume() -> None:
            if chosen.loop is loop:
                chosen.resume()
                self.ledger.disturb()

        self.world.later(self.world.between(*PAUSE_S), resume)

    def _block(self) -> None:
        """One direction or both, between one broker and: another, all others, a database or everything."""
        dice = self.world.random
        names = [each.name for each in self.server.all]
        one = dice.choice(names)
        others = [name for name in names if name != one]
        databases = [CATALOG, *(store.name for store in self.stores)]
        targets = dice.choice(
            ([dice.choice(others)], others, [dice.choice(databases)], [*others, *databases])
        )
        directions = dice.choice(((True,), (False,), (True, False)))
        ways = [(one, each) if out else (each, one) for each in targets for out in directions]
        for way in ways:
            self.network.block(*way)
        self.ledger.disturb()

        def unblock() -> None:
            for way in ways:
                self.network.unblock(*way)
            self.ledger.disturb()

        self.world.later(self.world.between(*BLOCK_S), unblock)

    def _outage(self) -> None:
        self.outages += 1
        self.ledger.fault()
        store = self.world.random.choice(self.stores)
        self.world.note(f"{store.name} away")
        store.away_until = self.world.now + self.world.between(*OUTAGE_S)

    def _fail_over(self) -> None:
        self.failovers += 1
        self.ledger.fault()
        database = self.world.random.choice([self.catalog, *self.stores])
        name = CATALOG if isinstance(database, CatalogDatabase) else database.name
        self.world.note(f"the standby of {name} takes over")
        database.failovers += 1
        database.away_until = self.world.now + self.world.between(*FAILOVER_S)

    def _drain_one(self) -> None:
        chosen = self._any()
        if chosen is not None:
            chosen.drain(draining=True)
            self.world.later(self.world.between(*DRAINED_S), lambda: chosen.drain(draining=False))

    def _catalog_outage(self) -> None:
        self.catalog_outages += 1
        self.world.note(f"{CATALOG} away")
        self.catalog.away_until = self.world.now + self.world.between(*OUTAGE_S)


class _Unexpected(logging.Handler):
    """Every traceback that a broker logs is an error that no fault explains."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._complain = complain

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._complain(f"{record.name}: {record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _overheard(complain: Callable[[str], None]) -> Iterator[None]:
    logger, handler = logging.getLogger("bendybus"), _Unexpected(complain)
    level, propagates = logger.level, logger.propagate
    logging.disable(logging.WARNING)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


def simulate_cluster(seed: int, brokers: int, *, tell: Callable[[str], None] | None = None) -> Outcome:
    """Play this seed with so many brokers; the same seed gives the same outcome, to the last byte."""
    with undisturbed():
        simulation = ClusterSimulation(seed, brokers, tell=tell)
        with _overheard(simulation.complain), patch.multiple(sweeping, **SWEEPS):
            return simulation.run()
