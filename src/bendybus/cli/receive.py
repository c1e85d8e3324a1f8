"""`bendybus receive` and `bendybus peek`: receive messages, or show them without receiving them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

import click

from bendybus.amqp.annotations import RETRY_DELAY
from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.messages import MessagePrinter
from bendybus.cli.options import (
    Choices,
    Decorator,
    Duration,
    entity_argument,
    max_option,
    selector_option,
)
from bendybus.cli.output import note
from bendybus.client import BusClient, ReceivedMessage, Receiver
from bendybus.errors import ConfigError, MessageNotFound, OperationTimeout
from bendybus.operations.deferred import DeferredMessages
from bendybus.operations.peeking import (
    SESSION_WAIT_MIN_S,
    State,
    peeked,
    refuse_ignored_filters,
    selector_filter,
    session_filter,
)
from bendybus.operations.sessions import held_session

__all__ = ["Mode", "from_option", "peek", "receive", "show_peeked"]

# Messages that are locked at a time: they are shown and settled long before the shortest lock expires.
BATCH: Final = 100


# Settlement -> what is said of it afterwards; none is for those that were deleted when they were received.
_SETTLED: Final = {
    "": "Deleted",
    "complete": "Completed",
    "abandon": "Abandoned",
    "defer": "Deferred",
    "dead_letter": "Dead-lettered",
}


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of received messages."""

    name: str
    """Empty for messages that were deleted when they were received."""
    reason: str
    description: str
    delay: str | None

    @property
    def properties(self) -> dict[str, object] | None:
        return None if self.delay is None else {RETRY_DELAY: self.delay}


class Mode(StrEnum):
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


def _numbers_option(help_text: str) -> Decorator:
    return click.option(
        "--sequence-number",
        "numbers",
        type=click.IntRange(min=0),
        multiple=True,
        metavar="NUMBER",
        help=help_text,
    )


_session_id_option = click.option("--session-id", help="Only messages of this session.")
from_option = click.option(
    "--from",
    "first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="NUMBER",
    help="The first sequence number.",
)


@click.command
@entity_argument
@max_option(shown="1, or no limit with --follow")
@click.option(
    "--mode",
    type=Choices(Mode),
    default=Mode.PEEK_LOCK.value,
    show_default=True,
    help="Lock messages until they are settled, or delete them at once.",
)
@click.option("--complete", is_flag=True, help="Complete the message, which deletes it. This is the default.")
@click.option("--abandon", is_flag=True, help="Return the message to the queue; the delivery is counted.")
@click.option(
    "--delay",
    type=Duration(),
    help="With --abandon: wait this long before it is delivered again, such as 30s.",
)
@click.option("--defer", is_flag=True, help="Defer the message: it can be received by its sequence number.")
@click.option("--dead-letter", is_flag=True, help="Move the message to the dead-letter queue.")
@click.option("--reason", default="", metavar="TEXT", help="The reason, with --dead-letter.")
@click.option("--description", default="", metavar="TEXT", help="A longer description, with --dead-letter.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a message.",
)
@click.option("--follow", is_flag=True, help="Continue until Ctrl+C.")
@_session_id_option
@click.option("--next-session", is_flag=True, help="Receive from the next free session.")
@selector_option
@_numbers_option("A deferred message by its sequence number; may be repeated.")
@server_command
def receive(
    command: Command,
    entity: str,
    max_count: int | None,
    mode: Mode,
    complete: bool,
    abandon: bool,
    delay: str | None,
    defer: bool,
    dead_letter: bool,
    reason: str,
    description: str,
    wait: float,
    follow: bool,
    session_id: str | None,
    next_session: bool,
    selector: str | None,
    numbers: tuple[int, ...],
) -> None:
    """Receive messages, show them and complete them.

    A completed message is deleted. --abandon, --defer and --dead-letter keep it. 'bendybus peek' only shows
    messages, and 'bendybus move' moves them to another entity.
    """
    chosen = [
        name
        for name, wanted in (
            ("complete", complete),
            ("abandon", abandon),
            ("defer", defer),
            ("dead_letter", dead_letter),
        )
        if wanted
    ]
    if len(chosen) > 1:
        raise ConfigError("--complete, --abandon, --defer and --dead-letter cannot be combined")
    if chosen and mode is Mode.RECEIVE_AND_DELETE:
        raise ConfigError("what --mode receive-and-delete gives is gone already: nothing is left to settle")
    if session_id is not None and next_session:
        raise ConfigError("--session-id and --next-session cannot be combined")
    if follow and next_session:
        raise ConfigError("--follow goes on with one session: name it with --session-id")
    if (reason or description) and not dead_letter:
        raise ConfigError("--reason and --description go with --dead-letter")
    if delay is not None and not abandon:
        raise ConfigError("--delay goes with --abandon")
    if selector is not None and (session_id is not None or next_session):
        raise ConfigError("--selector goes with no session: a session is received in order")
    if numbers and (selector is not None or next_session or follow or max_count is not None):
        raise ConfigError("--sequence-number says which messages: --session-id alone goes with it")
    settlement = "" if mode is Mode.RECEIVE_AND_DELETE else (chosen or ["complete"])[0]
    settle = Settlement(settlement, reason, description, delay)
    if numbers:
        _receive_deferred(command, entity, numbers, settle, session_id)
        return
    filters = session_filter(session_id) if session_id is not None or next_session else None
    _receive(
        command,
        entity,
        limit=max_count if max_count is not None or follow else 1,
        settlement=settle,
        wait_s=wait,
        follow=follow,
        filters=filters if selector is None else selector_filter(selector),
        waits_for_session=next_session,
    )


