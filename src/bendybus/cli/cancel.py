"""`bendybus cancel`: take back scheduled messages before they are due."""

from __future__ import annotations

import click

from bendybus.amqp.types import Array
from bendybus.cli.bus import bus_client
from bendybus.cli.command import EXIT_FAILED, Command, server_command
from bendybus.cli.options import entity_argument
from bendybus.cli.output import note, show_one
from bendybus.errors import MessageNotFound

__all__ = ["cancel"]


@click.command
@entity_argument
@click.argument("numbers", metavar="NUMBER...", nargs=-1, required=True, type=click.IntRange(min=0))
@server_command
def cancel(command: Command, entity: str, numbers: tuple[int, ...]) -> None:
    """Cancel scheduled messages by their sequence numbers.

    'bendybus peek ENTITY --state scheduled' shows the numbers. 'bendybus purge ENTITY --state scheduled'
    cancels all.
    """
    missing: list[int] = []
    with bus_client(command) as client:
        management = client.management(entity)
        # One at a time: the server cancels all numbers of a request or none.
        for number in dict.fromkeys(numbers):
            try:
                asked = {"sequence-numbers": Array(int, [number])}
                management.request("com.microsoft:cancel-scheduled-message", asked)
            except MessageNotFound:
                missing.append(number)
    cancelled = [number for number in dict.fromkeys(numbers) if number not in missing]
    if command.as_json:
        show_one({"entity": entity, "cancelled": cancelled, "missing": missing}, command.output)
    else:
        note(f"Cancelled {len(cancelled)} message{'' if len(cancelled) == 1 else 's'} of '{entity}'.")
        if missing:
            note(f"Not scheduled at '{entity}': {', '.join(map(str, missing))}.")
    if missing:
        raise click.exceptions.Exit(EXIT_FAILED)
