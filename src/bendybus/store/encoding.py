"""Encodes a commit as lists of numbers and one run of bytes, and decodes rows into messages.

What SQL stores have in common: ids are assigned here, messages of one batch
become one run, and texts are sent among the bytes (SQLite ends a JSON string at
its first NUL, and PostgreSQL cannot store a text that contains one). How the lists reach
the database: sqlite/encoding.py, postgres/encoding.py.
"""

from __future__ import annotations

import gc
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from bendybus.domain.messages import Amendment, Message, MessageState, Origin, Posting, SubQueue
from bendybus.names import SequenceNumber, SessionId
from bendybus.store.protocol import PartitionChanges, PartitionKey

__all__ = [
    "SLICE_SHIFT",
    "CommitRequest",
    "Row",
    "allocate",
    "collector_paused",
    "decode_rows",
    "has_more_than_identities",
    "has_more_than_messages",
    "requests_of",
    "set_row_ids",
    "to_json",
]

# SQLite binds at most a gigabyte. This also limits the copy made by joining payloads. A larger
# commit becomes several requests inside one transaction.
REQUEST_BYTES_MAX: Final = 32 << 20
# A slice is packed into one number: an array of numbers is read faster than an array of arrays.
SLICE_SHIFT: Final = 31

to_json = json.JSONEncoder(separators=(",", ":")).encode

_STATES: Final = tuple(MessageState)
_SUBQUEUES: Final = tuple(SubQueue)

# The columns of `load_page` that every message has; one more is the session id.
PLAIN_COLUMNS: Final = 5
SESSION_COLUMNS: Final = 6


_Run: TypeAlias = tuple[int, int, int, int, int | None, list[int]]
"""First id, partition, first sequence number, enqueued_at, expires_at, and each message's size."""

Row: TypeAlias = tuple[int, int, int, int, int | None, int, int, int | None, int | None, int | None]
"""Id, partition, sequence number, enqueued_at, expires_at, size, body, origin, hops, slice of session id."""

_UpdatedRow: TypeAlias = tuple[int, int, int, int, int | None, str | None, int, int]


@dataclass(slots=True)
class CommitRequest:
    """Everything one statement needs to store, update and remove messages."""

    first: int
    """The first id. The others follow in order."""
    # From an empty blob, SQLite's substr returns NULL instead of nothing, so one byte precedes the slices.
    pieces: list[bytes] = field(default_factory=lambda: [b"\0"])
    """Payloads and session ids, to be joined."""
    offset: int = 2
    bodies: list[int | None] = field(default_factory=list)
    """For each id its slice of the bytes; None if it has no body."""
    runs: list[_Run] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    """Messages that are not part of a run."""
    updated: list[_UpdatedRow] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    """Bodies of removed messages that have an origin."""
    counters: list[tuple[int, int, int]] = field(default_factory=list)
    """Partition, next sequence number, epoch."""

    def slice_for(self, piece: bytes) -> int:
        """(first byte, from 1) << 31 | length"""
        start = self.offset
        self.pieces.append(piece)
        self.offset = start + len(piece)
        return start << SLICE_SHIFT | len(piece)


def requests_of(changes: Sequence[PartitionChanges], first: int) -> Iterator[CommitRequest]:
    """The requests of a commit, nearly always one. Ids are assigned by `allocate`."""
    request = CommitRequest(first)
    row_id = first
    bodies: dict[int, int] = {}
    for change in changes:
        # Consecutive sequence numbers with the same enqueued time, as in a batch.
        run: _Run | None = None
        following = -1
        for message in change.stored:
            if request.offset > REQUEST_BYTES_MAX:
                yield request
                request, run = CommitRequest(row_id), None
            number, at, until = message.sequence_number, message.enqueued_at, message.expires_at
            if message.origin is not None or message.session_id is not None:
                row_id = _encode_row(request, change.key, row_id, message, bodies)
                run = None
            else:
                if run is None or number != following or at != run[3] or until != run[4]:
                    run = (row_id, change.key, number, at, until, [])
                    request.runs.append(run)
                following = number + 1
                run[5].append(message.size)
                request.bodies.append(request.slice_for(_payload(message)))
            # Nearly all messages are stored as active, in the main sub-queue and never delivered. The others
            # (scheduled ones, for example) are stored and then updated in the same commit.
            if message.state or message.subqueue or message.delivery_count or message.amendment is not None:
                request.updated.append(_updated_row(row_id, message))
            row_id += 1
    new_row_ids = _NewRowIds(changes, first)
    for change in changes:
        request.updated += [_updated_row(new_row_ids.of(message), message) for message in change.updated]
        request.removed += [message.row_id or new_row_ids.of(message) for message in change.removed]
        request.released += [
            message.origin.body or bodies[id(message.origin)]
            for message in change.removed
            if message.origin is not None
        ]
        request.counters.append((change.key, change.next_sequence_number, change.epoch))
    yield request


def _encode_row(
    request: CommitRequest, key: PartitionKey, row_id: int, message: Message, bodies: dict[int, int]
) -> int:
    """Encode a message that has a session or an origin. Returns its id."""
    origin, session_id = message.origin, message.session_id
    body = row_id
    if origin is None:
        request.bodies.append(request.slice_for(_payload(message)))
    else:
        body = origin.body or bodies.get(id(origin), 0)
        if not body:
            body = bodies[id(origin)] = row_id
            request.bodies.append(request.slice_for(_payload(message)))
            row_id += 1
        request.bodies.append(None)
    request.rows.append(
        (
            row_id,
            key,
            message.sequence_number,
            message.enqueued_at,
            message.expires_at,
            message.size,
            body,
            None if origin is None else origin.sequence_number,
            None if origin is None else origin.hops,
            None if session_id is None else request.slice_for(session_id.encode()),
        )
    )
    return row_id


