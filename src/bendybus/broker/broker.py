"""The broker of one namespace: its life, its stores, and the way to everything else in it.

Queues and topics have modules of their own (queues.py, topics.py), and so has what
is common to their coming and going (registry.py). Time: ticker.py. Emptying stores:
draining.py; emptying entities: emptying.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bendybus.broker.clock import Clock
from bendybus.broker.draining import Drains
from bendybus.broker.emptying import empty
from bendybus.broker.entity import Entity
from bendybus.broker.health import STALL_AFTER_S
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.placing import Claims, placed_in, places, sweep, take_up
from bendybus.broker.queue import Queue
from bendybus.broker.queues import Queues
from bendybus.broker.registry import Registry
from bendybus.broker.stores import AttachedStore
from bendybus.broker.ticker import Ticker
from bendybus.broker.topic import Subscription, Target, Topic
from bendybus.broker.topics import Topics
from bendybus.domain.access import AuthorizationRule, check_rules, rules_from_record
from bendybus.domain.entities import PREMIUM_PARTITIONS_DEFAULT, QueueDescription, Tier
from bendybus.domain.fanout import Contents, Opaque
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import (
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    StoreCorrupted,
    StoreNotFound,
    StoreUnavailable,
)
from bendybus.names import Instant
from bendybus.store.catalog import Catalog, EntityRecord
from bendybus.store.protocol import MessagingStore

__all__ = ["Broker"]


class Broker:
    def __init__(
        self,
        catalog: Catalog,
        stores: Sequence[MessagingStore],
        *,
        tier: Tier = Tier.STANDARD,
        premium_partitions: int = PREMIUM_PARTITIONS_DEFAULT,
        contents: Contents | None = None,
        unopened: Mapping[str, Exception] | None = None,
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
        self.registry = Registry(self)
        self.queues = Queues(self)
        self.topics = Topics(self, contents or Opaque())
        self.changing = asyncio.Lock()
        """Entities are created, updated and deleted one after the other."""
        self._watchers: list[Callable[[Entity[Any, Any]], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.cache = PayloadCache()
        self.drains = Drains(self)
        self.clock = clock or Clock()
        self.ticker = Ticker(self)

    # -- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Take up what the catalog names; the partitions load in the background."""
        self._loop = loop = asyncio.get_running_loop()
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
            ("queue", self.queues.open),
            ("topic", self.topics.open_topic),
            ("subscription", self.topics.open_subscription),
        ):
            for record in records:
                if record.kind == kind:
                    open_entity(record, places(record, claims, self.stores_by_name, away))
        for name, reason in away.items():
            self.stores_by_name[name].begin_away(reason, opened=name not in self._unopened)
        self.ticker.start()
        self.drains.start(self.catalog.namespace().get("draining"))

    async def stop(self) -> None:
        """Let everything that was submitted reach the disk, then let go of the stores."""
        await self.drains.stop()
        for forwarder in self.registry.forwarders.values():
            forwarder.close()
        # Time goes on meanwhile: what a stalled store does not answer is answered for it.
        await self.drain()
        self.ticker.stop()
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

    def _take_up(self, records: Iterable[EntityRecord]) -> tuple[Claims, dict[str, Exception]]:
        """What all stores hold, and which of them are away."""
        away: dict[str, Exception] = dict(self._unopened)
        claims: Claims = {}
        placed = placed_in(records)
        for name, store in self.stores_by_name.items():
            if name not in away:
                try:
                    claims |= take_up(store, placed.get(name, set()))
                except (StoreUnavailable, StoreCorrupted) as failure:
                    away[name] = failure
        return claims, away

    # -- entities -----------------------------------------------------------------

    def sources(self) -> Iterable[Queue]:
        """Everything that keeps messages to be received: queues and subscriptions."""
        yield from self.queues
        for topic in self.topics:
            yield from topic.subscriptions

    def entities(self) -> list[Target]:
        """Queues, subscriptions and topics."""
        return [*self.sources(), *self.topics]

    def find(self, path: str) -> Queue:
        """The queue or subscription at this path, which can be received from."""
        queue = self.queues.find(path) or self.topics.find_subscription(path)
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

    def tell_of(self, entity: Entity[Any, Any]) -> None:
        for watcher in self._watchers:
            watcher(entity)

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
        await self.queues.ensure_all(queues)
        for subscription in subscriptions:
            await self.topics.ensure_subscription(subscription)

    async def delete(self, entity: Target) -> None:
        """Whatever it is."""
        if isinstance(entity, Topic):
            await self.topics.delete(entity.path)
        elif isinstance(entity, Subscription):
            await self.topics.delete_subscription(entity.topic_path, entity.name)
        else:
            await self.queues.delete(entity.path)

    async def empty(self) -> None:
        """Take every message out of every entity (B-08); who is connected stays connected.

        What was acknowledged before is gone; what is sent meanwhile waits, and stays. As when creating,
        the catalog has the last word: an entity that a crash finds half emptied does not exist.
        """
        async with self.changing:
            await empty(self)

    # -- messaging stores ---------------------------------------------------------

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
            placed = placed_in(self.registry.records.values()).get(name)
            if placed:
                raise InvalidOperation(
                    f"The messaging store '{name}' keeps {len(placed)} partitions; drain it first."
                )
            self.drains.refuse_last(name)
            await asyncio.to_thread(forget)
            await self.drains.forget(name)
            del self.stores_by_name[name]
            await asyncio.to_thread(attached.stop)

    # -- the namespace's own rules ------------------------------------------------

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
