"""Admission: turns a message as it was sent into one that can be enqueued.

This is on the hot path: only the few fields that the broker needs are read, and the sender's
bytes are kept as they are. Messages that are too large or malformed are refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, TypeAlias, cast
from uuid import uuid4

from bendybus.amqp.annotations import BROKER_SET
from bendybus.amqp.codec import encode
from bendybus.amqp.message import (
    Sections,
    application_properties,
    encode_section,
    identity,
    map_entries,
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
from bendybus.envelope.front import PayloadFront, known_fronts, make_front, read_front
from bendybus.envelope.stored import (
    COPIED_MAX,
    DELIVERY_ANNOTATIONS,
    DELIVERY_DELAY,
    DELIVERY_TIME,
    MAP_START,
    NO_TTL,
    bare_start,
    body_start,
    delivery_delay,
    due_time,
    lifetime_ms,
    marked_scheduled,
    text,
)
from bendybus.errors import ArgumentError, BrokerError, MessageSizeExceeded, WireError
from bendybus.names import Instant, RoutingKey, SessionId

__all__ = [
    "admit",
    "admit_all",
    "admit_batch",
    "admit_enlisted",
    "admit_together",
    "batched",
    "take_apart",
    "take_apart_ordinary",
]

# "Header (all properties): 64 KB total, 32 KB per property".
HEADER_BYTES_MAX: Final = 64 * 1024
PROPERTY_BYTES_MAX: Final = 32 * 1024

# A section takes five bytes, so a large message may have millions, and each message of a batch is one. Azure
# takes 4,500 messages in a batch.
SECTIONS_MAX: Final = 10_000

_FOOTER: Final = b"\x00\x53\x78"
_MAP32_SECTION: Final = Struct(">4sII")


def admit(
    payload: bytes, at: Instant, description: Accepting, identities: Identities | None = None
) -> tuple[Message, RoutingKey | None]:
    """A message ready to be enqueued, and its routing key.

    With duplicate detection, its identity is added to `identities`.
    """
    return _admitted(*_parts(payload, at), at, description, identities)


def admit_together(
    payloads: Sequence[bytes], at: Instant, description: Accepting
) -> tuple[list[Message], list[RoutingKey | None]]:
    """The first of these messages, as far as they are usual, and their keys, or no keys if none has one.

    It is `admit` for many messages of the frequent kinds. It refuses nothing: it ends before a message that
    may have to be refused. Not for an entity that detects duplicates.
    """
    admitted: list[Message] = []
    keys: list[RoutingKey | None] = []
    """As many as messages, or none at all while no message has a key."""
    exact, may_have_sessions = description.exact_keys, description.may_have_sessions
    front = _latest[0]
    # What most messages share with the one before is looked up once for all of them.
    start, stored_front, ttl, partition_key, via_key, _, is_usual, usual_key = front
    start_size = len(start)
    if exact:
        usual_key = cast(RoutingKey | None, via_key if partition_key is None else partition_key)
    for payload in payloads:
        known = start_size if payload.startswith(start) else 0
        found = ordinary(payload, known) or (ordinary(payload) if known else None)
        if found is None:
            break
        bare_at, message_id, session_id = found
        if bare_at != start_size or not known:
            sections = payload[:bare_at]
            try:
                front = known_fronts.get(sections) or read_front(sections)
            except BrokerError:
                break
            _latest[0] = front
            start, stored_front, ttl, partition_key, via_key, _, is_usual, usual_key = front
            start_size = bare_at
            if exact:
                usual_key = cast(RoutingKey | None, via_key if partition_key is None else partition_key)
        size = len(payload)
        if not is_usual or size > PROPERTY_BYTES_MAX or len(message_id) > KEY_LENGTH_MAX:
            break
        key, session = usual_key, None
        if session_id is not None and (session_id or may_have_sessions):
            if partition_key not in (None, session_id) or len(session_id) > KEY_LENGTH_MAX:
                break
            key, session = key_of(session_id, exact=exact), SessionId(session_id)
        stored = stored_front + payload[bare_at:]
        message = Message(stored, len(stored), None, session)
        if ttl != NO_TTL:
            message.expires_at = Instant(at + ttl)
            message.enqueued_at = at
        if key is not None or keys:
            keys += [None] * (len(admitted) - len(keys))
            keys.append(key)
        admitted.append(message)
    return admitted, keys


def _parts(payload: bytes, at: Instant) -> Parts:
    """What admission needs of a message. A delivery delay has become a time."""
    try:
        if len(payload) > PROPERTY_BYTES_MAX:
            payload = _ordered(payload)
            _refuse_large_properties(payload)
        parts = take_apart_ordinary(payload) or take_apart(payload)
        return parts if parts[3].due >= 0 else take_apart(_with_delivery_time(payload, at))
    except WireError as error:
        raise ArgumentError(f"The message is malformed: {error}") from None


def _admitted(
    stored: bytes,
    message_id: str | None,
    session_id: str | None,
    front: PayloadFront,
    at: Instant,
    description: Accepting,
    identities: Identities | None,
) -> tuple[Message, RoutingKey | None]:
    _, _, ttl, partition_key, via_key, due, _, _ = front
    if session_id is not None and not (session_id or description.may_have_sessions):
        session_id = None
    key = routing_key(
        session_id,
        partition_key,
        message_id,
        via_key,
        description.requires_duplicate_detection,
        description.exact_keys,
    )
    if identities is not None:
        identities.add(message_id, None if session_id is None and partition_key is None else key)
    lifetime = lifetime_ms(stored, ttl)
    expires_at = None if lifetime is None else Instant(at + lifetime)
    if due > at:
        stored = marked_scheduled(stored)
    session = None if session_id is None else SessionId(session_id)
    message = Message(stored, len(stored), expires_at, session)
    if expires_at is not None:
        # The partition may get it later, and at another machine: then the lifetime begins.
        message.enqueued_at = at
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


# The front of the latest ordinary message. The next one often begins with the same bytes.
_latest: Final = [make_front(b"", b"")]

Parts: TypeAlias = tuple[bytes, str | None, str | None, PayloadFront]
"""Stored form, the sender's message id, session id, and what header and annotations say."""


