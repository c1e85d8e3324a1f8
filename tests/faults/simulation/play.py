"""What every simulation does: a seed's plan is played, faults and all, then all is received that can be.

Invariants are looked at after every step that could break them: what peers are
told and shown, and what stores commit (ledger.py); the broker's memory whenever a
store is idle (mirror.py). In the end disks are good again, a last life of the
server begins, and one client empties every entity: what is left then is stuck.
A server that is alone: simulation.py. Several brokers: cluster_simulation.py.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from bendybus.broker.broker import Broker
from bendybus.domain.entities import QueueDescription
from bendybus.domain.routing import partition_of
from bendybus.errors import Unavailable
from bendybus.names import EntityPath
from bendybus.store.catalog import EntityRecord
from bendybus.store.protocol import PartitionKey
from faults.simulation.closing import empty_everything
from faults.simulation.ledger import Invariant, Ledger
from faults.simulation.loop import Loop
from faults.simulation.peers import PEERS
from faults.simulation.plan import Plan
from faults.simulation.states import SessionStates
from faults.simulation.stores import VirtualStore
from faults.simulation.substitution import substituted
from faults.simulation.threads import Threading
from faults.simulation.world import World
from fix_client import Endpoint

__all__ = ["Outcome", "Play", "undisturbed"]

T = TypeVar("T")

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

# By then nothing has gone wrong yet, and an entity is created at the latest.
FURNISHED_WITHIN_S = 20.0

# Steps between two looks into the broker's memory, as far as it has changed.
LOOK_EVERY = 16


@dataclass(slots=True)
class Outcome:
    """What came of a seed."""

    seed: int
    fingerprint: str
    steps: int
    virtual_s: float
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[tuple[Invariant, str]] = field(default_factory=list)


class Servers(Protocol):
    """The processes that serve."""

    @property
    def broker(self) -> Broker | None:
        """Of the one that is up, when there is only one."""

    @property
    def threads(self) -> Threading:
        """Of the process that is running now."""

    def start(self) -> None: ...
    def bury(self) -> None: ...
    async def ask(self, what: Callable[[Broker], Awaitable[T]]) -> T: ...


class Listing(Protocol):
    """The catalog."""

    def entities(self) -> list[EntityRecord]: ...
    def holds(self, path: str) -> bool: ...


class Play(ABC):
    steps_max: int
    """More than any simulation needs: one that goes on beyond it never ends."""

    plan: Plan
    ledger: Ledger
    server: Servers
    catalog: Listing

    def __init__(self, seed: int, *, tell: Callable[[str], None] | None = None) -> None:
        self.world = World(seed, tell=tell)
        self.states = SessionStates(self._misremembered)
        self.over = False
        """Whether the peers are to go home."""
        self.jumps = 0
        self.outages = 0
        self.clients = Loop(self.world, "clients", self.complain)

    # -- what the parts tell ---------------------------------------------------------------

    def complain(self, what: str) -> None:
        self.ledger.violate(Invariant.FAULTY, what)

    def doubt(self, store: VirtualStore, keys: list[PartitionKey]) -> None:
        self.ledger.fault()
        self.ledger.doubt(store, keys)

    def _misremembered(self, what: str) -> None:
        self.ledger.violate(Invariant.FORGOTTEN, what)

    # -- for peers -----------------------------------------------------------------------

    @abstractmethod
    def endpoint(self, dice: random.Random) -> Endpoint:
        """Where a client connects to next."""

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

    @abstractmethod
    def deleted(self, entity: str, asked_at: float, *, answered: bool) -> None:
        """The catalog does not list an entity any more that a peer has asked to delete."""

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
        ledger = self.ledger
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
                "deliveries of what was settled, explained by a fault": ledger.late,
                "replays": ledger.keeping.replays,
                "put back by them": ledger.keeping.came_back_count,
                "forgotten in time": ledger.keeping.forgotten_count,
                **self.faults(),
            },
            violations=ledger.violations,
        )

    @abstractmethod
    def faults(self) -> dict[str, int]:
        """What has gone wrong, how often."""

    def _play(self) -> None:
        self.server.start()
        director = self.clients.create_task(self._direct())
        while not director.done():
            self.world.step()
            if self.ledger.dirty and not self.world.steps % LOOK_EVERY:
                self.look()
            if self.world.steps > self.steps_max:
                self.ledger.violate(Invariant.STUCK, f"not over after {self.steps_max} steps")
                return
        director.result()

    @abstractmethod
    def look(self) -> None:
        """Compare the memory of brokers with the disks."""

    async def _direct(self) -> None:
        """On the clients' side, so that a server's death does not end it."""
        await self.ready()
        await self._furnish()
        self.forecast()
        peers = [
            self.clients.create_task(PEERS[kind](self, f"{kind}{number}", entity).live())
            for number, (kind, entity) in enumerate(self.plan.peers)
        ]
        await asyncio.sleep(self.plan.duration_s)
        self.over = True
        self.clear_up()
        await asyncio.wait(peers)
        for peer in peers:
            if peer.exception() is not None:
                raise AssertionError("a peer failed") from peer.exception()
        await self.last_life()
        await empty_everything(self)

    @abstractmethod
    async def ready(self) -> None:
        """Return once entities can be created."""

    async def _furnish(self) -> None:
        await self._have(lambda broker: broker.queues.ensure_all(self.plan.queues))
        for topic in self.plan.topics:
            await self._have(lambda broker, topic=topic: broker.topics.ensure(topic))
        for each in self.plan.subscriptions:
            await self._have(lambda broker, each=each: broker.topics.ensure_subscription(each))

    async def _have(self, what: Callable[[Broker], Awaitable[object]]) -> None:
        """As often as the answer says that it can be repeated: stores pass to their owners by plan."""
        ends_at = self.world.now + FURNISHED_WITHIN_S
        while True:
            try:
                await self.server.ask(what)
                return
            except Unavailable:
                if self.world.now > ends_at:
                    raise
                await asyncio.sleep(0.5)

    @abstractmethod
    async def last_life(self) -> None:
        """A fresh start frees all locks; then all there is can be had."""

    # -- faults ---------------------------------------------------------------------

    @abstractmethod
    def forecast(self) -> None:
        """Things go wrong from now on."""

    @abstractmethod
    def clear_up(self) -> None:
        """Nothing goes wrong from now on."""

    def every(self, around_s: float, happen: Callable[[], None]) -> None:
        if not around_s:
            return

        def now() -> None:
            if not self.over:
                happen()
                self.world.later(self.world.random.expovariate(1 / around_s), now)

        self.world.later(self.world.random.expovariate(1 / around_s), now)

    def jump(self) -> None:
        """Somebody sets the clock."""
        self.jumps += 1
        by_ms = int(self.world.between(-2_000, 120_000))
        self.world.note(f"clock jumps by {by_ms} ms")
        self.world.move_wall(by_ms)
        self.ledger.jumped_at = self.world.now


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing is collected, and nothing is logged."""
    gc.disable()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        gc.enable()
