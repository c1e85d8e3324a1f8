"""`bendybus send`: messages from an option, a file or standard input to a queue or topic."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bendybus.cli.command import Command, server_command
from bendybus.cli.options import Entity
from bendybus.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from bendybus.cli.messages import Draft
    from bendybus.client import Sender

__all__ = ["read_property", "send"]

# With a key, so many share a batch, and so a commit; the next batch waits for it to keep the order.
BATCH: Final = 100

_Text = Annotated[str | None, typer.Option()]


@server_command
def send(
    command: Command,
    entity: Entity,
    body: Annotated[str | None, typer.Option("--body", "-b", help="The message's body.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file that is the body, or that --json reads.")
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Read a JSON object a line, as 'receive -o json' prints them.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Send the message so many times.")] = 1,
    message_id: _Text = None,
    session_id: Annotated[
        str | None, typer.Option(help="The message's session; it decides the partition.")
    ] = None,
    partition_key: Annotated[
        str | None, typer.Option(help="Equal keys share a partition and stay in order.")
    ] = None,
    subject: _Text = None,
    correlation_id: _Text = None,
    content_type: _Text = None,
    to: _Text = None,
    reply_to: _Text = None,
    reply_to_session_id: _Text = None,
    property: Annotated[  # noqa: A002 - the option is to be called --property
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=TEXT|NAME:=JSON", help="A property; may be repeated."),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it lives, as 30s or PT30S.")
    ] = None,
    schedule_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="When to enqueue it, ISO 8601.")
    ] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Enqueue it so much later.")] = None,
) -> None:
    """Send messages to a queue or topic.

    What is sent is --body, or --file, or each line of standard input.
    """
    from bendybus.cli.messages import Draft, instant, milliseconds  # noqa: PLC0415 - see main.py

    if sum((body is not None, file is not None and not json_lines, json_lines)) > 1:
        raise ConfigError("--body, --file and --json exclude each other (but --json may read --file)")
    if schedule_at is not None and delay is not None:
        raise ConfigError("--schedule-at and --delay exclude each other")
    due = _option("--schedule-at", instant, schedule_at)
    if delay is not None:
        due = round(time.time() * 1000) + (_option("--delay", milliseconds, delay) or 0)
    texts = {
        "message_id": message_id,
        "session_id": session_id,
        "partition_key": partition_key,
        "subject": subject,
        "correlation_id": correlation_id,
        "content_type": content_type,
        "to": to,
        "reply_to": reply_to,
        "reply_to_session_id": reply_to_session_id,
    }
    pattern = Draft(
        texts={name: text for name, text in texts.items() if text is not None},
        properties=dict(map(read_property, property or ())),
        time_to_live_ms=_option("--ttl", milliseconds, ttl),
        scheduled_enqueue_time_ms=due,
    )
    known = body is not None or (file is not None and not json_lines)
    _send(command, entity, _drafts(pattern, body, file, json_lines, count), count if known else None)


def _option(name: str, read: Callable[[str], int], text: str | None) -> int | None:
    try:
        return None if text is None else read(text)
    except ArgumentError as error:
        raise ConfigError(f"{name}: {error}") from None


def _send(command: Command, entity: str, drafts: Iterator[Draft], total: int | None) -> None:
    from bendybus.cli.output import note, progress, show_one  # noqa: PLC0415 - see main.py

    with command.client() as client, progress() as bar:
        sender = client.sender(entity)
        task = bar.add_task(f"Sending to {entity}", total=total)
        for posted in _post(sender, drafts):
            bar.update(task, advance=posted)
        sender.flush()
    if command.as_json:
        show_one({"entity": entity, "sent": sender.sent}, command.output)
    else:
        note(f"Sent {sender.sent} message{'' if sender.sent == 1 else 's'} to '{entity}'.")


def _post(sender: Sender, drafts: Iterator[Draft]) -> Iterator[int]:
    """Messages with one key in batches; without, each for itself, so that they spread over partitions."""
    waiting: list[Draft] = []
    for draft in drafts:
        if waiting and (draft.key != waiting[0].key or len(waiting) == BATCH):
            yield _post_batch(sender, waiting)
            waiting = []
        if draft.key is None:
            yield _post_batch(sender, [draft])
        else:
            waiting.append(draft)
    if waiting:
        yield _post_batch(sender, waiting)


def _post_batch(sender: Sender, drafts: list[Draft]) -> int:
    sender.post([draft.encoded() for draft in drafts], drafts[0].key)
    return len(drafts)


# -- where they come from -----------------------------------------------------------


def _drafts(
    pattern: Draft, body: str | None, file: Path | None, json_lines: bool, count: int
) -> Iterator[Draft]:
    from dataclasses import replace  # noqa: PLC0415 - see main.py

    if body is not None:
        bodies: Iterable[bytes] = [os.fsencode(body)]
    elif file is not None and not json_lines:
        bodies = [_read(file)]
    elif json_lines:
        for number, line in enumerate(_lines(file), 1):
            if line.strip():
                yield from repeat(_merged(pattern, line, number), count)
        return
    else:
        bodies = (line.rstrip(b"\r\n") for line in _lines(None))
    for each in bodies:
        yield from repeat(replace(pattern, body=each), count)


def _merged(pattern: Draft, line: bytes, number: int) -> Draft:
    """The line's message, with what the options say over it."""
    from bendybus.cli.messages import draft_from_json  # noqa: PLC0415 - see main.py

    try:
        draft = draft_from_json(json.loads(line))
    except ValueError as error:
        raise ArgumentError(f"line {number} is not JSON: {error}") from None
    except ArgumentError as error:
        raise ArgumentError(f"line {number}: {error}") from None
    draft.texts |= pattern.texts
    draft.properties |= pattern.properties
    draft.time_to_live_ms = pattern.time_to_live_ms or draft.time_to_live_ms
    draft.scheduled_enqueue_time_ms = pattern.scheduled_enqueue_time_ms or draft.scheduled_enqueue_time_ms
    return draft


def _lines(file: Path | None) -> Iterator[bytes]:
    if file is not None:
        yield from _read(file).splitlines()
        return
    if sys.stdin.isatty():
        from bendybus.cli.output import note  # noqa: PLC0415 - see main.py

        note("Each line is a message; Ctrl+D ends.")
    yield from sys.stdin.buffer


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--file {file} cannot be read: {error.strerror}") from error


def read_property(text: str) -> tuple[str, object]:
    """`name=text`, or `name:=json` for a number, true or false."""
    name, separator, value = text.partition("=")
    if not separator or not name.rstrip(":"):
        raise ConfigError(f"--property is '{text}'; it must be NAME=TEXT or NAME:=JSON")
    if not name.endswith(":"):
        return name, value
    try:
        read = json.loads(value)
    except ValueError:
        read = ()
    if not (read is None or isinstance(read, str | bool | int | float)):
        raise ConfigError(
            f"--property is '{text}'; after := a number, true, false, null or \"text\" is expected"
        )
    return name[:-1], read
