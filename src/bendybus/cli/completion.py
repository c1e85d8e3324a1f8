"""What the shell offers for an entity's name: those that the server has, asked when Tab is pressed.

The line being written may name the server; where none answers, nothing is offered and
nothing is said, since the shell would show it in the middle of the line.
"""

from __future__ import annotations

from pathlib import Path

import typer

from bendybus.errors import BrokerError

__all__ = ["entity_names", "queue_names", "topic_names"]


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """For `typer.Argument(autocompletion=...)`, as the others here."""
    return _names(context, incomplete, "$Resources/queues")


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, "$Resources/topics")


def entity_names(context: typer.Context, incomplete: str) -> list[str]:
    return _names(context, incomplete, "$Resources/queues", "$Resources/topics")


def _names(context: typer.Context, incomplete: str, *lists: str) -> list[str]:
    from bendybus.cli.command import Command  # noqa: PLC0415 - see main.py
    from bendybus.cli.output import OutputFormat  # noqa: PLC0415

    given = context.params
    command = Command(given.get("connection_string"), Path(given.get("data") or ".data"), OutputFormat.TABLE)
    try:
        with command.management() as management:
            names = [entry.name for path in lists for entry in management.list(path)]
    except BrokerError:
        return []
    return [name for name in names if name.lower().startswith(incomplete.lower())]
