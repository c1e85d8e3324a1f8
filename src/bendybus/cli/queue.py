"""`bendybus queue`: create, show, list, update and delete queues."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bendybus.cli import options as given
from bendybus.cli.command import Command, server_command
from bendybus.cli.completion import queue_names
from bendybus.cli.entity_options import QUEUE_SETTINGS, Properties, changeable, with_properties

__all__ = ["app"]

app = typer.Typer(help="Queues: create, show, list, update, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Path of the queue.", autocompletion=queue_names)]

ALL: Final = "$Resources/queues"
COLUMNS: Final = ("Name", "Status", "Active", "Dead letters", "Scheduled", "Partitioned", "Max size MB")


@app.command()
@server_command
@with_properties(QUEUE_SETTINGS)
def create(command: Command, name: Name, properties: Properties) -> None:
    """Create a queue, partitioned unless you say otherwise."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import QUEUE  # noqa: PLC0415

    entities.create(command, QUEUE, name, properties)


@app.command()
@server_command
@with_properties(changeable(QUEUE_SETTINGS))
def update(command: Command, name: Name, properties: Properties) -> None:
    """Change properties of a queue; what is not named stays as it is."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import QUEUE  # noqa: PLC0415

    entities.update(command, QUEUE, name, properties)


@app.command()
@server_command
def show(command: Command, name: Name) -> None:
    """Show a queue: its properties, counts and sizes over all partitions."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import QUEUE  # noqa: PLC0415

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
    from bendybus.management.properties import QUEUE  # noqa: PLC0415

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
