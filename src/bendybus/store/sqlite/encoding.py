"""Commits and pages as queries.sql speaks of them: JSON arrays of numbers, and one run of bytes.

The shape is chosen for the interpreter's lock: a thread gives it up for each
step of SQLite and queues for it again, so a commit is one step and its
parameters are few. What is in the arrays: store/encoding.py.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from bendybus.domain.messages import Message, Origin
from bendybus.names import SessionId
from bendybus.store.encoding import CommitRequest, decode_rows, to_json

__all__ = ["CommitParameters", "decode_page", "encode_request"]

CommitParameters: TypeAlias = tuple[int, bytes, str, str, str, str, str, str, str]


def encode_request(request: CommitRequest) -> CommitParameters:
    """One row of `commit_request`, but for the number of the commit."""
    return (
        request.first,
        b"".join(request.pieces),
        to_json(request.bodies),
        to_json(request.runs),
        to_json(request.rows),
        to_json(request.updated),
        to_json(request.removed),
        to_json(request.released),
        to_json(request.counters),
    )


def decode_page(page: str, sessions: dict[str, SessionId], origins: dict[int, Origin]) -> list[Message]:
    """A page of `load_page`."""
    return decode_rows(json.loads(page), sessions, origins)
