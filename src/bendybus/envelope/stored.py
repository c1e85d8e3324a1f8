"""The stored form: how a payload is stored, and how it is parsed.

    version u8 | flags u8 | priority u8 | ttl u32 ms | entries: count u32, length u32 | entries | bare message

The entries are the sender's own message annotations as raw map entries. The bare
message is everything from properties to footer, unchanged. If a flag says so, the sender's
delivery annotations precede it. How it is made: admission.py. How it is sent
again: delivery.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from bendybus.amqp import annotations as annotation_names
from bendybus.amqp.codec import decode, encode
from bendybus.amqp.decoder import MALFORMED, list_bounds, skip
from bendybus.amqp.message import (
    PropertyField,
    Sections,
    annotation,
    application_properties,
    list_field,
    scan,
)
from bendybus.amqp.types import Symbol, Timestamp
from bendybus.domain.messages import Amendment
from bendybus.errors import ArgumentError, WireError

__all__ = [
    "COPIED_MAX",
    "DELIVERY_ANNOTATIONS",
    "DURABLE",
    "FIRST_ACQUIRER",
    "FRONT",
    "MAP_START",
    "NOT_FIRST_ACQUIRER",
    "NO_TTL",
    "PARTITION_KEY",
    "PRIORITY_DEFAULT",
    "DELIVERY_DELAY",
    "DURABLE_UNSAID",
    "LONG_LIVED",
    "PRIORITY_UNSAID",
    "DELIVERY_TIME",
    "SCHEDULED_TIME",
    "VERSION",
    "VIA_PARTITION_KEY",
    "WAS_SCHEDULED",
    "Stored",
    "amended",
    "bare_start",
    "body_start",
    "delivery_delay",
    "due_time",
    "lifetime_ms",
    "marked_scheduled",
    "text",
    "with_lifetime",
]

VERSION: Final = 1
NO_TTL: Final = 0xFFFFFFFF
PRIORITY_DEFAULT: Final = 4

# The last millisecond of the year 9999. No SDK can write or show a later time.
DUE_MAX: Final = 253_402_300_799_999
# Stores keep a time in 64 bits. A lifetime that is added to such a due time must fit too.
LIFETIME_MAX_MS: Final = 1 << 62

# The flags: what the header said besides priority and lifetime (perhaps nothing), which parts follow,
# whether the message was scheduled, and where its lifetime is.
DURABLE: Final = 1
FIRST_ACQUIRER: Final = 2
NOT_FIRST_ACQUIRER: Final = 4
DELIVERY_ANNOTATIONS: Final = 8
WAS_SCHEDULED: Final = 16
# The lifetime does not fit into the header: 49 days or more. Then it is that between two properties.
LONG_LIVED: Final = 32
# The header said nothing of it. Then receivers are told nothing of it.
DURABLE_UNSAID: Final = 64
PRIORITY_UNSAID: Final = 128

# A larger part of a payload is passed on as a view: then a copy takes longer than to make the view.
COPIED_MAX: Final = 8 * 1024

FRONT: Final = Struct(">BBBIII")
_MAP32: Final = Struct(">BII")

# 0x72 message-annotations, map32: size, count, then the entries.
MAP_START: Final = b"\x00\x53\x72\xd1"

PARTITION_KEY: Final = annotation_names.PARTITION_KEY.encode()
VIA_PARTITION_KEY: Final = annotation_names.VIA_PARTITION_KEY.encode()
SCHEDULED_TIME: Final = annotation_names.SCHEDULED_ENQUEUE_TIME.encode()
DELIVERY_TIME: Final = annotation_names.DELIVERY_TIME.encode()
DELIVERY_DELAY: Final = annotation_names.DELIVERY_DELAY.encode()


@dataclass(slots=True)
class Stored:
    """A parsed stored payload, for code that looks inside it or changes it."""

    flags: int
    priority: int
    ttl_ms: int | None
    count: int
    """The number of keys and values in the entries."""
    entries: bytes
    bare: bytes

    @classmethod
    def of(cls, payload: bytes) -> Stored:
        _, flags, priority, ttl, count, length = FRONT.unpack_from(payload)
        start = FRONT.size + length
        entries, bare = payload[FRONT.size : start], payload[start:]
        return cls(flags, priority, None if ttl == NO_TTL else ttl, count, entries, bare)

    @property
    def durable(self) -> bool:
        return bool(self.flags & DURABLE)

    def annotations(self) -> dict[object, object]:
        """The sender's own annotations."""
        decoded, _ = decode(_MAP32.pack(0xD1, len(self.entries) + 4, self.count) + self.entries)
        assert isinstance(decoded, dict), "entries make up a map"
        return decoded

    def annotate(self, annotations: Mapping[object, object]) -> None:
        self.count = 2 * len(annotations)
        self.entries = b"".join(
            encode(Symbol(key) if isinstance(key, str) else key) + encode(value)
            for key, value in annotations.items()
        )

    def payload(self) -> bytes:
        """The parts joined again."""
        ttl = NO_TTL if self.ttl_ms is None else max(0, min(self.ttl_ms, NO_TTL - 1))
        front = FRONT.pack(VERSION, self.flags, self.priority, ttl, self.count, len(self.entries))
        return front + self.entries + self.bare


def marked_scheduled(payload: bytes) -> bytes:
    """The payload of a scheduled message. Receivers are told later that it was scheduled."""
    return payload[:1] + bytes((payload[1] | WAS_SCHEDULED,)) + payload[2:]


