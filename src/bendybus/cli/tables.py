"""Tables and progress bars, drawn with `rich`. Their contents: output.py."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

__all__ = ["print_table", "progress"]

# Without a terminal lines are not folded: `| grep` and `> file` get each row whole.
UNFOLDED: Final = 100_000


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """To stdout."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        # As Text, since a cell of str is read for [markup].
        table.add_row(*map(Text, row))
    console = Console() if sys.stdout.isatty() else Console(width=UNFOLDED)
    console.print(table)


def progress() -> Progress:
    """A progress bar on stderr; nothing at all where stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
