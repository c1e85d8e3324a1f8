"""Where the sections of a message are: `scan` finds them by their sizes.

It checks the order, types and sizes of sections and does not look inside them, so
its cost does not grow with the message. Their contents: message.py.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import Final

from bendybus.amqp.decoder import DECODERS, MALFORMED, skip
from bendybus.amqp.types import Symbol, ULong
from bendybus.errors import WireError

__all__ = [
    "APPLICATION_PROPERTIES",
    "DATA",
    "DELIVERY_ANNOTATIONS",
    "FOOTER",
    "HEADER",
    "MESSAGE_ANNOTATIONS",
    "PROPERTIES",
    "SEQUENCE",
    "Sections",
    "VALUE",
    "in_order",
    "scan",
    "section_at",
    "section_end",
]

# Descriptors of the sections, in the order in which they come [AMQP 3.2].
HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

_REPEATABLE: Final = (DATA, SEQUENCE)

_SECTION_NAMES: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}

# More sections than any message has.
UNLIMITED: Final = 1 << 62

_U32: Final = struct.Struct(">I")

_EMPTY: Final = 0
_SIZE_8: Final = 1
_SIZE_32: Final = 4

_LIST_SIZES: Final = {0x45: _EMPTY, 0xC0: _SIZE_8, 0xD0: _SIZE_32}
_MAP_SIZES: Final = {0xC1: _SIZE_8, 0xD1: _SIZE_32}
_BINARY_SIZES: Final = {0xA0: _SIZE_8, 0xB0: _SIZE_32}

# Which constructors a section may have, and the width of their size. An
# amqp-value may contain anything; `skip` skips it.
_SIZES: Final[dict[int, int]] = {
    section << 8 | constructor: size
    for section, sizes in (
        (HEADER, _LIST_SIZES),
        (DELIVERY_ANNOTATIONS, _MAP_SIZES),
        (MESSAGE_ANNOTATIONS, _MAP_SIZES),
        (PROPERTIES, _LIST_SIZES),
        (APPLICATION_PROPERTIES, _MAP_SIZES),
        (DATA, _BINARY_SIZES),
        (SEQUENCE, _LIST_SIZES),
        (FOOTER, _MAP_SIZES),
    )
    for constructor, size in sizes.items()
}


class Sections:
    """Where each section of one message starts, descriptor included; -1 if it is absent.

    `body` is the first body section, `end` the first byte after the message.
    """

    __slots__ = (
        "application_properties",
        "body",
        "delivery_annotations",
        "end",
        "footer",
        "header",
        "message_annotations",
        "properties",
    )

    def __init__(self) -> None:
        self.header = -1
        self.delivery_annotations = -1
        self.message_annotations = -1
        self.properties = -1
        self.application_properties = -1
        self.body = -1
        self.footer = -1
        self.end = -1


# -- the walk over the sections -------------------------------------------------------------


def scan(buffer: bytes, start: int = 0, end: int | None = None, sections_max: int = UNLIMITED) -> Sections:
    """Find the sections of the message in `buffer[start:end]`. Sizes are checked, contents not."""
    if end is None:
        end = len(buffer)
    try:
        return _scan(buffer, start, end, sections_max)
    except MALFORMED as cause:
        raise WireError(f"malformed message: {cause}") from None


def _scan(buffer: bytes, pos: int, end: int, sections_max: int) -> Sections:
    sections = Sections()
    sections.end = end
    last = count = 0
    while pos < end:
        section = pos
        if buffer[pos] == 0x00 and buffer[pos + 1] == 0x53:
            code = buffer[pos + 2]
            pos += 3
        else:
            code, pos = section_at(buffer, pos)
        size = _SIZES.get(code << 8 | buffer[pos], -1)
        if size == _SIZE_8:
            pos += 2 + buffer[pos + 1]
        elif size == _SIZE_32:
            pos += 5 + _U32.unpack_from(buffer, pos + 1)[0]
        elif size == _EMPTY:
            pos += 1
        elif code == VALUE:
            pos = skip(buffer, pos)
        else:
            raise WireError(f"a section 0x{code:x} of type 0x{buffer[pos]:02x} at byte {section}")
        if pos > end:
            raise WireError(f"section 0x{code:x} at byte {section} ends at byte {pos}, its message at {end}")
        if code <= last and not (code == last and code in _REPEATABLE):
            raise WireError(f"section 0x{code:x} at byte {section} comes after section 0x{last:x}")
        if code >= DATA:
            count += 1
            if count > sections_max:
                raise _too_many(sections_max)
            _note_body(sections, code, last, section)
        elif code == PROPERTIES:
            sections.properties = section
        elif code == HEADER:
            sections.header = section
        elif code == MESSAGE_ANNOTATIONS:
            sections.message_annotations = section
        elif code == APPLICATION_PROPERTIES:
            sections.application_properties = section
        else:
            sections.delivery_annotations = section
        last = code
    return sections


def _note_body(sections: Sections, code: int, last: int, section: int) -> None:
    if code == FOOTER:
        sections.footer = section
    elif last < DATA:
        sections.body = section
    elif code != last:
        # "one or more data sections, one or more amqp-sequence sections, or a single
        # amqp-value section" [AMQP 3.2]
        raise WireError(f"body sections 0x{last:x} and 0x{code:x} in one message")


def _too_many(sections_max: int) -> WireError:
    return WireError(f"a message with more than {sections_max} sections")


def in_order(buffer: bytes, sections_max: int = UNLIMITED) -> bytes:
    """The sections of a message in the order of the standard, whatever order they came in.

    Some clients write the footer before the body, or annotations after it. Duplicate sections
    are left for `scan` to refuse.
    """
    sections: list[tuple[int, bytes]] = []
    pos = 0
    try:
        while pos < len(buffer):
            start = pos
            if len(sections) == sections_max:
                raise _too_many(sections_max)
            pos = _end_of(buffer, start)
            if pos > len(buffer):
                raise WireError(f"the section at byte {start} ends at byte {pos}, its message before")
            sections.append((section_at(buffer, start)[0], buffer[start:pos]))
    except MALFORMED as cause:
        raise WireError(f"malformed message: {cause}") from None
    return b"".join(section for _, section in sorted(sections, key=itemgetter(0)))


def section_end(buffer: bytes, start: int) -> int:
    """Where the section that starts here ends."""
    try:
        return _end_of(buffer, start)
    except MALFORMED as cause:
        raise WireError(f"malformed section at byte {start}: {cause}") from None


def _end_of(buffer: bytes, start: int) -> int:
    return skip(buffer, section_at(buffer, start)[1])


def section_at(buffer: bytes, pos: int) -> tuple[int, int]:
    """Code of the section at `pos`, and the offset of the value in it.

    Clients write the descriptor as a small ulong; a long one or a symbol is also allowed.
    """
    if buffer[pos] != 0x00:
        raise WireError(f"0x{buffer[pos]:02x} at byte {pos} starts no section")
    if buffer[pos + 1] == 0x53:
        return buffer[pos + 2], pos + 3
    descriptor, after = DECODERS[buffer[pos + 1]](buffer, pos + 2, 0)
    if type(descriptor) is ULong:
        return int(descriptor), after
    if type(descriptor) is Symbol and descriptor in _SECTION_NAMES:
        return _SECTION_NAMES[descriptor], after
    raise WireError(f"the {type(descriptor).__name__} at byte {pos + 1} describes no section")
