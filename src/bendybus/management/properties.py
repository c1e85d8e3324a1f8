"""Properties of entities between a user and the management API.

A value becomes an element. An element becomes a value of a plain type under the name that
`az servicebus` prints, `lockDuration` for LockDuration. The server alone decides which
values are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from bendybus.atom import (
    QUEUE_DESCRIPTION,
    SUBSCRIPTION_DESCRIPTION,
    TOPIC_DESCRIPTION,
    element,
)
from bendybus.management.entries import Entry, bare_name

__all__ = [
    "QUEUE",
    "SUBSCRIPTION",
    "TOPIC",
    "EntityKind",
    "changed_elements",
    "new_elements",
    "shown_name",
    "shown_values",
    "subscription_path",
]


@dataclass(frozen=True, slots=True)
class EntityKind:
    """What the API calls a kind of entity, and what can be set about it, in the API's order."""

    label: str
    element: str
    settable: tuple[str, ...]


# The real service is said to mind the order.
QUEUE: Final = EntityKind(
    "queue",
    QUEUE_DESCRIPTION,
    (
        "LockDuration",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "Status",
        "ForwardTo",
        "UserMetadata",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "ForwardDeadLetteredMessagesTo",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    ),
)

TOPIC: Final = EntityKind(
    "topic",
    TOPIC_DESCRIPTION,
    (
        "DefaultMessageTimeToLive",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "EnableBatchedOperations",
        "Status",
        "UserMetadata",
        "SupportOrdering",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    ),
)

SUBSCRIPTION: Final = EntityKind(
    "subscription",
    SUBSCRIPTION_DESCRIPTION,
    (
        "LockDuration",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "Status",
        "ForwardTo",
        "UserMetadata",
        "ForwardDeadLetteredMessagesTo",
        "AutoDeleteOnIdle",
    ),
)

# Everything else is text, or has children.
_NUMBERS: Final = frozenset(
    {
        "ActiveMessageCount",
        "CorrelationFilterCount",
        "DeadLetterMessageCount",
        "MaxDeliveryCount",
        "MaxMessageSizeInKilobytes",
        "MaxSizeInMegabytes",
        "MessageCount",
        "MessagingUnits",
        "ScheduledMessageCount",
        "SizeInBytes",
        "SqlFilterCount",
        "SubscriptionCount",
        "TransferDeadLetterMessageCount",
        "TransferMessageCount",
    }
)
_BOOLEANS: Final = frozenset(
    {
        "DeadLetteringOnFilterEvaluationExceptions",
        "DeadLetteringOnMessageExpiration",
        "EnableBatchedOperations",
        "EnableExpress",
        "EnablePartitioning",
        "EnableSubscriptionPartitioning",
        "FilteringMessagesBeforePublishing",
        "IsAnonymousAccessible",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "SupportOrdering",
    }
)

# Keys are not for showing.
_HIDDEN: Final = frozenset({"AuthorizationRules"})


def subscription_path(topic: str, name: str) -> str:
    """In the spelling that the JavaScript SDK needs, and that everybody else reads."""
    return f"{topic}/Subscriptions/{name}"


# -- to the server ------------------------------------------------------------------


def new_elements(kind: EntityKind, options: Mapping[str, object]) -> Iterator[str]:
    """The elements of a new entity; options that were not given (None) are left to the server."""
    return (element(name, options[name]) for name in kind.settable if options.get(name) is not None)


def changed_elements(kind: EntityKind, current: Entry, options: Mapping[str, object]) -> Iterator[str]:
    """The elements of an update: all that can be set, as it is or as the options say; "" takes away."""
    for name in kind.settable:
        given = options.get(name)
        value = current.text(name) if given is None else given
        if value not in (None, ""):
            yield element(name, value)


# -- to the user --------------------------------------------------------------------


def shown_name(name: str) -> str:
    """`lockDuration` for LockDuration; MessagingSKU stays readable as `messagingSku`."""
    return "messagingSku" if name == "MessagingSKU" else name[:1].lower() + name[1:]


def shown_values(entry: Entry) -> dict[str, object]:
    """The entity's name and all its properties, as `--output json` shows them."""
    shown: dict[str, object] = {"name": entry.name}
    for child in entry.description:
        if bare_name(child) not in _HIDDEN:
            shown[shown_name(bare_name(child))] = _value(child)
    return shown


def _value(child: Element) -> object:
    if len(child):
        return {shown_name(bare_name(below)): _value(below) for below in child}
    name, text = bare_name(child), (child.text or "").strip()
    if name in _BOOLEANS:
        return text.lower() == "true"
    if name in _NUMBERS and re.fullmatch("-?[0-9]{1,18}", text):
        return int(text)
    return text or None
