"""`bendybus move`: messages from one entity to another, without losing any.

A message is locked at the source, sent to the target, and completed at the source only when the
target has acknowledged it. So if the command is interrupted at any moment, each message is in at
least one of the two. It is in both if the completion was lost. A target with duplicate detection drops
the second copy, because the message keeps its id.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

import click

from bendybus.cli.bus import bus_client
from bendybus.cli.command import EXIT_FAILED, Command, server_command
from bendybus.cli.completion import entity_names
from bendybus.cli.counts import message_count, seen_entity, split_path
from bendybus.cli.output import note, show_one
from bendybus.cli.tables import progress
from bendybus.client import BusClient, ReceivedMessage, Receiver, Sender
from bendybus.errors import ConfigError, InvalidOperation
from bendybus.management.entries import Entry
from bendybus.operations.moving import Move, NewId
from bendybus.operations.peeking import (
    SESSION_WAIT_MIN_S,
    refuse_ignored_filters,
    selector_filter,
    session_filter,
)

__all__ = ["move"]

# For messages without an id: an id is derived from their position in the source.
_IDS: Final = uuid.UUID("c6c9e0a8-4a39-4f7b-9b0e-6d7d3ad1c5f1")


@click.command
@click.argument(
    "source",
    help="A queue, TOPIC/Subscriptions/NAME, or the /$DeadLetterQueue of one.",
    shell_complete=entity_names,
)
@click.argument("target", help="The queue or topic to move them to.", shell_complete=entity_names)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="The maximum number of messages to move.",
    show_default="as many as there are at the start",
)
@click.option("--selector", metavar="TEXT", help="Move only messages that this JMS selector matches.")
@click.option("--session-id", help="Move only messages of this session.")
@click.option(
    "--new-ids", is_flag=True, help="Give each message a new id, so that duplicate detection drops none."
)
@server_command
def move(
    command: Command,
    source: str,
    target: str,
    count: int | None,
    selector: str | None,
    session_id: str | None,
    new_ids: bool,
) -> None:
    """Move messages to another entity.

    A message is completed at the source only when the target has it, so an
    interrupted command loses none.
    """
    if source.lower() == target.lower():
        raise ConfigError("source and target are the same entity")
    if selector is not None and session_id is not None:
        raise ConfigError("--selector and --session-id cannot be combined: a session is received in order")
    described = seen_entity(command, target)
    _refuse_losing_target(source, target, described, new_ids)
    has_sessions = session_id is None and _has_sessions(command, source)
    if has_sessions and selector is not None:
        raise InvalidOperation(
            f"'{source}' has sessions, which are received in order: --selector cannot be used."
        )
    limit = message_count(command, source) if count is None else count
    detects = described is not None and described.text("RequiresDuplicateDetection") == "true"
    moving = Move(source, target, limit, _ids(source, new_ids, detects))
    with _stopped_by_interrupt(moving), progress() as bar:
        task = bar.add_task(f"Moving to {target}", total=limit)
        moving.tell = lambda: bar.update(task, completed=moving.moved)
        with bus_client(command) as target_client:
            sender = target_client.sender(target)
            # A misspelt target is found before the first message is locked.
            sender.check()
            if has_sessions:
                _move_sessions(command, moving, sender)
            else:
                with bus_client(command) as client:
                    filters = None if selector is None else selector_filter(selector)
                    if session_id is not None:
                        filters = session_filter(session_id)
                    moving.run(_receiver(client, source, filters), sender)
    _report(command, moving, everything=count is None and selector is None and session_id is None)


# -- which messages -----------------------------------------------------------------


def _receiver(client: BusClient, source: str, filters: Mapping[str, object] | None) -> Receiver:
    receiver = client.receiver(source, filters=filters)
    receiver.check()
    if filters is not None:
        refuse_ignored_filters(receiver, filters)
    return receiver


def _move_sessions(command: Command, moving: Move, sender: Sender) -> None:
    """Session after session, as they are free. One that others hold stays."""
    # The server answers an attach to the next session when there is one: this long and no longer.
    with bus_client(command, retries=0, timeout_s=SESSION_WAIT_MIN_S) as client:
        moving.run_sessions(client, sender)


def _has_sessions(command: Command, source: str) -> bool:
    entity, subqueue = split_path(source)
    entry = None if subqueue else seen_entity(command, entity)
    return entry is not None and entry.text("RequiresSession") == "true"


# -- what the target does with them -------------------------------------------------


def _ids(source: str, new_ids: bool, detects: bool) -> NewId:
    """What to call a copy; None leaves its id as it is.

    Where the target detects duplicates, a message without an id gets one that is the same each time.
    """

    def new_id(message: ReceivedMessage) -> str | None:
        if new_ids:
            return str(uuid.uuid4())
        if detects and message.message_id is None:
            return str(uuid.uuid5(_IDS, f"{source.lower()}#{message.sequence_number}"))
        return None

    return new_id


def _refuse_losing_target(source: str, target: str, described: Entry | None, new_ids: bool) -> None:
    """A target that acknowledges messages and does not keep them: then completing would lose them."""
    if described is None:
        return
    origin = split_path(source)[0]
    topic = origin.lower().partition("/subscriptions/")[0]
    detects = described.text("RequiresDuplicateDetection") == "true"
    if detects and not new_ids and target.lower() in (origin.lower(), topic):
        raise InvalidOperation(
            f"'{target}' has duplicate detection and would drop messages that it has seen before: "
            "pass --new-ids."
        )
    if described.kind == "TopicDescription" and described.text("SubscriptionCount") == "0":
        raise InvalidOperation(
            f"'{target}' is a topic without subscriptions: it would keep none of the messages."
        )


# -- the end ------------------------------------------------------------------------


@contextmanager
def _stopped_by_interrupt(moving: Move) -> Iterator[None]:
    """The first Ctrl+C ends the move after the messages that are under way; the second ends it at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if moving.stopped:
            raise KeyboardInterrupt
        moving.stopped = True
        note("Stopping after the messages that are under way.")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _report(command: Command, moving: Move, *, everything: bool) -> None:
    source, target, moved = moving.source, moving.target, moving.moved
    left = message_count(command, source) if everything or moving.stopped else None
    if command.as_json:
        show_one(
            {"source": source, "target": target, "moved": moved, "stopped": moving.stopped}, command.output
        )
    else:
        note(f"Moved {moved} message{'' if moved == 1 else 's'} from '{source}' to '{target}'.")
    if left:
        why = "" if moving.stopped else ": other receivers have locked them, or they came meanwhile"
        note(f"'{source}' still has {left}{why}.")
    if moving.stopped:
        raise click.exceptions.Exit(EXIT_FAILED)
