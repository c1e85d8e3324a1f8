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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final, TypeAlias

from bendybus.broker.clock import now
from bendybus.broker.forwarding import Forwarder
from bendybus.broker.health import STALL_AFTER_S, StoreState
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
        unopened: Mapping[str, StoreUnavailable] | None = None,
        stall_after_s: float = STALL_AFTER_S,
        namespace: str | None = None,
    ) -> None:
        """`unopened`: the stores that could not be opened, by name, and why; they are tried again.

        `namespace`: what its stores know it by.
        """
        self._catalog = catalog
        self._given = stores
        self._unopened = unopened or {}
        self._stall_after_s = stall_after_s
        self._namespace = namespace
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

    # -- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Take up what the catalog names; the partitions load in the background."""
        self._loop = loop = asyncio.get_running_loop()
        self._started_at = now()
        self._stores = {
            store.name: AttachedStore(
                store, loop, stall_after_s=self._stall_after_s, namespace=self._namespace
            )
            for store in self._given
        }
        for store in self._stores.values():
            store.start()
        self.created_at = self._founded()
        self.authorization_rules = rules_from_record(self._catalog.namespace().get("authorization_rules"))
        records = self._catalog.entities()
        away: dict[str, StoreUnavailable] = dict(self._unopened)
        claims: _Claims = {}
        for name, store in self._stores.items():
            if name not in away:
                try:
                    self._sweep(store, {record.path for record in records})
                    claims |= self._claim_partitions(store)
                except StoreUnavailable as failure:
                    away[name] = failure
        for record in records:
            self._open_queue(record, claims, away)
        for name, reason in away.items():
            self._stores[name].begin_away(reason, opened=name not in self._unopened)
        self._ticker = loop.call_later(TICK_S, self._tick)

    async def stop(self) -> None:
        """Let everything that was submitted reach the disk, then let go of the stores."""
        for forwarder in self._forwarders.values():
            forwarder.close()
        # Time goes on meanwhile: what a stalled store does not answer is answered for it.
        await self.drain()
        if self._ticker is not None:
            self._ticker.cancel()
        for store in self._stores.values():
            store.stop()

    async def drain(self) -> None:
        """Return when everything submitted so far is on disk, or has failed."""
        # Again, as long as one is busy: what one store refuses may go to another.
        while busy := [store for store in self._stores.values() if not store.writer.idle]:
            for store in busy:
                await store.writer.drain()

    def _founded(self) -> Instant:
        namespace = self._catalog.namespace()
        at = namespace.get("created_at")
        if isinstance(at, int):
            return Instant(at)
        self._catalog.describe_namespace({**namespace, "created_at": (at := now())})
        return at

    def _claim_partitions(self, attached: AttachedStore) -> _Claims:
        """Everything the store holds becomes ours: at once, since a claim of each would be a sync of each."""
        records = attached.store.partitions()
        epochs = attached.store.claim([record.key for record in records])
        return {
            (attached.name, record.entity, record.number): (record.key, epoch)
            for record, epoch in zip(records, epochs, strict=True)
        }

    def _sweep(self, attached: AttachedStore, known: set[EntityPath]) -> None:
        """Remove what an interrupted create or delete left behind."""
        for path in {record.entity for record in attached.store.partitions()} - known:
            logger.warning(
                "store %s: removing partitions of '%s', which the catalog does not name",
                attached.name,
                path,
            )
            attached.store.drop_partitions(path)

    def _open_queue(self, record: EntityRecord, claims: _Claims, away: Container[str] = frozenset()) -> Queue:
        queue = Queue(
            QueueDescription.from_record(record.description), record.partition_count, self._timed.add
        )
        queue.created_at, queue.updated_at = record.created_at, record.updated_at
        queue.generation = record.generation
        for number, store_name in enumerate(record.placement):
            claim = claims.get((store_name, record.path, PartitionNumber(number)))
            if claim is None and store_name not in away:
                raise StoreError(
                    f"Partition {number} of '{record.path}' should be in the messaging store '{store_name}', "
                    "which does not have it. Was a store file removed?"
                )
            key, epoch = claim or (None, None)
            store = self._stores[store_name]
            queue.hosts.append(PartitionHost(queue, PartitionNumber(number), key, store, self.cache, epoch))
        self._queues[normalise_path(record.path)] = queue
        self._records[normalise_path(record.path)] = record
        for host in queue.hosts:
            if host.store.name not in away:
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
            record = replace(self._records[key], description=description.to_record(), updated_at=now())
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
            key = normalise_path(queue.path)
            del self._queues[key], self._records[key]
            self._forwarders.pop(key).close()
            queue.close()
            self._tell_of(queue)
            for attached in dict.fromkeys(host.store for host in queue.hosts):
                await self._drop(attached, queue.path)

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
        stores = [self._stores[name] for name in dict.fromkeys(record.placement)]
        claims: _Claims = {}
        try:
            for attached in stores:
                attached.refuse_away()
            for attached in stores:
                numbers = [
                    PartitionNumber(number)
                    for number, place in enumerate(record.placement)
                    if place == attached.name
                ]
                for made in await attached.run(partial(_make_anew, attached.store, path, numbers)):
                    claims[attached.name, path, made.number] = made.key, NEVER_CLAIMED
            await asyncio.to_thread(self._catalog.add, record)
        except Exception as failure:
            for attached in stores:
                await self._drop(attached, path)
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

    def _place(self, description: QueueDescription, count: int) -> EntityRecord:
        # All of them where there are partitions for all; a single one finds a place that is not away (P-04).
        names = list(self._stores)
        if count == 1:
            sound = [name for name, store in self._stores.items() if store.state is not StoreState.AWAY]
            names = sound or names
        # Begin with another store each time, so that unpartitioned queues spread too.
        first = len(self._queues)
        at = now()
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
            await attached.run(partial(attached.store.drop_partitions, path))
        except Exception as failure:
            logger.warning("store %s: partitions of '%s' stay for now: %s", attached.name, path, failure)

    def _tell_of(self, queue: Queue) -> None:
        for watcher in self._watchers:
            watcher(queue)

    # -- time ---------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._loop is not None
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        # First: what a stalled store keeps waiting must not wait for others' timers.
        for store in self._stores.values():
            store.check(self._loop.time())
        at = now()
        for host in tuple(self._timed):
            if not host.tick(at):
                self._timed.discard(host)
        for queue in [queue for queue in self._queues.values() if self._is_idle(queue, at)]:
            self._loop.create_task(self._delete_idle(queue))

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
        if queue.deleted or not self._is_idle(queue, now()):
            return
        try:
            await self.delete_queue(queue.path)
            logger.info("'%s' was idle for too long and has been deleted", queue.path)
        except BrokerError as reason:
            logger.warning("'%s' is idle and cannot be deleted now: %s", queue.path, reason)


def _make_anew(
    store: MessagingStore, path: EntityPath, numbers: Sequence[PartitionNumber]
) -> list[PartitionRecord]:
    """Empty partitions: what a deleted namesake may have left behind must not come to light again."""
    store.drop_partitions(path)
    return store.create_partitions(path, numbers)
