"""Encodes records of commits and decodes pages for queries.sql: JSON arrays of numbers, and one run of bytes.

The format is chosen for Python's global interpreter lock: a thread releases it for each
step of SQLite and waits for it again, so a commit is one step with few
parameters. The contents of the arrays: store/encoding.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from bendybus.domain.messages import Message, Origin
from bendybus.names import SessionId
from bendybus.store.encoding import SLICE_SHIFT, CommitRequest, Row, decode_rows
from bendybus.store.sqlite.records import CommitRecord, Remembered, plain_value
from bendybus.store.sqlite.removals import are_far_apart

__all__ = [
    "CommitParameters",
    "EncodedRecords",
    "decode_ids",
    "decode_page",
    "encode_ids",
    "encode_records",
]

CommitParameters: TypeAlias = tuple[
    bytes,
    str,
    int,
    bool,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
]
"""The columns of `define_commit`. None for a list that is empty."""

_Copies: TypeAlias = tuple[int, int, int, int, int, int | None, int, int, int, int | None, list[int]]
"""First id, step of ids, partition, first sequence number, enqueued_at, expires_at, first body, step of
bodies, first origin, hops, and the size of each."""


class EncodedRecords(NamedTuple):
    """Records as one row. What few commits have is written with separate statements."""

    parameters: CommitParameters
    noted: list[int]
    """Removed messages whose rows are deleted later (removals.py)."""
    noted_bytes: int
    forgotten: dict[int, int]
    """Partition -> the time up to which its digests are no longer needed."""
    session_states: dict[tuple[int, str], tuple[int, bytes | None]]
    """Partition and session -> when it was set, and the state."""
    transferred: dict[tuple[int, str], int]
    """Partition and source -> the number up to which its outbox has arrived."""

    @property
    def has_others(self) -> bool:
        return bool(self.forgotten or self.session_states or self.transferred)


def encode_records(records: Sequence[CommitRecord], number: int, *, is_ahead: bool = False) -> EncodedRecords:
    """The row for these records, which follow each other. `number`, `is_ahead`: see `define_commit`.

    Their ids are all different, so the result is the same as that of one row for each: first everything is
    stored, then updated, then removed.
    """
    stored = _Stored()
    updated: dict[int, Sequence[object]] = {}
    removed: list[int] = []
    released: list[int] = []
    counters: dict[int, Sequence[int]] = {}
    removed_bytes = 0
    for record in records:
        request = record.request
        if not record.is_superseded:
            stored.add(request)
        updated.update([(row[0], row) for row in request.updated])
        counters.update([(counter[0], counter) for counter in request.counters])
        released += request.released
        before = len(removed)
        removed += record.removed_before
        for removal in record.removals:
            if not removal.stored_by.is_superseded:
                removed += removal.ids
        if request.removed:
            removed_bytes += record.removed_bytes * (len(removed) - before) // len(request.removed)
    # Whether a shared body can go depends on the rows of the messages that share it.
    notes_removed = not released and are_far_apart(removed)
    encoded = _list(removed)
    copies, rows = _with_runs_of_copies(stored.rows) if stored.rows else ([], [])
    parameters = (
        b"".join(stored.pieces),
        _encode(list(counters.values())),
        number,
        is_ahead,
        _list(stored.bodies),
        _list(stored.runs),
        _list(copies),
        _list(rows),
        _list(list(updated.values())),
        None if notes_removed else encoded,
        encoded if notes_removed else None,
        _list(released),
        _list(_remembered(records)),
    )
    return EncodedRecords(
        parameters,
        removed if notes_removed else [],
        removed_bytes if notes_removed else 0,
        _forgotten(records),
        {(key, session): (at, state) for each in records for key, session, at, state in each.session_states},
        {(key, source): arrived for each in records for key, source, arrived in each.transferred},
    )


class _Stored:
    """What several requests store. Their slices count from the beginning of the first one's bytes."""

    __slots__ = ("_size", "bodies", "pieces", "rows", "runs")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._size = 0
        self.bodies: list[tuple[int, list[int | None]]] = []
        """The first id of each request, and for each of its ids the slice of the bytes."""
        self.runs: list[Sequence[object]] = []
        self.rows: list[Row] = []

    def add(self, request: CommitRequest) -> None:
        shift = self._size << SLICE_SHIFT
        if request.bodies:
            bodies = request.bodies
            if shift:
                bodies = [None if each is None else each + shift for each in bodies]
            self.bodies.append((request.first, bodies))
        self.runs += request.runs
        if request.rows:
            self.rows += [_shifted(row, shift) for row in request.rows] if shift else request.rows
        self.pieces += request.pieces
        self._size += request.offset - 1


def _shifted(row: Row, shift: int) -> Row:
    """The row with its slice of the session id moved."""
    row_id, partition, sequence, at, until, size, body, origin, hops, session = row
    if session is not None:
        session += shift
    return row_id, partition, sequence, at, until, size, body, origin, hops, session


def _remembered(records: Sequence[CommitRecord]) -> list[Remembered]:
    """The digests that are still needed after all of these records."""
    remembered: list[Remembered] = []
    for record in records:
        if record.forgotten and remembered:
            forgotten = dict(record.forgotten)
            remembered = [each for each in remembered if each[1] > forgotten.get(each[0], -1)]
        remembered += record.remembered
    return remembered


def _forgotten(records: Sequence[CommitRecord]) -> dict[int, int]:
    forgotten: dict[int, int] = {}
    for record in records:
        for key, through in record.forgotten:
            forgotten[key] = max(through, forgotten.get(key, through))
    return forgotten


def _list(values: Sequence[object]) -> str | None:
    return _encode(values) if values else None


def _encode(values: Sequence[object]) -> str:
    # This holds the interpreter's lock, and msgspec takes a fifth of the time that json takes.
    return _encoder.encode(values).decode()


def _with_runs_of_copies(rows: list[Row]) -> tuple[list[_Copies], list[Row]]:
    """The runs of a subscription's copies among these rows, and the other rows.

    A subscription takes the messages of a send in order, so its copies differ in their sizes only: all their
    other numbers grow evenly.
    """
    runs: list[_Copies] = []
    others: list[Row] = []
    run: _Copies | None = None
    for row in rows:
        row_id, partition, sequence, at, until, size, body, origin, hops, session = row
        if origin is None or session is not None:
            others.append(row)
            run = None
            continue
        if run is not None:
            count = len(run[10])
            if (
                sequence == run[3] + count
                and origin == run[8] + count
                and partition == run[2]
                and at == run[4]
                and until == run[5]
                and hops == run[9]
            ):
                if count == 1:
                    # The second one shows by how much ids and bodies grow.
                    run = runs[-1] = (run[0], row_id - run[0], *run[2:7], body - run[6], *run[8:])
                if row_id == run[0] + count * run[1] and body == run[6] + count * run[7]:
                    run[10].append(size)
                    continue
        run = (row_id, 1, partition, sequence, at, until, body, 1, origin, hops, [size])
        runs.append(run)
    return runs, others


def decode_page(page: str, sessions: dict[str, SessionId], origins: dict[int, Origin]) -> list[Message]:
    """Decode a page of `load_page`. `ValueError` if it cannot be read."""
    try:
        rows = msgspec.json.decode(page)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    return decode_rows(rows, sessions, origins)


def encode_ids(ids: Sequence[int]) -> str:
    return _encode(ids)


_encoder: Final = msgspec.json.Encoder(enc_hook=plain_value)
decode_ids: Final = msgspec.json.Decoder(list[int]).decode
