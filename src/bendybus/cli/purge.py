"""`bendybus purge`: delete messages by their state, with a progress bar (operations/purging.py).

If messages stay because another client has locked them, the command reports that and fails.
"""

from __future__ import annotations

import time

import click

from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.options import Choices, confirm, dry_run_option, entity_argument, yes_option
from bendybus.cli.output import note, show_one
from bendybus.cli.tables import progress
from bendybus.errors import InvalidOperation
from bendybus.operations.peeking import State, peeked
from bendybus.operations.purging import LEFT_MAX, messages_left, purged

__all__ = ["count_messages", "purge", "purge_messages"]


@click.command
@entity_argument
@click.option(
    "--state",
    type=Choices(State),
    multiple=True,
    help="Which messages; may be repeated.",
    show_default="all of them",
)
@dry_run_option
@yes_option
@server_command
def purge(command: Command, entity: str, state: tuple[State, ...], dry_run: bool, yes: bool) -> None:
    """Delete messages and keep the entity."""
    states = list(state or State)
    if dry_run:
        count_messages(command, entity, states)
        return
    confirm(f"Delete the {', '.join(states)} messages of '{entity}'?", yes)
    purge_messages(command, entity, states)


def count_messages(command: Command, entity: str, states: list[State]) -> None:
    """What a purge would delete, unless a receiver has locked it."""
    with bus_client(command) as client:
        management = client.management(entity)
        counts = {
            str(state): sum(1 for _ in peeked(management, state=state, without_body=True)) for state in states
        }
    if command.as_json:
        show_one({"entity": entity, "matching": sum(counts.values()), **counts, "purged": 0}, command.output)
    else:
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        note(f"Would purge '{entity}': {told}.")


def purge_messages(command: Command, entity: str, states: list[State]) -> None:
    counts: dict[str, int] = {str(state): 0 for state in states}
    began_ms = round(time.time() * 1000)
    with bus_client(command) as client, progress() as bar:
        for state in states:
            task = bar.add_task(f"Purging {state} messages", total=None)
            for count in purged(client, entity, state):
                counts[state] += count
                bar.update(task, completed=counts[state])
            bar.update(task, total=counts[state])
        left = messages_left(client, entity, states, began_ms)
    if command.as_json:
        show_one({"entity": entity, "purged": sum(counts.values()), **counts, "left": left}, command.output)
    else:
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        note(f"Purged '{entity}': {told}.")
    if left:
        shown = f"At least {LEFT_MAX}" if left == LEFT_MAX else str(left)
        raise InvalidOperation(
            f"{shown} message{'' if left == 1 else 's'} of '{entity}' could not be deleted, because "
            "receivers have locked them. Purge again when they are settled or their locks have ended."
        )
