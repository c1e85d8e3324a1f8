"""What requests do to queues, topics, subscriptions and filter rules.

PUT creates a resource or replaces its properties, and answers 200 either way: Azure's clients expect nothing
else. DELETE of a resource that does not exist is answered with 204.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

from bendybus.arm.calls import NOTHING, Answer, Call, listed
from bendybus.arm.entities import (
    queue_properties,
    read_entity,
    read_subscription,
    subscription_properties,
    topic_properties,
)
from bendybus.arm.errors import ParentNotFound
from bendybus.arm.filter_rules import read_rule, rule_properties
from bendybus.auth.rights import Right
from bendybus.broker.queue import Queue
from bendybus.broker.queues import Queues
from bendybus.broker.topic import Subscription, Topic
from bendybus.broker.topics import Topics
from bendybus.domain.entities import (
    EntityDescription,
    QueueDescription,
    normalise_path,
    refuse_immutable_changes,
)
from bendybus.domain.filters import RuleDescription
from bendybus.domain.topic_entities import TopicDescription, subscription_path
from bendybus.errors import EntityNotFound
from bendybus.namespaces import Namespace, Namespaces

__all__ = ["EntityResources"]

E = TypeVar("E", Queue, Topic)
D = TypeVar("D", QueueDescription, TopicDescription)
E_co = TypeVar("E_co", covariant=True)
D_contra = TypeVar("D_contra", contravariant=True)


class _Entities(Protocol[E_co, D_contra]):
    """The queues, or the topics, of a broker."""

    def __iter__(self) -> Iterator[E_co]: ...
    def find(self, path: str) -> E_co | None: ...
    def get(self, path: str) -> E_co: ...
    async def create(self, description: D_contra) -> E_co: ...
    async def update(self, description: D_contra, *, based_on: D_contra | None = None) -> E_co: ...
    async def delete(self, path: str) -> None: ...


class TopLevelResources(ABC, Generic[E, D]):
    """Queues, or topics. The fields say what differs between the two."""

    kind: str
    description: type[D]

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    async def list(self, call: Call) -> Answer:
        namespace = _managed(self._namespaces, call)
        found = sorted(self._entities(namespace), key=lambda entity: normalise_path(entity.path))
        return await listed(call, found, lambda entity: self._shown(call, namespace, entity))

    async def get(self, call: Call) -> Answer:
        namespace = _managed(self._namespaces, call, call.names[self.kind])
        entity = self._entities(namespace).get(call.names[self.kind])
        return await self._shown(call, namespace, entity), HTTPStatus.OK

    async def put(self, call: Call) -> Answer:
        path = call.names[self.kind]
        namespace = _managed(self._namespaces, call, path)
        entities = self._entities(namespace)
        entity = entities.find(path)
        description = read_entity(self.description, path, call.properties(), namespace.broker.tier, entity)
        self._check(call, namespace, description, entity)
        if entity is None:
            entity = await entities.create(description)
        else:
            present = entity.description
            assert isinstance(present, self.description)
            await entities.update(description, based_on=present)
        return await self._shown(call, namespace, entity), HTTPStatus.OK

    async def delete(self, call: Call) -> Answer:
        path = call.names[self.kind]
        entities = self._entities(_managed(self._namespaces, call, path))
        if entities.find(path) is None:
            return NOTHING
        await entities.delete(path)
        return None, HTTPStatus.OK

    @abstractmethod
    def _entities(self, namespace: Namespace) -> _Entities[E, D]: ...

    @abstractmethod
    def _check(self, call: Call, namespace: Namespace, description: D, entity: E | None) -> None: ...

    @abstractmethod
    async def _shown(self, call: Call, namespace: Namespace, entity: E) -> dict[str, object]: ...


class QueueResources(TopLevelResources[Queue, QueueDescription]):
    kind = "queue"
    description = QueueDescription

    def _entities(self, namespace: Namespace) -> Queues:
        return namespace.broker.queues

    def _check(
        self, call: Call, namespace: Namespace, description: QueueDescription, entity: Queue | None
    ) -> None:
        present = None if entity is None else entity.description
        _authorise_forwarding(call, namespace, description, present)

    async def _shown(self, call: Call, namespace: Namespace, entity: Queue) -> dict[str, object]:
        # Just started or just created: a moment later the counts are known.
        await entity.loaded()
        await entity.refresh(access=True)
        path = ("namespaces", namespace.name, "queues", entity.path)
        return call.shown(entity.path, queue_properties(entity), *path)


class TopicResources(TopLevelResources[Topic, TopicDescription]):
    kind = "topic"
    description = TopicDescription

    def _entities(self, namespace: Namespace) -> Topics:
        return namespace.broker.topics

    def _check(
        self, call: Call, namespace: Namespace, description: TopicDescription, entity: Topic | None
    ) -> None:
        if entity is not None:
            refuse_immutable_changes(entity.description, description)

    async def _shown(self, call: Call, namespace: Namespace, entity: Topic) -> dict[str, object]:
        entities: Sequence[Topic | Subscription] = [entity, *entity.subscriptions]
        for each in entities:
            await each.loaded()
            await each.refresh(access=True)
        path = ("namespaces", namespace.name, "topics", entity.path)
        return call.shown(entity.path, topic_properties(entity), *path)


class EntityResources:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self.queues = QueueResources(namespaces)
        self.topics = TopicResources(namespaces)

    # -- subscriptions ------------------------------------------------------------

    async def list_subscriptions(self, call: Call) -> Answer:
        namespace, topic = _managed(self._namespaces, call, call.names["topic"]), self._topic(call)
        return await listed(
            call,
            topic.subscriptions,
            lambda subscription: _subscription(call, namespace, topic, subscription),
        )

    async def get_subscription(self, call: Call) -> Answer:
        namespace, topic = self._below_topic(call)
        subscription = namespace.broker.topics.get_subscription(topic.path, call.names["subscription"])
        return await _subscription(call, namespace, topic, subscription), HTTPStatus.OK

    async def put_subscription(self, call: Call) -> Answer:
        namespace, topic = self._below_topic(call)
        name, topics = call.names["subscription"], namespace.broker.topics
        subscription = topic.subscription(name)
        before = None if subscription is None else subscription.description
        description = read_subscription(topic.path, name, call.properties(), before)
        _authorise_forwarding(call, namespace, description, before)
        if before is None:
            subscription = await topics.create_subscription(description)
        else:
            refuse_immutable_changes(before, description)
            subscription = await topics.update_subscription(description, based_on=before)
        return await _subscription(call, namespace, topic, subscription), HTTPStatus.OK

    async def delete_subscription(self, call: Call) -> Answer:
        namespace, topic = self._below_topic(call)
        if topic.subscription(call.names["subscription"]) is None:
            return NOTHING
        await namespace.broker.topics.delete_subscription(topic.path, call.names["subscription"])
        return None, HTTPStatus.OK

    # -- rules --------------------------------------------------------------------

    async def list_rules(self, call: Call) -> Answer:
        namespace, subscription = self._subscription(call)

        async def show(rule: RuleDescription) -> Mapping[str, object]:
            return _rule(call, namespace, subscription, rule)

        return await listed(call, subscription.description.rules, show)

    async def get_rule(self, call: Call) -> Answer:
        namespace, subscription = self._subscription(call)
        rule = subscription.description.rule(call.names["rule"])
        return _rule(call, namespace, subscription, rule), HTTPStatus.OK

    async def put_rule(self, call: Call) -> Answer:
        namespace, subscription = self._subscription(call)
        name, topics = call.names["rule"], namespace.broker.topics
        rule = read_rule(name, call.properties())
        if _has_rule(subscription, name):
            await topics.update_rule(subscription.topic_path, subscription.name, rule)
        else:
            await topics.add_rule(subscription.topic_path, subscription.name, rule)
        rule = subscription.description.rule(name)
        return _rule(call, namespace, subscription, rule), HTTPStatus.OK

    async def delete_rule(self, call: Call) -> Answer:
        namespace, subscription = self._subscription(call)
        name = call.names["rule"]
        if not _has_rule(subscription, name):
            return NOTHING
        await namespace.broker.topics.remove_rule(subscription.topic_path, subscription.name, name)
        return None, HTTPStatus.OK

    # -- finding ------------------------------------------------------------------

    def _below_topic(self, call: Call) -> tuple[Namespace, Topic]:
        path = subscription_path(call.names["topic"], call.names["subscription"])
        return _managed(self._namespaces, call, path), self._topic(call)

    def _topic(self, call: Call) -> Topic:
        topic = call.namespace(self._namespaces).broker.topics.find(call.names["topic"])
        if topic is None:
            raise ParentNotFound(f"The parent resource, topic '{call.names['topic']}', could not be found.")
        return topic

    def _subscription(self, call: Call) -> tuple[Namespace, Subscription]:
        namespace, topic = self._below_topic(call)
        subscription = topic.subscription(call.names["subscription"])
        if subscription is None:
            path = subscription_path(topic.path, call.names["subscription"])
            raise ParentNotFound(f"The parent resource, subscription '{path}', could not be found.")
        return namespace, subscription


def _managed(namespaces: Namespaces, call: Call, path: str = "") -> Namespace:
    """The namespace, if the caller may manage `path` in it."""
    namespace = call.namespace(namespaces)
    call.caller.require(namespace, path)
    return namespace


def _authorise_forwarding(
    call: Call, namespace: Namespace, asked: EntityDescription, present: EntityDescription | None
) -> None:
    """A client that sets up forwarding must have the right to send to the destination."""
    for field in ("forward_to", "forward_dead_lettered_to"):
        target = getattr(asked, field)
        if target is not None and getattr(present, field, None) != target:
            call.caller.require(namespace, target, Right.SEND)


def _has_rule(subscription: Subscription, name: str) -> bool:
    try:
        subscription.description.rule(name)
    except EntityNotFound:
        return False
    return True


# -- showing ------------------------------------------------------------------------


async def _subscription(
    call: Call, namespace: Namespace, topic: Topic, subscription: Subscription
) -> dict[str, object]:
    await subscription.loaded()
    await subscription.refresh(access=True)
    path = ("namespaces", namespace.name, "topics", topic.path, "subscriptions", subscription.name)
    return call.shown(subscription.name, subscription_properties(subscription), *path)


def _rule(
    call: Call, namespace: Namespace, subscription: Subscription, rule: RuleDescription
) -> dict[str, object]:
    above = ("namespaces", namespace.name, "topics", subscription.topic_path)
    path = (*above, "subscriptions", subscription.name, "rules", rule.name)
    return call.shown(rule.name, rule_properties(rule), *path)
