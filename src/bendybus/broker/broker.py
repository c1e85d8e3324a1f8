"""The broker: which entities exist, where their partitions live, and the clock they share.

Creating and deleting an entity is the one thing that touches several stores.
The order makes it repeatable: partitions first and the catalog last when
creating, the catalog first when deleting. What the catalog does not name does
not exist, and is swept away at the next start. How that is done in the stores:
placing.py. Topics have a module of their own, topics.py.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

from bendybus.broker.clock import Clock
from bendybus.broker.draining import Drains
from bendybus.broker.emptying import empty
from bendybus.broker.entity import Entity
from bendybus.broker.forwarding import Forwarder
from bendybus.broker.health import STALL_AFTER_S
from bendybus.broker.host import Host
from bendybus.broker.idle import is_idle
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.placing import (
    Claims,
    Place,
    choose,
    drop_partitions,
    make_partitions,
    placed_in,
    places,
    sweep,
    take_up,
)
from bendybus.broker.queue import Queue
from bendybus.broker.stores import AttachedStore, PayloadCache
from bendybus.broker.topic import Subscription, Target, Topic
from bendybus.broker.topics import Topics
from bendybus.domain.access import AuthorizationRule, check_rules, rules_from_record
from bendybus.domain.entities import (
    PREMIUM_PARTITIONS_DEFAULT,
    Described,
    QueueDescription,
    Tier,
    normalise_path,
)
from bendybus.domain.fanout import Contents, Opaque
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    StoreNotFound,
    StoreUnavailable,
)
from bendybus.names import Instant
from bendybus.store.catalog import Catalog, EntityKind, EntityRecord
from bendybus.store.protocol import MessagingStore

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

# Locks and lifetimes are given in seconds; a fifth of one is as exact as anybody asks.
TICK_S: Final = 0.2

D = TypeVar("D", bound=Described)


class Broker:
    def __init__(
        self,
        catalog: Catalog,
        stores: Sequence[MessagingStore],
        *,
        tier: Tier = Tier.STANDARD,
        premium_partitions: int = PREMIUM_PARTITIONS_DEFAULT,
        contents: Contents | None = None,
        unopened: Mapping[str, StoreUnavailable] | None = None,
        stall_after_s: float = STALL_AFTER_S,
        clock: Clock | None = None,
    ) -> None:
        """`contents` looks into messages for the rules of topics.

        `unopened`: the stores that could not be opened, by name, and why; they are tried again.
        """
        self.catalog = catalog
        self._given = stores
        self._unopened = unopened or {}
        self._stall_after_s = stall_after_s
        self.tier = tier
        self.premium_partitions = premium_partitions
        self.created_at = Instant(0)
        """When the namespace was first served."""
        self.authorization_rules: tuple[AuthorizationRule, ...] = ()
        """The namespace's own; an entity's are in its description."""
        self.stores_by_name: dict[str, AttachedStore] = {}
        self._queues: dict[str, Queue] = {}
        self.topics = Topics(self, contents or Opaque())
        self.records: dict[str, EntityRecord] = {}
        """What the catalog says, by the path in lower case."""
        self.forwarders: dict[str, Forwarder] = {}
        self.changing = asyncio.Lock()
        """Entities are created, updated and deleted one after the other."""
        self._started_at = Instant(0)
        self._watchers: list[Callable[[Entity[Any, Any]], None]] = []
        # In the order in which they came, so that what happens can happen again: see tests/faults/simulation.
        self._timed: dict[Host[Any], None] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.cache = PayloadCache()
        self.drains = Drains(self)
        self.clock = clock or Clock()

    # -- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Take up what the catalog names; the partitions load in the background."""
        self._loop = loop = asyncio.get_running_loop()
        self._started_at = self.clock.now()
        self.stores_by_name = {
            store.name: AttachedStore(store, loop, stall_after_s=self._stall_after_s) for store in self._given
        }
        for store in self.stores_by_name.values():
            store.start()
        self.created_at = self._founded()
        self.authorization_rules = rules_from_record(self.catalog.namespace().get("authorization_rules"))
        records = self.catalog.entities()
        claims, away = self._take_up(records)
        for kind, open_entity in (
            ("queue", self._open_queue),
            ("topic", self.topics.open_topic),
            ("subscription", self.topics.open_subscription),
        ):
            for record in records:
                if record.kind == kind:
                    open_entity(record, places(record, claims, self.stores_by_name, away))
        for name, reason in away.items():
            self.stores_by_name[name].begin_away(reason, opened=name not in self._unopened)
        self._ticker = loop.call_later(TICK_S, self._tick)
        self.drains.start(self.catalog.namespace().get("draining"))

    async def stop(self) -> None:
        """Let everything that was submitted reach the disk, then let go of the stores."""
        await self.drains.stop()
        for forwarder in self.forwarders.values():
            forwarder.close()
        # Time goes on meanwhile: what a stalled store does not answer is answered for it.
        await self.drain()
        if self._ticker is not None:
            self._ticker.cancel()
        for store in self.stores_by_name.values():
            store.stop()

    async def drain(self) -> None:
        """Return when everything submitted so far is on disk, or has failed."""
        # Again, as long as one is busy: what one store refuses may go to another.
        while busy := [store for store in self.stores_by_name.values() if not store.writer.idle]:
            for store in busy:
                await store.writer.drain()

    async def recovered(self) -> None:
        """Return when all stores answer, and what they hold has been loaded."""
        for store in self.stores_by_name.values():
            await store.recovered()
        for entity in self.entities():
            await entity.loaded()

    def _founded(self) -> Instant:
        namespace = self.catalog.namespace()
        at = namespace.get("created_at")
        if isinstance(at, int):
            return Instant(at)
        self.catalog.describe_namespace({**namespace, "created_at": (at := self.clock.now())})
        return at

    def _take_up(self, records: Iterable[EntityRecord]) -> tuple[Claims, dict[str, StoreUnavailable]]:
        """What all stores hold, and which of them are away."""
        away: dict[str, StoreUnavailable] = dict(self._unopened)
        claims: Claims = {}
        placed = placed_in(records)
        for name, store in self.stores_by_name.items():
            if name not in away:
                try:
                    claims |= take_up(store, placed.get(name, set()))
                except StoreUnavailable as failure:
                    away[name] = failure
        return claims, away

    def _open_queue(self, record: EntityRecord, at: Iterable[Place]) -> Queue:
        queue = Queue(
            QueueDescription.from_record(record.description),
            record.partition_count,
            self.keep_time,
            self.clock,
        )
        for number, key, store, epoch in at:
            queue.hosts.append(PartitionHost(queue, number, key, store, self.cache, epoch))
        self._queues[normalise_path(record.path)] = queue
        self.opened(queue, record)
        return queue

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
            forwarder = self.forwarders[normalise_path(record.path)] = Forwarder(entity, self.find_target)
            forwarder.wake()

    def keep_time(self, host: Host[Any]) -> None:
        """Tick this partition from now on."""
        self._timed[host] = None

    # -- entities -----------------------------------------------------------------

    def queues(self) -> Iterable[Queue]:
        """The queues alone; `sources` are all that can be received from."""
        return self._queues.values()

    def sources(self) -> Iterable[Queue]:
        """Everything that keeps messages to be received: queues and subscriptions."""
        yield from self._queues.values()
        for topic in self.topics:
            yield from topic.subscriptions

    def entities(self) -> list[Target]:
        """Queues, subscriptions and topics."""
        return [*self.sources(), *self.topics]

    def stores(self) -> Iterable[AttachedStore]:
        return self.stores_by_name.values()

    def store(self, name: str) -> AttachedStore:
        attached = self.stores_by_name.get(name)
        if attached is None:
            known = ", ".join(self.stores_by_name)
            raise StoreNotFound(f"There is no messaging store '{name}'; there are {known}.")
        return attached

    async def attach(self, store: MessagingStore) -> None:
        """Work with another store, which has been opened: entities made from now on use it too."""
        assert self._loop is not None, "a broker that has not started is given its stores"
        async with self.changing:
            if store.name in self.stores_by_name:
                raise EntityExists(f"There is a messaging store '{store.name}' already.")
            attached = AttachedStore(store, self._loop, stall_after_s=self._stall_after_s)
            # What an earlier life as one of ours may have left in it.
            await asyncio.to_thread(sweep, attached, frozenset())
            attached.start()
            self.stores_by_name[store.name] = attached

    async def detach(self, name: str, forget: Callable[[], None]) -> None:
        """Let go of a store that keeps nothing; `forget` sees to it that the next start does not have it."""
        async with self.changing:
            attached = self.store(name)
            placed = placed_in(self.records.values()).get(name)
            if placed:
                raise InvalidOperation(
                    f"The messaging store '{name}' keeps {len(placed)} partitions; drain it first."
                )
            self.drains.refuse_last(name)
            await asyncio.to_thread(forget)
            await self.drains.forget(name)
            del self.stores_by_name[name]
            await asyncio.to_thread(attached.stop)

    def find(self, path: str) -> Queue:
        """The queue or subscription at this path, which can be received from."""
        queue = self._queues.get(normalise_path(path)) or self.topics.find_subscription(path)
        if queue is not None:
            return queue
        if self.topics.find(path) is not None:
            raise InvalidOperation(f"'{path}' is a topic; messages are received from its subscriptions.")
        raise EntityNotFound(path)

    def find_target(self, path: str) -> Target:
        """What stands at this path, to send to: a subscription is found too, and refuses everything."""
        return self.topics.find(path) or self.find(path)

    def watch(self, watcher: Callable[[Entity[Any, Any]], None]) -> None:
        """Call this with every entity that has been created, updated or deleted (`Entity.deleted`)."""
        self._watchers.append(watcher)

    async def create_queue(self, description: QueueDescription) -> Queue:
        """Make the queue on all its partitions, or not at all (P-32)."""
        async with self.changing:
            queue = await self._create(description)
            self.tell_of(queue)
            return queue

    async def ensure_queue(self, description: QueueDescription) -> Queue:
        """Create the queue, or bring the one that is there to this description; its rules stay."""
        existing = self._queues.get(normalise_path(description.path))
        if existing is None:
            return await self.create_queue(description)
        description = replace(description, authorization_rules=existing.description.authorization_rules)
        if existing.description != description:
            await self.update_queue(description)
        return existing

    async def ensure_queues(self, descriptions: Sequence[QueueDescription]) -> None:
        """All of these, which may forward to one another, in whatever order they are named."""
        new = [each for each in descriptions if normalise_path(each.path) not in self._queues]
        for description in new:
            await self.create_queue(replace(description, forward_to=None, forward_dead_lettered_to=None))
        for description in descriptions:
            await self.ensure_queue(description)

    async def ensure(
        self,
        topics: Iterable[TopicDescription],
        queues: Sequence[QueueDescription],
        subscriptions: Iterable[SubscriptionDescription],
    ) -> None:
        """Have all of these, as they are described."""
        # Topics forward nothing, and nothing is forwarded to a subscription.
        for topic in topics:
            await self.topics.ensure(topic)
        await self.ensure_queues(queues)
        for subscription in subscriptions:
            await self.topics.ensure_subscription(subscription)

    async def update_queue(self, description: QueueDescription) -> Queue:
        """Change what may be changed; an immutable property is refused with its name (P-07)."""
        async with self.changing:
            queue = self._find_queue(description.path)
            # The spelling is the creator's: the stores know the partitions by it.
            description = replace(description, path=queue.path)
            queue.description.refuse_immutable_changes(description)
            self.tier.check(description)
            self.check_forwarding(description)
            queue.refuse_unhealthy()
            await self.keep(queue, description)
            return queue

    async def keep(self, entity: Entity[Any, D], description: D) -> None:
        """Describe an entity anew: on disk, then in memory, then to those who watch."""
        key = normalise_path(entity.path)
        record = replace(self.records[key], description=description.to_record(), updated_at=self.clock.now())
        await asyncio.to_thread(self.catalog.replace, record)
        self.records[key] = record
        entity.description, entity.updated_at = description, record.updated_at
        for host in entity.hosts:
            host.describe(description)
        if key in self.forwarders:
            self.forwarders[key].wake()
        self.tell_of(entity)

    async def delete_queue(self, path: str) -> None:
        """The catalog first: from then on the queue is gone, and its partitions are only litter."""
        async with self.changing:
            queue = self._find_queue(path)
            queue.refuse_unhealthy()
            await asyncio.to_thread(self.catalog.remove, queue.path)
            await self.forget(queue)

    async def delete(self, entity: Target) -> None:
        """Whatever it is."""
        if isinstance(entity, Topic):
            await self.topics.delete(entity.path)
        elif isinstance(entity, Subscription):
            await self.topics.delete_subscription(entity.topic_path, entity.name)
        else:
            await self.delete_queue(entity.path)

    async def forget(self, *entities: Entity[Any, Any]) -> None:
        """The catalog names these no more: close them, and clear away what they leave."""
        for entity in entities:
            key = normalise_path(entity.path)
            del self.records[key]
            self._queues.pop(key, None)
            self.topics.leave(entity)
            if key in self.forwarders:
                self.forwarders.pop(key).close()
            entity.close()
            self.tell_of(entity)
        for entity in entities:
            await drop_partitions([host.store for host in entity.hosts], entity.path)

    async def empty(self) -> None:
        """Take every message out of every entity (B-08); who is connected stays connected.

        What was acknowledged before is gone; what is sent meanwhile waits, and stays. As when creating,
        the catalog has the last word: an entity that a crash finds half emptied does not exist.
        """
        async with self.changing:
            await empty(self)

    def _find_queue(self, path: str) -> Queue:
        queue = self._queues.get(normalise_path(path))
        if queue is None:
            raise EntityNotFound(path)
        return queue

    async def set_authorization_rules(self, rules: Sequence[AuthorizationRule]) -> None:
        """Replace the namespace's own rules."""
        async with self.changing:
            checked = check_rules("The namespace", rules)
            namespace = self.catalog.namespace()
            records = [asdict(rule) for rule in checked]
            await asyncio.to_thread(
                self.catalog.describe_namespace, {**namespace, "authorization_rules": records}
            )
            self.authorization_rules = checked

    async def _create(self, description: QueueDescription) -> Queue:
        self.tier.check(description)
        self.check_forwarding(description)
        record = self.place("queue", description)
        return self._open_queue(record, await self.make(record, description.label))

    def place(self, kind: EntityKind, description: Described) -> EntityRecord:
        """Where a new queue or topic is to be; refused when there is one, or too many (P-11)."""
        path = description.path
        if normalise_path(path) in self.records:
            raise EntityExists(f"The messaging entity '{path}' already exists.")
        count = self.tier.partition_count(
            enable_partitioning=description.enable_partitioning, premium_partitions=self.premium_partitions
        )
        counted = [record for record in self.records.values() if record.kind != "subscription"]
        self.tier.check_quota(
            description.label,
            partitioned=count > 1,
            entities=len(counted),
            partitioned_entities=sum(record.partition_count > 1 for record in counted),
        )
        # Begin with another store each time, so that unpartitioned entities spread too.
        placement = choose(self.drains.open_stores(), count, first=len(counted))
        return self.new_record(kind, description, placement)

    def new_record(self, kind: EntityKind, description: Described, placement: Sequence[str]) -> EntityRecord:
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

    async def make(self, record: EntityRecord, label: str) -> Iterator[Place]:
        """Partitions first and the catalog last: all of it, or nothing (P-32)."""
        claims: Claims = {}
        try:
            await make_partitions(record, self.stores_by_name, claims)
            await asyncio.to_thread(self.catalog.add, record)
        except Exception as failure:
            await self._unmake(record)
            raise StoreUnavailable(
                f"{label} was not created: {failure} Please retry the operation."
            ) from failure
        return places(record, claims, self.stores_by_name, away=())

    async def _unmake(self, record: EntityRecord) -> None:
        """Clear away what was begun: from the catalog first, which may have taken it though it failed.

        While that does not answer, the partitions stay: it must not name what no store has.
        """
        try:
            await asyncio.to_thread(self.catalog.remove, record.path)
        except EntityNotFound:
            logger.debug("'%s' had not reached the catalog", record.path)
        except Exception as failure:
            logger.warning(
                "'%s' may be in the catalog, so its partitions stay for now: %s", record.path, failure
            )
            return
        await drop_partitions([self.stores_by_name[name] for name in record.placement], record.path)

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

    def tell_of(self, entity: Entity[Any, Any]) -> None:
        for watcher in self._watchers:
            watcher(entity)

    # -- time ---------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._loop is not None
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        # First: what a stalled store keeps waiting must not wait for others' timers. By the machine's time.
        for store in self.stores_by_name.values():
            store.check(self._loop.time())
        at = self.clock.now()
        self._end_what_is_due(at)
        for entity in self._idle(at):
            self._loop.create_task(self._delete_idle(entity))

    def _end_what_is_due(self, at: Instant) -> None:
        for host in tuple(self._timed):
            if not host.tick(at):
                self._timed.pop(host, None)

    async def advance(self, by_ms: int) -> None:
        """Move the clock on; return when all that fell due has been done and is on disk.

        It is one leap, as if the machine had slept: what fell due on the way is done on arrival, once.
        """
        for entity in self.entities():
            await entity.loaded()
        self.clock.move_on(by_ms)
        # A thousand messages may be due at once, and a partition takes only so many in one go.
        while any(host.due(self.clock.now()) for host in self._timed):
            self._end_what_is_due(self.clock.now())
            for topic in tuple(self.topics):
                for host in topic.hosts:
                    await host.activated()
            await self.drain()
            for forwarder in tuple(self.forwarders.values()):
                await forwarder.settled()
        for entity in self._idle(self.clock.now()):
            await self._delete_idle(entity)

    def _idle(self, at: Instant) -> list[Target]:
        return [entity for entity in self.entities() if is_idle(entity, at, since=self._started_at)]

    async def _delete_idle(self, entity: Target) -> None:
        if entity.deleted or not is_idle(entity, self.clock.now(), since=self._started_at):
            return
        try:
            await self.delete(entity)
            logger.info("'%s' was idle for too long and has been deleted", entity.path)
        except BrokerError as reason:
            logger.warning("'%s' is idle and cannot be deleted now: %s", entity.path, reason)
