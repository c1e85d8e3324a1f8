"""`bendybus dead-letter`: look at dead letters, send them again, or delete them.

A dead letter is sent as it was, with its id, key and properties, without what dead-lettering
added. It is completed only when the copy is accepted. So none is lost, and one may be sent twice
if the command is interrupted in between.
"""

from __future__ import annotations

import uuid
from typing import Final

import click

from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.counts import message_count, seen_entity
from bendybus.cli.options import confirm, entity_argument, max_option, yes_option
from bendybus.cli.output import note, show_one
from bendybus.cli.purge import purge_messages
from bendybus.cli.receive import from_option, show_peeked
from bendybus.cli.tables import progress
from bendybus.client import ReceivedMessage, Sender
from bendybus.errors import InvalidOperation
from bendybus.operations.copies import copy_of
from bendybus.operations.peeking import State

__all__ = ["app"]

DEAD_LETTERS: Final = "$DeadLetterQueue"
BATCH: Final = 100
# See purge.py.
WAIT_S: Final = 0.3

# Properties that dead-lettering has added.
ADDED: Final = ("DeadLetterReason", "DeadLetterErrorDescription")


@click.group("dead-letter", no_args_is_help=True)
def app() -> None:
    """Dead letters: list, resubmit, purge."""


@app.command("list")
@entity_argument
@max_option(10)
@from_option
@server_command
def list_dead_letters(command: Command, entity: str, max_count: int, first: int) -> None:
    """Show dead letters and why they are there, without taking them."""
    show_peeked(command, entity, f"{entity}/{DEAD_LETTERS}", max_count, first)


@app.command
@entity_argument
@click.option("--to", metavar="ENTITY", help="Where to send them.", show_default="where they came from")
@max_option(shown="all there are")
@click.option(
    "--new-ids", is_flag=True, help="Give each a new message id, so that none is taken for a duplicate."
)
@server_command
def resubmit(command: Command, entity: str, to: str | None, max_count: int | None, new_ids: bool) -> None:
    """Send dead letters again, to where they came from or to another entity."""
    destination = to or _origin(entity)
    if not new_ids:
        _refuse_duplicate_detection(command, destination)
    if max_count is None:
        # Messages that are dead-lettered again meanwhile are left alone.
        max_count = message_count(command, f"{entity}/{DEAD_LETTERS}")
    sent = 0
    with bus_client(command) as client, progress() as bar:
        receiver = client.receiver(f"{entity}/{DEAD_LETTERS}")
        sender = client.sender(destination)
        task = bar.add_task(f"Resubmitting to {destination}", total=max_count)
        while max_count is None or sent < max_count:
            wanted = BATCH if max_count is None else min(BATCH, max_count - sent)
            messages = receiver.receive(wanted, timeout_s=WAIT_S)
            if not messages:
                break
            _send_again(sender, messages, new_ids)
            receiver.complete(messages)
            sent += len(messages)
            bar.update(task, completed=sent)
    if command.as_json:
        show_one({"entity": entity, "to": destination, "resubmitted": sent}, command.output)
    else:
        note(f"Resubmitted {sent} dead letter{'' if sent == 1 else 's'} of '{entity}' to '{destination}'.")


@app.command("purge")
@entity_argument
@yes_option
@server_command
def purge_dead_letters(command: Command, entity: str, yes: bool) -> None:
    """Delete all dead letters."""
    confirm(f"Delete the dead letters of '{entity}'?", yes)
    purge_messages(command, f"{entity}/{DEAD_LETTERS}", [State.ACTIVE, State.DEFERRED])


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


def _send_again(sender: Sender, messages: list[ReceivedMessage], new_ids: bool) -> None:
    for message in messages:
        # Each for itself: letters of one batch may have different keys, which a batch may not.
        new_id = str(uuid.uuid4()) if new_ids else None
        sender.post([copy_of(message, message_id=new_id, without=ADDED)])
    sender.flush()
