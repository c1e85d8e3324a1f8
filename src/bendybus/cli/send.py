"""`bendybus send`: messages from an option, a file or standard input to a queue or topic."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Final

import click

from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.options import entity_argument, property_option, read_property
from bendybus.cli.output import note, show_one
from bendybus.cli.tables import progress
from bendybus.client import Sender
from bendybus.errors import ArgumentError, ConfigError
from bendybus.operations.drafts import Draft, draft_from_json, instant, milliseconds

__all__ = ["send"]

# With a key, so many share a batch, and so a commit; the next batch waits for it to keep the order.
BATCH: Final = 100


@click.command
@entity_argument
@click.option("--body", "-b", help="The message's body.")
@click.option(
    "--file",
    "-f",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A file that is the body, or that --json reads.",
)
@click.option(
    "--json",
    "json_lines",
    is_flag=True,
    help="Read one JSON object per line, in the format of 'receive -o json'.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many times to send the message.",
)
@click.option("--message-id")
@click.option("--session-id", help="The message's session; it decides the partition.")
@click.option("--partition-key", help="Equal keys share a partition and stay in order.")
@click.option("--subject")
@click.option("--correlation-id")
@click.option("--content-type")
@click.option("--to")
@click.option("--reply-to")
@click.option("--reply-to-session-id")
@property_option("A property; may be repeated.")
@click.option("--ttl", metavar="DURATION", help="Time to live, such as 30s or PT30S.")
@click.option("--schedule-at", metavar="TIME", help="When to enqueue it, ISO 8601.")
@click.option("--delay", metavar="DURATION", help="Enqueue it after this time.")
@server_command
def send(
    command: Command,
    entity: str,
    body: str | None,
    file: Path | None,
    json_lines: bool,
    count: int,
    properties: tuple[str, ...],
    ttl: str | None,
    schedule_at: str | None,
    delay: str | None,
    **texts: str | None,
) -> None:
    """Send messages to a queue or topic.

    The body comes from --body or --file; otherwise each line of standard input is a message.
    """
    if sum((body is not None, file is not None and not json_lines, json_lines)) > 1:
        raise ConfigError("--body, --file and --json cannot be combined (but --json may read --file)")
    if schedule_at is not None and delay is not None:
        raise ConfigError("--schedule-at and --delay cannot be combined")
    due = _option("--schedule-at", instant, schedule_at)
    if delay is not None:
        due = round(time.time() * 1000) + (_option("--delay", milliseconds, delay) or 0)
    pattern = Draft(
        texts={name: text for name, text in texts.items() if text is not None},
        properties=dict(map(read_property, properties)),
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
    with bus_client(command) as client, progress() as bar:
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
        note("Each line is a message; Ctrl+D ends.")
    yield from sys.stdin.buffer


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--file {file} cannot be read: {error.strerror}") from error
