"""Keeping up with the catalog, which one broker has.

That broker answers with the whole catalog, runs the changes that clients of other brokers ask for, and
tells the others of each. They open, change and close their entities as it says, and create and remove the
partitions in their own stores. A broker that was not reachable for a while compares everything when it is
back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bendybus.broker.broker import Broker
from bendybus.broker.departure import send_off
from bendybus.broker.entity import Entity
from bendybus.broker.openers import description_of
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.placing import PartitionClaims, drop_partitions, make_partitions
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget, Subscription, Topic
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.link import PeerLink
from bendybus.cluster.serving import Calls
from bendybus.domain.access import rules_from_record
from bendybus.domain.entities import normalise_path
from bendybus.domain.filters import rule_from_record
from bendybus.domain.session_commands import SessionLock
from bendybus.errors import ArgumentError, EntityNotFound, NotSupported
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.catalog import Description, EntityRecord

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
    """Nobody wants to know."""


class Following:
    """The catalog's side of a broker in a cluster."""

    def __init__(self, broker: Broker, cluster: Cluster) -> None:
        self._broker = broker
        self._entities = broker.entities
        self._cluster = cluster
        self._made: dict[EntityPath, PartitionClaims] = {}
        """Partitions that were created here for entities that the catalog does not list yet."""
        self.namespace_changed: Callable[[], None] = _nothing
        """Called when the settings of the namespace have changed."""

    def calls(self) -> Calls:
        """What the other brokers may ask."""
        shared: Calls = {
            "ready": self._ready,
            "last-use": self._last_use,
            "session-state": self._session_state,
        }
        if self._cluster.has_catalog:
            return {**shared, "snapshot": self._snapshot, "change-rules": self._change_rules}
        return {
            **shared,
            "make-partitions": self._make_partitions,
            "drop-partitions": self._drop_partitions,
            "changed": self._changed,
            "removed": self._removed,
            "send-off": self._send_off,
            "stay": self._stay,
            "namespace": self._namespace,
        }

    # -- where the catalog is -----------------------------------------------------

    async def _snapshot(self, link: PeerLink, frame: Frame, call: Call) -> object:
        """The whole catalog, between two changes."""
        async with self._entities.changing:
            return self._broker.catalog.namespace(), self._entities.records()

    async def _change_rules(self, link: PeerLink, frame: Frame, call: Call) -> None:
        topic_path, name, added, removed = frame.decoded(_RuleChange, call.body)
        if added is not None:
            await self._broker.topics.add_rule(topic_path, name, rule_from_record(added))
        if removed is not None:
            await self._broker.topics.remove_rule(topic_path, name, removed)

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
        entity = self._entities.look_up(path)
        if entity is None or entity.generation != generation:
            raise EntityNotFound(path)
        host = entity.own.get(PartitionNumber(number))
        if not isinstance(host, PartitionHost):
            raise ArgumentError(f"Partition {number} of '{path}' has no sessions here.")
        return await host.session_state(lock)

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
        async with self._entities.changing:
            self._follow_namespace(catalog.namespace())
            listed = {normalise_path(record.path): record for record in catalog.entities()}
            gone = [
                entity
                for entity in self._entities
                if (record := listed.get(normalise_path(entity.path))) is None
                or record.generation != entity.generation
            ]
            await self._entities.forget(gone)
            for kind in ("queue", "topic", "subscription"):
                for record in catalog.entities():
                    if record.kind == kind:
                        self._apply(record)

    async def _make_partitions(self, link: PeerLink, frame: Frame, call: Call) -> None:
        record = frame.decoded(EntityRecord, call.body)
        claims: PartitionClaims = {}
        await make_partitions(record, self._entities.stores, claims, self._entities.elsewhere.store_names)
        self._made[record.path] = claims

    async def _drop_partitions(self, link: PeerLink, frame: Frame, call: Call) -> None:
        record = frame.decoded(EntityRecord, call.body)
        self._made.pop(record.path, None)
        names = [name for name in record.placement if name not in self._entities.elsewhere.store_names]
        await drop_partitions([self._entities.stores[name] for name in names], record.path)

    async def _changed(self, link: PeerLink, frame: Frame, call: Call) -> None:
        async with self._entities.changing:
            for record in frame.decoded(list[EntityRecord], call.body):
                self._apply(record)

    def _apply(self, record: EntityRecord) -> None:
        """An entity is new, or has a new description."""
        entities = self._entities
        entity = entities.look_up(record.path)
        if entity is None:
            entities.tell_of(entities.open(record, self._made.pop(record.path, {})))
        elif entity.updated_at != record.updated_at or entities.record(record.path) != record:
            whole: Entity[Any, Any, Any] = entity
            entities.redescribe(whole, description_of(record), record)
            if isinstance(entity, Topic):
                entity.tell_subscriptions()
            elif isinstance(entity, Subscription):
                entity.topic.rules_changed()

    async def _removed(self, link: PeerLink, frame: Frame, call: Call) -> None:
        async with self._entities.changing:
            found = [self._entities.look_up(path) for path in frame.decoded(list[str], call.body)]
            await self._entities.forget([entity for entity in found if entity is not None])

    async def _send_off(self, link: PeerLink, frame: Frame, call: Call) -> None:
        paths, force = frame.decoded(tuple[list[str], bool], call.body)
        for queue in self._queues(paths):
            queue.leaving = True
        for queue in self._queues(paths):
            await send_off(queue, self._entities.forwarder(queue), force=force)

    async def _stay(self, link: PeerLink, frame: Frame, call: Call) -> None:
        for queue in self._queues(frame.decoded(list[str], call.body)):
            queue.leaving = False

    def _queues(self, paths: Sequence[str]) -> list[Queue]:
        found: list[SendTarget | None] = [self._entities.look_up(path) for path in paths]
        return [entity for entity in found if isinstance(entity, Queue)]

    async def _namespace(self, link: PeerLink, frame: Frame, call: Call) -> None:
        self._follow_namespace(frame.decoded(dict[str, Any], call.body))

    def _follow_namespace(self, description: Mapping[str, object]) -> None:
        catalog = self._broker.catalog
        assert isinstance(catalog, FollowedCatalog)
        catalog.follow_namespace(dict(description))
        self._broker.authorization_rules = rules_from_record(description.get("authorization_rules"))
        self.namespace_changed()
