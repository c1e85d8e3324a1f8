"""Admission: turns a message as it was sent into one that can be enqueued.

This is on the hot path: only the few fields that the broker needs are read, and the sender's
bytes are kept as they are. Messages that are too large or malformed are refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final
from uuid import uuid4

from bendybus.amqp.annotations import BROKER_SET
from bendybus.amqp.codec import encode
from bendybus.amqp.message import (
    Sections,
    annotation,
    application_properties,
    encode_section,
    identity,
    map_entries,
    read_header,
    read_map,
    read_properties,
    scan,
    split_batch,
)
from bendybus.amqp.ordinary import ordinary
from bendybus.amqp.sections import in_order
from bendybus.amqp.types import Symbol
from bendybus.domain.duplicates import Identities
from bendybus.domain.intake import Accepting
from bendybus.domain.messages import Message
from bendybus.domain.routing import KEY_LENGTH_MAX, batch_key, key_of, routing_key
from bendybus.domain.schedule import postpone
from bendybus.domain.transactions import MessageKeys
from bendybus.envelope.stored import (
    DELIVERY_ANNOTATIONS,
    DURABLE,
    FIRST_ACQUIRER,
    FRONT,
    NO_TTL,
    NOT_FIRST_ACQUIRER,
    PARTITION_KEY,
    PRIORITY_DEFAULT,
    SCHEDULED_TIME,
    VERSION,
    VIA_PARTITION_KEY,
    bare_start,
    body_start,
    due_time,
    marked_scheduled,
    text,
)
from bendybus.errors import ArgumentError, MessageSizeExceeded, WireError
from bendybus.names import Instant, RoutingKey, SessionId

__all__ = ["admit", "admit_all", "admit_batch", "admit_plain", "batched", "enlisted_keys"]

# "Header (all properties): 64 KB total, 32 KB per property".
HEADER_BYTES_MAX: Final = 64 * 1024
PROPERTY_BYTES_MAX: Final = 32 * 1024

_FOOTER: Final = b"\x00\x53\x78"
_DELIVERY_ANNOTATIONS: Final = Struct(">4sII")


def admit_plain(payload: bytes, at: Instant) -> Message | None:
    """Fast path of `admit`, for an ordinary message without a routing key whose header is known.

    Returns None if the general path is needed. Must not be used with duplicate detection.
    """
    found = ordinary(payload)
    if found is None:
        return None
    bare_at, message_id = found
    known = _fronts.get(payload[:bare_at])
    if known is None or len(message_id) > KEY_LENGTH_MAX or len(payload) > PROPERTY_BYTES_MAX:
        return None
    front, ttl = known
    stored = front + payload[bare_at:]
    return Message(stored, len(stored), None if ttl == NO_TTL else Instant(at + ttl))


def admit(
    payload: bytes, at: Instant, description: Accepting, identities: Identities | None = None
) -> tuple[Message, RoutingKey | None]:
    """A message ready to be enqueued, and its routing key.

    With duplicate detection, its identity is added to `identities`.
    """
    message_id: str | None
    session_id: str | None = None
    partition_key: str | None = None
    via_key: str | None = None
    due = 0
    try:
        if len(payload) > PROPERTY_BYTES_MAX:
            payload = _ordered(payload)
            _refuse_large_properties(payload)
        found = ordinary(payload)
        if found is not None:
            bare_at, message_id = found
            front, ttl = _front(payload[:bare_at])
            stored = front + payload[bare_at:]
        else:
            stored, ttl, message_id, session_id, partition_key, via_key, due = _take_apart(payload)
    except WireError as error:
        raise ArgumentError(f"The message is malformed: {error}") from None
    if not session_id and not description.may_have_sessions:
        session_id = None
    key = routing_key(
        session_id,
        partition_key,
        message_id,
        duplicate_detection=description.requires_duplicate_detection,
        via_key=via_key,
        exact=description.exact_keys,
    )
    if identities is not None:
        identities.add(message_id, None if session_id is None and partition_key is None else key)
    if due > at:
        stored = marked_scheduled(stored)
    expires_at = None if ttl == NO_TTL else Instant(at + ttl)
    message = Message(
        stored,
        size=len(stored),
        expires_at=expires_at,
        session_id=None if session_id is None else SessionId(session_id),
    )
    if due > at:
        postpone(message, at, Instant(due))
    return message, key


def _refuse_large_properties(payload: bytes) -> None:
    """Everything before the body has a limit, and so has each application property."""
    sections = scan(payload)
    body = body_start(sections)
    if body > HEADER_BYTES_MAX:
        raise MessageSizeExceeded(
            f"The message's properties have {body} bytes together; at most {HEADER_BYTES_MAX} are allowed."
        )
    if body > PROPERTY_BYTES_MAX:
        for name, value in application_properties(payload, sections.application_properties).items():
            size = len(encode(value))
            if size > PROPERTY_BYTES_MAX:
                raise MessageSizeExceeded(
                    f"The property '{name}' has {size} bytes; at most {PROPERTY_BYTES_MAX} are allowed."
                )


def _take_apart(payload: bytes) -> tuple[bytes, int, str | None, str | None, str | None, str | None, int]:
    """Stored form, ttl, the sender's message id, session id, partition key, via key, and due time."""
    try:
        sections = scan(payload)
    except WireError:
        payload = in_order(payload)
        sections = scan(payload)
    message_id, session_id = identity(payload, sections.properties)
    bare_at = bare_start(sections)
    bare = _with_message_id(payload, sections) if message_id is None else payload[bare_at:]
    if sections.footer >= 0:
        bare = bare[: sections.footer - sections.end] + _footer(payload, sections.footer)
    annotations = sections.message_annotations
    entries, count = map_entries(payload, annotations, BROKER_SET)
    partition_key = annotation(payload, annotations, PARTITION_KEY)
    if isinstance(partition_key, bytes):
        partition_key = _decoded_key(partition_key)
        entries, count = map_entries(payload, annotations, BROKER_SET | {PARTITION_KEY})
        entries, count = entries + encode(Symbol(PARTITION_KEY.decode())) + encode(partition_key), count + 2
    header_end = min(at for at in (sections.delivery_annotations, annotations, bare_at) if at >= 0)
    own = _own_delivery_annotations(payload, sections.delivery_annotations)
    front, ttl = _front(payload[:header_end], count, entries, DELIVERY_ANNOTATIONS if own else 0)
    return (
        front + own + bare,
        ttl,
        message_id if message_id is None or isinstance(message_id, str) else str(message_id),
        text("SessionId", session_id),
        text("PartitionKey", partition_key),
        # Looked up only if they can be there: searching the entries for a name costs next to nothing.
        text("ViaPartitionKey", annotation(payload, annotations, VIA_PARTITION_KEY))
        if VIA_PARTITION_KEY in entries
        else None,
        due_time(annotation(payload, annotations, SCHEDULED_TIME)) if SCHEDULED_TIME in entries else 0,
    )


