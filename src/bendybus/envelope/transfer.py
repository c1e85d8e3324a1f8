"""Transfer: a stored message as the entity that it is forwarded to accepts it."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from bendybus.amqp.annotations import DEAD_LETTER_SOURCE
from bendybus.amqp.codec import encode
from bendybus.amqp.message import annotation, identity, map_entries, scan
from bendybus.amqp.ordinary import ordinary
from bendybus.amqp.types import Symbol
from bendybus.domain.duplicates import Identities
from bendybus.domain.intake import Accepting
from bendybus.domain.messages import Message, Origin, Posting, SubQueue
from bendybus.domain.routing import routing_key
from bendybus.domain.schedule import postpone
from bendybus.envelope.stored import (
    FRONT,
    MAP_START,
    PARTITION_KEY,
    VERSION,
    VIA_PARTITION_KEY,
    amended,
    due_time,
    lifetime_ms,
    marked_scheduled,
    text,
)
from bendybus.names import EntityPath, Instant, RoutingKey, SessionId

__all__ = ["readmit", "relocate"]

# The last number of a front.
_entries_size: Final = Struct(f">{FRONT.size - 4}xI").unpack_from

_DEAD_LETTER_SOURCES: Final = frozenset({DEAD_LETTER_SOURCE.encode()})


def readmit(
    message: Message,
    payload: bytes,
    at: Instant,
    description: Accepting,
    identities: Identities | None = None,
    *,
    source: EntityPath,
) -> tuple[Message, RoutingKey | None]:
    """A message from an outbox as the destination accepts it, and its routing key there.

    What settlements added (such as the reason for dead-lettering) becomes part of the message. Its time to
    live starts again.
    """
    amendment = message.amendment
    assert amendment is not None and amendment.posting is not None, "only posted messages are forwarded"
    posting = amendment.posting
    start = FRONT.size + _entries_size(payload)[0]
    bare = payload[start:]
    if amendment.properties or amendment.dead_letter_reason or amendment.dead_letter_description:
        bare = amended(bare, amendment)
    if posting.subqueue is SubQueue.DEAD_LETTER:
        front = _forwarded_front(payload[:start], _annotation_entry(DEAD_LETTER_SOURCE, source.lower()))
    else:
        front = _known_fronts.get(payload[:start]) or _remembered_front(payload[:start])
    stored = front.stored + bare
    due = front.due
    if due > at:
        stored = marked_scheduled(stored)
    message_id, session_id = _identity(bare)
    if not session_id and not description.may_have_sessions:
        session_id = None
    partition_key = front.partition_key
    key = routing_key(
        session_id,
        partition_key,
        message_id,
        # A message that a transaction sent through this entity has already used its via key (P-37).
        via_key=front.via_key if posting.sequence_number else None,
        duplicate_detection=description.requires_duplicate_detection,
        exact=description.exact_keys,
    )
    if identities is not None:
        identities.add(message_id, None if session_id is None and partition_key is None else key)
    lifetime = lifetime_ms(stored, front.ttl)
    forwarded = Message(
        stored,
        size=len(stored),
        expires_at=None if lifetime is None else Instant(at + lifetime),
        session_id=None if session_id is None else SessionId(session_id),
        origin=_forwarded_origin(message, posting),
    )
    if lifetime is not None:
        # As with a message that is sent: the partition may get it later, and at another machine.
        forwarded.enqueued_at = at
    if due > at:
        postpone(forwarded, at, Instant(due))
    return forwarded, key


class _Front(NamedTuple):
    """The front of a stored payload (stored.py) as it is at the destination, and what it says."""

    stored: bytes
    ttl: int
    partition_key: str | None
    via_key: str | None
    due: int


# As in front.py: clients use the same few headers and keys again and again.
_CACHED_MAX: Final = 4096
_CACHED_BYTES_MAX: Final = 256
_known_fronts: Final[dict[bytes, _Front]] = {}
"""By the front at the source, which must not set a due time."""


def _remembered_front(front: bytes) -> _Front:
    made = _forwarded_front(front)
    if not made.due and len(front) <= _CACHED_BYTES_MAX:
        if len(_known_fronts) >= _CACHED_MAX:
            _known_fronts.clear()
        _known_fronts[front] = made
    return made


def _forwarded_front(front: bytes, further_entry: bytes = b"") -> _Front:
    """The same front, without the source of an earlier dead-lettering and with a further annotation."""
    _, flags, priority, ttl, count, _ = FRONT.unpack_from(front)
    annotations = _encode_annotations(count, front[FRONT.size :])
    entries, count = map_entries(annotations, 0, _DEAD_LETTER_SOURCES)
    if further_entry:
        entries += further_entry
        count += 2
    return _Front(
        FRONT.pack(VERSION, flags, priority, ttl, count, len(entries)) + entries,
        ttl,
        text("PartitionKey", annotation(annotations, 0, PARTITION_KEY)),
        text("ViaPartitionKey", annotation(annotations, 0, VIA_PARTITION_KEY)),
        due_time(annotations, 0),
    )


def _identity(bare: bytes) -> tuple[str | None, str | None]:
    """The message id and the session id."""
    found = ordinary(bare)
    if found is not None:
        return found[1], found[2]
    message_id, session_id = identity(bare, scan(bare).properties)
    return None if message_id is None else str(message_id), text("SessionId", session_id)


def relocate(message: Message, payload: bytes) -> Message:
    """A copy from an outbox for another partition of its own entity. Nothing else changes."""
    origin = message.origin
    return Message(
        payload,
        size=len(payload),
        expires_at=message.expires_at,
        session_id=message.session_id,
        # A new object, because the old one refers to the body in this store.
        origin=None if origin is None else Origin(origin.sequence_number, hops=origin.hops),
    )


def _forwarded_origin(message: Message, posting: Posting) -> Origin | None:
    """None for a message that a transaction sent through another entity: it was never a message there."""
    if not posting.sequence_number:
        return None
    origin = message.origin
    if origin is None:
        return Origin(posting.sequence_number, hops=1)
    return Origin(origin.sequence_number, hops=origin.hops + 1)


def _encode_annotations(count: int, entries: bytes) -> bytes:
    """A message-annotations section of raw entries."""
    return MAP_START + (len(entries) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + entries


def _annotation_entry(name: str, value: str) -> bytes:
    return encode(Symbol(name)) + encode(value)
