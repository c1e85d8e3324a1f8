"""Building messages: for replies, batches, tests and clients.

The broker never rebuilds a message that passes through; it puts new sections in
front of the existing bytes (`encode_section`, `map_section`). Reading: message.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from bendybus.amqp.composite import (
    BINARY,
    BOOLEAN,
    MESSAGE_ID,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
    encode_composite_into,
    register,
)
from bendybus.amqp.encoder import MAP, encode_into, encode_symbol_keys_into, wrap_into
from bendybus.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
)

__all__ = [
    "ABSENT",
    "BATCH_FORMAT",
    "Header",
    "HeaderField",
    "Properties",
    "PropertyField",
    "encode_message",
    "encode_section",
    "map_section",
]

BATCH_FORMAT: Final = 0x80013700
"""The message-format of a transfer whose data sections each contain a whole message."""

# Null is a valid body, so "no amqp-value section" needs a value of its own.
ABSENT: Final = object()


@dataclass(slots=True)
class Header:
    durable: bool | None = None
    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool | None = None
    delivery_count: int | None = None


@dataclass(slots=True)
class Properties:
    message_id: str | UUID | bytes | int | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: str | UUID | bytes | int | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


register(Header, 0x70, "amqp:header:list", BOOLEAN, UBYTE, UINT, BOOLEAN, UINT)
register(
    Properties, 0x73, "amqp:properties:list",
    MESSAGE_ID, BINARY, STRING, STRING, STRING, MESSAGE_ID, SYMBOL, SYMBOL, TIMESTAMP, TIMESTAMP,
    STRING, UINT, STRING,
)  # fmt: skip


class HeaderField:
    """Positions in a header section."""

    DURABLE: Final = 0
    PRIORITY: Final = 1
    TTL: Final = 2
    FIRST_ACQUIRER: Final = 3
    DELIVERY_COUNT: Final = 4


class PropertyField:
    """Positions in a properties section."""

    MESSAGE_ID: Final = 0
    USER_ID: Final = 1
    TO: Final = 2
    SUBJECT: Final = 3
    REPLY_TO: Final = 4
    CORRELATION_ID: Final = 5
    CONTENT_TYPE: Final = 6
    CONTENT_ENCODING: Final = 7
    ABSOLUTE_EXPIRY_TIME: Final = 8
    CREATION_TIME: Final = 9
    GROUP_ID: Final = 10
    GROUP_SEQUENCE: Final = 11
    REPLY_TO_GROUP_ID: Final = 12


def encode_message(
    *,
    header: Header | None = None,
    delivery_annotations: Mapping[str, object] | None = None,
    message_annotations: Mapping[str, object] | None = None,
    properties: Properties | None = None,
    application_properties: Mapping[str, object] | None = None,
    data: bytes | Sequence[bytes] | None = None,
    sequence: Sequence[object] | None = None,
    value: object = ABSENT,
    footer: Mapping[str, object] | None = None,
) -> bytes:
    """A whole message from its parts. At most one of `data`, `sequence` and `value` is the body.

    Each `data` becomes a section; if they are encoded messages, the result is a batch.
    """
    assert (data is None) + (sequence is None) + (value is ABSENT) >= 2, "a message has one kind of body"
    out = bytearray()
    if header is not None:
        encode_composite_into(out, header, trim=True)
    if delivery_annotations is not None:
        _annotations_into(out, DELIVERY_ANNOTATIONS, delivery_annotations)
    if message_annotations is not None:
        _annotations_into(out, MESSAGE_ANNOTATIONS, message_annotations)
    if properties is not None:
        encode_composite_into(out, properties, trim=True)
    if application_properties is not None:
        _section_into(out, APPLICATION_PROPERTIES, dict(application_properties))
    if data is not None:
        for part in (data,) if isinstance(data, bytes) else data:
            _section_into(out, DATA, part)
    elif sequence is not None:
        _section_into(out, SEQUENCE, list(sequence))
    elif value is not ABSENT:
        _section_into(out, VALUE, value)
    if footer is not None:
        _annotations_into(out, FOOTER, footer)
    return bytes(out)


def encode_section(section: Header | Properties) -> bytes:
    """One header or properties section alone, to be put in front of other bytes."""
    out = bytearray()
    encode_composite_into(out, section, trim=True)
    return bytes(out)


def map_section(code: int, entries: bytes | bytearray, count: int) -> bytes:
    """A section of `count` keys and values that are already encoded (`message.map_entries`).

    `code` is one of the map sections of sections.py.
    """
    out = bytearray((0x00, 0x53, code))
    wrap_into(out, MAP, count, entries)
    return bytes(out)


def _section_into(out: bytearray, code: int, content: object) -> None:
    out += bytes((0x00, 0x53, code))
    encode_into(out, content)


def _annotations_into(out: bytearray, code: int, annotations: Mapping[str, object]) -> None:
    out += bytes((0x00, 0x53, code))
    encode_symbol_keys_into(out, annotations)
