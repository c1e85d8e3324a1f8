"""The broker of one namespace: its start and stop, its stores, and access to everything in it.

Which entities there are: entities.py. How they are changed: queues.py, topics.py. Time: ticker.py.
Emptying stores: draining.py. Stores that are lost: forgetting.py. Emptying entities: emptying.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict

from bendybus import audit
from bendybus.broker.background import Background
from bendybus.broker.client_subscriptions import ClientSubscriptions
from bendybus.broker.clock import Clock
from bendybus.broker.draining import Drains
from bendybus.broker.elsewhere import Elsewhere
from bendybus.broker.emptying import empty
from bendybus.broker.entities import Entities
from bendybus.broker.forgetting import Loss, give_up, refuse_present
from bendybus.broker.health import STALL_AFTER_S
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.placing import PartitionClaims, placed_in, sweep, take_up
from bendybus.broker.queue import Queue
from bendybus.broker.queues import Queues
from bendybus.broker.recorded import record_authorization_rules
from bendybus.broker.store_set import StoreSet
from bendybus.broker.stores import AttachedStore
from bendybus.broker.temporary import TemporaryEntities
from bendybus.broker.ticker import Ticker
from bendybus.broker.topic import SendTarget
from bendybus.broker.topics import Topics
from bendybus.domain.access import AuthorizationRule, check_rules, rules_from_record
from bendybus.domain.entities import PREMIUM_PARTITIONS_DEFAULT, QueueDescription, Tier
from bendybus.domain.fanout import Contents, Opaque
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import (
    InvalidOperation,
    StoreCorrupted,
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
        reserved_names: Container[str] = frozenset(),
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`contents` decodes messages for the rules of topics.

        `reserved_names`: names that a new queue or topic may not have, in lower case.

        `unopened`: the stores that could not be opened, by name, with the reason. They are tried again.
        """
        self.catalog = catalog
        self._given = stores
        self._unopened = unopened or {}
        self._stall_after_s = stall_after_s
        self.created_at = Instant(0)
        """When the namespace was first served."""
        self.authorization_rules: tuple[AuthorizationRule, ...] = ()
        """The namespace's own rules. The rules of an entity are in its description."""
        self.clock = clock or Clock()
        self.stores = StoreSet()
        self.entities = Entities(
            catalog,
            self.stores,
            clock=self.clock,
            contents=contents or Opaque(),
            tier=tier,
            premium_partitions=premium_partitions,
            reserved_names=reserved_names,
            elsewhere=elsewhere,
        )
        self.queues = Queues(self.entities)
        self.topics = Topics(self.entities)
        self.drains = Drains(self.stores, self.entities)
        self.background = Background()
        self.temporary = TemporaryEntities(self.entities, self.queues, self.topics, self.background)
        self.client_subscriptions = ClientSubscriptions(self.entities, self.topics)
        self.ticker = Ticker(self.clock, self.stores, self.entities, self.temporary)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def tier(self) -> Tier:
        return self.entities.tier

    @property
    def premium_partitions(self) -> int:
        return self.entities.premium_partitions

    @property
    def cache(self) -> PayloadCache:
        return self.entities.cache

    # -- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Open the entities in the catalog. Their partitions load in the background."""
        self._loop = loop = asyncio.get_running_loop()
        for store in self._given:
            attached = AttachedStore(store, loop, stall_after_s=self._stall_after_s)
            self.stores.add(attached)
            attached.start()
        self.created_at = self._founded()
        self.authorization_rules = rules_from_record(self.catalog.namespace().get("authorization_rules"))
        records = self.catalog.entities()
        claims, away = self._take_up(records)
        self.entities.open_all(records, claims, away)
        for name, reason in away.items():
            self.stores[name].begin_away(reason, opened=name not in self._unopened)
        self.ticker.start()
        self.drains.start(self.catalog.namespace().get("draining"))

    async def stop(self) -> None:
        """Commit everything that was submitted, then close the stores."""
        await self.background.stop()
        await self.drains.stop()
        for forwarder in self.entities.forwarders():
            forwarder.close()
        # The ticker keeps running: commands that a stalled store does not answer are answered for it.
        await self.stores.drain()
        self.ticker.stop()
        for store in self.stores:
            store.stop()

    async def drain(self) -> None:
        """Return once everything submitted so far is on disk or has failed."""
        await self.stores.drain()

    async def recovered(self) -> None:
        """Return once all stores answer and their contents have been loaded."""
        for store in self.stores:
            await store.recovered()
        for entity in self.entities:
            await entity.loaded()

    def _founded(self) -> Instant:
        """When the namespace was first served. The catalog also keeps its tier, until it is set otherwise."""
        namespace = self.catalog.namespace()
        found = namespace.get("created_at")
        at = Instant(found) if isinstance(found, int) else self.clock.now()
        kept = {"created_at": at, "tier": str(self.tier), "premium_partitions": self.premium_partitions}
        if not kept.items() <= namespace.items():
            self.catalog.describe_namespace({**namespace, **kept})
        return at

    def _take_up(self, records: Iterable[EntityRecord]) -> tuple[PartitionClaims, dict[str, Exception]]:
        """Claim the partitions in all stores. Returns the claims, and why stores are away, by name."""
        away: dict[str, Exception] = dict(self._unopened)
        claims: PartitionClaims = {}
        placed = placed_in(records)
        for store in self.stores:
            if store.name not in away:
                try:
                    claims |= take_up(store, placed.get(store.name, set()))
                except (StoreUnavailable, StoreCorrupted) as failure:
                    away[store.name] = failure
        return claims, away

    # -- entities -----------------------------------------------------------------

    def find(self, path: str) -> Queue:
        """The queue or subscription at this path, which can be received from."""
        return self.entities.find_source(path)

    def find_target(self, path: str) -> SendTarget:
        """The entity at this path, as a target for messages."""
        return self.entities.find(path)

    async def ensure(
        self,
        topics: Iterable[TopicDescription],
        queues: Sequence[QueueDescription],
        subscriptions: Iterable[SubscriptionDescription],
    ) -> None:
        """Create or update all of these, so that they match their descriptions."""
        # Topics do not forward, and nothing is forwarded to a subscription.
        for topic in topics:
            await self.topics.ensure(topic)
        await self.queues.ensure_all(queues)
        for subscription in subscriptions:
            await self.topics.ensure_subscription(subscription)

    async def empty(self) -> None:
        """Remove every message from every entity (B-08). Clients stay connected.

        Messages acknowledged before are gone. Messages sent meanwhile wait, and are kept. As in creation,
        the catalog decides: an entity that a crash leaves half emptied does not exist.
        """
        self.entities.elsewhere.refuse("emptying the namespace")
        async with self.entities.changing:
            await empty(self.entities)
            audit.record("namespace-emptied")

    # -- messaging stores ---------------------------------------------------------

    async def attach(self, store: MessagingStore) -> None:
        """Add a store that has been opened. Entities created from now on use it too."""
        assert self._loop is not None, "a broker that has not started is given its stores"
        self.entities.elsewhere.refuse("attaching a messaging store")
        async with self.entities.changing:
            attached = AttachedStore(store, self._loop, stall_after_s=self._stall_after_s)
            self.stores.refuse_taken(store.name)
            # Remove what is left from an earlier time when this store was attached.
            await asyncio.to_thread(sweep, attached, frozenset())
            attached.start()
            self.stores.add(attached)
            audit.record("store-attached", store=store.name)

    def add_store(self, store: MessagingStore) -> AttachedStore:
        """This broker owns a store from now on. Its partitions are opened next."""
        assert self._loop is not None, "a broker that has not started is given its stores"
        attached = AttachedStore(store, self._loop, stall_after_s=self._stall_after_s)
        attached.start()
        self.stores.add(attached)
        return attached

    async def remove_store(self, attached: AttachedStore) -> None:
        """This broker does not own the store any more. None of its partitions is here."""
        self.stores.remove(attached)
        await attached.let_go(StoreUnavailable(f"Another broker owns the messaging store '{attached.name}'."))

    async def detach(self, name: str, forget: Callable[[], None]) -> None:
        """Remove a store that holds no partitions. `forget` takes it out of the configuration."""
        self.entities.elsewhere.refuse("retiring a messaging store")
        async with self.entities.changing:
            attached = self.stores[name]
            placed = placed_in(self.entities.records()).get(name)
            if placed:
                raise InvalidOperation(
                    f"The messaging store '{name}' keeps {len(placed)} partitions; drain it first."
                )
            self.drains.refuse_last(name)
            await self._let_go(attached, forget)
            audit.record("store-retired", store=name)

    async def forget(self, name: str, forget: Callable[[], None]) -> Loss:
        """Give up a store that is lost for good. Its partitions start again, empty, in the other stores."""
        self.entities.elsewhere.refuse("forgetting a messaging store")
        async with self.entities.changing:
            attached = self.stores[name]
            refuse_present(attached)
            self.drains.refuse_last(name)
            loss = await give_up(self.entities, attached)
            audit.record("store-forgotten", store=name, **asdict(loss))
            await self._let_go(attached, forget)
            return loss

    async def _let_go(self, attached: AttachedStore, forget: Callable[[], None]) -> None:
        await asyncio.to_thread(forget)
        await self.drains.forget(attached.name)
        self.stores.remove(attached)
        await asyncio.to_thread(attached.stop)

    # -- the namespace's own rules ------------------------------------------------

    async def set_authorization_rules(self, rules: Sequence[AuthorizationRule]) -> None:
        """Replace the namespace's own rules."""
        async with self.entities.changing:
            checked = check_rules("The namespace", rules)
            namespace = self.catalog.namespace()
            records = [asdict(rule) for rule in checked]
            await asyncio.to_thread(
                self.catalog.describe_namespace, {**namespace, "authorization_rules": records}
            )
            record_authorization_rules("", self.authorization_rules, checked)
            self.authorization_rules = checked
            await self.entities.elsewhere.namespace_changed()

    # -- what tools keep about the namespace --------------------------------------

    async def keep_resource(self, facts: Mapping[str, object]) -> None:
        """Keep what a management tool says about the namespace as a whole, such as its tags (arm/)."""
        async with self.entities.changing:
            described = {**self.catalog.namespace(), "resource": dict(facts)}
            await asyncio.to_thread(self.catalog.describe_namespace, described)
            audit.record("namespace-updated")

    def kept_resource(self) -> Mapping[str, object]:
        kept = self.catalog.namespace().get("resource")
        return kept if isinstance(kept, dict) else {}