def _receive_deferred(
    command: Command,
    entity: str,
    numbers: tuple[int, ...],
    settlement: Settlement,
    session_id: str | None,
) -> None:
    """By their numbers; those of a session while it is held."""
    printer = MessagePrinter(as_json=command.as_json)
    with bus_client(command) as client:
        held = None if session_id is None else held_session(client, entity, session_id)
        deferred = DeferredMessages(client, entity, session_id)
        messages = deferred.receive(list(dict.fromkeys(numbers)), deletes=not settlement.name)
        for message in messages:
            printer.show(message)
        if settlement.name:
            why = (settlement.reason, settlement.description)
            deferred.settle(messages, settlement.name, *why, properties=settlement.properties)
        if held is not None:
            held.close()
    _tell_settled(entity, settlement.name, len(messages))


def _receive(
    command: Command,
    entity: str,
    *,
    limit: int | None,
    settlement: Settlement,
    wait_s: float,
    follow: bool,
    filters: Mapping[str, object] | None,
    waits_for_session: bool,
) -> None:
    printer, taken = MessagePrinter(as_json=command.as_json), 0
    try:
        with _client(command, wait_s, waits_for_session=waits_for_session) as client:
            receiver = client.receiver(entity, deletes=not settlement.name, filters=filters)
            if filters is not None and not waits_for_session:
                refuse_ignored_filters(receiver, filters)
            while limit is None or taken < limit:
                wanted = BATCH if limit is None else min(BATCH, limit - taken)
                messages = receiver.receive(wanted, timeout_s=wait_s)
                if not messages and not follow:
                    break
                # Shown before it is settled, so that a message that cannot be shown is not lost.
                for message in messages:
                    printer.show(message)
                _settle(receiver, messages, settlement)
                taken += len(messages)
    except KeyboardInterrupt:
        if not follow:
            raise
    except OperationTimeout:
        # No session was free: nothing came, as from an empty queue.
        if not waits_for_session:
            raise
    if taken:
        _tell_settled(entity, settlement.name, taken)
    elif not follow:
        note(f"No message came from '{entity}' in {wait_s:g} s.")


def _tell_settled(entity: str, settlement: str, count: int) -> None:
    note(f"{_SETTLED[settlement]} {count} message{'' if count == 1 else 's'} of '{entity}'.")


def _client(command: Command, wait_s: float, *, waits_for_session: bool) -> BusClient:
    """The server answers an attach to the next session when there is one: this long and no longer."""
    if not waits_for_session:
        return bus_client(command)
    return bus_client(command, retries=0, timeout_s=max(wait_s, SESSION_WAIT_MIN_S))


def _settle(receiver: Receiver, messages: list[ReceivedMessage], settlement: Settlement) -> None:
    if not messages:
        return
    match settlement.name:
        case "complete":
            receiver.complete(messages)
        case "abandon":
            receiver.abandon(messages, settlement.properties)
        case "defer":
            receiver.defer(messages)
        case "dead_letter":
            receiver.dead_letter(messages, settlement.reason, settlement.description)


@click.command
@entity_argument
@max_option(10)
@from_option
@click.option("--state", type=Choices(State), help="Only messages in this state.")
@_session_id_option
@selector_option
@_numbers_option("Only the message with this sequence number; may be repeated.")
@server_command
def peek(
    command: Command,
    entity: str,
    max_count: int,
    first: int,
    state: State | None,
    session_id: str | None,
    selector: str | None,
    numbers: tuple[int, ...],
) -> None:
    """Show messages without receiving them.

    Messages are shown by sequence number, that is, one partition after the other.
    """
    if not numbers:
        show_peeked(command, entity, entity, max_count, first, state, session_id, selector)
        return
    if first or state is not None or session_id is not None or selector is not None:
        raise ConfigError("--sequence-number says which messages: no filter goes with it")
    _show_numbered(command, entity, list(dict.fromkeys(numbers)))


def _show_numbered(command: Command, entity: str, numbers: list[int]) -> None:
    printer = _printer(command, entity)
    missing: list[int] = []
    with bus_client(command) as client:
        for number in numbers:
            found = next(peeked(client.management(entity), number, count=1), None)
            if found is None or found.sequence_number != number:
                missing.append(number)
            else:
                printer.show(found)
    if missing:
        raise MessageNotFound(f"'{entity}' has no message {', '.join(map(str, missing))}.")


def show_peeked(
    command: Command,
    entity: str,
    path: str,
    max_count: int,
    first: int,
    state: State | None = None,
    session_id: str | None = None,
    selector: str | None = None,
) -> None:
    """Up to `max_count` messages at `path`; a dead-letter queue's with the reason."""
    printer = _printer(command, path)
    shown = 0
    with bus_client(command) as client:
        found = peeked(client.management(path), first, state, session_id, selector, count=max_count)
        for message in islice(found, max_count):
            printer.show(message)
            shown += 1
    if not shown:
        note(f"'{entity}' has no such messages.")


def _printer(command: Command, path: str) -> MessagePrinter:
    return MessagePrinter(as_json=command.as_json, dead_letters=path.lower().endswith("/$deadletterqueue"))
