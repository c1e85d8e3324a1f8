"""Encodes commits and decodes pages for queries.sql: JSON arrays of numbers, and one run of bytes.

The format is chosen for Python's global interpreter lock: a thread releases it for each
step of SQLite and waits for it again, so a commit is one step with few
parameters. The contents of the arrays: store/encoding.py.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from bendybus.domain.messages import Message, Origin
from bendybus.names import SessionId
from bendybus.store.encoding import CommitRequest, decode_rows, to_json

__all__ = ["CommitParameters", "decode_page", "encode_request"]

CommitParameters: TypeAlias = tuple[int, bytes, str, str, str, str, str, str | None, str, str]


def encode_request(request: CommitRequest, *, notes_removed: bool = False) -> CommitParameters:
    """One row of `commit_request`, without the number of the commit.

    `notes_removed`: the rows of removed messages are deleted later (removals.py).
    """
    return (
        request.first,
        b"".join(request.pieces),
        to_json(request.bodies),
        to_json(request.runs),
        to_json(request.rows),
        to_json(request.updated),
        "[]" if notes_removed else to_json(request.removed),
        to_json(request.removed) if notes_removed else None,
        to_json(request.released),
        to_json(request.counters),
    )


def decode_page(page: str, sessions: dict[str, SessionId], origins: dict[int, Origin]) -> list[Message]:
    """Decode a page of `load_page`."""
    return decode_rows(json.loads(page), sessions, origins)
