"""Which entities there are: what the catalog says, what memory has of it, and how both change together.

Creating and deleting an entity is the one thing that touches several stores.
The order makes it repeatable: partitions first and the catalog last when
creating, the catalog first when deleting. What the catalog does not name does
not exist, and is swept away at the next start. How that is done in the stores:
placing.py. What each kind has to itself: queues.py, topics.py.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from bendybus.broker.entity import Entity
from bendybus.broker.forwarding import Forwarder
from bendybus.broker.placing import Claims, Place, choose, drop_partitions, make_partitions, places
from bendybus.broker.queue import Queue
from bendybus.domain.entities import Described, QueueDescription, normalise_path
from bendybus.errors import ArgumentError, EntityExists, EntityNotFound, StoreUnavailable
from bendybus.store.catalog import EntityKind, EntityRecord

if TYPE_CHECKING:
    from bendybus.broker.broker import Broker

__all__ = ["Registry"]

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Described)


class Registry:
    """To be changed by who holds `Broker.changing`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.records: dict[str, EntityRecord] = {}
        """What the catalog says, by the path in lower case."""
        self.forwarders: dict[str, Forwarder] = {}
        """Of queues and subscriptions, by the same."""

    # -- coming -------------------------------------------------------------------

    def place(self, kind: EntityKind, description: Described) -> EntityRecord:
        """Where a new queue or topic is to be; refused when there is one, or too many (P-11)."""
        broker, path = self._broker, description.path
        if normalise_path(path) in self.records:
            raise EntityExists(f"The messaging entity '{path}' already exists.")
        count = broker.tier.partition_count(
            enable_partitioning=description.enable_partitioning, premium_partitions=broker.premium_partitions
        )
        counted = [record for record in self.records.values() if record.kind != "subscription"]
        broker.tier.check_quota(
            description.label,
            partitioned=count > 1,
            entities=len(counted),
            partitioned_entities=sum(record.partition_count > 1 for record in counted),
        )
        # Begin with another store each time, so that unpartitioned entities spread too.
        placement = choose(broker.drains.open_stores(), count, first=len(counted))
        return self.new_record(kind, description, placement)

    def new_record(self, kind: EntityKind, description: Described, placement: Sequence[str]) -> EntityRecord:
        at = self._broker.clock.now()
        return EntityRecord(
            path=description.path,
            kind=kind,
            description=description.to_record(),
            partition_count=len(placement),
            placement=tuple(placement),
            created_at=at,
            updated_at=at,
            generation=uuid.uuid4().hex,
        )

    async def make(self, record: EntityRecord, label: str) -> Iterator[Place]:
        """Partitions first and the catalog last: all of it, or nothing (P-32)."""
        broker = self._broker
        claims: Claims = {}
        try:
            await make_partitions(record, broker.stores_by_name, claims)
            await asyncio.to_thread(broker.catalog.add, record)
        except Exception as failure:
            await self._unmake(record)
            raise StoreUnavailable(
                f"{label} was not created: {failure} Please retry the operation."
            ) from failure
        return places(record, claims, broker.stores_by_name, away=())

    async def _unmake(self, record: EntityRecord) -> None:
        """Clear away what was begun: from the catalog first, which may have taken it though it failed.

        While that does not answer, the partitions stay: it must not name what no store has.
        """
        broker = self._broker
        try:
            await asyncio.to_thread(broker.catalog.remove, record.path)
        except EntityNotFound:
            logger.debug("'%s' had not reached the catalog", record.path)
        except Exception as failure:
            logger.warning(
                "'%s' may be in the catalog, so its partitions stay for now: %s", record.path, failure
            )
            return
        await drop_partitions([broker.stores_by_name[name] for name in record.placement], record.path)

    def opened(self, entity: Entity[Any, Any], record: EntityRecord) -> None:
        """An entity has its hosts: let them load."""
        entity.created_at, entity.updated_at = record.created_at, record.updated_at
        entity.generation = record.generation
        self.records[normalise_path(record.path)] = record
        entity.arrange_turns()
        for host in entity.hosts:
            # What is in a store that is away is loaded when that comes back.
            if host.key is not None:
                host.load()
        if isinstance(entity, Queue):
            forwarder = Forwarder(entity, self._broker.find_target)
            self.forwarders[normalise_path(record.path)] = forwarder
            forwarder.wake()

    # -- changing -----------------------------------------------------------------

    def check_forwarding(self, description: QueueDescription) -> None:
        """ "The target must exist" when forwarding is set up; should it be deleted later, letters go dead."""
        for name, target in (
            ("ForwardTo", description.forward_to),
            ("ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_to),
        ):
            record = None if target is None else self.records.get(normalise_path(target))
            if target is not None and (record is None or record.kind == "subscription"):
                raise ArgumentError(
                    f"'{description.path}': {name} is '{target}', and there is no such queue or topic."
                )

    async def keep(self, entity: Entity[Any, D], description: D) -> None:
        """Describe an entity anew: on disk, then in memory, then to those who watch."""
        broker, key = self._broker, normalise_path(entity.path)
        record = replace(
            self.records[key], description=description.to_record(), updated_at=broker.clock.now()
        )
        await asyncio.to_thread(broker.catalog.replace, record)
        self.records[key] = record
        entity.description, entity.updated_at = description, record.updated_at
        for host in entity.hosts:
            host.describe(description)
        if key in self.forwarders:
            self.forwarders[key].wake()
        broker.tell_of(entity)

    # -- going --------------------------------------------------------------------

    async def forget(self, *entities: Entity[Any, Any]) -> None:
        """The catalog names these no more: close them, and clear away what they leave."""
        broker = self._broker
        for entity in entities:
            key = normalise_path(entity.path)
            del self.records[key]
            broker.queues.leave(entity)
            broker.topics.leave(entity)
            if key in self.forwarders:
                self.forwarders.pop(key).close()
            entity.close()
            broker.tell_of(entity)
        for entity in entities:
            await drop_partitions([host.store for host in entity.hosts], entity.path)
