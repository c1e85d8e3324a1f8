"""Encodes commits for `commit_changes`: arrays of numbers as text, and one run of bytes.

`str` of a list of numbers is nearly PostgreSQL's text form of an array, so Python does no
work per element. The contents of the lists: store/encoding.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bendybus.domain.messages import Message, Origin
from bendybus.names import SessionId
from bendybus.store.encoding import CommitRequest, decode_rows

__all__ = ["array", "decode_page", "encode_request"]

ROW_COLUMNS = 10
UPDATED_COLUMNS = 8
# The index in `updated` of the only text column, which psycopg has to quote.
AMENDMENT_COLUMN = 5


def array(numbers: Iterable[int | None]) -> str:
    """PostgreSQL's text form of an array of numbers. Not for members of enums: they print differently."""
    text = str(list(numbers))
    return "{" + (text[1:-1].replace("None", "NULL") if "N" in text else text[1:-1]) + "}"


def encode_request(request: CommitRequest) -> list[object]:
    """The arguments of `commit_changes`, in order."""
    keys, next_sequences, epochs = _columns(request.counters, 3)
    run_lengths = [len(run[5]) for run in request.runs]
    run_starts: list[int] = []
    sizes: list[int] = []
    for run in request.runs:
        run_starts.append(len(sizes) + 1)
        sizes += run[5]
    runs = _columns([run[:5] for run in request.runs], 5)
    updated = _columns(request.updated, UPDATED_COLUMNS)
    return [
        *map(array, (keys, next_sequences, epochs)),
        request.first,
        b"".join(request.pieces),
        array(request.bodies),
        *map(array, (*runs, run_starts, run_lengths, sizes)),
        *map(array, _columns(request.rows, ROW_COLUMNS)),
        *(
            list(column) if number == AMENDMENT_COLUMN else array(map(_plain, column))
            for number, column in enumerate(updated)
        ),
        array(request.removed),
        array(request.released),
    ]


def _columns(rows: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * count


def _plain(number: int | None) -> int | None:
    return None if number is None else int(number)


def decode_page(
    rows: Sequence[tuple[Any, ...]], sessions: dict[str, SessionId], origins: dict[int, Origin]
) -> list[Message]:
    """Decode a page of `load_page`. Session ids are stored as bytes."""
    return decode_rows(
        (row if row[5] is None else (*row[:5], row[5].decode(), *row[6:]) for row in rows), sessions, origins
    )
