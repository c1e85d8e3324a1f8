"""Encodes commits and decodes pages for queries.sql: JSON arrays of numbers, and one run of bytes.

The format is chosen for Python's global interpreter lock: a thread releases it for each
step of SQLite and waits for it again, so a commit is one step with few
parameters. The contents of the arrays: store/encoding.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

from bendybus.domain.messages import Message, Origin
from bendybus.names import SessionId
from bendybus.store.encoding import CommitRequest, Row, decode_rows, to_json
from bendybus.store.protocol import PartitionChanges

__all__ = ["CommitParameters", "decode_page", "encode_identities", "encode_request"]

CommitParameters: TypeAlias = tuple[
    int,
    bytes,
    str,
    int,
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


def encode_request(
    request: CommitRequest,
    number: int,
    remembered: str | None = None,
    *,
    notes_removed: bool = False,
) -> CommitParameters:
    """The row for a request of the commit with this number.

    `notes_removed`: the rows of removed messages are deleted later (removals.py).
    """
    copies, rows = _with_runs_of_copies(request.rows) if request.rows else ([], [])
    removed = _list(request.removed)
    return (
        request.first,
        b"".join(request.pieces),
        to_json(request.counters),
        number,
        _list(request.bodies),
        _list(request.runs),
        _list(copies),
        _list(rows),
        _list(request.updated),
        None if notes_removed else removed,
        removed if notes_removed else None,
        _list(request.released),
        remembered,
    )


def _list(values: Sequence[object]) -> str | None:
    return to_json(values) if values else None


def encode_identities(changes: Sequence[PartitionChanges]) -> str | None:
    """What duplicate detection has to remember, of all partitions."""
    return _list(
        [
            (change.key, accepted_at, [digest.hex() for digest in digests])
            for change in changes
            for accepted_at, digests in change.remembered
        ]
    )


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
    """Decode a page of `load_page`."""
    return decode_rows(json.loads(page), sessions, origins)
