"""The stored form of a message, and AMQP on either side of it.

A payload as the stores keep it is a fixed front, the sender's own message
annotations as raw map entries, and the bare message (properties to footer)
untouched:

    version u8 | flags u8 | priority u8 | ttl u32 ms | entries: count u32, length u32 | entries | bare message

`admit` makes it from a transfer, reading only the few fields the broker needs;
`render` puts the broker's header and annotations in front of the same bytes
again. Both are on the hot path. What a settlement added to a message
(`Amendment`) is laid over its application properties on the way out.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, TypeAlias
from uuid import UUID, uuid4

from bendybus.amqp.codec import decode, encode
from bendybus.amqp.message import (
    BATCH_FORMAT,
    Sections,
    annotation,
    application_properties,
    encode_section,
    identity,
    map_entries,
    read_header,
    read_properties,
    scan,
    split_batch,
)
from bendybus.amqp.ordinary import ordinary
from bendybus.amqp.types import Symbol, Timestamp
from bendybus.domain.duplicates import Identities
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Amendment, Message, Origin, Posting, SubQueue
from bendybus.domain.routing import batch_key, routing_key
from bendybus.domain.schedule import postpone
from bendybus.errors import ArgumentError, MessageSizeExceeded, WireError
from bendybus.names import PARTITION_SHIFT, EntityPath, Instant, SessionId

__all__ = [
    "BATCH_FORMAT",
    "Rendered",
    "admit",
    "admit_all",
    "admit_batch",
    "readmit",
    "render",
    "render_deferred",
    "render_peeked",
    "via_partition_key",
]

Rendered: TypeAlias = tuple[bytes, bytes]
"""A message to send, in two pieces: what the broker wrote, and what the sender did."""

VERSION: Final = 1
NO_TTL: Final = 0xFFFFFFFF
PRIORITY_DEFAULT: Final = 4

# The last millisecond of the year 9999: no SDK can write or show a later one.
DUE_MAX: Final = 253_402_300_799_999

# "Header (all properties): 64 KB total, 32 KB per property".
HEADER_BYTES_MAX: Final = 64 * 1024
PROPERTY_BYTES_MAX: Final = 32 * 1024

_FRONT: Final = Struct(">BBBIII")

_PARTITION_KEY: Final = b"x-opt-partition-key"
_VIA_PARTITION_KEY: Final = b"x-opt-via-partition-key"
_SCHEDULED_TIME: Final = b"x-opt-scheduled-enqueue-time"

_DEAD_LETTER_SOURCES: Final = frozenset({b"x-opt-deadletter-source"})

# Annotations that only the broker may write; what a sender put there is dropped.
_BROKERS_OWN: Final = frozenset(
    {
        b"x-opt-enqueued-time",
        b"x-opt-sequence-number",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-locked-until",
        b"x-opt-lock-token",
        b"x-opt-message-state",
        b"x-opt-partition-id",
        b"x-opt-deadletter-source",
    }
)


# -- in ---------------------------------------------------------------------------


def admit(
    payload: bytes, at: Instant, description: QueueDescription, identities: Identities | None = None
) -> tuple[Message, str | None]:
    """A message as it was sent, ready to be enqueued, and its routing key.

    With duplicate detection, `identities` is told what it is known by.
    """
    message_id: str | None
    session_id: str | None = None
    partition_key: str | None = None
    due = 0
    try:
        if len(payload) > PROPERTY_BYTES_MAX:
            _refuse_large_properties(payload)
        found = ordinary(payload)
        if found is not None:
            bare_at, message_id = found
            front, ttl = _front(payload[:bare_at])
            stored = front + payload[bare_at:]
        else:
            stored, ttl, message_id, session_id, partition_key, due = _take_apart(payload)
    except WireError as error:
        raise ArgumentError(f"The message is malformed: {error}") from None
    if identities is not None:
        identities.add(message_id, partition_key if session_id is None else session_id)
    key = routing_key(
        session_id, partition_key, message_id, duplicate_detection=description.requires_duplicate_detection
    )
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
    """All that stands before the body has a limit of its own, and so has each application property."""
    sections = scan(payload)
    body = _body_start(sections)
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


def _take_apart(payload: bytes) -> tuple[bytes, int, str | None, str | None, str | None, int]:
    """Stored form, ttl, the sender's message id, session id, partition key, and when it is due."""
    sections = scan(payload)
    message_id, session_id = identity(payload, sections.properties)
    bare_at = _bare_start(sections)
    bare = _with_message_id(payload, sections) if message_id is None else payload[bare_at:]
    annotations = sections.message_annotations
    entries, count = map_entries(payload, annotations, _BROKERS_OWN)
    partition_key = annotation(payload, annotations, _PARTITION_KEY)
    header_end = min(at for at in (sections.delivery_annotations, annotations, bare_at) if at >= 0)
    front, ttl = _front(payload[:header_end], count, entries)
    return (
        front + bare,
        ttl,
        message_id if message_id is None or isinstance(message_id, str) else str(message_id),
        _text("SessionId", session_id),
        _text("PartitionKey", partition_key),
        # Looked up only where it can be: searching the entries for its name costs next to nothing.
        _due(annotation(payload, annotations, _SCHEDULED_TIME)) if _SCHEDULED_TIME in entries else 0,
    )


