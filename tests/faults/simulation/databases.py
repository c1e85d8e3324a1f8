"""The databases of a virtual cluster: a catalog with its roster, and messaging stores, each with its faults.

A database outlives every process and is reached over the network. Each process has an access of its own to
each of them. A call whose request does not get through has no effect; one whose reply does not get through
has, and fails all the same. What a process had asked for when it was killed may still happen later. The rules
of who may write are those of store/postgres: the owner's term for everything but commits, the partitions'
epochs for commits. Whether these rules suffice is checked independently by fences.py.

A database may fail over to a synchronous standby: nothing that was committed is lost, all connections break,
and nobody hears whether what was asked for last has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from greenlet import GreenletExit

from bendybus.cluster.membership import GONE
from bendybus.errors import BrokerError, PartitionMoved, StoreUnavailable
from bendybus.names import EntityPath, Epoch, PartitionNumber
from bendybus.store.catalog import Description, EntityRecord
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog
from bendybus.store.protocol import PartitionChanges, PartitionKey, PartitionRecord, StoreOwner
from bendybus.store.roster import BrokerRow, Lead, RosterView
from faults.simulation.cluster_network import ClusterNetwork
from faults.simulation.fences import Fence
from faults.simulation.stores import Disk, VirtualStore
from faults.simulation.threads import sleep_here

__all__ = [
    "CATALOG",
    "CatalogAccess",
    "CatalogDatabase",
    "Reach",
    "RosterAccess",
    "StoreAccess",
    "StoreDatabase",
]

T = TypeVar("T")

CATALOG = "catalog"
"""What its database is called in the network."""

# What `tcp_user_timeout` and friends allow, more or less; and how often a thread that waits looks again.
PATIENCE_S = (5.0, 15.0)
LOOK_AGAIN_S = 0.1
# What a process had asked for when it was killed happens so much later, if at all.
LINGERS_S = (0.0, 6.0)
LINGERS = 0.5


class Reach:
    """The way of one process to one database."""

    def __init__(self, network: ClusterNetwork, machine: str, database: str, disk: Disk) -> None:
        self._network = network
        self._machine = machine
        self._database = database
        self._disk = disk

    def request(self) -> None:
        """Until the database has it. `StoreUnavailable` if it does not get through."""
        self._pass(self._machine, self._database)

    def reply(self) -> None:
        """Until the process has it. `StoreUnavailable` if it does not get through."""
        self._pass(self._database, self._machine)

    @property
    def is_deaf(self) -> bool:
        return self._network.is_blocked(self._database, self._machine)

    def _pass(self, source: str, target: str) -> None:
        network, disk = self._network, self._disk
        if not network.is_blocked(source, target) or not disk.at_work():
            return
        gives_up_at = disk.world.now + disk.world.between(*PATIENCE_S)
        while network.is_blocked(source, target):
            if disk.world.now >= gives_up_at:
                raise StoreUnavailable(f"{self._database}: no answer")
            sleep_here(disk.loop, LOOK_AGAIN_S)


# -- messaging stores -------------------------------------------------------------------


class StoreDatabase(MemoryStore):
    """What one messaging store holds."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.owner = StoreOwner("", "", 0)
        self.away_until = 0.0
        self.failovers = 0


