"""What commands print: tables for people, JSON for programs, one line for errors.

Results go to stdout, everything else to stderr. Text that came from elsewhere (names,
bodies, errors) is never trusted to be harmless: control characters, by which a message
could rewrite the terminal, are shown as escapes. `rich` is loaded only for a table.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = [
    "OutputFormat",
    "json_line",
    "note",
    "printable",
    "progress",
    "show_many",
    "show_one",
    "tell_error",
]

# Where nobody's terminal ends, lines are not folded: `| grep` and `> file` get each row whole.
UNFOLDED: Final = 100_000

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
    """One thing with its properties."""
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
    typer.echo(_json(values, indent=None))
    sys.stdout.flush()


def note(text: str) -> None:
    """Something for the person at the terminal, beside the results."""
    typer.echo(printable(text), err=True)


def tell_error(text: str) -> None:
    typer.echo(f"bendybus: {printable(text)}", err=True)


def progress() -> Progress:
    """A progress bar on stderr; nothing at all where stderr is not a terminal."""
    from rich.console import Console  # noqa: PLC0415 - 60 ms that only tables and bars need
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _print_json(values: object) -> None:
    typer.echo(_json(values, indent=2))


def _json(values: object, indent: int | None) -> str:
    text = json.dumps(values, indent=indent, ensure_ascii=False, default=str)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from rich import box  # noqa: PLC0415 - see progress
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        # As Text, since a cell of str is read for [markup].
        table.add_row(*(Text(_cell(value)) for value in row))
    _console().print(table)


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415 - see progress

    return Console() if sys.stdout.isatty() else Console(width=UNFOLDED)


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
