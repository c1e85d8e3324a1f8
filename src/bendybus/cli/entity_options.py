"""The options that set an entity's properties, in `az servicebus`'s words, each said once.

None means that an option was not given: the server then decides, or an update leaves the
property as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import click

from bendybus.cli.options import Choices, Decorator, Duration
from bendybus.domain.entities import EntityStatus

__all__ = [
    "QUEUE_SETTINGS",
    "SUBSCRIPTION_SETTINGS",
    "TOPIC_SETTINGS",
    "Properties",
    "changeable",
    "property_options",
    "taken_properties",
]

Properties: TypeAlias = Mapping[str, object]
"""By their names in the API."""


class Setting(NamedTuple):
    parameter: str
    property: str
    attributes: Mapping[str, Any]
    """Of the click option."""
    default: object = None
    fixed: bool = False
    """Said when the entity is created, and never again."""


def changeable(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    return tuple(setting for setting in settings if not setting.fixed)


def property_options(settings: tuple[Setting, ...]) -> Decorator:
    """A decorator: one option for each setting."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for setting in reversed(settings):
            name = f"--{setting.parameter.replace('_', '-')}"
            if "metavar" not in setting.attributes and "type" not in setting.attributes:
                name = f"{name}/--no-{name.removeprefix('--')}"
            add = click.option(
                name,
                setting.parameter,
                default=setting.default,
                show_default=setting.default is not None,
                **setting.attributes,
            )
            function = add(function)
        return function

    return decorate


def taken_properties(settings: tuple[Setting, ...], given: Mapping[str, object]) -> Properties:
    """What these options were given, by the API's names."""
    return {setting.property: given[setting.parameter] for setting in settings}


def _duration(help_text: str) -> dict[str, Any]:
    return {"type": Duration(), "metavar": "DURATION", "help": help_text}


def _number(unit: str, help_text: str) -> dict[str, Any]:
    return {"type": int, "metavar": unit, "help": help_text}


def _text(what: str, help_text: str) -> dict[str, Any]:
    return {"metavar": what, "help": help_text}


def _switch(name: str, help_text: str) -> dict[str, Any]:
    """On, off, or nothing said."""
    return {"help": help_text}


def _status(help_text: str) -> dict[str, Any]:
    return {"type": Choices(EntityStatus), "help": help_text}


PARTITIONED: Final = Setting(
    "partitioned",
    "EnablePartitioning",
    _switch("partitioned", "Spread over 16 partitions; fixed for the entity's life."),
    default=True,
    fixed=True,
)
MAX_SIZE: Final = Setting(
    "max_size",
    "MaxSizeInMegabytes",
    _number("MB", "Size of each partition: 1024, 2048, 3072, 4096 or 5120."),
)
MAX_MESSAGE_SIZE: Final = Setting(
    "max_message_size", "MaxMessageSizeInKilobytes", _number("KB", "Largest message.")
)
LOCK_DURATION: Final = Setting("lock_duration", "LockDuration", _duration("How long a lock holds, 5s to 5m."))
ENABLE_SESSION: Final = Setting(
    "enable_session",
    "RequiresSession",
    _switch("enable-session", "Messages belong to sessions; fixed."),
    fixed=True,
)
DUPLICATE_DETECTION: Final = Setting(
    "duplicate_detection",
    "RequiresDuplicateDetection",
    _switch("duplicate-detection", "Drop repeated messages; fixed."),
    fixed=True,
)
DUPLICATE_DETECTION_WINDOW: Final = Setting(
    "duplicate_detection_window",
    "DuplicateDetectionHistoryTimeWindow",
    _duration("How long a message id is known, 20s to 7d."),
)
DEFAULT_MESSAGE_TTL: Final = Setting(
    "default_message_ttl", "DefaultMessageTimeToLive", _duration("Longest life of a message.")
)
DEAD_LETTER_ON_EXPIRATION: Final = Setting(
    "dead_letter_on_expiration",
    "DeadLetteringOnMessageExpiration",
    _switch("dead-letter-on-expiration", "Dead-letter what has outlived its time."),
)
DEAD_LETTER_ON_FILTER_ERROR: Final = Setting(
    "dead_letter_on_filter_error",
    "DeadLetteringOnFilterEvaluationExceptions",
    _switch("dead-letter-on-filter-error", "Dead-letter messages that a rule fails on."),
)
MAX_DELIVERY_COUNT: Final = Setting(
    "max_delivery_count", "MaxDeliveryCount", _number("N", "Dead-letter after so many deliveries.")
)
AUTO_DELETE_ON_IDLE: Final = Setting(
    "auto_delete_on_idle", "AutoDeleteOnIdle", _duration("Delete the entity when so long unused.")
)
FORWARD_TO: Final = Setting(
    "forward_to", "ForwardTo", _text("ENTITY", "Where messages go on to; '' for nowhere.")
)
FORWARD_DEAD_LETTERED_TO: Final = Setting(
    "forward_dead_lettered_to",
    "ForwardDeadLetteredMessagesTo",
    _text("ENTITY", "Where dead letters go on to; '' for nowhere."),
)
SUPPORT_ORDERING: Final = Setting(
    "support_ordering", "SupportOrdering", _switch("support-ordering", "Keep the order of messages.")
)
STATUS: Final = Setting("status", "Status", _status("What clients may do."))
ENABLE_EXPRESS: Final = Setting(
    "enable_express", "EnableExpress", _switch("enable-express", "Messages may stay in memory.")
)
BATCHED_OPERATIONS: Final = Setting(
    "batched_operations",
    "EnableBatchedOperations",
    _switch("batched-operations", "Let the server gather writes."),
)
USER_METADATA: Final = Setting(
    "user_metadata", "UserMetadata", _text("TEXT", "A note of at most 1,024 characters; '' for none.")
)

QUEUE_SETTINGS: Final = (
    PARTITIONED,
    MAX_SIZE,
    MAX_MESSAGE_SIZE,
    LOCK_DURATION,
    ENABLE_SESSION,
    DUPLICATE_DETECTION,
    DUPLICATE_DETECTION_WINDOW,
    DEFAULT_MESSAGE_TTL,
    DEAD_LETTER_ON_EXPIRATION,
    MAX_DELIVERY_COUNT,
    AUTO_DELETE_ON_IDLE,
    FORWARD_TO,
    FORWARD_DEAD_LETTERED_TO,
    STATUS,
    ENABLE_EXPRESS,
    BATCHED_OPERATIONS,
    USER_METADATA,
)
TOPIC_SETTINGS: Final = (
    PARTITIONED,
    MAX_SIZE,
    MAX_MESSAGE_SIZE,
    DUPLICATE_DETECTION,
    DUPLICATE_DETECTION_WINDOW,
    DEFAULT_MESSAGE_TTL,
    AUTO_DELETE_ON_IDLE,
    SUPPORT_ORDERING,
    STATUS,
    ENABLE_EXPRESS,
    BATCHED_OPERATIONS,
    USER_METADATA,
)
SUBSCRIPTION_SETTINGS: Final = (
    LOCK_DURATION,
    ENABLE_SESSION,
    DEFAULT_MESSAGE_TTL,
    DEAD_LETTER_ON_EXPIRATION,
    DEAD_LETTER_ON_FILTER_ERROR,
    MAX_DELIVERY_COUNT,
    AUTO_DELETE_ON_IDLE,
    FORWARD_TO,
    FORWARD_DEAD_LETTERED_TO,
    STATUS,
    BATCHED_OPERATIONS,
    USER_METADATA,
)
