"""The record of a commit, as the journal keeps it.

A record has the lists of a `CommitRequest` (store/encoding.py), and some further fields that few commits
need. Its head is these lists in MessagePack. Its body is the payloads and session ids, end to end. How
records become a transaction of the database: encoding.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from bendybus.errors import StoreCorrupted
from bendybus.store.encoding import CommitRequest
from bendybus.store.protocol import PartitionChanges
from bendybus.store.sqlite.journal import JournalRecord

__all__ = ["CommitRecord", "Removal", "decode_record", "encode_head", "make_record", "plain_value"]

Remembered: TypeAlias = tuple[int, int, list[str]]
"""Partition, when its messages were accepted, and their digests."""


@dataclass(slots=True)
class CommitRecord:
    number: int
    request: CommitRequest
    remembered: list[Remembered] = field(default_factory=list)
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    """Partition, and the time up to which its digests are no longer needed."""
    session_states: list[tuple[int, str, int, bytes | None]] = field(default_factory=list)
    """Partition, session, when it was set, and the state; None deletes it."""
    transferred: list[tuple[int, str, int]] = field(default_factory=list)
    """Partition, source, and the number up to which its outbox has arrived."""
    removed_bytes: int = 0
    """The size of the removed messages."""
    end: int = field(init=False)
    """The first id after those of its messages."""
    count: int = field(init=False)
    """How many messages it stores. 0 once they are forgotten."""
    gone: set[int] = field(default_factory=set)
    """Those of them that this record or a later one removes. This and the following: pending.py."""
    is_shared: bool = False
    """Whether a later record has messages that share a body of this one."""
    removals: list[Removal] = field(default_factory=list)
    """Those of the messages it removes that other records store."""
    removed_before: list[int] = field(default_factory=list)
    """The others, which are in the database."""

    def __post_init__(self) -> None:
        request = self.request
        self.end = request.first + len(request.bodies)
        self.count = sum([len(run[5]) for run in request.runs]) + len(request.rows)

    @property
    def is_superseded(self) -> bool:
        """Whether all its messages are removed, so that the database does not get them.

        Once it is written this does not change, because later removals do not find it any more.
        """
        return len(self.gone) == self.count and not self.is_shared

    def forget_messages(self) -> None:
        """It is superseded: the database will never get its messages."""
        request = self.request
        request.pieces, request.bodies, request.runs, request.rows = [], [], [], []
        self.gone = set()
        self.count = 0


@dataclass(slots=True)
class Removal:
    """Messages of another record."""

    stored_by: CommitRecord
    ids: list[int]


def make_record(number: int, request: CommitRequest, changes: Sequence[PartitionChanges]) -> CommitRecord:
    record = CommitRecord(number, request)
    for change in changes:
        key = change.key
        for accepted_at, digests in change.remembered:
            record.remembered.append((key, accepted_at, [digest.hex() for digest in digests]))
        if change.forgotten_through is not None:
            record.forgotten.append((key, change.forgotten_through))
        for each in change.session_states:
            record.session_states.append((key, each.session_id, each.updated_at, each.state))
        for source, arrived in change.transferred.items():
            record.transferred.append((key, source, arrived))
        if change.removed:
            record.removed_bytes += sum([message.size for message in change.removed])
    return record


def encode_head(record: CommitRecord) -> bytes:
    request = record.request
    return _encoder.encode(
        (
            request.first,
            request.bodies,
            request.runs,
            request.rows,
            request.updated,
            request.removed,
            request.released,
            request.counters,
            record.remembered,
            record.forgotten,
            record.session_states,
            record.transferred,
            record.removed_bytes,
        )
    )


def decode_record(found: JournalRecord) -> CommitRecord:
    try:
        first, *lists = msgspec.msgpack.decode(found.head)
        bodies, runs, rows, updated, removed, released, counters, *others = lists
        remembered, forgotten, session_states, transferred, removed_bytes = others
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise StoreCorrupted(f"the record of commit {found.number} cannot be read: {error}") from error
    request = CommitRequest(first, [found.body], len(found.body) + 1)
    request.bodies, request.removed, request.released = bodies, removed, released
    request.runs, request.rows = _tuples(runs), _tuples(rows)
    request.updated, request.counters = _tuples(updated), _tuples(counters)
    return CommitRecord(
        found.number,
        request,
        _tuples(remembered),
        _tuples(forgotten),
        _tuples(session_states),
        _tuples(transferred),
        removed_bytes,
    )


def _tuples(rows: list[Any]) -> list[Any]:
    """MessagePack knows only lists. Compiled code tells the two apart."""
    return [tuple(row) for row in rows]


def plain_value(value: object) -> object:
    """For msgspec, which does not encode numbers and texts that remember their type in AMQP."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is not in records")


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=plain_value)
