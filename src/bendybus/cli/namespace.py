"""`bendybus namespace`: the namespace itself."""

from __future__ import annotations

import typer

from bendybus.cli.command import Command, server_command

__all__ = ["app"]

app = typer.Typer(help="The namespace: show.", no_args_is_help=True)


@app.callback()
def namespace() -> None:
    """The namespace: show."""


@app.command()
@server_command
def show(command: Command) -> None:
    """Show the namespace, its tier and how many entities it holds."""
    from bendybus.cli.output import show_one  # noqa: PLC0415 - see main.py
    from bendybus.management.properties import shown_values  # noqa: PLC0415

    with command.management() as management:
        values = shown_values(management.get("$namespaceinfo"))
        values["endpoint"] = f"sb://{command.namespace().netloc}/"
        values["queues"] = sum(1 for _ in management.list("$Resources/queues"))
        values["topics"] = sum(1 for _ in management.list("$Resources/topics"))
    show_one(values, command.output)
