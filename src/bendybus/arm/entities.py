"""Queues, topics and subscriptions as Azure Resource Manager describes them: JSON, read and written.

Which properties there are and what they may be: domain/properties.py. Their names here are the same, with a
small first letter. A PUT describes the whole entity: what it leaves out gets its default. Some properties
stay as they are instead: those that cannot change, the largest size of a message, and those that Azure does
not have, because its tools always leave them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from bendybus.admin.fields import READERS, divide_size
from bendybus.admin.totals import Totals
from bendybus.arm.members import member
from bendybus.atom import format_time
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Subscription, Topic
from bendybus.domain.entities import (
    STANDARD_PARTITIONS,
    EntityDescription,
    QueueDescription,
    Tier,
    effective_max_size_mb,
)
from bendybus.domain.properties import (
    DUPLICATE_DETECTION_WINDOW,
    ENABLE_PARTITIONING,
    MAX_MESSAGE_SIZE,
    MAX_SIZE,
    Property,
    ValueType,
)
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import ArgumentError, NotSupported
from bendybus.names import EntityPath

__all__ = ["arm_name", "queue_properties", "read_entity", "read_subscription"]
__all__ += ["subscription_properties", "topic_properties"]

E = TypeVar("E", QueueDescription, TopicDescription)
D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)

# In answers only; clients send them back.
_SHOWN_ONLY: Final = (
    *("accessedAt", "countDetails", "createdAt", "messageCount", "sizeInBytes", "subscriptionCount"),
    "updatedAt",
)
# It has no effect. ATOM keeps and shows it as well.
_ORDERING: Final = "supportOrdering"
_AFFINITY: Final = ("isClientAffine", "clientAffineProperties")


def arm_name(row: Property) -> str:
    """The name of a property: `lockDuration`."""
    return row.name[0].lower() + row.name[1:]


# -- reading ------------------------------------------------------------------------


def read_entity(
    kind: type[E], path: str, given: Mapping[str, Any], tier: Tier, current: Queue | Topic | None = None
) -> E:
    """The queue or topic that a PUT describes; `current` is the one that exists."""
    label = f"{kind.__name__.removesuffix('Description')} '{path}'"
    values = _read(label, given, kind)
    if (ordering := member(given, _ORDERING, bool)) is not None:
        values["as_sent"] = {"SupportOrdering": str(ordering).lower()}
    if current is None:
        if tier is not Tier.PREMIUM and values.get(ENABLE_PARTITIONING.field):
            divide_size(values)
        return kind(EntityPath(path), **values)
    present = current.description
    assert isinstance(present, kind), f"{present.label} is no {kind.__name__}"
    if current.partition_count == STANDARD_PARTITIONS:
        divide_size(values)
    return _replaced(present, values)


def read_subscription(
    topic: str, name: str, given: Mapping[str, Any], current: SubscriptionDescription | None = None
) -> SubscriptionDescription:
    """The subscription that a PUT describes. Its rules are resources of their own."""
    label = f"Subscription '{name}' of '{topic}'"
    if member(given, _AFFINITY[0], bool) or member(given, _AFFINITY[1], dict):
        raise NotSupported(
            f"{label}: a subscription that belongs to a client is made by a JMS client, when it subscribes."
        )
    if member(given, arm_name(DUPLICATE_DETECTION_WINDOW), str) is not None:
        raise ArgumentError(
            f"{label}: duplicates are detected by the topic; a subscription has no "
            f"{arm_name(DUPLICATE_DETECTION_WINDOW)}."
        )
    values = _read(label, given, SubscriptionDescription)
    if current is not None:
        return _replaced(current, values)
    return SubscriptionDescription.of(topic, name, **values)


def _read(label: str, given: Mapping[str, Any], kind: type[EntityDescription]) -> dict[str, Any]:
    """Fields and values. What is null counts as left out."""
    rows = {arm_name(row).lower(): row for row in kind.PROPERTIES}
    passed_over = {name.lower() for name in (*_SHOWN_ONLY, _ORDERING, *_AFFINITY)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        row = rows.get(name.lower())
        if value is None or name.lower() in passed_over:
            continue
        if row is None:
            raise ArgumentError(f"{label}: there is no property '{name[:60]}'.")
        values[row.field] = _value(label, row, value)
    return values


def _value(label: str, row: Property, value: object) -> object:
    if row.type is ValueType.BOOLEAN or row.type is ValueType.INTEGER:
        return member({arm_name(row): value}, arm_name(row), bool if row.type is ValueType.BOOLEAN else int)
    text = member({arm_name(row): value}, arm_name(row), str)
    assert text is not None, "null was left out"
    if not text.strip() and row.removable:
        # `az` sends an empty text to remove a destination.
        return None
    try:
        return READERS[row.type](text.strip())
    except ArgumentError as reason:
        raise ArgumentError(f"{label}: {arm_name(row)} is '{text[:60]}'; {reason}.") from None


def _replaced(current: D, values: dict[str, Any]) -> D:
    changeable = [row for row in current.PROPERTIES if not (row.fixed or row.ours or row is MAX_MESSAGE_SIZE)]
    reset: dict[str, Any] = {row.field: row.default for row in changeable}
    if "as_sent" in values:
        values["as_sent"] = {**current.as_sent, **values["as_sent"]}
    return replace(current, **(reset | values))


# -- writing ------------------------------------------------------------------------


def queue_properties(queue: Queue) -> dict[str, object]:
    totals = Totals.of(queue)
    return {
        **_shown(queue.description, queue.partition_count),
        **_times(queue),
        "sizeInBytes": totals.size_bytes,
        "messageCount": totals.messages,
        "countDetails": _count_details(totals),
    }


def topic_properties(topic: Topic) -> dict[str, object]:
    totals, description = Totals.of_topic(topic), topic.description
    ordering = description.as_sent.get("SupportOrdering")
    return {
        **_shown(description, topic.partition_count),
        **_times(topic),
        "sizeInBytes": totals.size_bytes,
        "subscriptionCount": len(topic.subscriptions),
        "countDetails": _count_details(totals),
        _ORDERING: topic.partition_count == 1 if ordering is None else ordering == "true",
    }


def subscription_properties(subscription: Subscription) -> dict[str, object]:
    totals = Totals.of(subscription)
    return {
        **_shown(subscription.description),
        **_times(subscription),
        "messageCount": totals.messages,
        "countDetails": _count_details(totals),
        _AFFINITY[0]: subscription.description.scope is not None,
    }


def _shown(description: EntityDescription, partitions: int = 1) -> dict[str, object]:
    shown: dict[str, object] = {}
    for row in description.PROPERTIES:
        value = getattr(description, row.field)
        if row is MAX_SIZE:
            value = effective_max_size_mb(description, partitions)
        elif row is ENABLE_PARTITIONING:
            value = partitions > 1
        said = value is not None or row.type is ValueType.DURATION_OR_UNLIMITED
        if row.ours:
            said = value != row.default
        if said:
            shown[arm_name(row)] = row.written(value)
    return shown


def _times(entity: Queue | Topic) -> dict[str, object]:
    return {
        "createdAt": format_time(entity.created_at),
        "updatedAt": format_time(entity.updated_at),
        "accessedAt": format_time(entity.accessed_at),
    }


def _count_details(totals: Totals) -> dict[str, int]:
    return {
        "activeMessageCount": totals.active,
        "deadLetterMessageCount": totals.dead_letters,
        "scheduledMessageCount": totals.scheduled,
        "transferMessageCount": totals.in_transfer,
        "transferDeadLetterMessageCount": totals.transfer_dead_letters,
    }