def _ordered(payload: bytes) -> bytes:
    """The message with its sections in the order of the standard; unchanged if they are in order."""
    try:
        scan(payload)
    except WireError:
        return in_order(payload)
    return payload


def _footer(payload: bytes, at: int) -> bytes:
    """The footer section. Its keys become symbols, although some clients write strings."""
    footer = read_map(payload, at)
    if all(not isinstance(key, str) or isinstance(key, Symbol) for key in footer):
        return payload[at:]
    symbols = {Symbol(key) if isinstance(key, str) else key: value for key, value in footer.items()}
    return _FOOTER + encode(symbols)


def _own_delivery_annotations(payload: bytes, at: int) -> bytes:
    """The sender's delivery annotations as a section, without the broker's own; or nothing."""
    entries, count = map_entries(payload, at, BROKER_SET)
    if not count:
        return b""
    return _DELIVERY_ANNOTATIONS.pack(b"\x00\x53\x71\xd1", len(entries) + 4, count) + entries


def _decoded_key(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ArgumentError(f"PartitionKey must be a string, not {key!r}.") from None


def admit_batch(
    payload: bytes,
    at: Instant,
    description: Accepting,
    identities: Identities | None = None,
    *,
    partitioned: bool,
) -> tuple[list[Message], RoutingKey | None]:
    """The messages of a batch, and the key that they share, if keys matter (P-18)."""
    return admit_all(batched(payload), at, description, identities, partitioned=partitioned)


def batched(payload: bytes) -> list[bytes]:
    """The messages of a batch, still encoded."""
    try:
        return list(split_batch(_ordered(payload)))
    except WireError as error:
        raise ArgumentError(f"The batch is malformed: {error}") from None


def admit_all(
    payloads: Iterable[bytes],
    at: Instant,
    description: Accepting,
    identities: Identities | None = None,
    *,
    partitioned: bool,
) -> tuple[list[Message], RoutingKey | None]:
    """Messages that have to stay together, and the key that they share, if keys matter."""
    messages: list[Message] = []
    keys: list[RoutingKey | None] = []
    for each in payloads:
        message, key = admit(each, at, description, identities)
        messages.append(message)
        keys.append(key)
    if not partitioned:
        return messages, None
    return messages, batch_key(keys, duplicate_detection=description.requires_duplicate_detection)


def enlisted_keys(payload: bytes, description: Accepting, *, via_exact: bool) -> MessageKeys:
    """The keys that may choose the partition of a message that is sent in a transaction.

    `via_exact`: whether the entity that the transaction goes through has `exact_keys`.
    """
    exact = description.exact_keys
    try:
        payload = _ordered(payload)
        sections = scan(payload)
        message_id, session_id = identity(payload, sections.properties)
        annotations = sections.message_annotations
        known_by = None if message_id is None else str(message_id)
        if not session_id and not description.may_have_sessions:
            session_id = None
        partition_key = annotation(payload, annotations, PARTITION_KEY)
        if isinstance(partition_key, bytes):
            partition_key = _decoded_key(partition_key)
        own = routing_key(
            text("SessionId", session_id),
            text("PartitionKey", partition_key),
            known_by,
            duplicate_detection=description.requires_duplicate_detection,
            exact=exact,
        )
        via = text("ViaPartitionKey", annotation(payload, annotations, VIA_PARTITION_KEY))
    except WireError as error:
        raise ArgumentError(f"The message is malformed: {error}") from None
    return MessageKeys(
        own,
        None if known_by is None else key_of(known_by, exact=exact),
        None if via is None else key_of(via, exact=via_exact),
    )


_FRONTS_MAX: Final = 1000
_fronts: dict[bytes, tuple[bytes, int]] = {}


def _front(header: bytes, count: int = 0, entries: bytes = b"", flags: int = 0) -> tuple[bytes, int]:
    """The front of a stored payload for this header section and these annotations, and the ttl.

    Clients write the same few headers again and again, mostly without annotations: those are cached.
    """
    is_plain = not entries and not flags
    known = _fronts.get(header) if is_plain else None
    if known is None:
        read = read_header(header, 0 if header else -1)
        ttl = NO_TTL if read.ttl is None else read.ttl
        priority = PRIORITY_DEFAULT if read.priority is None else read.priority
        flags |= DURABLE if read.durable else 0
        if read.first_acquirer is not None:
            flags |= FIRST_ACQUIRER if read.first_acquirer else NOT_FIRST_ACQUIRER
        known = FRONT.pack(VERSION, flags, priority, ttl, count, len(entries)) + entries, ttl
        if is_plain:
            if len(_fronts) >= _FRONTS_MAX:
                _fronts.clear()
            _fronts[header] = known
    return known


def _with_message_id(payload: bytes, sections: Sections) -> bytes:
    """The bare message with a generated id: the JavaScript SDK cannot settle a message without one."""
    properties = read_properties(payload, sections.properties)
    properties.message_id = uuid4().hex
    sections.properties = -1
    return encode_section(properties) + payload[bare_start(sections) :]
