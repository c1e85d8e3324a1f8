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
from dataclasses import asdict, replace
from functools import partial
from typing import Final, TypeAlias

from bendybus.broker.clock import Clock
from bendybus.broker.forwarding import Forwarder
from bendybus.broker.host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.stores import AttachedStore, PayloadCache
from bendybus.domain.access import AuthorizationRule, check_rules, rules_from_record
from bendybus.domain.entities import PREMIUM_PARTITIONS_DEFAULT, QueueDescription, Tier, normalise_path
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    EntityExists,
    EntityNotFound,
    StoreError,
    StoreUnavailable,
)
from bendybus.names import EntityPath, Epoch, Instant, PartitionNumber
from bendybus.store.catalog import Catalog, EntityRecord
from bendybus.store.protocol import NEVER_CLAIMED, MessagingStore, PartitionKey, PartitionRecord

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

# Locks and lifetimes are given in seconds; a fifth of one is as exact as anybody asks.
TICK_S: Final = 0.2

_Claims: TypeAlias = dict[tuple[str, EntityPath, PartitionNumber], tuple[PartitionKey, Epoch]]
"""Store, entity and partition -> the store's key for it, and the epoch under which it is ours."""


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
        self.authorization_rules: tuple[AuthorizationRule, ...] = ()
        """The namespace's own; an entity's are in its description."""
        self._stores: dict[str, AttachedStore] = {}
        self._queues: dict[str, Queue] = {}
        self._records: dict[str, EntityRecord] = {}
        self._forwarders: dict[str, Forwarder] = {}
        self._changing = asyncio.Lock()
        """Entities are created, updated and deleted one after the other."""
        self._started_at = Instant(0)
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
        self._started_at = self.clock.now()
        self._stores = {store.name: AttachedStore(store, loop) for store in self._given}
        for store in self._stores.values():
            store.start()
        self.created_at = self._founded()
        self.authorization_rules = rules_from_record(self._catalog.namespace().get("authorization_rules"))
        records = self._catalog.entities()
        self._sweep({record.path for record in records})
        claims = self._claim_partitions()
        for record in records:
            self._open_queue(record, claims)
        self._ticker = loop.call_later(TICK_S, self._tick)

    async def stop(self) -> None:
        """Let everything that was submitted reach the disk, then let go of the stores."""
        if self._ticker is not None:
            self._ticker.cancel()
        for forwarder in self._forwarders.values():
            forwarder.close()
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

    def _claim_partitions(self) -> _Claims:
        """Everything the stores hold becomes ours: at once, since a claim of each would be a sync of each."""
        claims: _Claims = {}
        for name, attached in self._stores.items():
            records = attached.store.partitions()
            epochs = attached.store.claim([record.key for record in records])
            for record, epoch in zip(records, epochs, strict=True):
                claims[name, record.entity, record.number] = record.key, epoch
        return claims

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

    def _open_queue(self, record: EntityRecord, claims: _Claims) -> Queue:
        queue = Queue(
            QueueDescription.from_record(record.description),
            record.partition_count,
            self._timed.add,
            self.clock,
        )
        queue.created_at, queue.updated_at = record.created_at, record.updated_at
        queue.generation = record.generation
        for number, store_name in enumerate(record.placement):
            claim = claims.get((store_name, record.path, PartitionNumber(number)))
            if claim is None:
                raise StoreError(
                    f"Partition {number} of '{record.path}' should be in the messaging store '{store_name}', "
                    "which does not have it. Was a store file removed?"
                )
            key, epoch = claim
            store = self._stores[store_name]
            queue.hosts.append(PartitionHost(queue, PartitionNumber(number), key, store, self.cache, epoch))
        self._queues[normalise_path(record.path)] = queue
        self._records[normalise_path(record.path)] = record
        for host in queue.hosts:
            host.load()
        forwarder = self._forwarders[normalise_path(record.path)] = Forwarder(queue, self.find)
        forwarder.wake()
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
        """Call this with every queue that has been created, updated or deleted (`Queue.deleted`)."""
        self._watchers.append(watcher)

    async def create_queue(self, description: QueueDescription) -> Queue:
        """Make the queue on all its partitions, or not at all (P-32)."""
        async with self._changing:
            queue = await self._create(description)
            self._tell_of(queue)
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

    async def update_queue(self, description: QueueDescription) -> Queue:
        """Change what may be changed; an immutable property is refused with its name (P-07)."""
        async with self._changing:
            queue = self.find(description.path)
            # The spelling is the creator's: the stores know the partitions by it.
            description = replace(description, path=queue.path)
            queue.description.refuse_immutable_changes(description)
            self.tier.check(description)
            self._check_forwarding(description)
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
            self._forwarders[key].wake()
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
            for forwarder in self._forwarders.values():
                forwarder.drop()
            for queue in queues:
                for host in queue.hosts:
                    host.let_go()
            failures = [failure for queue in queues if (failure := await self._begin_anew(queue)) is not None]
            for queue in queues:
                await queue.loaded()
            if failures:
                raise StoreUnavailable(
                    f"Not everything was emptied: {failures[0]} Please retry the operation."
                )

    async def _begin_anew(self, queue: Queue) -> Exception | None:
        """Partitions made anew for this queue; where a store fails, what it has is loaded again."""
        # Another generation: its numbers begin anew too, and nobody must take them for the old ones.
        record = replace(self._records[normalise_path(queue.path)], generation=uuid.uuid4().hex)
        claims: _Claims = {}
        failed: Exception | None = None
        try:
            await asyncio.to_thread(self._catalog.remove, queue.path)
            try:
                await self._make_partitions(record, claims)
            except Exception as failure:
                failed = failure
            await asyncio.to_thread(self._catalog.add, record)
        except Exception as failure:
            self._remove(queue)
            return failure
        self._records[normalise_path(queue.path)] = record
        queue.generation = record.generation
        for host in queue.hosts:
            claim = claims.get((host.store.name, queue.path, host.number))
            if claim is None:
                host.load()
            else:
                host.begin_anew(claim[0])
        return failed

    async def set_authorization_rules(self, rules: Sequence[AuthorizationRule]) -> None:
        """Replace the namespace's own rules."""
        async with self._changing:
            checked = check_rules("The namespace", rules)
            namespace = self._catalog.namespace()
            records = [asdict(rule) for rule in checked]
            await asyncio.to_thread(
                self._catalog.describe_namespace, {**namespace, "authorization_rules": records}
            )
            self.authorization_rules = checked

    async def _create(self, description: QueueDescription) -> Queue:
        path = description.path
        if normalise_path(path) in self._queues:
            raise EntityExists(f"The messaging entity '{path}' already exists.")
        self.tier.check(description)
        self._check_forwarding(description)
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
        claims: _Claims = {}
        try:
            await self._make_partitions(record, claims)
            await asyncio.to_thread(self._catalog.add, record)
        except Exception as failure:
            for name in dict.fromkeys(record.placement):
                await self._drop(self._stores[name], path)
            raise StoreUnavailable(
                f"Queue '{path}' was not created: {failure} Please retry the operation."
            ) from failure
        return self._open_queue(record, claims)

    def _check_forwarding(self, description: QueueDescription) -> None:
        """ "The target must exist" when forwarding is set up; should it be deleted later, letters go dead."""
        for name, target in (
            ("ForwardTo", description.forward_to),
            ("ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_to),
        ):
            if target is not None and normalise_path(target) not in self._queues:
                raise ArgumentError(
                    f"'{description.path}': {name} is '{target}', and there is no such queue or topic."
                )

    async def _make_partitions(self, record: EntityRecord, claims: _Claims) -> None:
        """Empty ones for all of the entity's; `claims` has those that were made, also after a failure."""
        path = record.path
        for attached in [self._stores[name] for name in dict.fromkeys(record.placement)]:
            numbers = [
                PartitionNumber(number)
                for number, place in enumerate(record.placement)
                if place == attached.name
            ]
            for made in await attached.writer.run(partial(_make_anew, attached.store, path, numbers)):
                claims[attached.name, path, made.number] = made.key, NEVER_CLAIMED

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
        self._forwarders.pop(key).close()
        queue.close()
        self._tell_of(queue)

    def _tell_of(self, queue: Queue) -> None:
        for watcher in self._watchers:
            watcher(queue)

    # -- time ---------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._loop is not None
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        at = self.clock.now()
        self._end_what_is_due(at)
        for queue in self._idle(at):
            self._loop.create_task(self._delete_idle(queue))

    def _end_what_is_due(self, at: Instant) -> None:
        for host in tuple(self._timed):
            if not host.tick(at):
                self._timed.discard(host)

    def _idle(self, at: Instant) -> list[Queue]:
        return [queue for queue in self._queues.values() if self._is_idle(queue, at)]

    def _is_idle(self, queue: Queue, at: Instant) -> bool:
        """Nobody has sent, received, looked or changed anything for as long as AutoDeleteOnIdle says.

        When the server was down nobody could: that time does not count. A queue that forwards is at work.
        """
        limit_s = queue.description.auto_delete_on_idle_s
        if limit_s is None or queue.awaited or queue.loading or queue.description.forward_to is not None:
            return False
        last = max(queue.accessed_at, queue.updated_at, self._started_at)
        return at - last > limit_s * 1000 and not any(
            host.partition is None or host.partition.counts().scheduled for host in queue.hosts
        )

    async def _delete_idle(self, queue: Queue) -> None:
        if queue.deleted or not self._is_idle(queue, self.clock.now()):
            return
        try:
            await self.delete_queue(queue.path)
            logger.info("'%s' was idle for too long and has been deleted", queue.path)
        except BrokerError as reason:
            logger.warning("'%s' is idle and cannot be deleted now: %s", queue.path, reason)

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
            for forwarder in tuple(self._forwarders.values()):
                await forwarder.settled()
        for queue in self._idle(self.clock.now()):
            await self._delete_idle(queue)


def _make_anew(
    store: MessagingStore, path: EntityPath, numbers: Sequence[PartitionNumber]
) -> list[PartitionRecord]:
    """Empty partitions: what a deleted namesake may have left behind must not come to light again."""
    store.drop_partitions(path)
    return store.create_partitions(path, numbers)
