"""What commands print: tables for people, JSON for programs, one line for errors.

Results go to stdout, everything else to stderr. Text from elsewhere (names, bodies, errors) is
not trusted: control characters, with which a message could rewrite the terminal, are shown as
escapes. How tables and bars are drawn: tables.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import click

__all__ = [
    "OutputFormat",
    "json_line",
    "note",
    "printable",
    "show_many",
    "show_one",
    "tell_error",
]

# JSON itself escapes those below a space; DEL, the C1 controls and what reorders text it lets through.
_UNSAFE_IN_JSON: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


def printable(text: str) -> str:
    """The text on one line, with everything that a terminal would act upon written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def show_one(values: Mapping[str, object], output: OutputFormat) -> None:
    """Show one object with its properties."""
    if output is OutputFormat.JSON:
        _print_json(values)
        return
    rows = [(name, value) for name, value in _flat(values)]
    _print_table(("Property", "Value"), rows)


def show_many(columns: Sequence[str], rows: Iterable[Sequence[object]], values: object) -> None:
    """A list: `rows` under `columns` as a table or, where `values` is not None, that as JSON."""
    if values is not None:
        _print_json(values)
    else:
        _print_table(columns, rows)


def json_line(values: Mapping[str, object]) -> None:
    """One JSON object on a line of its own, at once: for what comes one by one."""
    click.echo(_json(values, indent=None))
    sys.stdout.flush()


def note(text: str) -> None:
    """Show a note to the user, on stderr."""
    click.echo(printable(text), err=True)


def tell_error(text: str) -> None:
    click.echo(f"bendybus: {printable(text)}", err=True)


def _print_json(values: object) -> None:
    click.echo(_json(values, indent=2))


def _json(values: object, indent: int | None) -> str:
    text = json.dumps(values, indent=indent, ensure_ascii=False, default=str)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from bendybus.cli.tables import print_table  # noqa: PLC0415 - rich takes 60 ms, and JSON has no use for it

    print_table(columns, ([_cell(value) for value in row] for row in rows))


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case _:
            return printable(str(value))


def _flat(values: Mapping[str, object], before: str = "") -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value
