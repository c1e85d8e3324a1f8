"""`bendybus purge`: delete messages by their state, with a progress bar (operations/purging.py).

If messages stay because another client has locked them, the command reports that and fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.options import (
    Choices,
    confirm,
    dry_run_option,
    entity_argument,
    selector_option,
    yes_option,
)
from bendybus.cli.output import note, show_one
from bendybus.cli.tables import progress
from bendybus.client import BusClient
from bendybus.errors import InvalidOperation, NotSupported
from bendybus.operations.peeking import State, peeked
from bendybus.operations.purging import LEFT_MAX, Purging, messages_left, purged

if TYPE_CHECKING:
    from rich.progress import Progress

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
@click.option("--session-id", help="Only messages of this session.")
@selector_option
@dry_run_option
@yes_option
@server_command
def purge(
    command: Command,
    entity: str,
    state: tuple[State, ...],
    session_id: str | None,
    selector: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete messages and keep the entity."""
    states = list(state or State)
    if dry_run:
        count_messages(command, entity, states, session_id, selector)
        return
    which = f" of the session '{session_id}'" if session_id is not None else ""
    which += " that the selector matches" if selector is not None else ""
    confirm(f"Delete the {', '.join(states)} messages of '{entity}'{which}?", yes)
    purge_messages(command, entity, states, session_id, selector)


def count_messages(
    command: Command,
    entity: str,
    states: list[State],
    session_id: str | None = None,
    selector: str | None = None,
) -> None:
    """What a purge would delete, unless a receiver has locked it."""
    with bus_client(command) as client:
        management = client.management(entity)
        counts = {
            str(state): sum(1 for _ in peeked(management, 0, state, session_id, selector, without_body=True))
            for state in states
        }
    if command.as_json:
        show_one({"entity": entity, "matching": sum(counts.values()), **counts, "purged": 0}, command.output)
    else:
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        note(f"Would purge '{entity}': {told}.")


def purge_messages(
    command: Command,
    entity: str,
    states: list[State],
    session_id: str | None = None,
    selector: str | None = None,
) -> None:
    counts: dict[str, int] = {str(state): 0 for state in states}
    with bus_client(command) as client, progress() as bar:
        try:
            left = _on_server(client, bar, entity, counts, session_id, selector)
        except NotSupported:
            if session_id is not None or selector is not None:
                raise NotSupported(
                    "This server does not delete by session or selector; nothing was deleted."
                ) from None
            left = _batch_by_batch(client, bar, entity, counts)
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


def _on_server(
    client: BusClient,
    bar: Progress,
    entity: str,
    counts: dict[str, int],
    session_id: str | None,
    selector: str | None,
) -> int:
    """Bendybus deletes by itself. Returns how many messages receivers have locked."""
    locked = 0
    for state in counts:
        purging = Purging(client, entity, [State(state)], session_id, selector)
        _follow(bar, state, counts, purging.run())
        locked += purging.locked
    return locked


def _batch_by_batch(client: BusClient, bar: Progress, entity: str, counts: dict[str, int]) -> int:
    began_ms = round(time.time() * 1000)
    for state in counts:
        _follow(bar, state, counts, purged(client, entity, State(state)))
    return messages_left(client, entity, [State(state) for state in counts], began_ms)


def _follow(bar: Progress, state: str, counts: dict[str, int], batches: Iterator[int]) -> None:
    task = bar.add_task(f"Purging {state} messages", total=None)
    for count in batches:
        counts[state] += count
        bar.update(task, completed=counts[state])
    bar.update(task, total=counts[state])
