"""The broker: which queues exist, where their partitions live, and the clock they share.

Creating and deleting an entity is the one thing that touches several stores.
The order makes it repeatable: partitions first and the catalog last when
creating, the catalog first when deleting. What the catalog does not name does
not exist, and is swept away at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from bendybus.broker.clock import Clock
from bendybus.broker.host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.stores import AttachedStore, PayloadCache
from bendybus.domain.entities import PREMIUM_PARTITIONS_DEFAULT, QueueDescription, Tier, normalise_path
from bendybus.errors import EntityExists, EntityNotFound, StoreError, StoreUnavailable
from bendybus.names import EntityPath, Instant, PartitionNumber
from bendybus.store.catalog import Catalog, EntityRecord
from bendybus.store.protocol import MessagingStore, PartitionKey, PartitionRecord

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

# Locks and lifetimes are given in seconds; a fifth of one is as exact as anybody asks.
TICK_S: Final = 0.2


class Broker:
    def __init__(
        self,
        catalog: Catalog,
        stores: Sequence[MessagingStore],
        *,
        tier: Tier = Tier.STANDARD,
        premium_partitions: int = PREMIUM_PARTITIONS_DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        self._catalog = catalog
        self._given = stores
        self.tier = tier
        self.premium_partitions = premium_partitions
        self.created_at = Instant(0)
        """When the namespace was first served."""
        self._stores: dict[str, AttachedStore] = {}
        self._queues: dict[str, Queue] = {}
        self._records: dict[str, EntityRecord] = {}
        self._changing = asyncio.Lock()
        """Entities are created, updated and deleted one after the other."""
        self._watchers: list[Callable[[Queue], None]] = []
        self._timed: set[PartitionHost] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.cache = PayloadCache()
        self.clock = clock or Clock()

    # -- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Take up what the catalog names; the partitions load in the background."""
        self._loop = loop = asyncio.get_running_loop()
        self._stores = {store.name: AttachedStore(store, loop) for store in self._given}
        for store in self._stores.values():
            store.start()
        self.created_at = self._founded()
        records = self._catalog.entities()
        self._sweep({record.path for record in records})
        keys = self._partition_keys()
        for record in records:
            self._open_queue(record, keys)
        self._ticker = loop.call_later(TICK_S, self._tick)

    async def stop(self) -> None:
        """Let everything that was submitted reach the disk, then let go of the stores."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self.drain()
        for store in self._stores.values():
            store.stop()

    async def drain(self) -> None:
        """Return when everything submitted so far is on disk, or has failed."""
        for store in self._stores.values():
            await store.writer.drain()

    def _founded(self) -> Instant:
        namespace = self._catalog.namespace()
        at = namespace.get("created_at")
        if isinstance(at, int):
            return Instant(at)
        self._catalog.describe_namespace({**namespace, "created_at": (at := self.clock.now())})
        return at

    def _partition_keys(self) -> dict[tuple[str, EntityPath, PartitionNumber], PartitionKey]:
        return {
            (name, record.entity, record.number): record.key
            for name, attached in self._stores.items()
            for record in attached.store.partitions()
        }

    def _sweep(self, known: set[EntityPath]) -> None:
        """Remove what an interrupted create or delete left behind."""
        for attached in self._stores.values():
            for path in {record.entity for record in attached.store.partitions()} - known:
                logger.warning(
                    "store %s: removing partitions of '%s', which the catalog does not name",
                    attached.name,
                    path,
                )
                attached.store.drop_partitions(path)

    def _open_queue(
        self, record: EntityRecord, keys: dict[tuple[str, EntityPath, PartitionNumber], PartitionKey]
    ) -> Queue:
        queue = Queue(
            QueueDescription.from_record(record.description),
            record.partition_count,
            self._timed.add,
            self.clock,
        )
        queue.created_at, queue.updated_at = record.created_at, record.updated_at
        for number, store_name in enumerate(record.placement):
            key = keys.get((store_name, record.path, PartitionNumber(number)))
            if key is None:
                raise StoreError(
                    f"Partition {number} of '{record.path}' should be in the messaging store '{store_name}', "
                    "which does not have it. Was a store file removed?"
                )
            queue.hosts.append(
                PartitionHost(queue, PartitionNumber(number), key, self._stores[store_name], self.cache)
            )
        self._queues[normalise_path(record.path)] = queue
        self._records[normalise_path(record.path)] = record
        for host in queue.hosts:
            host.load()
        return queue

    # -- entities -----------------------------------------------------------------

    def queues(self) -> Iterable[Queue]:
        return self._queues.values()

    def stores(self) -> Iterable[AttachedStore]:
        return self._stores.values()

    def find(self, path: str) -> Queue:
        queue = self._queues.get(normalise_path(path))
        if queue is None:
            raise EntityNotFound(path)
        return queue

    def watch(self, watcher: Callable[[Queue], None]) -> None:
        """Call this with every queue that has been updated or deleted (`Queue.deleted`)."""
        self._watchers.append(watcher)

    async def create_queue(self, description: QueueDescription) -> Queue:
        """Make the queue on all its partitions, or not at all (P-32)."""
        async with self._changing:
            return await self._create(description)

    async def ensure_queue(self, description: QueueDescription) -> Queue:
        """Create the queue, or bring the one that is there to this description."""
        existing = self._queues.get(normalise_path(description.path))
        if existing is None:
            return await self.create_queue(description)
        if existing.description != description:
            await self.update_queue(description)
        return existing

    async def update_queue(self, description: QueueDescription) -> Queue:
        """Change what may be changed; an immutable property is refused with its name (P-07)."""
        async with self._changing:
            queue = self.find(description.path)
            # The spelling is the creator's: the stores know the partitions by it.
            description = replace(description, path=queue.path)
            queue.description.refuse_immutable_changes(description)
            self.tier.check(description)
            queue.refuse_unhealthy()
            key = normalise_path(queue.path)
            record = replace(
                self._records[key], description=description.to_record(), updated_at=self.clock.now()
            )
            await asyncio.to_thread(self._catalog.replace, record)
            self._records[key] = record
            queue.description, queue.updated_at = description, record.updated_at
            for host in queue.hosts:
                host.describe(description)
            self._tell_of(queue)
            return queue

    async def delete_queue(self, path: str) -> None:
        """The catalog first: from then on the queue is gone, and its partitions are only litter."""
        async with self._changing:
            queue = self.find(path)
            queue.refuse_unhealthy()
            await asyncio.to_thread(self._catalog.remove, queue.path)
            self._remove(queue)
            for attached in dict.fromkeys(host.store for host in queue.hosts):
                await self._drop(attached, queue.path)

    async def empty(self) -> None:
        """Take every message out of every entity (B-08); who is connected stays connected.

        What was acknowledged before is gone; what is sent meanwhile waits, and stays. As when creating,
        the catalog has the last word: an entity that a crash finds half emptied does not exist.
        """
        async with self._changing:
            queues = list(self._queues.values())
            for queue in queues:
                await queue.loaded()
                queue.refuse_unhealthy()
            for queue in queues:
                for host in queue.hosts:
                    host.let_go()
            for queue in queues:
                await self._begin_anew(queue)
            for queue in queues:
                await queue.loaded()

    async def _begin_anew(self, queue: Queue) -> None:
        record = self._records[normalise_path(queue.path)]
        try:
            await asyncio.to_thread(self._catalog.remove, queue.path)
            keys = await self._make_partitions(record)
            await asyncio.to_thread(self._catalog.add, record)
        except Exception as failure:
            self._remove(queue)
            raise StoreUnavailable(f"'{queue.path}' could not be emptied and is gone: {failure}") from failure
        for host in queue.hosts:
            host.begin_anew(keys[host.store.name, queue.path, host.number])

    async def _create(self, description: QueueDescription) -> Queue:
        path = description.path
        if normalise_path(path) in self._queues:
            raise EntityExists(f"The messaging entity '{path}' already exists.")
        self.tier.check(description)
        count = self.tier.partition_count(
            enable_partitioning=description.enable_partitioning, premium_partitions=self.premium_partitions
        )
        self.tier.check_quota(
            path,
            partitioned=count > 1,
            entities=len(self._queues),
            partitioned_entities=sum(len(queue.hosts) > 1 for queue in self._queues.values()),
        )
        record = self._place(description, count)
        try:
            keys = await self._make_partitions(record)
            await asyncio.to_thread(self._catalog.add, record)
        except Exception as failure:
            for name in dict.fromkeys(record.placement):
                await self._drop(self._stores[name], path)
            raise StoreUnavailable(
                f"Queue '{path}' was not created: {failure} Please retry the operation."
            ) from failure
        return self._open_queue(record, keys)

    async def _make_partitions(
        self, record: EntityRecord
    ) -> dict[tuple[str, EntityPath, PartitionNumber], PartitionKey]:
        path = record.path
        keys: dict[tuple[str, EntityPath, PartitionNumber], PartitionKey] = {}
        for attached in [self._stores[name] for name in dict.fromkeys(record.placement)]:
            numbers = [
                PartitionNumber(number)
                for number, place in enumerate(record.placement)
                if place == attached.name
            ]
            for made in await attached.writer.run(partial(_make_anew, attached.store, path, numbers)):
                keys[attached.name, path, made.number] = made.key
        return keys

    def _place(self, description: QueueDescription, count: int) -> EntityRecord:
        names = list(self._stores)
        # Begin with another store each time, so that unpartitioned queues spread too.
        first = len(self._queues)
        at = self.clock.now()
        return EntityRecord(
            path=description.path,
            kind="queue",
            description=description.to_record(),
            partition_count=count,
            placement=tuple(names[(first + number) % len(names)] for number in range(count)),
            created_at=at,
            updated_at=at,
            generation=uuid.uuid4().hex,
        )

    async def _drop(self, attached: AttachedStore, path: EntityPath) -> None:
        """Clear away what nobody will miss: what stays is swept at the next start, or made anew over."""
        try:
            await attached.writer.run(partial(attached.store.drop_partitions, path))
        except Exception as failure:
            logger.warning("store %s: partitions of '%s' stay for now: %s", attached.name, path, failure)

    def _remove(self, queue: Queue) -> None:
        key = normalise_path(queue.path)
        del self._queues[key], self._records[key]
        queue.close()
        self._tell_of(queue)

    def _tell_of(self, queue: Queue) -> None:
        for watcher in self._watchers:
            watcher(queue)

    # -- time ---------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._loop is not None
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._end_what_is_due(self.clock.now())

    def _end_what_is_due(self, at: Instant) -> None:
        for host in tuple(self._timed):
            if not host.tick(at):
                self._timed.discard(host)

    async def advance(self, by_ms: int) -> None:
        """Move the clock on; return when all that fell due has been done and is on disk.

        It is one leap, as if the machine had slept: what fell due on the way is done on arrival, once.
        """
        for queue in tuple(self._queues.values()):
            await queue.loaded()
        self.clock.move_on(by_ms)
        # A thousand messages may be due at once, and a partition takes only so many in one go.
        while any(host.due(self.clock.now()) for host in self._timed):
            self._end_what_is_due(self.clock.now())
            await self.drain()


def _make_anew(
    store: MessagingStore, path: EntityPath, numbers: Sequence[PartitionNumber]
) -> list[PartitionRecord]:
    """Empty partitions: what a deleted namesake may have left behind must not come to light again."""
    store.drop_partitions(path)
    return store.create_partitions(path, numbers)
