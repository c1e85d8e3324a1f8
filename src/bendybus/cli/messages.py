"""Messages as rows or JSON lines, for the commands that show them. Their fields: operations/drafts.py."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping

import click

from bendybus.cli.output import json_line, printable
from bendybus.client import ReceivedMessage
from bendybus.operations.drafts import shown_message

__all__ = ["MessagePrinter"]


class MessagePrinter:
    """Shows messages as they arrive: one JSON object or one row each, under a heading."""

    def __init__(self, *, as_json: bool, dead_letters: bool = False) -> None:
        self._as_json = as_json
        self._dead_letters = dead_letters
        self._headed = False
        # Rows are cut only at the width of a terminal.
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def show(self, message: ReceivedMessage) -> None:
        values = shown_message(message)
        if self._as_json:
            json_line(values)
            return
        if not self._headed:
            self._headed = True
            self._row(
                "Sequence number",
                "Enqueued (UTC)",
                "Message id",
                "Why" if self._dead_letters else "Key",
                "Body",
            )
        properties = values.get("applicationProperties")
        why = properties.get("DeadLetterReason") if isinstance(properties, Mapping) else None
        key = values.get("sessionId", values.get("partitionKey"))
        self._row(
            values["sequenceNumber"],
            str(values.get("enqueuedTime", ""))[:19].replace("T", " "),
            values.get("messageId", ""),
            (why if self._dead_letters else key) or "",
            values.get("body", f"({len(message.body)} bytes)"),
        )

    def _row(self, number: object, time: object, name: object, key: object, body: object) -> None:
        texts = [printable(str(value)) for value in (number, time, name, key, body)]
        line = f"{texts[0]:<19}  {texts[1]:<19}  {texts[2]:<36}  {texts[3]:<12}  {texts[4]}"
        click.echo(line[: self._width].rstrip())
        sys.stdout.flush()
