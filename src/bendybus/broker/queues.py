"""The queues of a namespace: find, create, update, delete.

Each change is made one after the other, atomic, and durable when the call returns:
registry.py has what is common to all entities. Topics and subscriptions: topics.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bendybus.broker.entity import Entity
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.placing import Place
from bendybus.broker.queue import Queue
from bendybus.domain.entities import QueueDescription, normalise_path
from bendybus.errors import EntityNotFound
from bendybus.store.catalog import EntityRecord

if TYPE_CHECKING:
    from bendybus.broker.broker import Broker

__all__ = ["Queues"]


class Queues:
    """The queues alone; `Broker.sources` are all that can be received from."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queues: dict[str, Queue] = {}

    # -- finding ------------------------------------------------------------------

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def find(self, path: str) -> Queue | None:
        return self._queues.get(normalise_path(path))

    def get(self, path: str) -> Queue:
        """`EntityNotFound` when there is none of that path."""
        queue = self.find(path)
        if queue is None:
            raise EntityNotFound(path)
        return queue

    # -- opening ------------------------------------------------------------------

    def open(self, record: EntityRecord, at: Iterable[Place]) -> Queue:
        broker = self._broker
        description = QueueDescription.from_record(record.description)
        queue = Queue(description, record.partition_count, broker.ticker.keep_time, broker.clock)
        for number, key, store, epoch in at:
            queue.add_partition(PartitionHost(queue, number, key, store, broker.cache, epoch))
        self._queues[normalise_path(record.path)] = queue
        broker.registry.opened(queue, record)
        return queue

    def leave(self, entity: Entity[Any, Any]) -> None:
        """This one, if it is a queue, exists no more."""
        self._queues.pop(normalise_path(entity.path), None)

    # -- changing -----------------------------------------------------------------

    async def create(self, description: QueueDescription) -> Queue:
        """Make the queue on all its partitions, or not at all (P-32)."""
        broker = self._broker
        async with broker.changing:
            broker.tier.check(description)
            broker.registry.check_forwarding(description)
            record = broker.registry.place("queue", description)
            queue = self.open(record, await broker.registry.make(record, description.label))
            broker.tell_of(queue)
            return queue

    async def update(self, description: QueueDescription) -> Queue:
        """Change what may be changed; an immutable property is refused with its name (P-07)."""
        broker = self._broker
        async with broker.changing:
            queue = self.get(description.path)
            # The spelling is the creator's: the stores know the partitions by it.
            description = replace(description, path=queue.path)
            queue.description.refuse_immutable_changes(description)
            broker.tier.check(description)
            broker.registry.check_forwarding(description)
            queue.refuse_unhealthy()
            await broker.registry.keep(queue, description)
            return queue

    async def delete(self, path: str) -> None:
        """The catalog first: from then on the queue is gone, and its partitions are only litter."""
        broker = self._broker
        async with broker.changing:
            queue = self.get(path)
            queue.refuse_unhealthy()
            await asyncio.to_thread(broker.catalog.remove, queue.path)
            await broker.registry.forget(queue)

    async def ensure(self, description: QueueDescription) -> Queue:
        """Create the queue, or bring the one that is there to this description; its rules stay."""
        existing = self.find(description.path)
        if existing is None:
            return await self.create(description)
        description = replace(description, authorization_rules=existing.description.authorization_rules)
        if existing.description != description:
            await self.update(description)
        return existing

    async def ensure_all(self, descriptions: Sequence[QueueDescription]) -> None:
        """All of these, which may forward to one another, in whatever order they are named."""
        new = [each for each in descriptions if self.find(each.path) is None]
        for description in new:
            await self.create(replace(description, forward_to=None, forward_dead_lettered_to=None))
        for description in descriptions:
            await self.ensure(description)