def _payload(message: Message) -> bytes:
    if message.payload is None:
        raise ValueError(f"{message!r} cannot be stored without its payload")
    return message.payload


def allocate(changes: Sequence[PartitionChanges], first: int) -> Iterator[tuple[Message, int]]:
    """Each stored message with its id. The body of an origin that is not stored yet has the id before it."""
    row_id = first
    seen: set[int] = set()
    for change in changes:
        for message in change.stored:
            origin = message.origin
            if origin is not None and not origin.body and id(origin) not in seen:
                seen.add(id(origin))
                row_id += 1
            yield message, row_id
            row_id += 1


def set_row_ids(changes: Sequence[PartitionChanges], first: int) -> int:
    """Set the ids of messages and bodies that are stored now. Returns the next id."""
    row_id = first
    for change in changes:
        for message in change.stored:
            origin = message.origin
            if origin is not None and not origin.body:
                origin.body = row_id
                row_id += 1
            message.row_id = row_id
            row_id += 1
    return row_id


class _NewRowIds:
    """The row ids of the commit's own messages that it also updates or removes. Rare, so computed late."""

    __slots__ = ("_changes", "_first", "_row_ids")

    def __init__(self, changes: Sequence[PartitionChanges], first: int) -> None:
        self._changes = changes
        self._first = first
        self._row_ids: dict[int, int] | None = None

    def of(self, message: Message) -> int:
        if message.row_id:
            return message.row_id
        if self._row_ids is None:
            self._row_ids = {id(stored): row_id for stored, row_id in allocate(self._changes, self._first)}
        row_id = self._row_ids.get(id(message))
        if row_id is None:
            raise ValueError(f"{message!r} was never stored")
        return row_id


def _updated_row(row_id: int, message: Message) -> _UpdatedRow:
    amendment = message.amendment
    return (
        row_id,
        message.state,
        message.subqueue,
        message.delivery_count,
        message.expires_at,
        None if amendment is None else _encode_amendment(amendment),
        message.sequence_number,
        message.enqueued_at,
    )


def _encode_amendment(amendment: Amendment) -> str:
    """As JSON. NULs are escaped, so any database can store this text."""
    properties = [b64encode(encoded).decode("ascii") for encoded in amendment.properties]
    said: list[object] = [amendment.dead_letter_reason, amendment.dead_letter_description, properties]
    posting = amendment.posting
    if posting is not None:
        decided = [] if posting.partition is None else [posting.partition]
        said.append([posting.destination, posting.sequence_number, posting.subqueue, *decided])
    elif amendment.earlier_number is not None:
        # Brokers of older versions read only as far as the time of completion.
        said += [None, amendment.completed_at, amendment.earlier_number]
    elif amendment.completed_at is not None:
        # What is posted was not completed.
        said += [None, amendment.completed_at]
    return to_json(said)


def _decode_amendment(text: str) -> Amendment:
    reason, description, properties, *rest = json.loads(text)
    posting = completed_at = earlier_number = None
    if len(rest) > 1:
        _, completed_at, *numbers = rest
        earlier_number = numbers[0] if numbers else None
    elif rest:
        destination, number, subqueue, *decided = rest[0]
        posting = Posting(destination, number, _SUBQUEUES[subqueue], *decided)
    added = tuple(b64decode(encoded) for encoded in properties)
    return Amendment(added, reason, description, posting, completed_at, earlier_number)


@contextmanager
def collector_paused() -> Iterator[None]:
    """A load creates millions of objects and no cycles. Looking for cycles takes a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def decode_rows(
    rows: Iterable[Sequence[Any]], sessions: dict[str, SessionId], origins: dict[int, Origin]
) -> list[Message]:
    """Some of a partition's messages. `sessions` and `origins` hold one object for each shared value.

    Rows are in the order of the columns of `load_page`, and end early if nothing special follows.
    """
    messages = []
    for row in rows:
        count = len(row)
        session = row[5] if count > PLAIN_COLUMNS else None
        if session is not None:
            session = sessions.setdefault(session, session)
        message = Message(None, size=row[4], expires_at=row[3], session_id=session)
        message.row_id = row[0]
        message.sequence_number = row[1]
        message.enqueued_at = row[2]
        if count > SESSION_COLUMNS:
            state, subqueue, failures, amendment, origin, hops, body = row[SESSION_COLUMNS:]
            message.state = _STATES[state]
            message.subqueue = _SUBQUEUES[subqueue]
            message.delivery_count = failures
            if amendment is not None:
                message.amendment = _decode_amendment(amendment)
            if origin is not None:
                message.origin = _decode_origin(origin, hops, body, origins)
        messages.append(message)
    return messages


def _decode_origin(sequence_number: int, hops: int, body: int, origins: dict[int, Origin]) -> Origin:
    origin = origins.get(body)
    if origin is None:
        origin = origins[body] = Origin(SequenceNumber(sequence_number), hops=hops, body=body)
    return origin


def has_more_than_messages(change: PartitionChanges) -> bool:
    """Whether the change contains something that few entities have."""
    return bool(change.remembered) or has_more_than_identities(change)


def has_more_than_identities(change: PartitionChanges) -> bool:
    """Whether the change contains something that few commits of any entity have."""
    return bool(change.forgotten_through is not None or change.session_states or change.transferred)
