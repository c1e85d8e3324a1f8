"""Transfer: a stored message as the entity that it is forwarded to accepts it."""

from __future__ import annotations

from typing import Final

from bendybus.amqp.annotations import DEAD_LETTER_SOURCE
from bendybus.amqp.codec import encode
from bendybus.amqp.message import annotation, identity, map_entries, scan
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
    _, flags, priority, ttl, count, length = FRONT.unpack_from(payload)
    start = FRONT.size + length
    bare = payload[start:]
    if amendment.properties or amendment.dead_letter_reason or amendment.dead_letter_description:
        bare = amended(bare, amendment)
    annotations = _encode_annotations(count, payload[FRONT.size : start])
    entries, count = map_entries(annotations, 0, _DEAD_LETTER_SOURCES)
    if amendment.posting.subqueue is SubQueue.DEAD_LETTER:
        entries += _annotation_entry(DEAD_LETTER_SOURCE, source.lower())
        count += 2
    stored = FRONT.pack(VERSION, flags, priority, ttl, count, len(entries)) + entries + bare
    due = due_time(annotations, 0)
    if due > at:
        stored = marked_scheduled(stored)
    message_id, session_id = identity(bare, scan(bare).properties)
    session_id = text("SessionId", session_id)
    if not session_id and not description.may_have_sessions:
        session_id = None
    partition_key = text("PartitionKey", annotation(annotations, 0, PARTITION_KEY))
    message_id = None if message_id is None else str(message_id)
    # A message that a transaction sent through this entity has already used its via key (P-37).
    was_sent_through = not amendment.posting.sequence_number
    via_key = None if was_sent_through else annotation(annotations, 0, VIA_PARTITION_KEY)
    key = routing_key(
        session_id,
        partition_key,
        message_id,
        duplicate_detection=description.requires_duplicate_detection,
        via_key=text("ViaPartitionKey", via_key),
        exact=description.exact_keys,
    )
    if identities is not None:
        identities.add(message_id, None if session_id is None and partition_key is None else key)
    lifetime = lifetime_ms(stored, ttl)
    forwarded = Message(
        stored,
        size=len(stored),
        expires_at=None if lifetime is None else Instant(at + lifetime),
        session_id=None if session_id is None else SessionId(session_id),
        origin=_forwarded_origin(message, amendment.posting),
    )
    if due > at:
        postpone(forwarded, at, Instant(due))
    return forwarded, key


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
