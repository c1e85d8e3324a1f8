"""Messaging stores and a catalog on virtual disks, with the faults that disks have.

What a store has committed is what a `MemoryStore` holds, and outlives every
process. A commit takes a while, sometimes minutes; it fails before it happened
(*torn*) or after (*lost reply*), or its process dies in the middle of it; or the
whole store is away for some time. After each commit whoever watches is told which
partitions have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from bendybus.domain.messages import Message
from bendybus.errors import EntityExists, EntityNotFound, StoreUnavailable
from bendybus.names import EntityPath, Epoch, PartitionNumber, SessionId
from bendybus.store.catalog import Description, EntityRecord
from bendybus.store.memory import MemoryStore
from bendybus.store.protocol import PartitionChanges, PartitionKey, PartitionRecord, Snapshot, no_pause
from faults.simulation.loop import Loop
from faults.simulation.threads import current, sleep_here
from faults.simulation.world import World

__all__ = ["Disk", "DiskFaults", "VirtualCatalog", "VirtualStore"]

T = TypeVar("T")

USUAL_S = (0.0002, 0.01)
STALL_S = (1.0, 120.0)
# A read has failed, and the broker's loop may not have heard so. A commit that begins meanwhile is given up.
UNHEARD_S = 0.02


@dataclass(slots=True)
class DiskFaults:
    """How likely each is at one call of a store; all zero for a good disk."""

    torn: float = 0.0
    lost_reply: float = 0.0
    stalls: float = 0.0
    unreadable: float = 0.0


class Disk:
    """What stores and the catalog share: whose process uses them now, and how well they do."""

    def __init__(self, world: World, faults: DiskFaults) -> None:
        self.world = world
        self.faults = faults
        self.loop: Loop | None = None
        """Of the process that has the stores open."""
        self.on_stall: Callable[[], None] = lambda: None
        """Called when a stall begins and when it ends: meanwhile the broker may have given the store up."""
        self.is_stalled = False
        self.torn = self.lost_replies = self.stalls = self.unreadable = 0

    def at_work(self) -> bool:
        """Whether a thread asks, and not the loop, which asks only while its process starts."""
        return self.loop is not None and current(self.loop) is not None

    def take_time(self, name: str, stalls: Callable[[], None] | None = None) -> None:
        """`stalls` is called first if it takes long."""
        world = self.world
        if self.at_work() and world.chance(self.faults.stalls):
            self.stalls += 1
            world.note(f"{name} stalls")
            self.on_stall()
            if stalls is not None:
                stalls()
            self.is_stalled = True
            sleep_here(self.loop, world.between(*STALL_S))
            self.is_stalled = False
            self.on_stall()
        else:
            sleep_here(self.loop, world.between(*USUAL_S))


class VirtualStore(MemoryStore):
    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name)
        self._disk = disk
        self._away_until = 0.0
        self.late = False
        """Whether the last commit may have been given up before it was answered."""
        self.watcher: Callable[[VirtualStore, Sequence[PartitionKey]], None] = _ignore
        self.doubter: Callable[[VirtualStore, list[PartitionKey]], None] = _ignore
        """Told of commits that were, or may be, reported as failed; of those that happened, with the keys."""
        self._unanswered: list[PartitionKey] = []
        """Of the commit that has happened and is not reported yet: a read that fails now gives it up."""
        self._read_failed_at = -1.0
        self._read_stalled_until = -1.0
        """When the last read that stalled has ended; infinity while one is stalled: the broker gives up the
        store, and with it a commit that is under way."""

    def go_away(self, for_s: float) -> None:
        self._away_until = self._disk.world.now + for_s
        self._disk.world.note(f"{self.name} away")

    def come_back(self) -> None:
        self._away_until = 0.0

    # -- what it holds, for those who check ----------------------------------------------

    def contents(self, key: PartitionKey) -> tuple[PartitionRecord, list[Message]] | None:
        """Messages as they are on disk; None for a partition that is no more."""
        partition = self._partitions.get(key)
        return None if partition is None else (partition.record, list(partition.messages.values()))

    def payload(self, message: Message) -> bytes:
        return self._bodies[message.body_row_id]

    def keys(self) -> list[PartitionKey]:
        return list(self._partitions)

    def session_state(self, key: PartitionKey, session_id: SessionId) -> bytes | None:
        kept = self._partitions[key].session_states.get(session_id)
        return None if kept is None else kept.state

    # -- the protocol -------------------------------------------------------------------

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        disk, world = self._disk, self._disk.world
        began_at = world.now
        disk.take_time(self.name)
        self._refuse_away()
        if world.chance(disk.faults.torn):
            disk.torn += 1
            world.note(f"{self.name} tears a commit")
            self.doubter(self, [])
            raise StoreUnavailable(f"{self.name}: the disk is full")
        self._commit_now(changes)
        self.late = (
            world.now - began_at > STALL_S[0]
            or self._read_failed_at > began_at - UNHEARD_S
            or self._read_stalled_until > began_at
        )
        world.note(f"{self.name} commits {_summary(changes)}")
        keys = self._unanswered = [change.key for change in changes]
        self.watcher(self, keys)
        disk.take_time(self.name, lambda: self.doubter(self, keys))
        self._await_reply(keys)
        self._unanswered = []
        if world.chance(disk.faults.lost_reply):
            disk.lost_replies += 1
            world.note(f"{self.name} loses a reply")
            self.doubter(self, keys)
            raise StoreUnavailable(f"{self.name}: connection lost")

    def _commit_now(self, changes: Sequence[PartitionChanges]) -> None:
        super().commit(changes)

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        return self._written(lambda: MemoryStore.create_partitions(self, entity, numbers))

    def drop_partitions(self, entity: EntityPath) -> None:
        self.discard([record.key for record in super().partitions() if record.entity == entity])

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        def discard() -> None:
            MemoryStore.discard(self, keys)
            # At once: the process may end before the call returns, and they are gone all the same.
            if keys:
                self.watcher(self, keys)

        self._written(discard)

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        return self._written(lambda: MemoryStore.claim(self, keys))

    def load(self, key: PartitionKey, between_pages: Callable[[], None] = no_pause) -> Snapshot:
        return self._looked_up(lambda: MemoryStore.load(self, key, between_pages))

    def read(self, row_ids: Sequence[int]) -> list[bytes | None]:
        return self._looked_up(lambda: MemoryStore.read(self, row_ids))

    def read_session_state(self, key: PartitionKey, session_id: SessionId) -> bytes | None:
        return self._looked_up(lambda: MemoryStore.read_session_state(self, key, session_id))

    def _written(self, call: Callable[[], T]) -> T:
        """Something other than a commit; atomic like one."""
        disk = self._disk
        disk.take_time(self.name)
        if disk.at_work():
            self._refuse_away()
            if disk.world.chance(disk.faults.torn):
                disk.torn += 1
                self.doubter(self, [])
                raise StoreUnavailable(f"{self.name}: the disk is full")
        result = call()
        disk.take_time(self.name)
        self._await_reply([])
        return result

    def _looked_up(self, call: Callable[[], T]) -> T:
        disk = self._disk
        disk.take_time(self.name, self._begin_read_stall)
        if self._read_stalled_until == inf:
            self._read_stalled_until = disk.world.now
        try:
            self._refuse_away()
        except StoreUnavailable:
            self._read_failed_at = disk.world.now
            raise
        if disk.world.chance(disk.faults.unreadable):
            disk.unreadable += 1
            disk.world.note(f"{self.name} cannot be read")
            self._read_failed_at = disk.world.now
            self.doubter(self, self._unanswered)
            raise StoreUnavailable(f"{self.name}: cannot be read")
        return call()

    def _begin_read_stall(self) -> None:
        self._read_stalled_until = inf

    def _await_reply(self, keys: list[PartitionKey]) -> None:
        """A disk of the same machine always answers."""

    def _refuse_away(self) -> None:
        if self._disk.at_work() and self._disk.world.now < self._away_until:
            self.doubter(self, self._unanswered)
            raise StoreUnavailable(f"{self.name}: away")


class VirtualCatalog:
    """A catalog on the same disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._namespace: Description = {}
        self._entities: dict[str, EntityRecord] = {}

    def open(self) -> None: ...
    def close(self) -> None: ...

    def namespace(self) -> Description:
        return dict(self._namespace)

    def describe_namespace(self, description: Description) -> None:
        self._before()
        self._namespace = dict(description)

    def entities(self) -> list[EntityRecord]:
        return [self._entities[key] for key in sorted(self._entities)]

    def add(self, record: EntityRecord) -> None:
        self._before()
        if record.path.lower() in self._entities:
            raise EntityExists(f"The entity '{record.path}' exists already.")
        self._entities[record.path.lower()] = record
        self._after(f"has {record.path}")

    def replace(self, record: EntityRecord) -> None:
        self._before()
        if record.path.lower() not in self._entities:
            raise EntityNotFound(record.path)
        self._entities[record.path.lower()] = replace(record)
        self._after(f"describes {record.path}")

    def remove(self, *paths: EntityPath) -> None:
        self._before()
        for path in paths:
            if path.lower() not in self._entities:
                raise EntityNotFound(path)
        for path in paths:
            del self._entities[path.lower()]
        self._after(f"forgets {', '.join(paths)}")

    def holds(self, path: str) -> bool:
        return path.lower() in self._entities

    def _before(self) -> None:
        disk = self._disk
        disk.take_time("catalog")
        if disk.at_work() and disk.world.chance(disk.faults.torn):
            disk.torn += 1
            raise StoreUnavailable("the catalog's disk is full")

    def _after(self, what: str) -> None:
        self._disk.world.note(f"catalog {what}")
        self._disk.take_time("catalog")


def _summary(changes: Sequence[PartitionChanges]) -> str:
    parts = [
        f"{change.key}:+{len(change.stored)}~{len(change.updated)}-{len(change.removed)}"
        for change in changes
    ]
    return " ".join(parts)


def _ignore(store: VirtualStore, keys: Sequence[PartitionKey]) -> None:
    """Nobody watches."""
