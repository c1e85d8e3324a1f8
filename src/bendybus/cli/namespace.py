"""`bendybus namespace`: the namespace of a connection string, and all those of a server on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from bendybus.cli.command import Command, output_option, server_command, told_errors
from bendybus.cli.operated import namespaces, operated
from bendybus.cli.options import Choices, confirm, dry_run_option, running_data_option, yes_option
from bendybus.cli.output import OutputFormat, note, show_many, show_one
from bendybus.domain.entities import Tier
from bendybus.errors import NamespaceNotFound
from bendybus.management.client import NAMESPACE, QUEUES, TOPICS
from bendybus.management.properties import shown_values

__all__ = ["app"]

COLUMNS: Final = ("Name", "Tier", "Queues", "Topics", "Connection string")


@click.group("namespace", no_args_is_help=True)
def app() -> None:
    """Namespaces: show, list, create, delete."""


@app.command
@server_command
def show(command: Command) -> None:
    """Show the namespace, its tier and how many entities it holds."""
    with command.management() as management:
        values = shown_values(management.get(NAMESPACE))
        values["endpoint"] = f"sb://{command.namespace().netloc}/"
        values["queues"] = sum(1 for _ in management.list(QUEUES))
        values["topics"] = sum(1 for _ in management.list(TOPICS))
    show_one(values, command.output)


@app.command("list")
@running_data_option
@output_option
def list_namespaces(data: Path | None, output: OutputFormat) -> None:
    """List the namespaces of a server on this machine, with their connection strings."""
    with told_errors():
        found = namespaces(data)
    names = ("name", "tier", "queues", "topics", "connectionString")
    rows = ([each[name] for name in names] for each in found)
    show_many(COLUMNS, rows, found if output is OutputFormat.JSON else None)


@app.command
@click.argument("name", help="The name: a letter, then letters, digits and '-'.")
@click.option("--tier", type=Choices(Tier), help="Its tier.", show_default="the server's, or standard")
@click.option(
    "--premium-messaging-partitions",
    "partitions",
    type=click.Choice(["1", "2", "4"]),
    help="Partitions of each entity in the premium tier.",
)
@running_data_option
@output_option
def create(
    name: str, tier: Tier | None, partitions: str | None, data: Path | None, output: OutputFormat
) -> None:
    """Create a namespace in a running server permanently.

    The command prints its connection string. A server with stores outside its data folder
    has only one namespace.
    """
    wanted = {"tier": tier, "premiumMessagingPartitions": None if partitions is None else int(partitions)}
    with told_errors():
        body = {key: value for key, value in wanted.items() if value is not None}
        made = operated(data)("PUT", _path(name), body)
    if output is OutputFormat.JSON:
        show_one(made, output)
    else:
        note(f"Created the namespace '{name}'.")
        click.echo(made["connectionString"])


@app.command
@click.argument("name", help="As 'bendybus namespace list' shows it.")
@dry_run_option
@yes_option
@running_data_option
@output_option
def delete(name: str, dry_run: bool, yes: bool, data: Path | None, output: OutputFormat) -> None:
    """Delete a namespace of a running server, with all its entities and messages.

    Its clients are disconnected. The first namespace of a data folder cannot be deleted.
    """
    with told_errors():
        found = [each for each in namespaces(data) if _same(each["name"], name)]
        if not found:
            raise NamespaceNotFound(f"There is no namespace '{name}'.")
        held = f"{found[0]['queues']} queues and {found[0]['topics']} topics"
        if not dry_run:
            confirm(f"Delete the namespace '{name}' with {held} and all their messages?", yes)
            operated(data)("DELETE", _path(name))
    if output is OutputFormat.JSON:
        show_one({"name": found[0]["name"], "deleted": not dry_run}, output)
    else:
        note(f"{'Would delete' if dry_run else 'Deleted'} the namespace '{name}' with {held}.")


def _same(name: str, other: str) -> bool:
    return name.lower() == other.lower()


def _path(name: str) -> str:
    return f"/$namespaces/{quote(name, safe='')}"