def take_apart_ordinary(payload: bytes) -> Parts | None:
    """Fast path of `take_apart`. Returns None if the general path is needed."""
    front = _latest[0]
    known = len(front[0]) if payload.startswith(front[0]) else 0
    found = ordinary(payload, known) or (ordinary(payload) if known else None)
    if found is None:
        return None
    bare_at, message_id, session_id = found
    if bare_at != known or not known:
        sections = payload[:bare_at]
        front = _latest[0] = known_fronts.get(sections) or read_front(sections)
    if len(payload) <= COPIED_MAX:
        return front[1] + payload[bare_at:], message_id, session_id, front
    return b"".join((front[1], memoryview(payload)[bare_at:])), message_id, session_id, front


def take_apart(payload: bytes) -> Parts:
    """The parts of any message that admission needs."""
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
    annotations_at = bare_at if sections.message_annotations < 0 else sections.message_annotations
    header_end = annotations_at if sections.delivery_annotations < 0 else sections.delivery_annotations
    own = _own_delivery_annotations(payload, sections.delivery_annotations)
    front = make_front(
        payload[:header_end], payload[annotations_at:bare_at], DELIVERY_ANNOTATIONS if own else 0
    )
    return (
        front.stored + own + bare,
        message_id if message_id is None or isinstance(message_id, str) else str(message_id),
        text("SessionId", session_id),
        front,
    )


def _with_delivery_time(payload: bytes, at: Instant) -> bytes:
    """The message with the time that its delivery delay means.

    If the message is sent again, it is not delayed again.
    """
    payload = _ordered(payload)
    sections = scan(payload)
    start = sections.message_annotations
    due = max(due_time(payload, start), at + delivery_delay(payload, start))
    entries, count = map_entries(payload, start, frozenset((DELIVERY_DELAY, DELIVERY_TIME)))
    entries += encode(Symbol(DELIVERY_TIME.decode())) + encode(due)
    section = _MAP32_SECTION.pack(MAP_START, len(entries) + 4, count + 2) + entries
    return payload[:start] + section + payload[bare_start(sections) :]


def _ordered(payload: bytes) -> bytes:
    """The message with its sections in the order of the standard; unchanged if they are in order.

    `WireError` if it has more sections than a client may send.
    """
    try:
        scan(payload, sections_max=SECTIONS_MAX)
    except WireError:
        return in_order(payload, SECTIONS_MAX)
    return payload


def _footer(payload: bytes, at: int) -> bytes:
    """The footer section. Its keys become symbols where they can, although some clients write strings."""
    footer = read_map(payload, at)
    if all(not isinstance(key, str) or isinstance(key, Symbol) for key in footer):
        return payload[at:]
    symbols = {
        Symbol(key) if isinstance(key, str) and key.isascii() else key: value for key, value in footer.items()
    }
    return _FOOTER + encode(symbols)


def _own_delivery_annotations(payload: bytes, at: int) -> bytes:
    """The sender's delivery annotations as a section, without the broker's own; or nothing."""
    entries, count = map_entries(payload, at, BROKER_SET)
    if not count:
        return b""
    return _MAP32_SECTION.pack(b"\x00\x53\x71\xd1", len(entries) + 4, count) + entries


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
    payloads = list(payloads)
    messages: list[Message] = []
    keys: list[RoutingKey | None] = []
    if not description.requires_duplicate_detection:
        messages, keys = admit_together(payloads, at, description)
        keys = keys or [None] * len(messages)
    for each in payloads[len(messages) :]:
        message, key = admit(each, at, description, identities)
        messages.append(message)
        keys.append(key)
    if not partitioned:
        return messages, None
    return messages, batch_key(keys, duplicate_detection=description.requires_duplicate_detection)


def admit_enlisted(
    payload: bytes,
    at: Instant,
    description: Accepting,
    identities: Identities | None = None,
    *,
    via_exact: bool,
) -> tuple[Message, MessageKeys]:
    """`admit` in a transaction: with all the keys that may choose the partition.

    `via_exact`: whether the entity that the transaction goes through has `exact_keys`.
    """
    stored, message_id, session_id, front = _parts(payload, at)
    message, _ = _admitted(stored, message_id, session_id, front, at, description, identities)
    exact = description.exact_keys
    own = routing_key(
        message.session_id,
        front.partition_key,
        message_id,
        duplicate_detection=description.requires_duplicate_detection,
        exact=exact,
    )
    return message, MessageKeys(
        own,
        None if message_id is None else key_of(message_id, exact=exact),
        None if front.via_key is None else key_of(front.via_key, exact=via_exact),
    )


def _with_message_id(payload: bytes, sections: Sections) -> bytes:
    """The bare message with a generated id: the JavaScript SDK cannot settle a message without one."""
    properties = read_properties(payload, sections.properties)
    properties.message_id = uuid4().hex
    sections.properties = -1
    return encode_section(properties) + payload[bare_start(sections) :]
