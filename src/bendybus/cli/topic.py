"""`bendybus topic`: create, show, list, update and delete topics. Their subscriptions: subscription.py."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bendybus.cli import options as given
from bendybus.cli.command import Command, server_command
from bendybus.cli.completion import topic_names
from bendybus.cli.entity_options import TOPIC_SETTINGS, Properties, changeable, with_properties

__all__ = ["app"]

app = typer.Typer(help="Topics: create, show, list, update, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Path of the topic.", autocompletion=topic_names)]

ALL: Final = "$Resources/topics"
COLUMNS: Final = ("Name", "Status", "Subscriptions", "Scheduled", "Partitioned", "Max size MB")


@app.command()
@server_command
@with_properties(TOPIC_SETTINGS)
def create(command: Command, name: Name, properties: Properties) -> None:
    """Create a topic, partitioned unless you say otherwise."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import TOPIC  # noqa: PLC0415

    entities.create(command, TOPIC, name, properties)


@app.command()
@server_command
@with_properties(changeable(TOPIC_SETTINGS))
def update(command: Command, name: Name, properties: Properties) -> None:
    """Change properties of a topic; what is not named stays as it is."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import TOPIC  # noqa: PLC0415

    entities.update(command, TOPIC, name, properties)


@app.command()
@server_command
def show(command: Command, name: Name) -> None:
    """Show a topic: its properties, counts and sizes over all partitions."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import TOPIC  # noqa: PLC0415

    entities.show(command, TOPIC, name)


@app.command("list")
@server_command
def list_topics(command: Command) -> None:
    """List all topics."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py

    entities.show_list(command, ALL, COLUMNS, _row)


@app.command()
@server_command
def delete(command: Command, name: Name, yes: given.Yes = False) -> None:
    """Delete a topic with its subscriptions and all their messages."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import TOPIC  # noqa: PLC0415

    entities.delete(command, TOPIC, name, yes)


def _row(values: dict[str, object]) -> list[object]:
    counts = values.get("countDetails")
    counts = counts if isinstance(counts, dict) else {}
    return [
        values["name"],
        values.get("status"),
        values.get("subscriptionCount"),
        counts.get("scheduledMessageCount"),
        values.get("enablePartitioning"),
        values.get("maxSizeInMegabytes"),
    ]