def amended(bare: bytes, amendment: Amendment) -> bytes:
    """The bare message with what settlements added merged into its application properties."""
    sections = scan(bare)
    try:
        properties = application_properties(bare, sections.application_properties)
    except WireError:
        # A receiver could not read the old ones either, and what was added since is worth more.
        properties = {}
    for encoded in amendment.properties:
        added, _ = decode(encoded)
        assert isinstance(added, dict), "amendments are encoded from maps"
        properties.update(added)
    if amendment.dead_letter_reason is not None:
        properties["DeadLetterReason"] = amendment.dead_letter_reason
    if amendment.dead_letter_description is not None:
        properties["DeadLetterErrorDescription"] = amendment.dead_letter_description
    body = body_start(sections)
    before = bare[: body if sections.application_properties < 0 else sections.application_properties]
    return before + b"\x00\x53\x74" + encode(properties) + bare[body:]


_PROPERTIES_START: Final = b"\x00\x53\x73"
_PROPERTIES_LIST: Final = Struct(">3sBII")
_TIMES: Final = Struct(">BqBq")
_NULL: Final = b"\x40"
_TIMESTAMP: Final = 0x83
_EXPIRY: Final = int(PropertyField.ABSOLUTE_EXPIRY_TIME)
_CREATION: Final = int(PropertyField.CREATION_TIME)


def with_lifetime(bare: bytes, enqueued_at: int, lifetime_ms: int) -> bytes:
    """The bare message with a creation time and the end of this lifetime in its properties.

    The sender's creation time stays, and the end is computed from it, because clients use the difference as
    the lifetime. The other fields are not decoded.
    """
    count = first = before_end = rest = end = 0
    created_at = enqueued_at
    try:
        if bare.startswith(_PROPERTIES_START):
            count, first, end = list_bounds(bare, len(_PROPERTIES_START))
            before_end = rest = end
            if count > _EXPIRY:
                before_end = _skip_fields(bare, first, _EXPIRY)
                rest = skip(bare, before_end)
            if count > _CREATION:
                created, rest = decode(bare, rest)
                created_at = created if isinstance(created, Timestamp) else enqueued_at
    except (WireError, *MALFORMED):
        # A receiver could not read it either.
        return bare
    before = bare[first:before_end] + _NULL * (_EXPIRY - count)
    times = _TIMES.pack(_TIMESTAMP, created_at + lifetime_ms, _TIMESTAMP, created_at)
    size = 4 + len(before) + len(times) + end - rest
    start = _PROPERTIES_LIST.pack(_PROPERTIES_START, 0xD0, size, max(count, _CREATION + 1))
    return b"".join((start, before, times, bare[rest:]))


def lifetime_ms(payload: bytes, ttl: int) -> int | None:
    """The lifetime that the sender set, None if there is none; `ttl` is that in the front of the payload."""
    if ttl != NO_TTL:
        return ttl
    if not payload[1] & LONG_LIVED:
        return None
    start = FRONT.size + FRONT.unpack_from(payload)[-1]
    bare = payload[start:]
    at = scan(bare).properties
    created_at, ends_at = list_field(bare, at, _CREATION), list_field(bare, at, _EXPIRY)
    if not isinstance(created_at, Timestamp) or not isinstance(ends_at, Timestamp):
        return None
    return max(0, min(ends_at - created_at, LIFETIME_MAX_MS))


def _skip_fields(buffer: bytes, pos: int, count: int) -> int:
    """The offset after this many fields. Most are absent or short strings, which need no function call."""
    for _ in range(count):
        code = buffer[pos]
        if code == 0x40:
            pos += 1
        elif code == 0xA1:
            pos += 2 + buffer[pos + 1]
        else:
            pos = skip(buffer, pos)
    return pos


def bare_start(sections: Sections) -> int:
    """Where the bare message starts: after the header and all annotations."""
    for start in (sections.properties, sections.application_properties, sections.body, sections.footer):
        if start >= 0:
            return start
    return sections.end


def body_start(sections: Sections) -> int:
    """Where the body starts, or what follows if there is none."""
    for start in (sections.body, sections.footer):
        if start >= 0:
            return start
    return sections.end


def text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ArgumentError(f"{name} must be a string, not {value!r}.")


def due_time(section: bytes, at: int) -> int:
    """When a message has to be enqueued, by the annotations at `at`: the later of two times; 0 for none."""
    due = 0
    scheduled = annotation(section, at, SCHEDULED_TIME)
    if scheduled is not None:
        if not isinstance(scheduled, Timestamp) or scheduled > DUE_MAX:
            raise ArgumentError(
                f"ScheduledEnqueueTimeUtc must be a time up to the year 9999, not {scheduled!r}."
            )
        due = scheduled
    delivery_time = annotation(section, at, DELIVERY_TIME)
    if delivery_time is not None:
        due = max(due, _milliseconds(annotation_names.DELIVERY_TIME, delivery_time))
    return due


def delivery_delay(section: bytes, at: int) -> int:
    """How many milliseconds a message waits, by the annotations at `at`; 0 if not set."""
    delay = annotation(section, at, DELIVERY_DELAY)
    return 0 if delay is None else _milliseconds(annotation_names.DELIVERY_DELAY, delay)


def _milliseconds(name: str, value: object) -> int:
    """The value of an annotation of a JMS client: a number of milliseconds up to the year 9999."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= DUE_MAX:
        raise ArgumentError(f"{name} must be a number of milliseconds up to the year 9999, not {value!r}.")
    return int(value)
