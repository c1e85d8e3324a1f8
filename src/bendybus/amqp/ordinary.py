"""Fast path for messages of the ordinary shape.

Nearly every message has a header, properties with a text as id and no group,
perhaps application properties, and one data section, all in their usual encodings.
For those, `ordinary` finds what routing needs at a third of the cost of `scan` and `identity`.
For any other message it returns None, and those two are used.
"""

from __future__ import annotations

import struct
from typing import Final

from bendybus.amqp.decoder import MALFORMED
from bendybus.amqp.message_encoder import PropertyField

__all__ = ["ordinary"]

_HEADER: Final = b"\x00\x53\x70\xc0"
_PROPERTIES: Final = b"\x00\x53\x73\xc0"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_DATA: Final = b"\x00\x53\x75"
_GROUP_ID: Final = PropertyField.GROUP_ID

# A properties section up to the text of its id: size and count of the list8, code and length of the text.
_properties: Final = struct.Struct(">4sBBBB").unpack_from
# Any other section up to its size, which may take three more bytes.
_section: Final = struct.Struct(">3sBB").unpack_from
_u32: Final = struct.Struct(">I").unpack_from


def ordinary(buffer: bytes) -> tuple[int, str] | None:
    """Where the bare message starts (after the header) and its message-id; None for other shapes."""
    try:
        bare = 5 + buffer[4] if buffer[:4] == _HEADER else 0
        section, size, count, kind, length = _properties(buffer, bare)
        if section != _PROPERTIES or kind != 0xA1 or count > _GROUP_ID:
            return None
        start = bare + 8
        stop = start + length
        pos = bare + 5 + size
        if stop > pos:
            return None
        message_id = buffer[start:stop].decode()
        section, kind, size = _section(buffer, pos)
        if section == _APPLICATION_PROPERTIES:
            if kind == 0xC1:
                pos += 5 + size
            elif kind == 0xD1:
                pos += 8 + _u32(buffer, pos + 4)[0]
            else:
                return None
            section, kind, size = _section(buffer, pos)
        if section != _DATA:
            return None
        if kind == 0xB0:
            pos += 8 + _u32(buffer, pos + 4)[0]
        elif kind == 0xA0:
            pos += 5 + size
        else:
            return None
    except MALFORMED:
        return None
    return (bare, message_id) if pos == len(buffer) else None
