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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from bendybus.broker.clock import now
from bendybus.broker.host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.stores import AttachedStore, PayloadCache
from bendybus.domain.entities import PREMIUM_PARTITIONS_DEFAULT, QueueDescription, Tier, normalise_path
from bendybus.errors import EntityExists, EntityNotFound, StoreError
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.catalog import Catalog, EntityRecord
from bendybus.store.protocol import MessagingStore, PartitionKey

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
    ) -> None:
        self._catalog = catalog
        self._given = stores
        self._tier = tier
        self._premium_partitions = premium_partitions
        self._stores: dict[str, AttachedStore] = {}
        self._queues: dict[str, Queue] = {}
        self._timed: set[PartitionHost] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.cache = PayloadCache()

    # -- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Take up what the catalog names; the partitions load in the background."""
        self._loop = loop = asyncio.get_running_loop()
        self._stores = {store.name: AttachedStore(store, loop) for store in self._given}
        for store in self._stores.values():
            store.start()
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
            QueueDescription.from_record(record.description), record.partition_count, self._timed.add
        )
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

    async def create_queue(self, description: QueueDescription) -> Queue:
        """Make the queue on all its partitions, or not at all (P-32)."""
        if normalise_path(description.path) in self._queues:
            raise EntityExists(f"The messaging entity '{description.path}' already exists.")
        self._tier.check(description)
        count = self._tier.partition_count(
            enable_partitioning=description.enable_partitioning, premium_partitions=self._premium_partitions
        )
        names = list(self._stores)
        # Begin with another store each time, so that unpartitioned queues spread too.
        first = len(self._queues)
        placement = tuple(names[(first + number) % len(names)] for number in range(count))
        at = now()
        record = EntityRecord(
            path=description.path,
            kind="queue",
            description=description.to_record(),
            partition_count=count,
            placement=placement,
            created_at=at,
            updated_at=at,
            generation=uuid.uuid4().hex,
        )
        for name in dict.fromkeys(placement):
            numbers = [PartitionNumber(number) for number, place in enumerate(placement) if place == name]
            attached = self._stores[name]
            await attached.writer.run(partial(attached.store.create_partitions, description.path, numbers))
        self._catalog.add(record)
        return self._open_queue(record, self._partition_keys())

    async def ensure_queue(self, description: QueueDescription) -> Queue:
        """Create the queue, or bring the one that is there to this description."""
        existing = self._queues.get(normalise_path(description.path))
        if existing is None:
            return await self.create_queue(description)
        if existing.description != description:
            self.update_queue(description)
        return existing

    def update_queue(self, description: QueueDescription) -> None:
        """Change what may be changed; an immutable property is refused with its name (P-07)."""
        queue = self.find(description.path)
        queue.description.refuse_immutable_changes(description)
        record = next(r for r in self._catalog.entities() if r.path == queue.path)
        self._catalog.replace(replace(record, description=description.to_record(), updated_at=now()))
        queue.description = description
        for host in queue.hosts:
            host.describe(description)

    # -- time ---------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._loop is not None
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        at = now()
        for host in tuple(self._timed):
            if not host.tick(at):
                self._timed.discard(host)
