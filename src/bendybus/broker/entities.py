"""The entities of a namespace, and the one owner of which entities exist.

An entity exists if and only if the catalog lists it. `Entities` keeps the catalog's record, the
running entity and its forwarder together, and changes them together. Only creating and deleting an entity
touch several stores, and the order makes both repeatable: partitions first and the
catalog last when creating, the catalog first when deleting. What a crash leaves in between belongs to
no entity and is swept at the next start (placing.py).

What differs between queues, topics and subscriptions when one is opened: openers.py. How each can be
changed: queues.py, topics.py.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from bendybus import audit
from bendybus.broker.clock import Clock
from bendybus.broker.departure import departing, send_off
from bendybus.broker.elsewhere import Alone, Elsewhere
from bendybus.broker.entity import Entity
from bendybus.broker.entropy import EntropyPool
from bendybus.broker.forwarding import Forwarder
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.openers import OPENERS
from bendybus.broker.partition_port import StoreView
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.placing import (
    PartitionClaims,
    choose,
    discard_partitions,
    drop_partitions,
    locate,
    make_partitions,
)
from bendybus.broker.queue import Queue
from bendybus.broker.recorded import record_authorization_rules, record_change
from bendybus.broker.store_set import StoreSet
from bendybus.broker.topic import SendTarget, Subscription, Topic
from bendybus.broker.turns import Turns
from bendybus.domain.entities import EntityDescription, QueueDescription, Tier, normalise_path
from bendybus.domain.fanout import Contents
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    StoreUnavailable,
)
from bendybus.names import Instant
from bendybus.store.catalog import Catalog, EntityKind, EntityRecord

__all__ = ["Entities"]

logger = logging.getLogger(__name__)

Watcher: TypeAlias = Callable[[Entity[Any, Any, Any]], None]

D = TypeVar("D", bound=EntityDescription)
S = TypeVar("S", QueueDescription, TopicDescription)


@dataclass(slots=True)
class _Opened:
    """An entity that exists: its record in the catalog, and the running objects."""

    record: EntityRecord
    entity: SendTarget
    forwarder: Forwarder | None
    """None for topics, which do not forward."""


class Entities:
    """Entities change one after the other: creating, updating or removing one requires `changing`."""

    def __init__(
        self,
        catalog: Catalog,
        stores: StoreSet,
        *,
        clock: Clock,
        contents: Contents,
        tier: Tier,
        premium_partitions: int,
        reserved_names: Container[str] = frozenset(),
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.elsewhere: Elsewhere = elsewhere or Alone()
        """The other brokers of the namespace."""
        self.catalog = catalog
        self.stores = stores
        self.clock = clock
        self.entropy = EntropyPool()
        self.contents = contents
        """Decodes messages for the rules of topics."""
        self.tier = tier
        self.premium_partitions = premium_partitions
        self._reserved_names = reserved_names
        """Names that a new queue or topic may not have, in lower case."""
        self.cache = PayloadCache()
        self.changing = asyncio.Lock()
        self.in_doubt = False
        """Whether the catalog may list an entity whose creation has failed (cluster/sweeping.py)."""
        # In the order of arrival, so that a simulation can be repeated: tests/faults/simulation.
        self.timed: dict[Host[Any], None] = {}
        """The partitions that hold something with a deadline (ticker.py)."""
        self.temporary: dict[SendTarget, None] = {}
        """The entities that end with their last holder (temporary.py)."""
        self._opened: dict[str, _Opened] = {}
        """By normalised path."""
        self._watchers: list[Watcher] = []

    # -- finding ------------------------------------------------------------------

    def __iter__(self) -> Iterator[SendTarget]:
        return iter([each.entity for each in self._opened.values()])

    def queues(self) -> list[Queue]:
        """Without subscriptions."""
        return [each for each in self.sources() if not isinstance(each, Subscription)]

    def topics(self) -> list[Topic]:
        return [each for each in self if isinstance(each, Topic)]

    def sources(self) -> list[Queue]:
        """All entities that can be received from: queues and subscriptions."""
        return [each for each in self if isinstance(each, Queue)]

    def forwarders(self) -> list[Forwarder]:
        return [each.forwarder for each in self._opened.values() if each.forwarder is not None]

    def forwarder(self, source: Queue) -> Forwarder:
        forwarder = self._opened[normalise_path(source.path)].forwarder
        assert forwarder is not None, "everything that is received from has a forwarder"
        return forwarder

    def records(self) -> list[EntityRecord]:
        """The records of the catalog."""
        return [each.record for each in self._opened.values()]

    def record(self, path: str) -> EntityRecord:
        return self._opened[normalise_path(path)].record

    def look_up(self, path: str) -> SendTarget | None:
        """The entity at this path, in any case, or None."""
        opened = self._opened.get(normalise_path(path))
        return None if opened is None else opened.entity

    def find_source(self, path: str) -> Queue:
        """The queue or subscription at this path, which can be received from."""
        entity = self.find(path)
        if isinstance(entity, Topic):
            raise InvalidOperation(f"'{path}' is a topic; messages are received from its subscriptions.")
        return entity

    def find(self, path: str) -> SendTarget:
        """The entity at this path, as a target. A subscription is found too; it refuses all messages."""
        entity = self.look_up(path)
        if entity is None or (entity.abandoned and not self.elsewhere.has_others):
            raise EntityNotFound(path)
        return entity

    # -- watching -----------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Call this with every entity that is created, updated or deleted (`Entity.deleted`)."""
        self._watchers.append(watcher)

    def tell_of(self, entity: Entity[Any, Any, Any]) -> None:
        for watcher in self._watchers:
            watcher(entity)

    def keep_time(self, host: Host[Any]) -> None:
        """Tick this partition from now on."""
        self.timed[host] = None

    # -- creating -----------------------------------------------------------------

    def open_all(self, records: Sequence[EntityRecord], claims: PartitionClaims, away: Iterable[str]) -> None:
        """Open the entities that the catalog lists, topics before their subscriptions."""
        for kind in OPENERS:
            for record in records:
                if record.kind == kind:
                    self.open(record, claims, tuple(away))

    async def create(self, record: EntityRecord, label: str, holder: Hashable | None = None) -> SendTarget:
        """Create the entity on all its partitions, or not at all (P-32). `holder` keeps a temporary one."""
        self.elsewhere.refuse_following()
        claims: PartitionClaims = {}
        try:
            await make_partitions(record, self.stores, claims, self.elsewhere.store_names)
            await self.elsewhere.make_partitions(record)
            await asyncio.to_thread(self.catalog.add, record)
        except Exception as failure:
            await self._unmake(record)
            raise StoreUnavailable(
                f"{label} was not created: {failure} Please retry the operation."
            ) from failure
        entity = self.open(record, claims)
        if holder is not None:
            entity.holders.add(holder)
        await self.elsewhere.changed([record])
        audit.record(f"{record.kind}-created", entity=record.path, partitions=record.partition_count)
        record_authorization_rules(record.path, (), entity.description.authorization_rules)
        self.tell_of(entity)
        return entity

    def refuse_taken(self, path: str) -> None:
        """A new entity must have a new name. If the name is taken, no other error is reported."""
        if self.look_up(path) is not None:
            raise EntityExists(f"The messaging entity '{path}' already exists.")

    def settled(self, description: S, present: Queue | Topic | None = None) -> S:
        """The description with the namespace's choices added; `present` is the entity, if it exists.

        Refused if the entity asks for partitions that the namespace does not give (P-09). An entity that
        exists keeps its partitions.
        """
        partitioned = description.enable_partitioning
        if present is None:
            count = self.tier.partition_count(
                enable_partitioning=partitioned, premium_partitions=self.premium_partitions
            )
            partitioned = count > 1
        elif partitioned is None:
            partitioned = present.partition_count > 1
        size_kb = description.max_message_size_kb or self.tier.message_size_kb
        return replace(description, enable_partitioning=partitioned, max_message_size_kb=size_kb)

    def admit(self, kind: EntityKind, description: EntityDescription) -> EntityRecord:
        """The record of a new queue or topic. Refused if a quota is exceeded (P-11)."""
        path = description.path
        if normalise_path(path) in self._reserved_names:
            raise ArgumentError(
                f"The entity path '{path}' is not allowed: the server itself answers at '/{path}'."
            )
        count = self.tier.partition_count(
            enable_partitioning=description.enable_partitioning, premium_partitions=self.premium_partitions
        )
        counted = [record for record in self.records() if record.kind != "subscription"]
        self.tier.check_quota(
            description.label,
            partitioned=count > 1,
            entities=len(counted),
            partitioned_entities=sum(record.partition_count > 1 for record in counted),
        )
        # Start with a different store each time, so that unpartitioned entities are spread too.
        stores: list[StoreView] = [*self.stores.open_to_new()]
        if others := self.elsewhere.stores():
            stores = sorted([*stores, *others], key=attrgetter("name"))
        common = self.elsewhere.common
        if common is not None:
            stores = [store for store in stores if store.name in common]
        placement = choose(stores, count, first=len(counted))
        return self.new_record(kind, description, placement)

    def new_record(
        self, kind: EntityKind, description: EntityDescription, placement: Sequence[str]
    ) -> EntityRecord:
        at = self.clock.now()
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

    async def _unmake(self, record: EntityRecord) -> None:
        """Undo a failed creation, first in the catalog: it may have stored the record although it failed.

        While the catalog does not answer, the partitions stay: the catalog must not list what no store has.
        """
        try:
            await asyncio.to_thread(self.catalog.remove, record.path)
        except EntityNotFound:
            logger.debug("'%s' was not in the catalog", record.path)
        except Exception as failure:
            logger.warning(
                "'%s' may be in the catalog, so its partitions are kept for now: %s", record.path, failure
            )
            self.in_doubt = True
            return
        own = [name for name in record.placement if name not in self.elsewhere.store_names]
        await drop_partitions([self.stores[name] for name in own], record.path)
        await self.elsewhere.drop_partitions(record)

    def open(self, record: EntityRecord, claims: PartitionClaims, away: Container[str] = ()) -> SendTarget:
        """Open an entity that the catalog lists."""
        at = locate(record, claims, self.stores, away, self.elsewhere.store_names)
        entity = OPENERS[record.kind](self, record, at)
        entity.created_at, entity.updated_at = record.created_at, record.updated_at
        entity.generation = record.generation
        if not isinstance(self.elsewhere, Alone):
            entity.last_use_elsewhere = self.elsewhere.last_use
        entity.arrange_turns()
        forwarder = Forwarder(entity, self.find) if isinstance(entity, Queue) else None
        self._opened[normalise_path(record.path)] = _Opened(record, entity, forwarder)
        if entity.description.temporary:
            self.temporary[entity] = None
        for host in entity.own.values():
            # A partition whose store is away is loaded when the store comes back. Until then it must not
            # appear available: a change of the entity would be accepted without reaching it.
            if host.key is not None and host.store.state is StoreState.AWAY:
                host.refuse(host.withdraw(), StoreUnavailable(host.store.reason))
            elif host.key is not None:
                host.load()
        if forwarder is not None:
            forwarder.wake()
        return entity

    # -- changing -----------------------------------------------------------------

    def check_forwarding(self, description: QueueDescription) -> None:
        """ "The target must exist" when forwarding is set up. Messages to a deleted target dead-letter."""
        for name, target in (
            ("ForwardTo", description.forward_to),
            ("ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_to),
        ):
            if target is None or normalise_path(target) == normalise_path(description.path):
                # Forwarding to itself: messages go round until they reach the maximum number of hops.
                continue
            if isinstance(self.look_up(target), Subscription | None):
                raise ArgumentError(
                    f"'{description.path}': {name} is '{target}', and there is no such queue or topic."
                )

    async def describe(self, entity: Entity[Any, Any, D], description: D) -> None:
        """Store a new description: on disk, then in memory, then tell the watchers."""
        opened = self._opened[normalise_path(entity.path)]
        # Clients distinguish updates by their time.
        at = max(self.clock.now(), Instant(entity.updated_at + 1))
        record = replace(opened.record, description=description.to_record(), updated_at=at)
        await asyncio.to_thread(self.catalog.replace, record)
        record_change(record.kind, entity.description, description)
        self.redescribe(entity, description, record)
        await self.elsewhere.changed([record])

    def redescribe(self, entity: Entity[Any, Any, D], description: D, record: EntityRecord) -> None:
        """The catalog has a new description of the entity."""
        opened = self._opened[normalise_path(entity.path)]
        opened.record = record
        entity.description, entity.updated_at = description, record.updated_at
        for host in entity.own.values():
            host.describe(description)
        if opened.forwarder is not None:
            opened.forwarder.wake()
        self.tell_of(entity)

    def moved(self, records: Iterable[EntityRecord]) -> None:
        """Note the new records: the partitions are in another store, or new."""
        for record in records:
            self._opened[normalise_path(record.path)].record = record

    # -- deleting -----------------------------------------------------------------

    async def delete(self, entity: SendTarget) -> None:
        """Remove the entity once no other change is under way, unless it no longer exists by then."""
        async with self.changing:
            if not entity.deleted:
                await self.remove(entity)

    async def remove(self, entity: SendTarget, *, force: bool = False) -> None:
        """Remove an entity from the catalog first. From then on it is gone, and its partitions can be swept.

        The subscriptions of a topic are removed in the same step. Messages sent through it to other entities
        leave first (departure.py). `force`: remove it even if partitions are unavailable or messages cannot
        leave; what the stores keep of it is swept when they are back.
        """
        self.elsewhere.refuse_following()
        if not force:
            entity.refuse_unhealthy()
        family: list[SendTarget] = [entity]
        if isinstance(entity, Topic):
            family += entity.subscriptions
        sources = [each for each in family if isinstance(each, Queue)]
        with departing(sources):
            for source in sources:
                await send_off(source, self.forwarder(source), force=force)
            await self.elsewhere.send_off([each.path for each in family], force=force)
            kind = self.record(entity.path).kind
            try:
                await asyncio.to_thread(self.catalog.remove, *[each.path for each in family])
            except Exception:
                await self.elsewhere.stay([each.path for each in family])
                raise
            taken = {"subscriptions": len(family) - 1} if kind == "topic" else {}
            audit.record(f"{kind}-deleted", entity=entity.path, forced=force, **taken)
            await self.forget(family)

    async def forget(self, entities: Sequence[SendTarget]) -> None:
        """The catalog no longer lists these entities: close them and remove their partitions."""
        turns = Turns()
        for entity in entities:
            await turns.next()
            opened = self._opened.pop(normalise_path(entity.path))
            self.temporary.pop(entity, None)
            if isinstance(entity, Subscription):
                entity.topic.remove(entity)
            if opened.forwarder is not None:
                opened.forwarder.close()
            entity.close()
            self.tell_of(entity)
        self.elsewhere.forgotten([entity.path for entity in entities])
        if self.elsewhere.has_catalog:
            await self.elsewhere.removed([entity.path for entity in entities])
        for entity in entities:
            hosts: list[Host[Any]] = [*entity.own.values()]
            if self.elsewhere.has_catalog or any(host.key is None for host in hosts):
                await drop_partitions([host.store for host in hosts], entity.path)
                continue
            # Where the catalog is followed, an entity of the same name may have its partitions here already.
            for store in dict.fromkeys(host.store for host in hosts):
                keys = [host.key for host in hosts if host.store is store and host.key is not None]
                await discard_partitions(store, keys)
