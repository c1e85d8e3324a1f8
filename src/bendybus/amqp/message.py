"""Messages: single fields of their sections, and whole messages if they are small.

The one rule: a message that passes through the broker is never decoded as a whole. `scan` finds
where each section starts; the readers here take such an offset and read one thing
there. -1 stands for an absent section, for which every reader returns
nothing. Finding sections: sections.py. Writing messages: message_encoder.py.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from bendybus.amqp.composite import decode_composite
from bendybus.amqp.decoder import DECODERS, MALFORMED, NESTING_MAX, list_bounds, map_bounds, skip
from bendybus.amqp.message_encoder import (
    BATCH_FORMAT,
    Header,
    HeaderField,
    Properties,
    PropertyField,
    encode_message,
    encode_section,
    map_section,
)
from bendybus.amqp.sections import DATA, SEQUENCE, VALUE, Sections, scan, section_at
from bendybus.errors import WireError

__all__ = [
    "BATCH_FORMAT",
    "TTL_LONG",
    "DecodedMessage",
    "Header",
    "HeaderField",
    "Properties",
    "PropertyField",
    "Sections",
    "annotation",
    "application_properties",
    "body_data",
    "body_sequence",
    "body_value",
    "decode_message",
    "encode_message",
    "encode_section",
    "identity",
    "list_field",
    "map_entries",
    "map_section",
    "read_header",
    "read_map",
    "read_properties",
    "scan",
    "split_batch",
]

# A header's ttl holds 49 days. Its last value stands for a longer lifetime: the time between the properties
# creation-time and absolute-expiry-time, as in messages of the SDKs.
TTL_LONG: Final = 0xFFFFFFFF

_U32: Final = struct.Struct(">I")


# -- lists: header and properties ------------------------------------------------------------


def list_field(buffer: bytes, at: int, index: int) -> object:
    """One field of the header or properties section at `at`; the others are skipped, not decoded.

    `index` is one of `HeaderField` or `PropertyField`. An absent field is None.
    """
    if at < 0:
        return None
    try:
        count, pos, end = list_bounds(buffer, section_at(buffer, at)[1])
        if index >= count:
            return None
        for _ in range(index):
            if buffer[pos] == 0x40:
                pos += 1
            elif buffer[pos] & 0xF0 == 0xA0:
                pos += 2 + buffer[pos + 1]
            else:
                pos = skip(buffer, pos)
        code = buffer[pos]
        if code == 0x40:
            return None
        value, pos = DECODERS[code](buffer, pos + 1, NESTING_MAX - 1)
    except MALFORMED as cause:
        raise WireError(f"malformed section at byte {at}: {cause}") from None
    if pos > end:
        raise WireError(f"field {index} of the section at byte {at} ends at byte {pos}, the section at {end}")
    return value


def identity(buffer: bytes, at: int) -> tuple[object, object]:
    """message-id and group-id of the properties section at `at`: all that routing needs of a message.

    The same as two calls of `list_field`, but in one pass and without calls for the usual types, because
    it is done for every message that is sent.
    """
    if at < 0:
        return None, None
    try:
        if buffer[at + 3] == 0xC0 and buffer[at + 1] == 0x53:
            count, pos, end = buffer[at + 5], at + 6, at + 5 + buffer[at + 4]
        else:
            count, pos, end = list_bounds(buffer, section_at(buffer, at)[1])
        if not count:
            return None, None
        code = buffer[pos]
        message_id: object
        if code == 0xA1:
            start = pos + 2
            pos = start + buffer[pos + 1]
            message_id = buffer[start:pos].decode()
        else:
            message_id, pos = DECODERS[code](buffer, pos + 1, NESTING_MAX - 1)
    except MALFORMED as cause:
        raise WireError(f"malformed section at byte {at}: {cause}") from None
    if pos > end:
        raise WireError(
            f"the message-id in the section at byte {at} ends at byte {pos}, the section at {end}"
        )
    group_id = list_field(buffer, at, PropertyField.GROUP_ID) if count > PropertyField.GROUP_ID else None
    return message_id, group_id


_SectionClass = TypeVar("_SectionClass", Header, Properties)


def read_header(buffer: bytes, at: int) -> Header:
    """The header section at `at`, all of it."""
    return _read_list(buffer, at, Header)


def read_properties(buffer: bytes, at: int) -> Properties:
    """The properties section at `at`, all of it."""
    return _read_list(buffer, at, Properties)


def _read_list(buffer: bytes, at: int, kind: type[_SectionClass]) -> _SectionClass:
    if at < 0:
        return kind()
    value, _ = decode_composite(buffer, at)
    if type(value) is not kind:
        raise WireError(f"the section at byte {at} is no {kind.__name__}")
    return value


# -- maps: annotations, application properties, footer ------------------------------------------


def annotation(buffer: bytes, at: int, key: bytes) -> object:
    """The value of one key of the map section at `at`; None if it is null or absent."""
    if at < 0:
        return None
    try:
        count, pos, end = map_bounds(buffer, section_at(buffer, at)[1])
        size = len(key)
        for _ in range(count >> 1):
            name, name_end = _key_bounds(buffer, pos)
            if name_end - name == size and buffer.startswith(key, name):
                value, pos = DECODERS[buffer[name_end]](buffer, name_end + 1, NESTING_MAX - 1)
                if pos > end:
                    raise WireError(f"entry {key!r} runs out of the section at byte {at}")
                return value
            pos = skip(buffer, name_end)
    except MALFORMED as cause:
        raise WireError(f"malformed section at byte {at}: {cause}") from None
    return None


def _key_bounds(buffer: bytes, pos: int) -> tuple[int, int]:
    """Where the text of the key at `pos` starts and where the key ends, for a symbol or a string."""
    code = buffer[pos]
    if code == 0xA3 or code == 0xA1:
        return pos + 2, pos + 2 + buffer[pos + 1]
    if code == 0xB3 or code == 0xB1:
        return pos + 5, pos + 5 + int(_U32.unpack_from(buffer, pos + 1)[0])
    end = skip(buffer, pos)
    return end, end


def map_entries(buffer: bytes, at: int, without: frozenset[bytes] = frozenset()) -> tuple[bytes, int]:
    """The encoded entries of the map section at `at`, and their number (keys and values).

    Entries whose key is in `without` are left out.
    """
    if at < 0:
        return b"", 0
    try:
        count, start, end = map_bounds(buffer, section_at(buffer, at)[1])
        kept: list[bytes] = []
        left_out = 0
        pos = run = start
        for _ in range(count >> 1):
            name, name_end = _key_bounds(buffer, pos)
            after = skip(buffer, name_end)
            if without and buffer[name:name_end] in without:
                kept.append(buffer[run:pos])
                run = after
                left_out += 2
            pos = after
    except MALFORMED as cause:
        raise WireError(f"malformed section at byte {at}: {cause}") from None
    if pos != end:
        raise WireError(f"entries of the section at byte {at} end at byte {pos}, its size says {end}")
    kept.append(buffer[run:end])
    return b"".join(kept), count - left_out


def read_map(buffer: bytes, at: int) -> dict[object, object]:
    """The map section at `at`, decoded."""
    if at < 0:
        return {}
    try:
        _, pos = section_at(buffer, at)
        value, _ = DECODERS[buffer[pos]](buffer, pos + 1, NESTING_MAX - 1)
    except MALFORMED as cause:
        raise WireError(f"malformed section at byte {at}: {cause}") from None
    if type(value) is not dict:
        raise WireError(f"the section at byte {at} is no map")
    return value


def application_properties(buffer: bytes, at: int) -> dict[str, object]:
    """The application properties at `at`, decoded. Their keys are text [AMQP 3.2.5]."""
    properties = read_map(buffer, at)
    for key in properties:
        if not isinstance(key, str):
            raise WireError(f"a {type(key).__name__} is the name of an application property")
    return cast("dict[str, object]", properties)


# -- bodies ---------------------------------------------------------------------------------------


def body_value(buffer: bytes, sections: Sections) -> object:
    """The content of the amqp-value section; None if the body is of another kind."""
    values = _body(buffer, sections, VALUE)
    return values[0] if values else None


def body_data(buffer: bytes, sections: Sections) -> list[bytes]:
    """The contents of the data sections, one by one; empty if the body is of another kind."""
    return cast("list[bytes]", _body(buffer, sections, DATA))


def body_sequence(buffer: bytes, sections: Sections) -> list[object]:
    """The items of all amqp-sequence sections; empty if the body is of another kind."""
    lists = cast("list[list[object]]", _body(buffer, sections, SEQUENCE))
    return [item for items in lists for item in items]


def _body(buffer: bytes, sections: Sections, kind: int) -> list[object]:
    pos = sections.body
    if pos < 0:
        return []
    stop = sections.end if sections.footer < 0 else sections.footer
    values: list[object] = []
    try:
        while pos < stop:
            code, pos = section_at(buffer, pos)
            if code != kind:
                return []
            value, pos = DECODERS[buffer[pos]](buffer, pos + 1, NESTING_MAX - 1)
            values.append(value)
    except MALFORMED as cause:
        raise WireError(f"malformed body at byte {pos}: {cause}") from None
    return values


def split_batch(buffer: bytes, sections: Sections | None = None) -> list[bytes]:
    """The messages in a batch of `BATCH_FORMAT`: each of its data sections contains one."""
    messages = body_data(buffer, scan(buffer) if sections is None else sections)
    if not messages:
        raise WireError("a batch without a message in it")
    return messages


# -- whole messages -----------------------------------------------------------------------------


@dataclass(slots=True)
class DecodedMessage:
    """Everything in a message, for requests, replies, tests and clients. Not for messages passing through."""

    header: Header
    delivery_annotations: dict[object, object]
    message_annotations: dict[object, object]
    properties: Properties
    application_properties: dict[str, object]
    data: list[bytes]
    sequence: list[object]
    value: object
    footer: dict[object, object]


def decode_message(buffer: bytes) -> DecodedMessage:
    """Decode a whole message. Absent sections are empty; at most one of the three bodies is filled."""
    at = scan(buffer)
    return DecodedMessage(
        header=read_header(buffer, at.header),
        delivery_annotations=read_map(buffer, at.delivery_annotations),
        message_annotations=read_map(buffer, at.message_annotations),
        properties=read_properties(buffer, at.properties),
        application_properties=application_properties(buffer, at.application_properties),
        data=body_data(buffer, at),
        sequence=body_sequence(buffer, at),
        value=body_value(buffer, at),
        footer=read_map(buffer, at.footer),
    )
