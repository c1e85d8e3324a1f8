"""Properties of entities between a user and the management API.

A value becomes an element. An element becomes a value of a plain type under the name that
`az servicebus` prints, `lockDuration` for LockDuration. The server alone decides which
values are allowed. Which properties there are: domain/properties.py.
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
from bendybus.domain import properties
from bendybus.domain.properties import Properties, ValueType
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
    properties: Properties


QUEUE: Final = EntityKind("queue", QUEUE_DESCRIPTION, properties.QUEUE)
TOPIC: Final = EntityKind("topic", TOPIC_DESCRIPTION, properties.TOPIC)
SUBSCRIPTION: Final = EntityKind("subscription", SUBSCRIPTION_DESCRIPTION, properties.SUBSCRIPTION)

# Everything else is text, or has children.
_NUMBERS: Final = frozenset(
    {
        *(row.name for row in properties.ALL if row.type is ValueType.INTEGER),
        "ActiveMessageCount",
        "CorrelationFilterCount",
        "DeadLetterMessageCount",
        "MessageCount",
        "MessagingUnits",
        "PremiumMessagingPartitions",
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
        *(row.name for row in properties.ALL if row.type is ValueType.BOOLEAN),
        "DisableLocalAuth",
        "EnableSubscriptionPartitioning",
        "FilteringMessagesBeforePublishing",
        "IsAnonymousAccessible",
        "SupportOrdering",
    }
)

# Keys are not shown.
_HIDDEN: Final = frozenset({"AuthorizationRules"})


def subscription_path(topic: str, name: str) -> str:
    """In the spelling that the JavaScript SDK needs, and that everybody else reads."""
    return f"{topic}/Subscriptions/{name}"


# -- to the server ------------------------------------------------------------------


def new_elements(kind: EntityKind, given: Mapping[str, object]) -> Iterator[str]:
    """The elements of a new entity; what was not given (None) is left to the server."""
    return (element(row.name, given[row.name]) for row in kind.properties if given.get(row.name) is not None)


def changed_elements(kind: EntityKind, current: Entry, given: Mapping[str, object]) -> Iterator[str]:
    """The elements of an update: all that can be set, with the given or the current value; "" removes one."""
    for row in kind.properties:
        wanted = given.get(row.name)
        value = current.text(row.name) if wanted is None else wanted
        if value not in (None, ""):
            yield element(row.name, value)


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