def admit_batch(
    payload: bytes,
    at: Instant,
    description: QueueDescription,
    identities: Identities | None = None,
    *,
    partitioned: bool,
) -> tuple[list[Message], str | None]:
    """The messages of a batch, and the one key they share where keys matter (P-18)."""
    try:
        inner = split_batch(payload)
    except WireError as error:
        raise ArgumentError(f"The batch is malformed: {error}") from None
    return admit_all(inner, at, description, identities, partitioned=partitioned)


def admit_all(
    payloads: Iterable[bytes],
    at: Instant,
    description: QueueDescription,
    identities: Identities | None = None,
    *,
    partitioned: bool,
) -> tuple[list[Message], str | None]:
    """Messages that are to stay together, and the one key they share where keys matter."""
    messages: list[Message] = []
    keys: list[str | None] = []
    for each in payloads:
        message, key = admit(each, at, description, identities)
        messages.append(message)
        keys.append(key)
    if not partitioned:
        return messages, None
    return messages, batch_key(keys, duplicate_detection=description.requires_duplicate_detection)


def via_partition_key(payload: bytes) -> str | None:
    """The key that chooses the partition of the entity through which a message is sent to another."""
    try:
        annotations = scan(payload).message_annotations
        return _text("ViaPartitionKey", annotation(payload, annotations, _VIA_PARTITION_KEY))
    except WireError as error:
        raise ArgumentError(f"The message is malformed: {error}") from None


def readmit(
    message: Message,
    payload: bytes,
    at: Instant,
    description: QueueDescription,
    identities: Identities | None = None,
    *,
    source: EntityPath,
) -> tuple[Message, str | None]:
    """A message out of an outbox as the entity it is forwarded to takes it, and its routing key there.

    What settlements said about it (why it was dead-lettered, say) is its own from now on; its time to
    live begins anew.
    """
    amendment = message.amendment
    assert amendment is not None and amendment.posting is not None, "only posted messages are forwarded"
    _, durable, priority, ttl, count, length = _FRONT.unpack_from(payload)
    start = _FRONT.size + length
    bare = payload[start:]
    if amendment.properties or amendment.dead_letter_reason or amendment.dead_letter_description:
        bare = _amended(bare, amendment)
    annotations = encode_annotations(count, payload[_FRONT.size : start])
    entries, count = map_entries(annotations, 0, _DEAD_LETTER_SOURCES)
    if amendment.posting.subqueue is SubQueue.DEAD_LETTER:
        entries += _annotation_entry("x-opt-deadletter-source", source)
        count += 2
    stored = _FRONT.pack(VERSION, durable, priority, ttl, count, len(entries)) + entries + bare
    message_id, session_id = identity(bare, scan(bare).properties)
    session_id = _text("SessionId", session_id)
    partition_key = _text("PartitionKey", annotation(annotations, 0, _PARTITION_KEY))
    message_id = None if message_id is None else str(message_id)
    if identities is not None:
        identities.add(message_id, partition_key if session_id is None else session_id)
    key = routing_key(
        session_id, partition_key, message_id, duplicate_detection=description.requires_duplicate_detection
    )
    forwarded = Message(
        stored,
        size=len(stored),
        expires_at=None if ttl == NO_TTL else Instant(at + ttl),
        session_id=None if session_id is None else SessionId(session_id),
        origin=_forwarded_origin(message, amendment.posting),
    )
    due = _due(annotation(annotations, 0, _SCHEDULED_TIME))
    if due > at:
        postpone(forwarded, at, Instant(due))
    return forwarded, key


def _forwarded_origin(message: Message, posting: Posting) -> Origin | None:
    """None for what a transaction sent through another entity: it was never a message there."""
    if not posting.sequence_number:
        return None
    origin = message.origin
    if origin is None:
        return Origin(posting.sequence_number, hops=1)
    return Origin(origin.sequence_number, hops=origin.hops + 1)