class StoreAccess(VirtualStore):
    """`SharedStore`: one process's access to a store."""

    def __init__(self, database: StoreDatabase, disk: Disk, reach: Reach, fence: Fence) -> None:
        super().__init__(database.name, disk)
        self._database = database
        self._partitions = database._partitions
        self._bodies = database._bodies
        self._copies = database._copies
        self._reach = reach
        self._fence = fence
        self._connected_to = database.failovers
        """The server that is asked: the first one, or the standby of which one."""
        self._term: int | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process still exists."""
        return self._disk.loop is not None and self._disk.loop.alive

    def open(self) -> None:
        self._looked_up(lambda: None)

    def close(self) -> None:
        self._fence.closed(self)

    def _take_row_id(self) -> int:
        return self._database._take_row_id()

    # -- the owner --------------------------------------------------------------------

    def owner(self) -> StoreOwner:
        return self._looked_up(lambda: self._database.owner)

    def take(self, broker: str, instance: str, after: int) -> int | None:
        def take() -> int | None:
            if self._database.owner.term != after:
                self._term = None
            else:
                self._term = after + 1
                self._database.owner = StoreOwner(broker, instance, self._term)
                self._disk.world.note(f"{self.name} is taken by {broker}, term {self._term}")
                self._fence.taken(self)
            return self._term

        return self._written(take)

    def release(self) -> None:
        def release() -> None:
            if self._database.owner.term == self._term:
                self._disk.world.note(f"{self.name} is given up by {self._database.owner.broker}")
                self._database.owner = replace(self._database.owner, broker="", instance="")

        self._written(release)

    def refuse_displaced(self) -> None:
        if self._term is not None and self._database.owner.term != self._term:
            raise PartitionMoved(f"{self.name} was taken over by another broker.")

    # -- what the term is needed for ----------------------------------------------------

    def partitions(self) -> list[PartitionRecord]:
        return self._looked_up(self._database.partitions)

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        def create() -> list[PartitionRecord]:
            self.refuse_displaced()
            known = set(self._partitions)
            records = self._database.create_partitions(entity, numbers)
            self._fence.created(self, [record.key for record in records if record.key not in known])
            return records

        return self._written(create)

    def drop_partitions(self, entity: EntityPath) -> None:
        self._discard(lambda: [each.key for each in self._database.partitions() if each.entity == entity])

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        self._discard(lambda: keys)

    def _discard(self, which: Callable[[], Sequence[PartitionKey]]) -> None:
        def discard() -> None:
            self.refuse_displaced()
            keys = which()
            self._fence.changes(self, "discards partitions")
            self._database.discard(keys)
            if keys:
                self.watcher(self, keys)

        self._written(discard)

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        def claim() -> list[Epoch]:
            self.refuse_displaced()
            epochs = self._database.claim(keys)
            self._fence.claimed(self, keys)
            return epochs

        return self._written(claim)

    # -- commits ------------------------------------------------------------------------

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        self._asked, self._done = changes, False
        try:
            super().commit(changes)
        except GreenletExit:
            world = self._disk.world
            if not self._done and world.chance(LINGERS):
                world.later(world.between(*LINGERS_S), lambda: self._linger(changes))
            raise

    def _commit_now(self, changes: Sequence[PartitionChanges]) -> None:
        super()._commit_now(changes)
        self._done = True
        self._fence.committed(self, [change.key for change in changes])

    def _linger(self, changes: Sequence[PartitionChanges]) -> None:
        """The process is gone; what it had asked for arrives now."""
        keys = [change.key for change in changes]
        try:
            self._commit_now(changes)
        except BrokerError:
            self._disk.world.note(f"{self.name} refuses what a process had asked for that is gone")
            return
        self._disk.world.note(f"{self.name} commits what a process had asked for that is gone")
        self.late = True
        self.watcher(self, keys)
        self.doubter(self, keys)

    # -- the way there ------------------------------------------------------------------

    def _refuse_away(self) -> None:
        self._away_until = self._database.away_until
        self._reach.request()
        super()._refuse_away()
        if self._disk.at_work() and self._is_broken():
            self.doubter(self, self._unanswered)
            raise StoreUnavailable(f"{self.name}: the connection was closed")

    def _is_broken(self) -> bool:
        """Whether the server is another one since this was asked last. Connects to it."""
        before, self._connected_to = self._connected_to, self._database.failovers
        return before != self._connected_to

    def _await_reply(self, keys: list[PartitionKey]) -> None:
        if self._disk.at_work() and self._is_broken():
            self._disk.world.note(f"{self.name} fails over, and does not answer")
            self.doubter(self, keys)
            raise StoreUnavailable(f"{self.name}: the connection was closed")
        if self._reach.is_deaf:
            # The broker may give the store up before the reply arrives.
            self.doubter(self, keys)
        try:
            self._reach.reply()
        except StoreUnavailable:
            self._disk.world.note(f"{self.name} is not heard")
            self.doubter(self, keys)
            raise


# -- the catalog --------------------------------------------------------------------------


class CatalogDatabase(MemoryCatalog):
    """The entities, the namespace's settings, the brokers, and which of them leads."""

    def __init__(self) -> None:
        super().__init__()
        self.leader = Lead("", "", 0, 0)
        self.brokers: dict[str, BrokerRow] = {}
        self.heard_at: dict[str, float] = {}
        self.away_until = 0.0
        self.failovers = 0

    def holds(self, path: str) -> bool:
        return any(record.path.lower() == path.lower() for record in self.entities())


