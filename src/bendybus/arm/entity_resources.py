"""What requests do to queues, topics, subscriptions and filter rules.

PUT creates a resource or replaces its properties, and answers 200 either way: Azure's clients expect nothing
else. DELETE of a resource that does not exist is answered with 204.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

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
from bendybus.broker.topic import Subscription, Topic
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


class EntityResources:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    # -- queues -------------------------------------------------------------------

    async def list_queues(self, call: Call) -> Answer:
        namespace = self._managed(call)
        queues = sorted(namespace.broker.queues, key=lambda queue: normalise_path(queue.path))
        return await listed(call, queues, lambda queue: _queue(call, namespace, queue))

    async def get_queue(self, call: Call) -> Answer:
        namespace = self._managed(call, call.names["queue"])
        return await _queue(call, namespace, namespace.broker.queues.get(call.names["queue"])), HTTPStatus.OK

    async def put_queue(self, call: Call) -> Answer:
        path = call.names["queue"]
        namespace = self._managed(call, path)
        queues, tier = namespace.broker.queues, namespace.broker.tier
        queue = queues.find(path)
        description = read_entity(QueueDescription, path, call.properties(), tier, queue)
        _authorise_forwarding(call, namespace, description, None if queue is None else queue.description)
        if queue is None:
            queue = await queues.create(description)
        else:
            await queues.update(description)
        return await _queue(call, namespace, queue), HTTPStatus.OK

    async def delete_queue(self, call: Call) -> Answer:
        path = call.names["queue"]
        queues = self._managed(call, path).broker.queues
        if queues.find(path) is None:
            return NOTHING
        await queues.delete(path)
        return None, HTTPStatus.OK

    # -- topics -------------------------------------------------------------------

    async def list_topics(self, call: Call) -> Answer:
        namespace = self._managed(call)
        topics = sorted(namespace.broker.topics, key=lambda topic: normalise_path(topic.path))
        return await listed(call, topics, lambda topic: _topic(call, namespace, topic))

    async def get_topic(self, call: Call) -> Answer:
        namespace = self._managed(call, call.names["topic"])
        return await _topic(call, namespace, namespace.broker.topics.get(call.names["topic"])), HTTPStatus.OK

    async def put_topic(self, call: Call) -> Answer:
        path = call.names["topic"]
        namespace = self._managed(call, path)
        topics, tier = namespace.broker.topics, namespace.broker.tier
        topic = topics.find(path)
        description = read_entity(TopicDescription, path, call.properties(), tier, topic)
        if topic is None:
            topic = await topics.create(description)
        else:
            refuse_immutable_changes(topic.description, description)
            await topics.update(description)
        return await _topic(call, namespace, topic), HTTPStatus.OK

    async def delete_topic(self, call: Call) -> Answer:
        path = call.names["topic"]
        topics = self._managed(call, path).broker.topics
        if topics.find(path) is None:
            return NOTHING
        await topics.delete(path)
        return None, HTTPStatus.OK

    # -- subscriptions ------------------------------------------------------------

    async def list_subscriptions(self, call: Call) -> Answer:
        namespace, topic = self._managed(call, call.names["topic"]), self._topic(call)
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
            subscription = await topics.update_subscription(description)
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

    def _managed(self, call: Call, path: str = "") -> Namespace:
        """The namespace, if the caller may manage `path` in it."""
        namespace = call.namespace(self._namespaces)
        call.caller.require(namespace, path)
        return namespace

    def _below_topic(self, call: Call) -> tuple[Namespace, Topic]:
        path = subscription_path(call.names["topic"], call.names["subscription"])
        return self._managed(call, path), self._topic(call)

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


async def _queue(call: Call, namespace: Namespace, queue: Queue) -> dict[str, object]:
    # Just started or just created: a moment later the counts are known.
    await queue.loaded()
    await queue.refresh(access=True)
    path = ("namespaces", namespace.name, "queues", queue.path)
    return call.shown(queue.path, queue_properties(queue), *path)


async def _topic(call: Call, namespace: Namespace, topic: Topic) -> dict[str, object]:
    await topic.loaded()
    await topic.refresh(access=True)
    for subscription in topic.subscriptions:
        await subscription.loaded()
        await subscription.refresh(access=True)
    path = ("namespaces", namespace.name, "topics", topic.path)
    return call.shown(topic.path, topic_properties(topic), *path)


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
