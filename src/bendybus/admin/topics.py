"""Topics and subscriptions in the management API: their descriptions as XML, read and written.

As with queues (queues.py) elements are written in the order of the real service
and read in any order. Which properties there are and what they may be: domain/properties.py.
Rules: filter_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from bendybus.admin.authorization_rules_xml import rules_element
from bendybus.admin.documents import Element
from bendybus.admin.fields import (
    Shown,
    left_out,
    read_as_sent,
    read_new,
    read_update,
    read_values,
    shown_access,
    shown_as_sent,
    shown_properties,
    shown_times,
)
from bendybus.admin.filter_rules import read_rule
from bendybus.admin.totals import Totals
from bendybus.atom import NEVER, elements_of
from bendybus.broker.topic import Subscription, Topic
from bendybus.domain.entities import Tier, effective_max_size_mb
from bendybus.domain.properties import (
    AUTO_DELETE_ON_IDLE,
    DEAD_LETTER_ON_FILTER_ERROR,
    ENABLE_BATCHED_OPERATIONS,
    ENABLE_PARTITIONING,
    FIRST_WITH_PARTITIONS,
    FORWARD_TO,
    MAX_SIZE,
    STATUS,
    SUBSCRIPTION,
    USER_METADATA,
)
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription, count_filters

__all__ = ["read_subscription", "read_topic", "subscription_elements", "topic_elements"]

FIRST_WITH_FILTER_COUNTS: Final = "2024-05"
FIRST_WITH_AFFINITY: Final = "2021-05"


# -- topics -------------------------------------------------------------------------


def read_topic(
    path: str, elements: Mapping[str, Element], tier: Tier, current: Topic | None = None
) -> TopicDescription:
    """The topic that a client describes; with `current`, the updated topic."""
    if current is None:
        return read_new(TopicDescription, path, elements, tier)
    return read_update(current.description, elements, current.partition_count)


def topic_elements(topic: Topic, api_version: str, *, new: bool = False) -> str:
    """The children of TopicDescription, as this version of the API shows them; as for queues."""
    return elements_of(_topic_shown(topic, api_version, new))


def _topic_shown(topic: Topic, api_version: str, new: bool) -> Iterator[Shown]:
    description, totals = topic.description, Totals.of_topic(topic)
    partitions = topic.partition_count
    partitioned = partitions > 1
    counts: tuple[Shown, ...] = ()
    if not new:
        counts = (totals.count_details(), ("SubscriptionCount", len(topic.subscriptions)))
    if not new and api_version >= FIRST_WITH_FILTER_COUNTS:
        sql, correlation = count_filters(each.description for each in topic.subscriptions)
        counts += (("SqlFilterCount", sql), ("CorrelationFilterCount", correlation))
    availability: tuple[Shown, ...] = (
        totals.availability,
        ("EnableSubscriptionPartitioning", False),
    )
    return shown_properties(
        description,
        api_version,
        instead={
            MAX_SIZE: effective_max_size_mb(description, partitions),
            ENABLE_PARTITIONING: partitioned,
        },
        after={
            ENABLE_BATCHED_OPERATIONS: (
                ("SizeInBytes", totals.size_bytes),
                ("FilteringMessagesBeforePublishing", False),
                shown_as_sent(description, "IsAnonymousAccessible", False),
                rules_element(description.authorization_rules),
            ),
            STATUS: shown_times(topic) + (() if new else shown_access(topic)),
            USER_METADATA: (shown_as_sent(description, "SupportOrdering", not partitioned), *counts),
            ENABLE_PARTITIONING: availability if api_version >= FIRST_WITH_PARTITIONS else (),
        },
    )


# -- subscriptions ------------------------------------------------------------------


def read_subscription(
    topic: str, name: str, elements: Mapping[str, Element], current: SubscriptionDescription | None = None
) -> SubscriptionDescription:
    """The subscription that a client describes; its rule only when it is created."""
    values = read_values(f"Subscription '{name}' of '{topic}'", elements, SUBSCRIPTION)
    values["as_sent"] = {**(current.as_sent if current else {}), **read_as_sent(elements, SUBSCRIPTION)}
    if current is not None:
        return replace(current, **(left_out(SUBSCRIPTION) | values))
    first = elements.get("DefaultRuleDescription")
    if first is not None and first.children:
        values["rules"] = (read_rule({child.name: child for child in first.children}),)
    return SubscriptionDescription.of(topic, name, **values)


def subscription_elements(subscription: Subscription, api_version: str, *, new: bool = False) -> str:
    """The children of SubscriptionDescription. A new one shows when it was accessed at the next GET."""
    totals = Totals.of(subscription)
    accessed = shown_access(subscription, unused=subscription.created_at)
    if new:
        accessed = (("AccessedAt", NEVER.removesuffix("Z")),)
    is_affine = subscription.description.scope is not None
    affinity: tuple[Shown, ...] = (
        (("IsClientAffine", is_affine),) if api_version >= FIRST_WITH_AFFINITY else ()
    )
    return elements_of(
        shown_properties(
            subscription.description,
            api_version,
            after={
                DEAD_LETTER_ON_FILTER_ERROR: (("MessageCount", totals.messages),),
                FORWARD_TO: shown_times(subscription) + accessed,
                USER_METADATA: () if new else (totals.count_details(),),
                AUTO_DELETE_ON_IDLE: (totals.availability, *affinity),
            },
        )
    )
