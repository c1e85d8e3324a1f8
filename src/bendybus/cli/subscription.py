"""`bendybus subscription`: create, show, list, update and delete subscriptions. Their rules: rule.py."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bendybus.cli import options as given
from bendybus.cli.command import Command, server_command
from bendybus.cli.entity_options import SUBSCRIPTION_SETTINGS, Properties, changeable, with_properties

__all__ = ["app"]

app = typer.Typer(help="Subscriptions of topics: create, show, list, update, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the subscription.")]

COLUMNS: Final = ("Name", "Status", "Active", "Dead letters", "Sessions", "Forwards to")


@app.command()
@server_command
@with_properties(SUBSCRIPTION_SETTINGS)
def create(command: Command, topic: given.Topic, name: Name, properties: Properties) -> None:
    """Create a subscription; its rule $Default lets every message in."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import SUBSCRIPTION, subscription_path  # noqa: PLC0415

    entities.create(command, SUBSCRIPTION, subscription_path(topic, name), properties)


@app.command()
@server_command
@with_properties(changeable(SUBSCRIPTION_SETTINGS))
def update(command: Command, topic: given.Topic, name: Name, properties: Properties) -> None:
    """Change properties of a subscription; what is not named stays as it is."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import SUBSCRIPTION, subscription_path  # noqa: PLC0415

    entities.update(command, SUBSCRIPTION, subscription_path(topic, name), properties)


@app.command()
@server_command
def show(command: Command, topic: given.Topic, name: Name) -> None:
    """Show a subscription: its properties and counts."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import SUBSCRIPTION, subscription_path  # noqa: PLC0415

    entities.show(command, SUBSCRIPTION, subscription_path(topic, name))


@app.command("list")
@server_command
def list_subscriptions(command: Command, topic: given.Topic) -> None:
    """List the subscriptions of a topic with their counts."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py

    entities.show_list(command, f"{topic}/subscriptions", COLUMNS, _row)


@app.command()
@server_command
def delete(command: Command, topic: given.Topic, name: Name, yes: given.Yes = False) -> None:
    """Delete a subscription with all its messages."""
    from bendybus.cli import entities  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import SUBSCRIPTION, subscription_path  # noqa: PLC0415

    entities.delete(command, SUBSCRIPTION, subscription_path(topic, name), yes)


def _row(values: dict[str, object]) -> list[object]:
    counts = values.get("countDetails")
    counts = counts if isinstance(counts, dict) else {}
    return [
        values["name"],
        values.get("status"),
        counts.get("activeMessageCount"),
        counts.get("deadLetterMessageCount"),
        values.get("requiresSession"),
        values.get("forwardTo"),
    ]