class _Access:
    """What the calls of a catalog and of a roster have in common."""

    def __init__(self, database: CatalogDatabase, disk: Disk, reach: Reach) -> None:
        self._database = database
        self._disk = disk
        self._reach = reach

    def _ask(self, call: Callable[[], T]) -> T:
        disk = self._disk
        disk.take_time(CATALOG)
        self._reach.request()
        if disk.world.now < self._database.away_until:
            raise StoreUnavailable(f"{CATALOG}: away")
        server = self._database.failovers
        result = call()
        disk.take_time(CATALOG)
        if self._database.failovers != server:
            raise StoreUnavailable(f"{CATALOG}: the connection was closed")
        self._reach.reply()
        return result

    def _change(self, call: Callable[[], T]) -> T:
        disk, world = self._disk, self._disk.world
        if disk.at_work() and world.chance(disk.faults.torn):
            disk.torn += 1
            raise StoreUnavailable(f"{CATALOG}: the disk is full")
        result = self._ask(call)
        if disk.at_work() and world.chance(disk.faults.lost_reply):
            disk.lost_replies += 1
            raise StoreUnavailable(f"{CATALOG}: connection lost")
        return result


class CatalogAccess(_Access):
    """`SharedCatalog` of one process."""

    def __init__(self, database: CatalogDatabase, disk: Disk, reach: Reach) -> None:
        super().__init__(database, disk, reach)
        self.term: int | None = None
        self._namespace: Description = {}

    def open(self) -> None:
        self.read()

    def close(self) -> None:
        """Nothing to close."""

    def read(self) -> tuple[int, list[EntityRecord]]:
        database = self._database
        revision, self._namespace, records = self._ask(
            lambda: (database.leader.revision, database.namespace(), database.entities())
        )
        return revision, records

    def confirm_lead(self) -> None:
        def confirm() -> None:
            if self.term != self._database.leader.term:
                raise StoreUnavailable("Another broker of the cluster leads now.")

        self._ask(confirm)

    def namespace(self) -> Description:
        return dict(self._namespace)

    def entities(self) -> list[EntityRecord]:
        return self.read()[1]

    def describe_namespace(self, description: Description) -> None:
        if self.term is None and description == self._namespace:
            return
        self._write("describes the namespace", lambda: self._database.describe_namespace(description))
        self._namespace = dict(description)

    def add(self, record: EntityRecord) -> None:
        self._write(f"has {record.path}", lambda: self._database.add(record))

    def replace(self, *records: EntityRecord) -> None:
        self._write("describes entities", lambda: self._database.replace(*records))

    def remove(self, *paths: EntityPath) -> None:
        self._write(f"forgets {', '.join(paths)}", lambda: self._database.remove(*paths))

    def _write(self, what: str, call: Callable[[], None]) -> None:
        def write() -> None:
            leader = self._database.leader
            if self.term != leader.term:
                raise StoreUnavailable("Another broker of the cluster leads now. Please retry the operation.")
            call()
            self._database.leader = replace(leader, revision=leader.revision + 1)
            self._disk.world.note(f"{CATALOG} {what}")

        if self.term is None:
            raise StoreUnavailable("Another broker of the cluster leads.")
        self._change(write)


class RosterAccess(_Access):
    """`Roster` of one process. The database's clock is the world's."""

    def _silence(self, name: str) -> float:
        return self._disk.world.now - self._database.heard_at[name]

    def join(self, broker: BrokerRow, dead_after_s: float) -> bool:
        def join() -> bool:
            database = self._database
            known = database.brokers.get(broker.name)
            if known is not None and known.state != GONE and self._silence(broker.name) <= dead_after_s:
                return False
            database.brokers[broker.name] = broker
            database.heard_at[broker.name] = self._disk.world.now
            return True

        return self._ask(join)

    def beat(self, name: str, instance: str, state: str) -> RosterView:
        def beat() -> RosterView:
            database, own = self._database, None
            known = database.brokers.get(name)
            if known is not None and known.instance == instance:
                own = self._silence(name)
                database.heard_at[name] = self._disk.world.now
                database.brokers[name] = replace(known, state=state)
            brokers = [
                replace(database.brokers[each], silent_s=self._silence(each))
                for each in sorted(database.brokers)
            ]
            return RosterView(brokers, database.leader, own)

        return self._ask(beat)

    def reach(self, name: str, instance: str, unreached: Sequence[str]) -> None:
        def reach() -> None:
            known = self._database.brokers.get(name)
            if known is not None and known.instance == instance:
                self._database.brokers[name] = replace(known, unreached=tuple(unreached))

        self._ask(reach)

    def lead(self, name: str, instance: str, after: int) -> int | None:
        def lead() -> int | None:
            database = self._database
            if database.leader.term != after:
                return None
            database.leader = Lead(name, instance, after + 1, database.leader.revision)
            self._disk.world.note(f"{name} leads, term {after + 1}")
            return after + 1

        return self._change(lead)

    def close(self) -> None:
        """Nothing to close."""
