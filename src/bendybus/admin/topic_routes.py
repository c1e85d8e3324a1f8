"""Topics, subscriptions and rules over HTTP: what each request does to them.

    PUT GET DELETE  /{topic}                                       beside queues: routes.py
    GET             /{topic}/Subscriptions                         in pages
    PUT GET DELETE  /{topic}/Subscriptions/{name}
    GET             /{topic}/Subscriptions/{name}/Rules            in pages
    PUT GET DELETE  /{topic}/Subscriptions/{name}/Rules/{rule}

PUT with `If-Match` updates. `Subscriptions` and `Rules` are found in any case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from bendybus.admin.answers import (
    Answers,
    invalid_verb,
    is_update,
    read_body,
    refuse_old_version,
    unchanged_since,
)
from bendybus.admin.documents import EntryContent
from bendybus.admin.fields import check_elements
from bendybus.admin.filter_rules import read_rule, rule_elements
from bendybus.admin.paths import Child
from bendybus.admin.topics import read_subscription, read_topic, subscription_elements, topic_elements
from bendybus.atom import RULE_DESCRIPTION, SUBSCRIPTION_DESCRIPTION, TOPIC_DESCRIPTION
from bendybus.broker.broker import Broker
from bendybus.broker.topic import Subscription, Topic
from bendybus.domain.entities import EntityDescription, refuse_immutable_changes
from bendybus.domain.filters import RuleDescription
from bendybus.domain.properties import SUBSCRIPTION, TOPIC

__all__ = ["TopicRequests"]


class TopicRequests:
    def __init__(
        self,
        broker: Broker,
        refuse_old_version: Callable[[EntityDescription, str], None],
        authorise_forwarding: Callable[[Request, EntityDescription, EntityDescription | None], None],
    ) -> None:
        self._authorise_forwarding = authorise_forwarding
        self._broker = broker
        self._refuse_old_version = refuse_old_version

    # -- topics -------------------------------------------------------------------

    async def put_topic(
        self, request: Request, path: str, described: EntryContent, answers: Answers
    ) -> Response:
        broker = self._broker
        check_elements(f"Topic '{path}'", described, TOPIC, answers.version)
        if not is_update(request, broker.entities.look_up(path)):
            description = read_topic(path, described.elements, broker.tier)
            self._refuse_old_version(description, answers.version)
            created = await broker.topics.create(description)
            return answers.one(await self.topic_entry(created, answers, new=True), 201)
        topic = self._shown(broker.topics.get(path), answers)
        description = read_topic(path, described.elements, broker.tier, topic)
        refuse_immutable_changes(topic.description, description)
        await broker.topics.update(
            description, based_on=topic.description, unchanged_since=unchanged_since(request, topic)
        )
        return answers.one(await self.topic_entry(topic, answers))

    async def topic_entry(self, topic: Topic, answers: Answers, *, new: bool = False) -> str:
        # Just started or just created: a moment later the counts are known.
        await topic.loaded()
        await topic.refresh(access=True)
        for subscription in topic.subscriptions:
            await subscription.loaded()
            await subscription.refresh(access=True)
        content = topic_elements(topic, answers.version, new=new)
        return answers.entry(
            topic.path, topic.path, TOPIC_DESCRIPTION, content, topic.created_at, topic.updated_at
        )

    @staticmethod
    def _shown(topic: Topic, answers: Answers) -> Topic:
        """The topic, unless this version of the API is older than its partitions (P-10)."""
        if len(topic.hosts) > 1:
            refuse_old_version(f"{topic.description.label} is partitioned", answers.version)
        return topic

    # -- below a topic ------------------------------------------------------------

    async def answer(self, request: Request, child: Child, answers: Answers) -> Response:
        topic = self._shown(self._broker.topics.get(child.topic), answers)
        if child.is_list:
            if request.method not in ("GET", "HEAD"):
                raise invalid_verb(
                    request.method, f"A list below '{topic.path}' can be read and not changed."
                )
            if child.subscription is None:
                return await answers.page(topic.subscriptions, self._subscription_entry(answers))
            subscription = self._broker.topics.get_subscription(topic.path, child.subscription)
            return await answers.page(subscription.description.rules, _rule_entry(subscription, answers))
        assert child.subscription is not None, "only lists have none"
        if child.rule is None:
            return await self._subscription(request, topic, child.subscription, answers)
        return await self._rule(request, topic, child.subscription, child.rule, answers)

    async def _subscription(self, request: Request, topic: Topic, name: str, answers: Answers) -> Response:
        topics, entry = self._broker.topics, self._subscription_entry(answers)
        match request.method:
            case "PUT":
                described = await read_body(request, SUBSCRIPTION_DESCRIPTION)
                label = f"Subscription '{name}' of '{topic.path}'"
                check_elements(label, described, SUBSCRIPTION, answers.version)
                if not is_update(request, topic):
                    description = read_subscription(topic.path, name, described.elements)
                    self._authorise_forwarding(request, description, None)
                    created = await topics.create_subscription(description)
                    return answers.one(await self._subscription_entry(answers, new=True)(created), 201)
                subscription = topics.get_subscription(topic.path, name)
                before = subscription.description
                description = read_subscription(topic.path, name, described.elements, before)
                refuse_immutable_changes(before, description)
                self._authorise_forwarding(request, description, before)
                await topics.update_subscription(description, based_on=before)
                return answers.one(await entry(subscription))
            case "DELETE":
                await topics.delete_subscription(topic.path, name, force=answers.forced())
                return Response(status_code=200)
            case _:
                return answers.one(await entry(topics.get_subscription(topic.path, name)))

    @staticmethod
    def _subscription_entry(
        answers: Answers, *, new: bool = False
    ) -> Callable[[Subscription], Awaitable[str]]:
        async def entry(subscription: Subscription) -> str:
            await subscription.loaded()
            await subscription.refresh(access=True)
            return answers.entry(
                subscription.path,
                subscription.name,
                SUBSCRIPTION_DESCRIPTION,
                subscription_elements(subscription, answers.version, new=new),
                subscription.created_at,
                subscription.updated_at,
            )

        return entry

    async def _rule(self, request: Request, topic: Topic, name: str, rule: str, answers: Answers) -> Response:
        topics, status = self._broker.topics, 200
        subscription = topics.get_subscription(topic.path, name)
        match request.method:
            case "PUT":
                described = await read_body(request, RULE_DESCRIPTION)
                given = read_rule(described.elements, rule)
                if is_update(request, topic):
                    await topics.update_rule(topic.path, name, given)
                else:
                    await topics.add_rule(topic.path, name, given)
                    status = 201
            case "DELETE":
                await topics.remove_rule(topic.path, name, rule)
                return Response(status_code=200)
        return answers.one(
            await _rule_entry(subscription, answers)(subscription.description.rule(rule)), status
        )


def _rule_entry(subscription: Subscription, answers: Answers) -> Callable[[RuleDescription], Awaitable[str]]:
    async def entry(rule: RuleDescription) -> str:
        path = f"{subscription.path}/Rules/{rule.name}"
        at = rule.created_at
        return answers.entry(path, rule.name, RULE_DESCRIPTION, rule_elements(rule), at, at)

    return entry
