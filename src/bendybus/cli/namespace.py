"""`bendybus namespace`: the namespace itself."""

from __future__ import annotations

import click

from bendybus.cli.command import Command, server_command
from bendybus.cli.output import show_one
from bendybus.management.client import NAMESPACE, QUEUES, TOPICS
from bendybus.management.properties import shown_values

__all__ = ["app"]


@click.group("namespace", no_args_is_help=True)
def app() -> None:
    """The namespace: show."""


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
