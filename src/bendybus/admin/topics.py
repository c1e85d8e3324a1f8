"""Topics and subscriptions in the management API: their descriptions as XML, both ways.

As with queues (queues.py) elements are written in the order of the real service
and read in any, and which values are allowed is decided where entities are
described: domain/topic_entities.py. Rules: rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bendybus.admin.documents import Element
from bendybus.admin.fields import (
    Properties,
    boolean,
    bounded_duration,
    duration,
    entity_path,
    plain_text,
    read_sendable,
    read_values,
    status,
    whole_number,
)
from bendybus.admin.queues import FIRST_WITH_MESSAGE_SIZES, FIRST_WITH_PARTITIONS
from bendybus.admin.rules import read_rule
from bendybus.admin.rules_xml import rules_element
from bendybus.admin.totals import Totals
from bendybus.atom import elements_of, format_time
from bendybus.broker.topic import Subscription, Topic
from bendybus.domain.access import AuthorizationRule
from bendybus.domain.durations import format_duration
from bendybus.domain.entities import Tier
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription, count_filters
from bendybus.names import EntityPath

__all__ = ["read_subscription", "read_topic", "subscription_elements", "topic_elements"]

FIRST_WITH_FILTER_COUNTS: Final = "2024-05"

TOPIC_PROPERTIES: Final[Properties] = {
    "DefaultMessageTimeToLive": ("default_message_ttl_s", duration),
    "MaxSizeInMegabytes": ("max_size_mb", whole_number),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", boolean),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_s", bounded_duration),
    "EnableBatchedOperations": ("enable_batched_operations", boolean),
    "Status": ("status", status),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_s", duration),
    "EnablePartitioning": ("enable_partitioning", boolean),
    "EnableExpress": ("enable_express", boolean),
    "UserMetadata": ("user_metadata", plain_text),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", whole_number),
}

SUBSCRIPTION_PROPERTIES: Final[Properties] = {
    "LockDuration": ("lock_duration_s", bounded_duration),
    "RequiresSession": ("requires_session", boolean),
    "DefaultMessageTimeToLive": ("default_message_ttl_s", duration),
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiry", boolean),
    "DeadLetteringOnFilterEvaluationExceptions": ("dead_letter_on_filter_errors", boolean),
    "MaxDeliveryCount": ("max_delivery_count", whole_number),
    "EnableBatchedOperations": ("enable_batched_operations", boolean),
    "Status": ("status", status),
    "ForwardTo": ("forward_to", entity_path),
    "UserMetadata": ("user_metadata", plain_text),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", entity_path),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_s", duration),
}

# An update that leaves one of these out takes it away; what else it leaves out stays as it is.
SUBSCRIPTION_REMOVABLE: Final = ("forward_to", "forward_dead_lettered_to", "user_metadata")


# -- topics -------------------------------------------------------------------------


def read_topic(
    path: str, elements: Mapping[str, Element], tier: Tier, current: TopicDescription | None = None
) -> TopicDescription:
    """The topic that a client describes; with `current`, what an update would make of that."""
    values = read_sendable(f"Topic '{path}'", elements, TOPIC_PROPERTIES, tier, current)
    if current is None:
        return TopicDescription(EntityPath(path), **values)
    left_out: dict[str, Any] = {"user_metadata": None}
    return replace(current, **(left_out | values))


def topic_elements(topic: Topic, tier: Tier, api_version: str, *, with_rules: bool = True) -> str:
    """The children of TopicDescription, as this version of the API shows them; as for queues."""
    rules = topic.description.authorization_rules if with_rules else ()
    return elements_of(_topic_shown(topic, tier, api_version, rules))


def _topic_shown(
    topic: Topic, tier: Tier, api_version: str, rules: Sequence[AuthorizationRule]
) -> Iterator[tuple[str, object] | str]:
    description, totals = topic.description, Totals.of_topic(topic)
    partitioned = len(topic.hosts) > 1
    yield "DefaultMessageTimeToLive", format_duration(description.default_message_ttl_s)
    yield "MaxSizeInMegabytes", tier.effective_max_size_mb(description)
    yield "RequiresDuplicateDetection", description.requires_duplicate_detection
    yield "DuplicateDetectionHistoryTimeWindow", format_duration(description.duplicate_detection_window_s)
    yield "EnableBatchedOperations", description.enable_batched_operations
    yield "SizeInBytes", totals.size_bytes
    yield "FilteringMessagesBeforePublishing", False
    yield "IsAnonymousAccessible", False
    yield rules_element(rules)
    yield "Status", description.status
    if description.user_metadata is not None:
        yield "UserMetadata", description.user_metadata
    yield "CreatedAt", format_time(topic.created_at)
    yield "UpdatedAt", format_time(topic.updated_at)
    yield "AccessedAt", format_time(topic.accessed_at)
    yield "SupportOrdering", not partitioned
    yield totals.count_details()
    yield "SubscriptionCount", len(topic.subscriptions)
    if api_version >= FIRST_WITH_FILTER_COUNTS:
        sql, correlation = count_filters(each.description for each in topic.subscriptions)
        yield "SqlFilterCount", sql
        yield "CorrelationFilterCount", correlation
    yield "AutoDeleteOnIdle", format_duration(description.auto_delete_on_idle_s)
    if api_version >= FIRST_WITH_PARTITIONS:
        yield "EnablePartitioning", partitioned
        yield "EntityAvailabilityStatus", "Limited" if totals.limited else "Available"
        yield "EnableSubscriptionPartitioning", False
    yield "EnableExpress", description.enable_express
    if api_version >= FIRST_WITH_MESSAGE_SIZES:
        yield "MaxMessageSizeInKilobytes", description.max_message_size_kb


# -- subscriptions ------------------------------------------------------------------


def read_subscription(
    topic: str, name: str, elements: Mapping[str, Element], current: SubscriptionDescription | None = None
) -> SubscriptionDescription:
    """The subscription that a client describes; its rule only when it is created."""
    values = read_values(f"Subscription '{name}' of '{topic}'", elements, SUBSCRIPTION_PROPERTIES)
    if current is not None:
        left_out: dict[str, Any] = dict.fromkeys(SUBSCRIPTION_REMOVABLE)
        return replace(current, **(left_out | values))
    first = elements.get("DefaultRuleDescription")
    if first is not None and first.children:
        values["rules"] = (read_rule({child.name: child for child in first.children}),)
    return SubscriptionDescription.of(topic, name, **values)


def subscription_elements(subscription: Subscription) -> str:
    """The children of SubscriptionDescription."""
    return elements_of(_subscription_shown(subscription))


def _subscription_shown(subscription: Subscription) -> Iterator[tuple[str, object] | str]:
    description, totals = subscription.description, Totals.of(subscription)
    yield "LockDuration", format_duration(description.lock_duration_s)
    yield "RequiresSession", description.requires_session
    yield "DefaultMessageTimeToLive", format_duration(description.default_message_ttl_s)
    yield "DeadLetteringOnMessageExpiration", description.dead_letter_on_expiry
    yield "DeadLetteringOnFilterEvaluationExceptions", description.dead_letter_on_filter_errors
    yield "MessageCount", totals.messages
    yield "MaxDeliveryCount", description.max_delivery_count
    yield "EnableBatchedOperations", description.enable_batched_operations
    yield "Status", description.status
    if description.forward_to is not None:
        yield "ForwardTo", description.forward_to
    yield "CreatedAt", format_time(subscription.created_at)
    yield "UpdatedAt", format_time(subscription.updated_at)
    yield "AccessedAt", format_time(subscription.accessed_at)
    yield totals.count_details()
    if description.user_metadata is not None:
        yield "UserMetadata", description.user_metadata
    if description.forward_dead_lettered_to is not None:
        yield "ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_to
    yield "AutoDeleteOnIdle", format_duration(description.auto_delete_on_idle_s)
    yield "EntityAvailabilityStatus", "Limited" if totals.limited else "Available"
