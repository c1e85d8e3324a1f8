"""The options that set an entity's properties, in `az servicebus`'s words, each said once.

A setting is an option, its type for typer and the property that it sets. A command
decorated with `with_properties` has the options of its settings, and is given what
was said as a mapping by the API's names. None means that an option was not given:
the server then decides, or an update leaves the property as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Concatenate, Final, NamedTuple, TypeAlias

import typer

from bendybus.cli.command import Command, option, own_parameters, seen_as
from bendybus.errors import ArgumentError

__all__ = [
    "QUEUE_SETTINGS",
    "SUBSCRIPTION_SETTINGS",
    "TOPIC_SETTINGS",
    "Properties",
    "changeable",
    "duration",
    "with_properties",
]

Properties: TypeAlias = Mapping[str, object]
"""By their names in the API."""


class Setting(NamedTuple):
    parameter: str
    property: str
    annotation: object
    default: object = None
    fixed: bool = False
    """Said when the entity is created, and never again."""


def changeable(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    return tuple(setting for setting in settings if not setting.fixed)


def with_properties(
    settings: tuple[Setting, ...],
) -> Callable[[Callable[Concatenate[Command, ...], None]], Callable[..., None]]:
    """Options in the place of a command's last parameter, `properties`."""

    def decorate(function: Callable[Concatenate[Command, ...], None]) -> Callable[..., None]:
        def run(command: Command, /, **arguments: Any) -> None:
            properties = {setting.property: arguments.pop(setting.parameter) for setting in settings}
            function(command, **arguments, properties=properties)

        *own, _ = own_parameters(function)
        options = [option(setting.parameter, setting.annotation, setting.default) for setting in settings]
        return seen_as(run, function, (*own, *options))

    return decorate


class Status(StrEnum):
    """As the management API writes it."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


def duration(text: str) -> str:
    """For `typer.Option(parser=...)`: a duration in the API's words, or a usage error."""
    from bendybus.management.durations import read_duration  # noqa: PLC0415 - see main.py

    try:
        return read_duration(text)
    except ArgumentError as error:
        raise typer.BadParameter(str(error)) from None


def _duration(help_text: str) -> object:
    return Annotated[str | None, typer.Option(parser=duration, metavar="DURATION", help=help_text)]


def _number(unit: str, help_text: str) -> object:
    return Annotated[int | None, typer.Option(metavar=unit, help=help_text)]


def _text(what: str, help_text: str) -> object:
    return Annotated[str | None, typer.Option(metavar=what, help=help_text)]


def _switch(name: str, help_text: str) -> object:
    """On, off, or nothing said."""
    return Annotated[bool | None, typer.Option(f"--{name}/--no-{name}", help=help_text)]


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
STATUS: Final = Setting(
    "status", "Status", Annotated[Status | None, typer.Option(help="What clients may do.")]
)
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
