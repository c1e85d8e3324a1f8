"""Requests to the resource manager: paths, and descriptions of namespaces, entities and rules as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from bendybus.arm.entities import read_entity, read_subscription
from bendybus.arm.errors import refused
from bendybus.arm.filter_rules import read_rule, rule_properties
from bendybus.arm.members import json_object
from bendybus.arm.namespace_resources import read_namespace
from bendybus.arm.resources import Resource, Template, is_resource_path, is_resource_request
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import RequestError
from fuzz.target import Target

RULES = Template("namespaces/{namespace}/topics/{topic}/subscriptions/{subscription}/rules/{rule}")


def check(data: bytes) -> None:
    text = data.decode("latin-1")
    is_resource_request(f"/{text}", text)
    if is_resource_path(text):
        RULES.match(Resource.parse(text).below or "")
    try:
        given = json_object(data)
    except RequestError as refusal:
        refused(refusal)
        return
    for read in (_queue, _topic, _subscription, _rule, _namespace):
        try:
            read(given)
        except RequestError as refusal:
            # It quotes the body, and is itself written as JSON.
            refused(refusal)


def _queue(given: Mapping[str, Any]) -> None:
    for tier in Tier:
        tier.check(read_entity(QueueDescription, "q", given, tier))


def _topic(given: Mapping[str, Any]) -> None:
    read_entity(TopicDescription, "t", given, Tier.STANDARD)


def _subscription(given: Mapping[str, Any]) -> None:
    subscription = read_subscription("t", "s", given)
    read_subscription("t", "s", given, subscription)


def _rule(given: Mapping[str, Any]) -> None:
    """What is shown of a rule is read as the same rule."""
    shown = rule_properties(read_rule("r", given))
    JSONResponse(shown)
    assert rule_properties(read_rule("r", shown)) == shown


def _namespace(given: Mapping[str, Any]) -> None:
    JSONResponse(read_namespace("n", given).tags)


TARGET = Target(
    name="resources",
    parses="paths of the resource manager, descriptions as JSON",
    check=check,
    may_raise=(RequestError,),
    share=30,
    words=tuple(
        word.encode()
        for word in (
            *("/subscriptions/s/resourceGroups/g/providers/Microsoft.ServiceBus/", "namespaces/n/topics/"),
            *("/subscriptions/", "/rules/", "~", "api-version=2026-01-01", '{"lockDuration":"PT1M"}'),
            *('"maxSizeInMegabytes":', '"forwardTo":', '"status":"Active"', '"enablePartitioning":true'),
            *('{"filterType":"SqlFilter","sqlFilter":{"sqlExpression":"a=1"}}', '"action":{"sqlExpression":'),
            *('{"correlationFilter":{"properties":{"a":"b"},"label":"c"}}', '"compatibilityLevel":20'),
            *('{"location":"x","tags":{"a":"b"},"sku":{"name":"Premium","capacity":1},"properties":{}}',),
            *(
                '"premiumMessagingPartitions":2',
                '"zoneRedundant":',
                "null",
                "NaN",
                "1e999",
                '"\\ud800"',
                "9" * 30,
            ),
        )
    ),
    length_max=4096,
)
