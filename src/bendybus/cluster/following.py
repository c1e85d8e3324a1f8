"""Keeps a broker up to date with the catalog, which one broker has.

That broker sends the whole catalog on request, makes the changes that clients of other brokers ask for, and
announces each change. The others open, change and close their entities accordingly, and create and remove the
partitions in their own stores. A broker that was unreachable for a while compares everything when it is
connected again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec import Raw

from bendybus.broker.broker import Broker
from bendybus.broker.departure import send_off
from bendybus.broker.entities import Entities
from bendybus.broker.entity import Entity
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.openers import description_of
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.placing import PartitionClaims, drop_partitions, make_partitions
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget, Subscription, Topic
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.link import PeerLink
from bendybus.cluster.linked_entities import LinkedEntityCalls
from bendybus.cluster.serving import Calls
from bendybus.cluster.sweeping import Leftovers
from bendybus.domain.access import rules_from_record
from bendybus.domain.entities import normalise_path
from bendybus.domain.filters import rule_from_record
from bendybus.domain.leases import LeaseRequest
from bendybus.domain.session_commands import SessionLock
from bendybus.errors import ArgumentError, EntityNotFound, NotSupported, PartitionMoved, StoreUnavailable
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.catalog import Description, EntityRecord
from bendybus.store.protocol import PartitionKey

__all__ = ["Following", "FollowedCatalog"]

logger = logging.getLogger(__name__)


class _RuleChange(NamedTuple):
    topic_path: str
    name: str
    added: dict[str, Any] | None
    removed: str | None


class _HeldSession(NamedTuple):
    path: str
    generation: str
    number: int
    lock: SessionLock


class _AskedLease(NamedTuple):
    path: str
    generation: str
    number: int
    request: LeaseRequest


class FollowedCatalog:
    """`Catalog` of a broker that does not have it: what the broker that has it last said."""

    def __init__(self, namespace: Description, records: Sequence[EntityRecord]) -> None:
        self._namespace = namespace
        self._records = list(records)

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def namespace(self) -> Description:
        return self._namespace

    def describe_namespace(self, description: Description) -> None:
        if description != self._namespace:
            raise _not_here()

    def follow_namespace(self, description: Description) -> None:
        self._namespace = description

    def entities(self) -> list[EntityRecord]:
        return self._records

    def add(self, record: EntityRecord) -> None:
        raise _not_here()

    def replace(self, *records: EntityRecord) -> None:
        raise _not_here()

    def remove(self, *paths: EntityPath) -> None:
        raise _not_here()


def _not_here() -> NotSupported:
    return NotSupported(
        "This broker does not have the catalog, and this change cannot be passed on yet to the broker that "
        "has it. Use a server with one broker for it."
    )


def _nothing() -> None:
    """Nobody needs the answer."""


def _all_stay(entities: Entities) -> None:
    """The broker that was deleting entities has ended, and cannot say that they stay."""
    for entity in entities:
        if isinstance(entity, Queue):
            entity.leaving = False


class Following:
    """The catalog's side of a broker in a cluster."""

    def __init__(self, broker: Broker, cluster: Cluster) -> None:
        self._broker = broker
        self._entities = broker.entities
        self._cluster = cluster
        self._made: dict[EntityPath, PartitionClaims] = {}
        """Partitions that were created here for entities that the catalog does not list yet."""
        self.leftovers = Leftovers(broker.entities, self._forget_claims)
        self.namespace_changed: Callable[[], None] = _nothing
        """Called when the settings of the namespace have changed."""
        cluster.leader_changed = partial(_all_stay, broker.entities)

    @property
    def changing(self) -> asyncio.Lock:
        """Held while entities change."""
        return self._entities.changing

    def calls(self) -> Calls:
        """What the other brokers may ask."""
        orders: dict[str, Callable[[Frame, Raw], Awaitable[None]]] = {
            "make-partitions": self._make_partitions,
            "drop-partitions": self._drop_partitions,
            "changed": self._changed,
            "removed": self._removed,
            "send-off": self._send_off,
            "stay": self._stay,
            "namespace": self._namespace,
        }
        return {
            "ready": self._ready,
            "last-use": self._last_use,
            "session-state": self._session_state,
            "consumer-lease": self._consumer_lease,
            "snapshot": self._snapshot,
            "change-rules": self._change_rules,
            "change-rules-together": self._change_rules_together,
            **LinkedEntityCalls(self._broker, self._cluster).calls(),
            **self.leftovers.calls(),
            **{name: partial(self._obey, order) for name, order in orders.items()},
        }

    async def _obey(
        self, order: Callable[[Frame, Raw], Awaitable[None]], link: PeerLink, frame: Frame, call: Call
    ) -> None:
        """Apply a change that the broker with the catalog announces."""
        term, body = frame.decoded(tuple[int, Raw], call.body)
        cluster = self._cluster
        if term < cluster.term or (cluster.has_catalog and term == cluster.term):
            raise StoreUnavailable("Another broker has the catalog now. Please retry the operation.")
        if term > cluster.term:
            cluster.follow(link.peer, term)
        await order(frame, body)

    def _refuse_without_catalog(self) -> None:
        if not self._cluster.has_catalog:
            raise StoreUnavailable("This broker does not have the catalog. Please retry the operation.")

    # -- where the catalog is -----------------------------------------------------

    async def _snapshot(self, link: PeerLink, frame: Frame, call: Call) -> object:
        """The whole catalog, between two changes."""
        self._refuse_without_catalog()
        async with self._entities.changing:
            return self._broker.catalog.namespace(), self._entities.records()

    async def _change_rules(self, link: PeerLink, frame: Frame, call: Call) -> None:
        self._refuse_without_catalog()
        topic_path, name, added, removed = frame.decoded(_RuleChange, call.body)
        if added is not None:
            await self._broker.topics.add_rule(topic_path, name, rule_from_record(added))
        if removed is not None:
            await self._broker.topics.remove_rule(topic_path, name, removed)

    async def _change_rules_together(self, link: PeerLink, frame: Frame, call: Call) -> None:
        """Those of a transaction."""
        self._refuse_without_catalog()
        topic_path, name, shown = frame.decoded(tuple[str, str, list[dict[str, Any] | str]], call.body)
        changes = [each if isinstance(each, str) else rule_from_record(each) for each in shown]
        await self._broker.topics.change_rules(topic_path, name, changes)

    # -- anywhere -----------------------------------------------------------------

    async def _ready(self, link: PeerLink, frame: Frame, call: Call) -> None:
        """This broker has started."""

    async def _last_use(self, link: PeerLink, frame: Frame, call: Call) -> int:
        entity = self._entities.look_up(frame.decoded(str, call.body))
        if entity is None:
            return 0
        in_use = bool(entity.holders) or (isinstance(entity, Queue) and entity.awaited)
        return self._entities.clock.now() if in_use else entity.accessed_at

    async def _session_state(self, link: PeerLink, frame: Frame, call: Call) -> bytes | None:
        path, generation, number, lock = frame.decoded(_HeldSession, call.body)
        return await self._receiving(path, generation, number).session_state(lock)

    async def _consumer_lease(self, link: PeerLink, frame: Frame, call: Call) -> None:
        path, generation, number, request = frame.decoded(_AskedLease, call.body)
        await self._receiving(path, generation, number).lease(request)

    def _receiving(self, path: str, generation: str, number: int) -> PartitionHost:
        """A partition here that can be received from."""
        entity = self._entities.look_up(path)
        if entity is None or entity.generation != generation:
            raise EntityNotFound(path)
        host = entity.own.get(PartitionNumber(number))
        if host is None:
            raise PartitionMoved(f"Partition {number} of '{path}' is not owned by this broker.")
        if not isinstance(host, PartitionHost):
            raise ArgumentError(f"Partition {number} of '{path}' cannot be received from.")
        return host

    # -- where it is followed -----------------------------------------------------

    @staticmethod
    async def fetch(cluster: Cluster) -> FollowedCatalog:
        """The catalog, from the broker that has it."""
        namespace, records = await cluster.leader.call(
            "snapshot", None, tuple[dict[str, Any], list[EntityRecord]]
        )
        return FollowedCatalog(namespace, records)

    async def catch_up(self) -> None:
        """Compare everything with the catalog: the connection to it was lost for a while."""
        catalog = await self.fetch(self._cluster)
        # Before it can begin another deletion.
        _all_stay(self._entities)
        async with self._entities.changing:
            await self.compare(catalog.namespace(), catalog.entities())

    async def compare(self, namespace: Description, records: Sequence[EntityRecord]) -> None:
        """Make all entities match the catalog. The caller holds `Entities.changing`."""
        self._follow_namespace(namespace)
        listed = {normalise_path(record.path): record for record in records}
        gone = [
            entity
            for entity in self._entities
            if (record := listed.get(normalise_path(entity.path))) is None
            or record.generation != entity.generation
        ]
        if gone:
            await self._entities.forget(gone)
        for kind in ("queue", "topic", "subscription"):
            for record in records:
                if record.kind == kind:
                    self._apply(record)

    def keep_claims(self, claims: PartitionClaims) -> None:
        """Partitions in a store that this broker owns now, of entities that are not known here yet."""
        for (store, path, number), claim in claims.items():
            self._made.setdefault(path, {})[store, path, number] = claim
            # A store that comes back removes partitions of no entity.
            self._entities.stores[store].recovery.given_up.add((path, number))

    def _take_claims(self, path: EntityPath) -> PartitionClaims:
        """Those of an entity that is opened now, or was not created after all."""
        claims = self._made.pop(path, {})
        for store, _, number in claims:
            if store not in self._entities.elsewhere.store_names:
                self._entities.stores[store].recovery.given_up.discard((path, number))
        return claims

    def _forget_claims(self, store: str, keys: Container[PartitionKey]) -> None:
        """These partitions belonged to no entity, and were removed."""
        for path, claims in list(self._made.items()):
            for place, (key, _) in list(claims.items()):
                if place[0] == store and key in keys:
                    del claims[place]
                    if store not in self._entities.elsewhere.store_names:
                        self._entities.stores[store].recovery.given_up.discard(place[1:])
            if not claims:
                del self._made[path]

    async def _make_partitions(self, frame: Frame, body: Raw) -> None:
        record, stores = frame.decoded(tuple[EntityRecord, list[str]], body)
        claims: PartitionClaims = {}
        for store in stores:
            if store in self._entities.elsewhere.store_names:
                raise PartitionMoved(f"This broker does not own the messaging store '{store}' any more.")
        await make_partitions(record, self._entities.stores, claims, self._entities.elsewhere.store_names)
        self._take_claims(record.path)
        self.keep_claims(claims)

    async def _drop_partitions(self, frame: Frame, body: Raw) -> None:
        record = frame.decoded(EntityRecord, body)
        self._take_claims(record.path)
        names = [name for name in record.placement if name not in self._entities.elsewhere.store_names]
        await drop_partitions([self._entities.stores[name] for name in names], record.path)

    async def _changed(self, frame: Frame, body: Raw) -> None:
        async with self._entities.changing:
            records = frame.decoded(list[EntityRecord], body)
            await self._forget_earlier(records)
            for record in records:
                self._apply(record)

    async def _forget_earlier(self, records: Sequence[EntityRecord]) -> None:
        """Close entities of the same names that were deleted while this broker could not be told."""
        earlier: dict[SendTarget, None] = {}
        for record in records:
            entity = self._entities.look_up(record.path)
            if entity is not None and entity.generation != record.generation:
                earlier |= dict.fromkeys(
                    [entity, *(entity.subscriptions if isinstance(entity, Topic) else ())]
                )
        if earlier:
            await self._entities.forget(list(earlier))

    def _apply(self, record: EntityRecord) -> None:
        """An entity is new, or has a new description."""
        entities = self._entities
        entity = entities.look_up(record.path)
        if entity is None:
            # A store that is away may be another broker's by now, and have partitions that we do not know.
            away = [store.name for store in entities.stores if store.state is StoreState.AWAY]
            # Until it is open, its partitions are kept for it.
            entity = entities.open(record, self._made.get(record.path, {}), away)
            self._take_claims(record.path)
            entities.tell_of(entity)
        elif entity.updated_at != record.updated_at or entities.record(record.path) != record:
            whole: Entity[Any, Any, Any] = entity
            entities.redescribe(whole, description_of(record), record)
            if isinstance(entity, Topic):
                entity.tell_subscriptions()
            elif isinstance(entity, Subscription):
                entity.topic.rules_changed()

    async def _removed(self, frame: Frame, body: Raw) -> None:
        async with self._entities.changing:
            found = [self._entities.look_up(path) for path in frame.decoded(list[str], body)]
            await self._entities.forget([entity for entity in found if entity is not None])

    async def _send_off(self, frame: Frame, body: Raw) -> None:
        paths, force = frame.decoded(tuple[list[str], bool], body)
        for queue in self._queues(paths):
            queue.leaving = True
        for queue in self._queues(paths):
            await send_off(queue, self._entities.forwarder(queue), force=force)

    async def _stay(self, frame: Frame, body: Raw) -> None:
        for queue in self._queues(frame.decoded(list[str], body)):
            queue.leaving = False

    def _queues(self, paths: Sequence[str]) -> list[Queue]:
        found: list[SendTarget | None] = [self._entities.look_up(path) for path in paths]
        return [entity for entity in found if isinstance(entity, Queue)]

    async def _namespace(self, frame: Frame, body: Raw) -> None:
        self._follow_namespace(frame.decoded(dict[str, Any], body))

    def _follow_namespace(self, description: Mapping[str, object]) -> None:
        catalog = self._broker.catalog
        if isinstance(catalog, FollowedCatalog):
            catalog.follow_namespace(dict(description))
        self._broker.authorization_rules = rules_from_record(description.get("authorization_rules"))
        self.namespace_changed()
