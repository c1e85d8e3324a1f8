"""`bendybus queue`: create, show, list, update and delete queues."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bendybus.cli import options as given
from bendybus.cli.command import Command, server_command
from bendybus.cli.completion import queue_names

__all__ = ["app"]

app = typer.Typer(help="Queues: create, show, list, update, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Path of the queue.", autocompletion=queue_names)]

ALL: Final = "$Resources/queues"
COLUMNS: Final = ("Name", "Status", "Active", "Dead letters", "Scheduled", "Partitioned", "Max size MB")


@app.command()
@server_command
def create(
    command: Command,
    name: Name,
    partitioned: given.Partitioned = True,
    max_size: given.MaxSize = None,
    max_message_size: given.MaxMessageSize = None,
    lock_duration: given.LockDuration = None,
    enable_session: given.EnableSession = None,
    duplicate_detection: given.DuplicateDetection = None,
    duplicate_detection_window: given.DuplicateDetectionWindow = None,
    default_message_ttl: given.DefaultMessageTtl = None,
    dead_letter_on_expiration: given.DeadLetterOnExpiration = None,
    max_delivery_count: given.MaxDeliveryCount = None,
    auto_delete_on_idle: given.AutoDeleteOnIdle = None,
    forward_to: given.ForwardTo = None,
    forward_dead_lettered_to: given.ForwardDeadLetteredTo = None,
    status: given.StatusOption = None,
    enable_express: given.EnableExpress = None,
    batched_operations: given.BatchedOperations = None,
    user_metadata: given.UserMetadata = None,
) -> None:
    """Create a queue, partitioned unless you say otherwise."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.cli.properties import QUEUE  # noqa: PLC0415

    entities.create(
        command,
        QUEUE,
        name,
        EnablePartitioning=partitioned,
        MaxSizeInMegabytes=max_size,
        MaxMessageSizeInKilobytes=max_message_size,
        LockDuration=lock_duration,
        RequiresSession=enable_session,
        RequiresDuplicateDetection=duplicate_detection,
        DuplicateDetectionHistoryTimeWindow=duplicate_detection_window,
        DefaultMessageTimeToLive=default_message_ttl,
        DeadLetteringOnMessageExpiration=dead_letter_on_expiration,
        MaxDeliveryCount=max_delivery_count,
        AutoDeleteOnIdle=auto_delete_on_idle,
        ForwardTo=forward_to,
        ForwardDeadLetteredMessagesTo=forward_dead_lettered_to,
        Status=status,
        EnableExpress=enable_express,
        EnableBatchedOperations=batched_operations,
        UserMetadata=user_metadata,
    )


@app.command()
@server_command
def update(
    command: Command,
    name: Name,
    max_size: given.MaxSize = None,
    max_message_size: given.MaxMessageSize = None,
    lock_duration: given.LockDuration = None,
    duplicate_detection_window: given.DuplicateDetectionWindow = None,
    default_message_ttl: given.DefaultMessageTtl = None,
    dead_letter_on_expiration: given.DeadLetterOnExpiration = None,
    max_delivery_count: given.MaxDeliveryCount = None,
    auto_delete_on_idle: given.AutoDeleteOnIdle = None,
    forward_to: given.ForwardTo = None,
    forward_dead_lettered_to: given.ForwardDeadLetteredTo = None,
    status: given.StatusOption = None,
    enable_express: given.EnableExpress = None,
    batched_operations: given.BatchedOperations = None,
    user_metadata: given.UserMetadata = None,
) -> None:
    """Change properties of a queue; what is not named stays as it is."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.cli.properties import QUEUE  # noqa: PLC0415

    entities.update(
        command,
        QUEUE,
        name,
        MaxSizeInMegabytes=max_size,
        MaxMessageSizeInKilobytes=max_message_size,
        LockDuration=lock_duration,
        DuplicateDetectionHistoryTimeWindow=duplicate_detection_window,
        DefaultMessageTimeToLive=default_message_ttl,
        DeadLetteringOnMessageExpiration=dead_letter_on_expiration,
        MaxDeliveryCount=max_delivery_count,
        AutoDeleteOnIdle=auto_delete_on_idle,
        ForwardTo=forward_to,
        ForwardDeadLetteredMessagesTo=forward_dead_lettered_to,
        Status=status,
        EnableExpress=enable_express,
        EnableBatchedOperations=batched_operations,
        UserMetadata=user_metadata,
    )


@app.command()
@server_command
def show(command: Command, name: Name) -> None:
    """Show a queue: its properties, counts and sizes over all partitions."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.cli.properties import QUEUE  # noqa: PLC0415

    entities.show(command, QUEUE, name)


@app.command("list")
@server_command
def list_queues(command: Command) -> None:
    """List all queues with their counts."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py

    entities.show_list(command, ALL, COLUMNS, _row)


@app.command()
@server_command
def delete(command: Command, name: Name, yes: given.Yes = False) -> None:
    """Delete a queue with all its messages."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.cli.properties import QUEUE  # noqa: PLC0415

    entities.delete(command, QUEUE, name, yes)


def _row(values: dict[str, object]) -> list[object]:
    counts = values.get("countDetails")
    counts = counts if isinstance(counts, dict) else {}
    return [
        values["name"],
        values.get("status"),
        counts.get("activeMessageCount"),
        counts.get("deadLetterMessageCount"),
        counts.get("scheduledMessageCount"),
        values.get("enablePartitioning"),
        values.get("maxSizeInMegabytes"),
    ]
