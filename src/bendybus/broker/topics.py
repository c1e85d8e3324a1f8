"""The topics of a namespace: create, update, delete, and the same for subscriptions and rules.

As with queues (queues.py), changes are made one after the other. Each is atomic, and
durable when the call returns. A subscription's rules are a part of its
description. Deleting a topic deletes its subscriptions in the same step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from bendybus.broker.entities import Entities
from bendybus.broker.topic import Subscription, Topic
from bendybus.domain.entities import normalise_path, refuse_immutable_changes
from bendybus.domain.filters import RuleDescription
from bendybus.domain.topic_entities import (
    SUBSCRIPTIONS_MAX,
    SubscriptionDescription,
    TopicDescription,
    check_client_scope,
    check_filter_cost,
    check_filter_quota,
    check_topic_tier,
    rebased,
    subscription_path,
)
from bendybus.errors import EntityExists, EntityNotFound, QuotaExceeded
from bendybus.names import Instant

__all__ = ["RuleChange", "Topics", "with_change"]

RuleChange: TypeAlias = RuleDescription | str
"""A rule that is added, or the name of one that is removed."""
"""Adding or removing a rule, as a function of a subscription's description."""


class Topics:
    def __init__(self, entities: Entities) -> None:
        self._entities = entities

    # -- finding ------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._entities.topics())

    def find(self, path: str) -> Topic | None:
        entity = self._entities.look_up(path)
        return entity if isinstance(entity, Topic) else None

    def get(self, path: str) -> Topic:
        """The topic at this path, or `EntityNotFound`."""
        topic = self.find(path)
        if topic is None:
            raise EntityNotFound(path)
        return topic

    def get_subscription(self, topic_path: str, name: str) -> Subscription:
        subscription = self.get(topic_path).subscription(name)
        if subscription is None:
            raise EntityNotFound(subscription_path(topic_path, name))
        return subscription

    # -- topics -------------------------------------------------------------------

    async def create(self, description: TopicDescription, holder: Hashable | None = None) -> Topic:
        """Create the topic on all its partitions, or not at all (P-32). `holder` keeps a temporary one."""
        entities = self._entities
        async with entities.changing:
            entities.refuse_taken(description.path)
            description = entities.settled(description)
            check_topic_tier(entities.tier, description)
            record = entities.admit("topic", description)
            topic = await entities.create(record, description.label, holder)
            assert isinstance(topic, Topic)
            return topic

    async def update(
        self,
        description: TopicDescription,
        *,
        based_on: TopicDescription | None = None,
        unchanged_since: Instant | None = None,
    ) -> Topic:
        """Change what may be changed. A change to an immutable property is refused with its name (P-07).

        What is as in `based_on` is not changed, even if others have changed it since that was read.
        `PreconditionFailed` if the topic was last updated at a time other than `unchanged_since`.
        """
        entities = self._entities
        async with entities.changing:
            topic = self.get(description.path)
            topic.refuse_updated_since(unchanged_since)
            before = topic.description
            if based_on is not None:
                description = rebased(description, based_on, before)
            # Keep the creator's spelling, because the stores know the partitions by it.
            description = replace(
                description, path=topic.path, exact_keys=before.exact_keys, temporary=before.temporary
            )
            description = entities.settled(description, topic)
            refuse_immutable_changes(before, description)
            check_topic_tier(entities.tier, description, before)
            topic.refuse_unhealthy()
            await entities.describe(topic, description)
            topic.tell_subscriptions()
            return topic

    async def delete(self, path: str, *, force: bool = False) -> None:
        """Delete a topic with all its subscriptions, their rules and messages."""
        async with self._entities.changing:
            await self._entities.remove(self.get(path), force=force)

    async def ensure(self, description: TopicDescription) -> Topic:
        """Create the topic, or update the existing one to this description. Its authorization rules stay."""
        topic = self.find(description.path)
        if topic is None:
            return await self.create(description)
        description = replace(
            self._entities.settled(description, topic),
            authorization_rules=topic.description.authorization_rules,
            exact_keys=topic.description.exact_keys,
        )
        return topic if topic.description == description else await self.update(description)

    # -- subscriptions ------------------------------------------------------------

    async def create_subscription(self, description: SubscriptionDescription) -> Subscription:
        """Create a subscription. It takes every message that is accepted after this has returned."""
        async with self._entities.changing:
            return await self.add_subscription(description)

    async def add_subscription(
        self, description: SubscriptionDescription, holder: Hashable | None = None
    ) -> Subscription:
        """`create_subscription` for a caller that has `changing`. `holder` keeps a temporary one."""
        entities = self._entities
        topic = self.get(description.topic_path)
        description = replace(
            description,
            path=subscription_path(topic.path, description.name),
            rules=tuple(map(self._dated, description.rules)),
            # Its messages are in the partitions that the topic chose.
            exact_keys=topic.description.exact_keys,
            max_message_size_kb=topic.description.max_message_size_kb,
        )
        if topic.subscription(description.name) is not None:
            raise EntityExists(f"The messaging entity '{description.path}' already exists.")
        if len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise QuotaExceeded(
                f"{description.label} cannot be created: the topic has {SUBSCRIPTIONS_MAX} subscriptions "
                "already, as many as are allowed."
            )
        check_client_scope(entities.tier, description)
        entities.tier.check_features(description)
        entities.check_forwarding(description)
        self._check_filters(topic, description)
        topic.refuse_unhealthy()
        # A copy is stored in the same commit as its message, so in the same store.
        placement = entities.record(topic.path).placement
        record = entities.new_record("subscription", description, placement)
        subscription = await entities.create(record, description.label, holder)
        assert isinstance(subscription, Subscription)
        return subscription

    async def update_subscription(
        self, description: SubscriptionDescription, *, based_on: SubscriptionDescription | None = None
    ) -> Subscription:
        """Change what may be changed. Rules have methods of their own and stay as they are.

        `based_on` as for topics.
        """
        async with self._entities.changing:
            subscription = self.get_subscription(description.topic_path, description.name)
            before = subscription.description
            if based_on is not None:
                description = rebased(description, based_on, before)
            description = replace(description, rules=before.rules, **_kept(before))
            refuse_immutable_changes(before, description)
            self._entities.tier.check_features(description, before)
            self._entities.check_forwarding(description)
            subscription.refuse_unhealthy()
            await self._keep(subscription, description)
            return subscription

    async def delete_subscription(self, topic_path: str, name: str, *, force: bool = False) -> None:
        async with self._entities.changing:
            await self._entities.remove(self.get_subscription(topic_path, name), force=force)

    async def ensure_subscription(self, description: SubscriptionDescription) -> Subscription:
        """Create the subscription, or update the existing one, including its rules, to this description."""
        subscription = self.get(description.topic_path).subscription(description.name)
        if subscription is None:
            return await self.create_subscription(description)
        before = subscription.description
        made_at = {rule.name: rule.created_at for rule in before.rules}
        rules = (
            replace(rule, created_at=made_at.get(rule.name, rule.created_at)) for rule in description.rules
        )
        description = replace(description, rules=tuple(map(self._dated, rules)), **_kept(before))
        # If nothing has to change, a store that is away is not an error.
        if description != before:
            await self.update_subscription(description)
            async with self._entities.changing:
                await self._keep(subscription, description)
        return subscription

    # -- rules --------------------------------------------------------------------

    async def add_rule(self, topic_path: str, name: str, rule: RuleDescription) -> None:
        """Add a rule. It applies from the next message on. `EntityExists` if its name is taken."""
        if not self._entities.elsewhere.has_catalog:
            await self._entities.elsewhere.change_rules(topic_path, name, [rule])
            return
        async with self._entities.changing:
            subscription = self.get_subscription(topic_path, name)
            await self._keep(subscription, subscription.description.with_rule(self._dated(rule)))

    async def update_rule(self, topic_path: str, name: str, rule: RuleDescription) -> None:
        async with self._entities.changing:
            subscription = self.get_subscription(topic_path, name)
            await self._keep(subscription, subscription.description.with_changed_rule(rule))

    async def remove_rule(self, topic_path: str, name: str, rule_name: str) -> None:
        if not self._entities.elsewhere.has_catalog:
            await self._entities.elsewhere.change_rules(topic_path, name, [rule_name])
            return
        async with self._entities.changing:
            subscription = self.get_subscription(topic_path, name)
            await self._keep(subscription, subscription.description.without_rule(rule_name))

    async def change_rules(self, topic_path: str, name: str, changes: Sequence[RuleChange]) -> None:
        """Make several changes as one: all of them, or none if one raises (P-24)."""
        if not self._entities.elsewhere.has_catalog:
            await self._entities.elsewhere.change_rules(topic_path, name, changes)
            return
        async with self._entities.changing:
            subscription = self.get_subscription(topic_path, name)
            description = subscription.description
            for change in changes:
                dated = change if isinstance(change, str) else self._dated(change)
                description = with_change(description, dated)
            await self._keep(subscription, description)

    async def _keep(self, subscription: Subscription, description: SubscriptionDescription) -> None:
        self._check_filters(subscription.topic, description)
        await self._entities.describe(subscription, description)
        subscription.topic.rules_changed()

    @staticmethod
    def _check_filters(topic: Topic, changed: SubscriptionDescription) -> None:
        present = [each.description for each in topic.subscriptions]
        others = [each for each in present if normalise_path(each.path) != normalise_path(changed.path)]
        check_filter_quota(topic.path, [*others, changed])
        check_filter_cost(topic.path, present, [*others, changed])

    def _dated(self, rule: RuleDescription) -> RuleDescription:
        return rule if rule.created_at else replace(rule, created_at=self._entities.clock.now())


def with_change(description: SubscriptionDescription, change: RuleChange) -> SubscriptionDescription:
    """The subscription after this change. Raises if it cannot be made."""
    if isinstance(change, str):
        return description.without_rule(change)
    return description.with_rule(change)


def _kept(before: SubscriptionDescription) -> dict[str, Any]:
    """What no update of a subscription changes."""
    return {
        "path": before.path,
        "exact_keys": before.exact_keys,
        "max_message_size_kb": before.max_message_size_kb,
        "shared": before.shared,
        "temporary": before.temporary,
    }
