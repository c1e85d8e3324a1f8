"""A namespace for a test: its connection string, its entities, its clock, its reset.

Everything here runs on the server's own loop and returns when it is done, so that
the test can rely on it in its next line. How namespaces are created and closed: server.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bendybus.admin.authorization_rules import AuthorizationRules, RootRule
from bendybus.auth.key_ring import KeyRing
from bendybus.broker.broker import Broker
from bendybus.broker.clock import Clock
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Given, Peek
from bendybus.domain.entities import (
    EntityDescription,
    QueueDescription,
    normalise_path,
    refuse_immutable_changes,
)
from bendybus.domain.filters import DEFAULT_RULE_NAME, RuleDescription, SqlFilter, SqlRuleAction
from bendybus.domain.messages import SubQueue
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import InvalidOperation
from bendybus.names import EntityPath, SequenceNumber
from bendybus.namespaces import Namespace as ServedNamespace
from bendybus.server.emulator_config import NamespaceConfig
from bendybus.server.front import Front
from bendybus.server.http import RESERVED_NAMES
from bendybus.server.settings import Settings
from bendybus.server.tiers import NamespaceTier
from bendybus.store.catalog import Catalog
from bendybus.store.faults import StoreFaults
from bendybus.store.protocol import MessagingStore
from bendybus.testing.clock import TimeMachine
from bendybus.testing.faulty_entities import FaultyEntities
from bendybus.testing.seen_messages import SeenMessage, seen

__all__ = ["NamespaceStorage", "Namespace"]

# More messages than a test reads.
ALL: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class NamespaceStorage:
    """The stores and catalog of a namespace, which remain when its broker stops."""

    catalog: Catalog
    stores: list[MessagingStore]
    folder: Path | None
    """Where a durable namespace keeps its files."""

    def open(self) -> None:
        self.catalog.open()
        for store in self.stores:
            store.open()

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.catalog.close()


class Namespace(FaultyEntities):
    """Created by `Server.namespace`. As a context manager, it closes the namespace at the end."""

    def __init__(
        self,
        name: str,
        root: RootRule,
        storage: NamespaceStorage,
        described: NamespaceConfig,
        settings: Settings,
        connection_string: str,
        front: Front,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self.connection_string = connection_string
        """For any Azure SDK. It gives access to this namespace and no other of the server."""
        self.name = name
        self._root = root
        self._storage = storage
        self._settings = settings
        self._described = described
        """The entities at creation, which a reset restores."""
        self.faults = StoreFaults(storage.stores)
        """Makes its stores fail and heals them (B-09). They are called store-0, store-1 and so on."""
        self._front = front
        self._call = call
        self._clock = Clock()
        self._served: ServedNamespace | None = None
        self.clock = TimeMachine(self._clock, self._advance)

    @property
    def closed(self) -> bool:
        return self._served is None

    # -- entities -----------------------------------------------------------------

    def create_queue(self, name: str, **properties: Any) -> None:
        """Create a queue. Properties are named as in docs/reference/properties.md: `lock_duration_s=5`."""
        self._call(self._open.broker.queues.create(QueueDescription(EntityPath(name), **properties)))

    def delete_queue(self, name: str) -> None:
        self._call(self._open.broker.queues.delete(name))

    def queues(self) -> list[str]:
        """The names of all queues."""
        return sorted(queue.path for queue in self._open.broker.queues)

    def create_topic(self, name: str, **properties: Any) -> None:
        """Create a topic. Properties are named as with queues."""
        self._call(self._open.broker.topics.create(TopicDescription(EntityPath(name), **properties)))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its subscriptions."""
        self._call(self._open.broker.topics.delete(name))

    def topics(self) -> list[str]:
        """The names of all topics."""
        return sorted(topic.path for topic in self._open.broker.topics)

    def create_subscription(self, topic: str, name: str, **properties: Any) -> None:
        """Create a subscription. It takes every message until rules say otherwise."""
        description = SubscriptionDescription.of(topic, name, **properties)
        self._call(self._open.broker.topics.create_subscription(description))

    def delete_subscription(self, topic: str, name: str) -> None:
        self._call(self._open.broker.topics.delete_subscription(topic, name))

    def subscriptions(self, topic: str) -> list[str]:
        """The names of a topic's subscriptions."""
        return [subscription.name for subscription in self._open.broker.topics.get(topic).subscriptions]

    def create_rule(
        self, topic: str, subscription: str, name: str, sql: str, action: str | None = None
    ) -> None:
        """Create a rule with a SQL filter for messages, and optionally a SQL action that changes them."""
        made = RuleDescription(name, SqlFilter(sql), None if action is None else SqlRuleAction(action))
        self._call(self._open.broker.topics.add_rule(topic, subscription, made))

    def delete_rule(self, topic: str, subscription: str, name: str = DEFAULT_RULE_NAME) -> None:
        """Delete a rule; without a name, the default rule of every new subscription."""
        self._call(self._open.broker.topics.remove_rule(topic, subscription, name))

    def messages(self, queue: str, subscription: str | None = None) -> list[SeenMessage]:
        """Everything in a queue, or in a topic's subscription, in any state, by sequence number.

        Reading them does not receive them.
        """
        return self._look(queue, subscription, SubQueue.MAIN)

    def dead_letters(self, queue: str, subscription: str | None = None) -> list[SeenMessage]:
        """Everything in the dead-letter queue of a queue, or of a topic's subscription."""
        return self._look(queue, subscription, SubQueue.DEAD_LETTER)

    def _look(self, path: str, subscription: str | None, subqueue: SubQueue) -> list[SeenMessage]:
        broker = self._open.broker
        if subscription is None:
            source: Queue = broker.find(path)
        else:
            source = broker.topics.get_subscription(path, subscription)
        seen: list[SeenMessage] = self._call(_look(source, subqueue))
        return seen

    # -- life ---------------------------------------------------------------------

    def reset(self) -> None:
        """Restore the state at creation: the same entities, with no messages, at the real time.

        Clients stay connected. Messages acknowledged before are gone; messages sent afterwards stay.
        """
        self._call(self._reset())

    def restart(self) -> None:
        """Stop the broker and start it again. Connections and locks are lost; messages are not."""
        self._call(self._restart())

    def close(self) -> None:
        """Close the namespace and delete everything in it, unless it is durable."""
        if self._served is not None:
            self._call(self.leave())

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- on the server's loop -----------------------------------------------------

    async def enter(self) -> None:
        """Open the stores and the catalog, start a broker, and let clients in."""
        self._storage.open()
        recorded = self._storage.catalog.namespace()
        tier = NamespaceTier.of(self.name, self._settings, self._described, recorded)
        broker = Broker(
            self._storage.catalog,
            self.faults.stores,
            tier=tier.tier,
            premium_partitions=tier.premium_partitions,
            contents=AmqpContents(),
            reserved_names=RESERVED_NAMES,
            clock=self._clock,
        )
        broker.start()
        keys = KeyRing()
        authorization_rules = AuthorizationRules(broker, keys, self._root)
        authorization_rules.open()
        try:
            await self._ensure(broker)
            for scope, rules in self._described.rules.items():
                await authorization_rules.bring(scope, rules)
        except BaseException:
            await broker.stop()
            self._storage.close()
            raise
        self._served = ServedNamespace(self.name, broker, keys, self.faults)
        self._front.admit(self._served, authorization_rules)

    async def leave(self) -> None:
        """Disconnect the clients, stop the broker and close its stores, unless that has been done."""
        served, self._served = self._served, None
        if served is not None:
            self._front.dismiss(served)
            self.faults.heal_all()
            await served.broker.stop()
            self._storage.close()

    async def _restart(self) -> None:
        await self.leave()
        await self.enter()

    async def _ensure(self, broker: Broker) -> None:
        described = self._described
        await broker.ensure(described.topics, described.queues, described.subscriptions)

    async def _reset(self) -> None:
        broker = self._open.broker
        self.faults.heal_all()
        for entity in broker.entities:
            entity.faults = None
        await broker.recovered()
        described = self._described
        first: list[EntityDescription] = [
            *(broker.entities.settled(queue) for queue in described.queues),
            *(broker.entities.settled(topic) for topic in described.topics),
            *described.subscriptions,
        ]
        by_path = {normalise_path(each.path): each for each in first}
        for entity in broker.entities:
            wanted = by_path.get(normalise_path(entity.path))
            if not entity.deleted and not _is_as_made(entity.description, wanted):
                await broker.entities.delete(entity)
        await broker.empty()
        await self._ensure(broker)
        self._clock.set_right()

    def _advance(self, by_ms: int) -> None:
        self._call(self._advanced(by_ms))

    async def _advanced(self, by_ms: int) -> None:
        await self._open.broker.ticker.advance(by_ms)
        # Messages for waiting receivers are written at the end of the loop's turn.
        await asyncio.sleep(0)

    @property
    def _open(self) -> ServedNamespace:
        if self._served is None:
            raise RuntimeError("this namespace has been closed")
        return self._served


def _is_as_made(present: EntityDescription, first: EntityDescription | None) -> bool:
    """Whether an entity existed at creation and can be changed back to how it was."""
    if first is None or type(first) is not type(present):
        return False
    try:
        refuse_immutable_changes(present, first)
    except InvalidOperation:
        return False
    return True


async def _look(queue: Queue, subqueue: SubQueue) -> list[SeenMessage]:
    found: list[SeenMessage] = []
    for host in queue.hosts:
        given = await host.ask(Peek(SequenceNumber(0), ALL, subqueue))
        assert isinstance(given, Given)
        payloads = await host.payloads(given.messages)
        pairs = zip(given.messages, payloads, strict=True)
        found += [seen(message, payload) for message, payload in pairs if payload is not None]
    return found
