"""One simulation: a seed's plan is played, faults and all, then everything is received that can be.

Invariants are looked at after every step that could break them: what peers are
told and shown, and what stores commit (ledger.py); the broker's memory whenever a
store is idle (mirror.py). In the end disks are good again, a last life of the
server begins, and one client empties every entity: what is left then is stuck.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bendybus.broker.lifecycle import Availability
from bendybus.domain.entities import QueueDescription
from bendybus.domain.routing import partition_of
from bendybus.names import EntityPath
from bendybus.store.protocol import PartitionKey
from faults.simulation.closing import empty_everything
from faults.simulation.ledger import Invariant, Ledger
from faults.simulation.loop import Loop
from faults.simulation.mirror import compare
from faults.simulation.network import Network
from faults.simulation.peers import PEERS
from faults.simulation.plan import Plan
from faults.simulation.server import Server
from faults.simulation.states import SessionStates
from faults.simulation.stores import Disk, DiskFaults, VirtualCatalog, VirtualStore
from faults.simulation.substitution import substituted
from faults.simulation.world import World

__all__ = ["Outcome", "Simulation", "simulate"]

# What a broker may answer when faults are about, or when somebody else was first.
EXCUSED = (
    "com.microsoft:server-busy",
    "com.microsoft:message-lock-lost",
    "com.microsoft:session-lock-lost",
    "com.microsoft:session-cannot-be-locked",
    "com.microsoft:timeout",
    "amqp:not-found",
    "com.microsoft:message-not-found",
    "amqp:transaction:unknown-id",
    "amqp:transaction:rollback",
    "amqp:transaction:timeout",
)

# Steps between two looks into the broker's memory, as far as it has changed.
LOOK_EVERY = 16

# More than any simulation needs: one that goes on beyond it never ends.
STEPS_MAX = 100_000


@dataclass(slots=True)
class Outcome:
    """What came of a seed."""

    seed: int
    fingerprint: str
    steps: int
    virtual_s: float
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[tuple[Invariant, str]] = field(default_factory=list)


class Simulation:
    def __init__(self, seed: int, *, tell: Callable[[str], None] | None = None) -> None:
        self.world = World(seed, tell=tell)
        self.plan = Plan.of(random.Random(f"plan {seed}"))
        self.ledger = Ledger(self.world, self.plan)
        self.states = SessionStates(lambda what: self.ledger.violate(Invariant.FORGOTTEN, what))
        self.over = False
        """Whether the peers are to go home."""
        self.network = Network(self.world)
        self.disk = Disk(self.world, DiskFaults())
        self.stores = [VirtualStore(f"store-{number}", self.disk) for number in range(self.plan.stores)]
        self.catalog = VirtualCatalog(self.disk)
        for store in self.stores:
            store.watcher = self.ledger.observe
            store.doubter = self._doubt
        self.disk.on_stall = self.ledger.fault
        self.clients = Loop(self.world, "clients", self._complain)
        self.clients.network = self.network
        self.server = Server(
            self.world, self.network, self.disk, self.stores, self.catalog, self.plan.tier, self._complain
        )
        self.jumps = 0
        self.outages = 0

    # -- for peers -----------------------------------------------------------------------

    def refused(self, condition: str | None, what: str) -> None:
        if condition not in EXCUSED:
            self.ledger.violate(Invariant.FAULTY, what)

    def detects(self, entity: str) -> bool:
        """Whether duplicates are dropped here."""
        described = [*self.plan.queues, *self.plan.topics]
        return any(each.path == entity and each.requires_duplicate_detection for each in described)

    def keeps_dead_letters(self, entity: str) -> bool:
        return self.plan.describe(entity).forward_dead_lettered_to is None

    def key_for(self, entity: str, number: int) -> str:
        """A key whose messages go to this partition."""
        record = next(each for each in self.catalog.entities() if each.path == entity)
        keys = (f"t{index}" for index in range(100_000))
        return next(key for key in keys if partition_of(key, record.partition_count) == number)

    @staticmethod
    def passing(lock_duration_s: int) -> QueueDescription:
        return QueueDescription(
            EntityPath("passing"), enable_partitioning=True, lock_duration_s=lock_duration_s
        )

    # -- the play ------------------------------------------------------------------------

    def run(self) -> Outcome:
        with substituted(self.world, lambda: self.server.threads):
            try:
                self._play()
            except Exception as failure:
                self.ledger.violate(Invariant.FAULTY, f"the simulation broke off: {failure!r}")
                if self.world._tell is not None:
                    raise
            finally:
                self.server.bury()
                self.clients.bury()
        ledger, disk = self.ledger, self.disk
        return Outcome(
            seed=self.world.seed,
            fingerprint=self.world.fingerprint,
            steps=self.world.steps,
            virtual_s=self.world.now,
            counts={
                "messages sent": ledger.sent,
                "acknowledged": ledger.acknowledged,
                "deliveries": ledger.delivered,
                "completed": ledger.completed,
                "crashes": self.server.crashes,
                "restarts": self.server.lives - 1 - self.server.crashes,
                "connections cut": self.network.cuts,
                "torn commits": disk.torn,
                "lost replies": disk.lost_replies,
                "stalls": disk.stalls,
                "failed reads": disk.unreadable,
                "outages": self.outages,
                "clock jumps": self.jumps,
            },
            violations=ledger.violations,
        )

    def _play(self) -> None:
        self.server.start()
        director = self.clients.create_task(self._direct())
        while not director.done():
            self.world.step()
            if self.ledger.dirty and self.server.broker is not None and not self.world.steps % LOOK_EVERY:
                compare(self.ledger, self.server.broker)
            if self.world.steps > STEPS_MAX:
                self.ledger.violate(Invariant.STUCK, f"not over after {STEPS_MAX} steps")
                return
        director.result()

    async def _direct(self) -> None:
        """On the clients' side, so that the server's death does not end it."""
        await self._furnish()
        self.disk.faults = self.plan.weather.disk
        self._forecast()
        peers = [
            self.clients.create_task(PEERS[kind](self, f"{kind}{number}", entity).live())
            for number, (kind, entity) in enumerate(self.plan.peers)
        ]
        await asyncio.sleep(self.plan.duration_s)
        self.over = True
        self.disk.faults = DiskFaults()
        for store in self.stores:
            store.come_back()
        await asyncio.wait(peers)
        for peer in peers:
            if peer.exception() is not None:
                raise AssertionError("a peer failed") from peer.exception()
        await self._last_life()
        await empty_everything(self)

    async def _furnish(self) -> None:
        while self.server.broker is None:
            await asyncio.sleep(0.1)
        await self.server.ask(lambda broker: broker.queues.ensure_all(self.plan.queues))
        for topic in self.plan.topics:
            await self.server.ask(lambda broker, topic=topic: broker.topics.ensure(topic))
        for each in self.plan.subscriptions:
            await self.server.ask(lambda broker, each=each: broker.topics.ensure_subscription(each))

    async def _last_life(self) -> None:
        """A fresh start frees all locks; then all there is can be had."""
        while self.server.broker is None:
            await asyncio.sleep(0.1)
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

    # -- the weather ---------------------------------------------------------------------

    def _forecast(self) -> None:
        weather = self.plan.weather
        self._every(weather.crash_every_s, self._end_life)
        self._every(weather.cut_every_s, self.network.cut_one)
        self._every(weather.outage_every_s, self._outage)
        self._every(weather.jump_every_s, self._jump)

    def _every(self, around_s: float, happen: Callable[[], None]) -> None:
        if not around_s:
            return

        def now() -> None:
            if not self.over:
                happen()
                self.world.later(self.world.random.expovariate(1 / around_s), now)

        self.world.later(self.world.random.expovariate(1 / around_s), now)

    def _end_life(self) -> None:
        """Crash or stop, and start again a little later."""
        server = self.server
        if not server.loop.alive:
            return
        if server.broker is not None:
            compare(self.ledger, server.broker, everything=True)
        self.ledger.fault()
        if self.world.chance(self.plan.weather.stop_rather):
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

    def _jump(self) -> None:
        """Somebody sets the clock."""
        self.jumps += 1
        by_ms = int(self.world.between(-2_000, 120_000))
        self.world.note(f"clock jumps by {by_ms} ms")
        self.world.move_wall(by_ms)

    def _doubt(self, store: VirtualStore, keys: list[PartitionKey]) -> None:
        self.ledger.fault()
        self.ledger.doubt(store, keys)

    def _complain(self, what: str) -> None:
        self.ledger.violate(Invariant.FAULTY, what)


def simulate(seed: int, *, tell: Callable[[str], None] | None = None) -> Outcome:
    """Play this seed; the same seed gives the same outcome, to the last byte."""
    gc.disable()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return Simulation(seed, tell=tell).run()
    finally:
        logging.disable(disabled)
        gc.enable()
