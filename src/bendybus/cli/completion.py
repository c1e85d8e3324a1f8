"""What the shell offers for an entity's name: those that the server has, asked when Tab is pressed.

The line being written may name the server; where none answers, nothing is offered and
nothing is said, since the shell would show it in the middle of the line.
"""

from __future__ import annotations

from pathlib import Path

import typer

from bendybus.errors import BrokerError

__all__ = ["queue_names"]


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """For `typer.Argument(autocompletion=...)`."""
    from bendybus.cli.command import Command  # noqa: PLC0415 - see main.py
    from bendybus.cli.output import OutputFormat  # noqa: PLC0415

    given = context.params
    command = Command(given.get("connection_string"), Path(given.get("data") or ".data"), OutputFormat.TABLE)
    try:
        with command.management() as management:
            names = [entry.name for entry in management.list("$Resources/queues")]
    except BrokerError:
        return []
    return [name for name in names if name.lower().startswith(incomplete.lower())]
