"""Client-scoped subscriptions: the topic subscriptions that JMS clients make by consuming a topic.

The name of such a subscription is unique in the namespace, whatever its topic, because a JMS client deletes
it by its name alone. What happens when a client asks for one:

    there is none                             it is created
    the same topic and selector               the client consumes it; if it is unshared, as the only consumer
    another topic or selector, no consumers   it is deleted and created again: that is how JMS changes one
    another topic or selector, consumers      refused
    only one of the two is shared             refused

A subscription with rules that an administrator has made keeps them, whatever the client selects.
Those that are not durable are temporary entities (temporary.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from bendybus.broker.entities import Entities
from bendybus.broker.temporary import held_elsewhere
from bendybus.broker.topic import Subscription, Topic
from bendybus.broker.topics import Topics
from bendybus.domain.client_scopes import ClientScope
from bendybus.domain.filters import DEFAULT_RULE, RuleDescription, SelectorFilter
from bendybus.domain.topic_entities import SubscriptionDescription
from bendybus.errors import EntityNotFound, SubscriptionInUse, Unauthorized

__all__ = ["ClientSubscriptions", "WantedSubscription"]


@dataclass(frozen=True, slots=True)
class WantedSubscription:
    """What a consumer asks for."""

    scope: ClientScope
    shared: bool
    selector: str = ""
    auto_delete_on_idle_s: float | None = None
    """For a durable subscription that is created now."""

    def description(self, topic: Topic) -> SubscriptionDescription:
        rule = DEFAULT_RULE
        if self.selector:
            rule = RuleDescription(rule.name, SelectorFilter(self.selector))
        durable = self.scope.durable
        return SubscriptionDescription.of(
            topic.path,
            str(self.scope),
            rules=(rule,),
            shared=self.shared,
            temporary=not durable,
            auto_delete_on_idle_s=self.auto_delete_on_idle_s if durable else None,
        )


class ClientSubscriptions:
    def __init__(self, entities: Entities, topics: Topics) -> None:
        self._entities = entities
        self._topics = topics

    def find(self, scope: ClientScope) -> Subscription:
        """The subscription with this name, of whichever topic. `EntityNotFound` if there is none."""
        found = self._look_up(scope)
        if found is None:
            raise EntityNotFound(str(scope))
        return found

    async def consume(
        self, topic: Topic, wanted: WantedSubscription, holder: Hashable, authorize: Callable[[], None]
    ) -> Subscription:
        """The subscription, which `holder` consumes from now on.

        `authorize` is called before one is created or deleted, and raises if the client may not do that.
        """
        self._entities.tier.require_premium("the subscriptions of JMS clients")
        if not self._entities.elsewhere.has_catalog:
            await self._entities.elsewhere.linked_entities.consume(topic.path, wanted, _refusal(authorize))
            subscription = self.find(wanted.scope)
            subscription.holders.add(holder)
            return subscription
        async with self._entities.changing:
            present = self._look_up(wanted.scope)
            in_use = present is not None and await self._is_held(present)
            if present is not None and not _fits(present, topic, wanted, in_use=in_use):
                authorize()
                await self._entities.remove(present)
                present = None
            if present is None:
                authorize()
                return await self._topics.add_subscription(wanted.description(topic), holder)
            await self._decide_sharing(present, shared=wanted.shared)
            present.holders.add(holder)
            return present

    async def consume_known(self, subscription: Subscription, holder: Hashable) -> None:
        """`holder` consumes a subscription that exists, as the only one."""
        if not self._entities.elsewhere.has_catalog:
            await self._entities.elsewhere.linked_entities.consume_known(subscription.path)
        else:
            async with self._entities.changing:
                await self._refuse_held(subscription)
        subscription.holders.add(holder)

    async def unsubscribe(self, subscription: Subscription, holder: Hashable) -> None:
        """Delete a subscription. Refused while somebody other than `holder` consumes it."""
        subscription.holders.discard(holder)
        if not self._entities.elsewhere.has_catalog:
            await self._entities.elsewhere.linked_entities.unsubscribe(subscription.path)
            return
        async with self._entities.changing:
            if not subscription.deleted:
                await self._refuse_held(subscription)
                await self._entities.remove(subscription)

    async def _is_held(self, subscription: Subscription) -> bool:
        return bool(subscription.holders) or await held_elsewhere(self._entities, subscription.path)

    async def _refuse_held(self, subscription: Subscription) -> None:
        if await self._is_held(subscription):
            raise SubscriptionInUse(
                f"The subscription '{subscription.path}' has an active consumer; close it first."
            )

    def _look_up(self, scope: ClientScope) -> Subscription | None:
        name = str(scope)
        for topic in self._topics:
            found = topic.subscription(name)
            if found is not None:
                return found
        return None

    async def _decide_sharing(self, present: Subscription, *, shared: bool) -> None:
        """Record what the first consumer asks for, if an administrator has made the subscription."""
        if present.description.shared is None:
            await self._entities.describe(present, replace(present.description, shared=shared))
            present.topic.rules_changed()


def _refusal(authorize: Callable[[], None]) -> str | None:
    """Why a client may not create or delete entities."""
    try:
        authorize()
    except Unauthorized as refusal:
        return str(refusal)
    return None


def _fits(present: Subscription, topic: Topic, wanted: WantedSubscription, *, in_use: bool) -> bool:
    """Whether the subscription is what the consumer wants. `SubscriptionInUse` if it cannot have it."""
    description, path = present.description, present.path
    if description.shared not in (None, wanted.shared):
        kind = "shared" if description.shared else "unshared"
        raise SubscriptionInUse(
            f"The subscription '{path}' is {kind}. A shared and an unshared one cannot have the same name."
        )
    if in_use and not wanted.shared:
        raise SubscriptionInUse(
            f"Cannot create a new consumer on the subscription '{path}', because it is unshared and has an "
            "active consumer."
        )
    if present.topic is topic and description.selector in (None, wanted.selector):
        return True
    if in_use:
        raise SubscriptionInUse(
            f"The subscription '{path}' has active consumers, and this consumer asks for another topic or "
            "another selector."
        )
    return False
