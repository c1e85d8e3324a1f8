"""Options that several commands share, in `az servicebus`'s words.

Each is a type to annotate a parameter with. None as the default means that the option
was not given: the server then decides, or an update leaves the property as it is.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from bendybus.cli.completion import entity_names, topic_names
from bendybus.errors import ArgumentError, ConfigError

__all__ = [
    "AutoDeleteOnIdle",
    "BatchedOperations",
    "DeadLetterOnExpiration",
    "DeadLetterOnFilterError",
    "DefaultMessageTtl",
    "DuplicateDetection",
    "DuplicateDetectionWindow",
    "EnableExpress",
    "EnableSession",
    "Entity",
    "ForwardDeadLetteredTo",
    "ForwardTo",
    "LockDuration",
    "MaxDeliveryCount",
    "MaxMessageSize",
    "MaxSize",
    "Partitioned",
    "Status",
    "StatusOption",
    "SupportOrdering",
    "Topic",
    "UserMetadata",
    "Yes",
    "confirm",
    "duration",
]


class Status(StrEnum):
    """As the management API writes it."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


Topic = Annotated[str, typer.Argument(help="Path of the topic.", autocompletion=topic_names)]
Entity = Annotated[
    str,
    typer.Argument(
        help="A queue, a topic, TOPIC/Subscriptions/NAME, or the /$DeadLetterQueue of one.",
        autocompletion=entity_names,
    ),
]


def duration(text: str) -> str:
    """For `typer.Option(parser=...)`: a duration in the API's words, or a usage error."""
    from bendybus.cli.properties import read_duration  # noqa: PLC0415 - see main.py

    try:
        return read_duration(text)
    except ArgumentError as error:
        raise typer.BadParameter(str(error)) from None


Partitioned = Annotated[
    bool,
    typer.Option(
        "--partitioned/--no-partitioned", help="Spread over 16 partitions; fixed for the entity's life."
    ),
]
MaxSize = Annotated[
    int | None, typer.Option(metavar="MB", help="Size of each partition: 1024, 2048, 3072, 4096 or 5120.")
]
MaxMessageSize = Annotated[int | None, typer.Option(metavar="KB", help="Largest message.")]
LockDuration = Annotated[
    str | None, typer.Option(parser=duration, metavar="DURATION", help="How long a lock holds, 5s to 5m.")
]
EnableSession = Annotated[
    bool | None,
    typer.Option("--enable-session/--no-enable-session", help="Messages belong to sessions; fixed."),
]
DuplicateDetection = Annotated[
    bool | None,
    typer.Option("--duplicate-detection/--no-duplicate-detection", help="Drop repeated messages; fixed."),
]
DuplicateDetectionWindow = Annotated[
    str | None,
    typer.Option(parser=duration, metavar="DURATION", help="How long a message id is known, 20s to 7d."),
]
DefaultMessageTtl = Annotated[
    str | None, typer.Option(parser=duration, metavar="DURATION", help="Longest life of a message.")
]
DeadLetterOnFilterError = Annotated[
    bool | None,
    typer.Option(
        "--dead-letter-on-filter-error/--no-dead-letter-on-filter-error",
        help="Dead-letter messages that a rule fails on.",
    ),
]
SupportOrdering = Annotated[
    bool | None, typer.Option("--support-ordering/--no-support-ordering", help="Keep the order of messages.")
]
DeadLetterOnExpiration = Annotated[
    bool | None,
    typer.Option(
        "--dead-letter-on-expiration/--no-dead-letter-on-expiration",
        help="Dead-letter what has outlived its time.",
    ),
]
MaxDeliveryCount = Annotated[
    int | None, typer.Option(metavar="N", help="Dead-letter after so many deliveries.")
]
AutoDeleteOnIdle = Annotated[
    str | None,
    typer.Option(parser=duration, metavar="DURATION", help="Delete the entity when so long unused."),
]
ForwardTo = Annotated[
    str | None, typer.Option(metavar="ENTITY", help="Where messages go on to; '' for nowhere.")
]
ForwardDeadLetteredTo = Annotated[
    str | None, typer.Option(metavar="ENTITY", help="Where dead letters go on to; '' for nowhere.")
]
StatusOption = Annotated[Status | None, typer.Option("--status", help="What clients may do.")]
EnableExpress = Annotated[
    bool | None, typer.Option("--enable-express/--no-enable-express", help="Messages may stay in memory.")
]
BatchedOperations = Annotated[
    bool | None,
    typer.Option("--batched-operations/--no-batched-operations", help="Let the server gather writes."),
]
UserMetadata = Annotated[
    str | None, typer.Option(metavar="TEXT", help="A note of at most 1,024 characters; '' for none.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `--yes` was given; where nobody can answer, say so instead of waiting."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody is here to answer: pass --yes")
    typer.confirm(question, abort=True, err=True)
