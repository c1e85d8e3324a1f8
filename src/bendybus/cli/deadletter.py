"""`bendybus dead-letter`: look at dead letters, send them again, or delete them.

A dead letter is sent as it was, with its id, key and properties, without what dead-lettering
added. It is completed only when the copy is accepted. So none is lost, and one may be sent twice
if the command is interrupted in between.
"""

from __future__ import annotations

import uuid
from itertools import islice
from typing import Final

import click

from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.counts import message_count, seen_entity
from bendybus.cli.options import (
    confirm,
    dry_run_option,
    entity_argument,
    max_option,
    selector_option,
    yes_option,
)
from bendybus.cli.output import note, show_one
from bendybus.cli.purge import count_messages, purge_messages
from bendybus.cli.receive import from_option, show_peeked
from bendybus.cli.tables import progress
from bendybus.client import ReceivedMessage
from bendybus.errors import InvalidOperation
from bendybus.operations.moving import Move
from bendybus.operations.peeking import State, peeked, refuse_ignored_filters, selector_filter

__all__ = ["app"]

DEAD_LETTERS: Final = "$DeadLetterQueue"

# Properties that dead-lettering has added.
ADDED: Final = ("DeadLetterReason", "DeadLetterErrorDescription")


@click.group("dead-letter", no_args_is_help=True)
def app() -> None:
    """Dead letters: list, resubmit, purge."""


@app.command("list")
@entity_argument
@max_option(10)
@from_option
@selector_option
@server_command
def list_dead_letters(
    command: Command, entity: str, max_count: int, first: int, selector: str | None
) -> None:
    """Show dead letters and their reasons, without receiving them."""
    show_peeked(command, entity, f"{entity}/{DEAD_LETTERS}", max_count, first, selector=selector)


@app.command
@entity_argument
@click.option("--to", metavar="ENTITY", help="Where to send them.", show_default="where they came from")
@max_option(shown="all there are")
@click.option(
    "--new-ids", is_flag=True, help="Give each message a new id, so that duplicate detection drops none."
)
@selector_option
@dry_run_option
@server_command
def resubmit(
    command: Command,
    entity: str,
    to: str | None,
    max_count: int | None,
    new_ids: bool,
    selector: str | None,
    dry_run: bool,
) -> None:
    """Send dead letters again, to the entity they came from or to another one."""
    source, destination = f"{entity}/{DEAD_LETTERS}", to or _origin(entity)
    if not new_ids:
        _refuse_duplicate_detection(command, destination)
    if dry_run:
        _report(command, entity, destination, _matching(command, source, selector, max_count), dry_run=True)
        return
    if max_count is None:
        # Messages that are dead-lettered again meanwhile are left alone.
        max_count = message_count(command, source)
    moving = Move(source, destination, max_count, _new_id if new_ids else lambda _: None, without=ADDED)
    with bus_client(command) as client, bus_client(command) as target, progress() as bar:
        sender = target.sender(destination)
        # A misspelt destination is found before the first letter is locked.
        sender.check()
        filters = None if selector is None else selector_filter(selector)
        receiver = client.receiver(source, filters=filters)
        if filters is not None:
            refuse_ignored_filters(receiver, filters)
        task = bar.add_task(f"Resubmitting to {destination}", total=max_count)
        moving.tell = lambda: bar.update(task, completed=moving.moved)
        moving.run(receiver, sender)
    _report(command, entity, destination, moving.moved, dry_run=False)


def _matching(command: Command, source: str, selector: str | None, max_count: int | None) -> int:
    with bus_client(command) as client:
        found = peeked(client.management(source), selector=selector, without_body=True)
        return sum(1 for _ in islice(found, max_count))


def _report(command: Command, entity: str, destination: str, count: int, *, dry_run: bool) -> None:
    if command.as_json:
        done = {"matching": count, "resubmitted": 0} if dry_run else {"resubmitted": count}
        show_one({"entity": entity, "to": destination, **done}, command.output)
        return
    what = "Would resubmit" if dry_run else "Resubmitted"
    note(f"{what} {count} dead letter{'' if count == 1 else 's'} of '{entity}' to '{destination}'.")


@app.command("purge")
@entity_argument
@dry_run_option
@yes_option
@server_command
def purge_dead_letters(command: Command, entity: str, dry_run: bool, yes: bool) -> None:
    """Delete all dead letters."""
    path, states = f"{entity}/{DEAD_LETTERS}", [State.ACTIVE, State.DEFERRED]
    if dry_run:
        count_messages(command, path, states)
        return
    confirm(f"Delete the dead letters of '{entity}'?", yes)
    purge_messages(command, path, states)


def _origin(entity: str) -> str:
    """Where its messages were sent to: a subscription's to its topic."""
    topic, _, _ = entity.lower().partition("/subscriptions/")
    return entity[: len(topic)]


def _refuse_duplicate_detection(command: Command, destination: str) -> None:
    """An entity that remembers the message's id would drop the copy, and then the letter is completed."""
    # A key that may not manage cannot know; sending will tell whether there is such an entity.
    entry = seen_entity(command, destination)
    if entry is not None and entry.text("RequiresDuplicateDetection") == "true":
        raise InvalidOperation(
            f"'{destination}' has duplicate detection and would drop messages whose ids it remembers: "
            "pass --new-ids"
        )


def _new_id(message: ReceivedMessage) -> str:
    return str(uuid.uuid4())