def encode_annotations(count: int, entries: bytes) -> bytes:
    """A message-annotations section of raw entries."""
    return _MAP_START + (len(entries) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + entries


def _annotation_entry(name: str, value: str) -> bytes:
    return encode(Symbol(name)) + encode(value)


_FRONTS_MAX: Final = 1000
_fronts: dict[bytes, tuple[bytes, int]] = {}


def _front(header: bytes, count: int = 0, entries: bytes = b"") -> tuple[bytes, int]:
    """The front of a stored payload for this header section and these annotations, and the ttl.

    Clients write the same few headers over and over, mostly without annotations: those are remembered.
    """
    known = None if entries else _fronts.get(header)
    if known is None:
        read = read_header(header, 0 if header else -1)
        ttl = NO_TTL if read.ttl is None else read.ttl
        priority = PRIORITY_DEFAULT if read.priority is None else read.priority
        known = _FRONT.pack(VERSION, bool(read.durable), priority, ttl, count, len(entries)) + entries, ttl
        if not entries:
            if len(_fronts) >= _FRONTS_MAX:
                _fronts.clear()
            _fronts[header] = known
    return known


def _bare_start(sections: Sections) -> int:
    for start in (sections.properties, sections.application_properties, sections.body, sections.footer):
        if start >= 0:
            return start
    return sections.end


def _with_message_id(payload: bytes, sections: Sections) -> bytes:
    """The bare message with an id of ours: JavaScript cannot settle a message that has none."""
    properties = read_properties(payload, sections.properties)
    properties.message_id = uuid4().hex
    sections.properties = -1
    return encode_section(properties) + payload[_bare_start(sections) :]


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ArgumentError(f"{name} must be a string, not {value!r}.")


def _due(value: object) -> int:
    """When a message is to be enqueued; 0 where nothing is said."""
    if value is None:
        return 0
    if not isinstance(value, Timestamp) or value > DUE_MAX:
        raise ArgumentError(f"ScheduledEnqueueTimeUtc must be a time up to the year 9999, not {value!r}.")
    return value


# -- out --------------------------------------------------------------------------

_TRUE: Final = 0x41
_FALSE: Final = 0x42
_NULL: Final = 0x40
_UBYTE: Final = 0x50
_UINT: Final = 0x70

# A header section: durable, priority, ttl, first-acquirer, delivery-count; list8 of 11 or 15 bytes.
_HEADER: Final = Struct(">6sBBBBBBI")
_HEADER_START: Final = b"\x00\x53\x70\xc0\x0b\x05"
_HEADER_TTL: Final = Struct(">6sBBBBIBBI")
_HEADER_TTL_START: Final = b"\x00\x53\x70\xc0\x0f\x05"


def _key(name: str, type_code: int) -> bytes:
    """A map entry up to its value: sym8 key, then the value's constructor."""
    return bytes((0xA3, len(name))) + name.encode() + bytes((type_code,))


# The broker's annotations, with their types exactly as the SDKs cast them.
_ENQUEUED_TIME: Final = _key("x-opt-enqueued-time", 0x83)
_SEQUENCE_NUMBER: Final = _key("x-opt-sequence-number", 0x81)
_ENQUEUE_SEQUENCE_NUMBER: Final = _key("x-opt-enqueue-sequence-number", 0x81)
_PARTITION_ID: Final = _key("x-opt-partition-id", 0x61)
_LOCKED_UNTIL: Final = _key("x-opt-locked-until", 0x83)
_MESSAGE_STATE: Final = _key("x-opt-message-state", 0x71)

# 0x72 message-annotations, map32: size, count, then the entries.
_MAP_START: Final = b"\x00\x53\x72\xd1"
_COMMON: Final = ">4sII" + "".join(
    f"{len(key)}s{value}"
    for key, value in (
        (_ENQUEUED_TIME, "q"),
        (_SEQUENCE_NUMBER, "q"),
        (_ENQUEUE_SEQUENCE_NUMBER, "q"),
        (_PARTITION_ID, "h"),
    )
)
_PLAIN: Final = Struct(_COMMON)
_LOCKED: Final = Struct(f"{_COMMON}{len(_LOCKED_UNTIL)}sq")
_PEEKED: Final = Struct(f"{_COMMON}{len(_MESSAGE_STATE)}si")
# The map's size field counts everything after itself.
_BEFORE_COUNT: Final = 8

# 0x71 delivery-annotations, map8 with the one entry x-opt-lock-token: uuid.
_LOCK_TOKEN: Final = b"\x00\x53\x71\xc1\x24\x02" + _key("x-opt-lock-token", 0x98)


def render(message: Message, payload: bytes, *, locked: bool) -> Rendered:
    """A message as it goes to a receiver, under lock or for good."""
    header, count, entries, bare = _open(message, payload)
    number, origin = message.sequence_number, message.origin
    first = number if origin is None else origin.sequence_number
    if locked:
        annotations = _LOCKED.pack(
            _MAP_START, _LOCKED.size - _BEFORE_COUNT + len(entries), count + 10,
            _ENQUEUED_TIME, message.enqueued_at, _SEQUENCE_NUMBER, number, _ENQUEUE_SEQUENCE_NUMBER, first,
            _PARTITION_ID, number >> PARTITION_SHIFT, _LOCKED_UNTIL, message.locked_until,
        )  # fmt: skip
    else:
        annotations = _PLAIN.pack(
            _MAP_START, _PLAIN.size - _BEFORE_COUNT + len(entries), count + 8,
            _ENQUEUED_TIME, message.enqueued_at, _SEQUENCE_NUMBER, number, _ENQUEUE_SEQUENCE_NUMBER, first,
            _PARTITION_ID, number >> PARTITION_SHIFT,
        )  # fmt: skip
    return header + annotations + entries, bare


def render_deferred(message: Message, payload: bytes) -> bytes:
    """A locked message inside a response; go looks for the lock token among its delivery annotations."""
    assert message.lock_token is not None
    head, bare = render(message, payload, locked=True)
    token = _LOCK_TOKEN + UUID(bytes_le=message.lock_token).bytes
    header_end = head.index(_MAP_START)
    return head[:header_end] + token + head[header_end:] + bare


def render_peeked(message: Message, payload: bytes) -> bytes:
    """A message that is only looked at: its state instead of a lock."""
    header, count, entries, bare = _open(message, payload)
    number, origin = message.sequence_number, message.origin
    first = number if origin is None else origin.sequence_number
    annotations = _PEEKED.pack(
        _MAP_START, _PEEKED.size - _BEFORE_COUNT + len(entries), count + 10,
        _ENQUEUED_TIME, message.enqueued_at, _SEQUENCE_NUMBER, number, _ENQUEUE_SEQUENCE_NUMBER, first,
        _PARTITION_ID, number >> PARTITION_SHIFT, _MESSAGE_STATE, message.state,
    )  # fmt: skip
    return header + annotations + entries + bare


def _open(message: Message, payload: bytes) -> tuple[bytes, int, bytes, bytes]:
    """A stored payload as the new header section, the sender's annotations and the bare message."""
    _, durable, priority, ttl, count, length = _FRONT.unpack_from(payload)
    deliveries = message.delivery_count
    durable, first = _TRUE if durable else _FALSE, _FALSE if deliveries else _TRUE
    if ttl == NO_TTL:
        header = _HEADER.pack(_HEADER_START, durable, _UBYTE, priority, _NULL, first, _UINT, deliveries)
    else:
        header = _HEADER_TTL.pack(
            _HEADER_TTL_START, durable, _UBYTE, priority, _UINT, ttl, first, _UINT, deliveries
        )
    start = _FRONT.size + length
    bare = payload[start:]
    if message.amendment is not None:
        bare = _amended(bare, message.amendment)
    return header, count, payload[_FRONT.size : start] if length else b"", bare


def _amended(bare: bytes, amendment: Amendment) -> bytes:
    """The bare message with what settlements said laid over its application properties."""
    sections = scan(bare)
    try:
        properties = application_properties(bare, sections.application_properties)
    except WireError:
        # Whoever receives it could not read them either; what was said since is worth more.
        properties = {}
    for encoded in amendment.properties:
        added, _ = decode(encoded)
        assert isinstance(added, dict), "amendments are encoded from maps"
        properties.update(added)
    if amendment.dead_letter_reason is not None:
        properties["DeadLetterReason"] = amendment.dead_letter_reason
    if amendment.dead_letter_description is not None:
        properties["DeadLetterErrorDescription"] = amendment.dead_letter_description
    body = _body_start(sections)
    before = bare[: body if sections.application_properties < 0 else sections.application_properties]
    return before + b"\x00\x53\x74" + encode(properties) + bare[body:]


def _body_start(sections: Sections) -> int:
    """Where the body starts, or whatever comes in its place."""
    for start in (sections.body, sections.footer):
        if start >= 0:
            return start
    return sections.end
