"""Properties of entities between a user and the management API.

An option's value becomes an element; an element becomes a value of a plain type under
the name that `az servicebus` prints, `lockDuration` for LockDuration. Which values are
allowed is for the server to say, so that there is one judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from bendybus.admin.atom import element
from bendybus.cli.entries import Entry, bare_name
from bendybus.domain.durations import UNLIMITED, UNLIMITED_FROM_S, format_duration, parse_duration
from bendybus.errors import ArgumentError

__all__ = [
    "QUEUE",
    "SUBSCRIPTION",
    "TOPIC",
    "EntityKind",
    "changed_elements",
    "element_name",
    "new_elements",
    "read_duration",
    "short_duration",
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
    "QueueDescription",
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
    "TopicDescription",
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
    "SubscriptionDescription",
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

_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SHORT: Final = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,7})?(?:ms|[smhdw]))+")
_SHORT_PART: Final = re.compile(r"([0-9.]+)(ms|[smhdw])")


def subscription_path(topic: str, name: str) -> str:
    """In the spelling that the JavaScript SDK needs, and that everybody else reads."""
    return f"{topic}/Subscriptions/{name}"


# -- durations ----------------------------------------------------------------------


def read_duration(text: str) -> str:
    """`30s`, `1h30m`, `14d`, PT30S or `unlimited` as the API writes it; `ArgumentError` if none of these."""
    given = text.strip()
    if given.lower() == "unlimited":
        return UNLIMITED
    if _SHORT.fullmatch(given.lower()):
        parts = _SHORT_PART.findall(given.lower())
        return format_duration(sum(float(amount) * _UNIT_S[unit] for amount, unit in parts))
    try:
        return format_duration(parse_duration(given.upper()))
    except ArgumentError:
        raise ArgumentError(
            f"'{text}' is not a duration such as 30s, 1h30m, 14d, PT30S or unlimited"
        ) from None


def short_duration(text: str) -> str:
    """What the API wrote, for a table: PT1M30S as `1m30s`; as it stands if it is no duration."""
    try:
        seconds = parse_duration(text)
    except ArgumentError:
        return text
    if seconds is None or seconds >= UNLIMITED_FROM_S:
        return "unlimited"
    shortened = format_duration(seconds).replace("P", "").replace("T", "").lower()
    return shortened or "0s"


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


def element_name(name: str) -> str:
    """`lockDuration` for LockDuration; MessagingSKU stays readable as `messagingSku`."""
    return "messagingSku" if name == "MessagingSKU" else name[:1].lower() + name[1:]


def shown_values(entry: Entry) -> dict[str, object]:
    """The entity's name and all its properties, as `--output json` shows them."""
    shown: dict[str, object] = {"name": entry.name}
    for child in entry.description:
        if bare_name(child) not in _HIDDEN:
            shown[element_name(bare_name(child))] = _value(child)
    return shown


def _value(child: Element) -> object:
    if len(child):
        return {element_name(bare_name(below)): _value(below) for below in child}
    name, text = bare_name(child), (child.text or "").strip()
    if name in _BOOLEANS:
        return text.lower() == "true"
    if name in _NUMBERS and re.fullmatch("-?[0-9]{1,18}", text):
        return int(text)
    return text or None
