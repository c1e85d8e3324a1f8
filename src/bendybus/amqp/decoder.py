"""Bytes -> one AMQP value: primitives, lists, maps, arrays, described values.

Dispatched on the constructor byte. The one rule: a count or size is trusted only
after it has been compared with the bytes that are there, so a hostile value needs
no more memory than an honest one of its length.

Readers check variable-width values themselves and rely on the end of the buffer for
the rest: `decode` turns the Python exceptions raised there into `WireError`. A reader may
run past its parent's end but not past the buffer; the parent then sees that its
children do not end where it does. Which Python class is which type: types.py.
The other direction: encoder.py. Composites (open, accepted, …): composite.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

from bendybus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from bendybus.errors import NestingTooDeep, WireError

__all__ = ["DECODERS", "MALFORMED", "NESTING_MAX", "decode", "list_bounds", "map_bounds", "skip"]

# The deepest value that a Service Bus client sends is about six levels (a frame, its
# source, a filter set, a described filter). 32 leaves room and limits recursion.
NESTING_MAX: Final = 32

# The elements of an array of nulls or empty lists take no bytes. No encoder
# writes such arrays, and 16 elements keep the memory per byte close to that of a list.
ZERO_WIDTH_COUNT_MAX: Final = 16

# Keys of one map that may have the hash of another key. The hashes of texts and of binaries are secret, but a
# client can choose uuids and described values whose hashes are equal: the time for a map of them would grow
# with the square of its size.
COLLISIONS_MAX: Final = 16

# Raised inside a reader that reads past the end, or reads invalid text.
MALFORMED: Final = (IndexError, struct.error, UnicodeDecodeError)

Decoder: TypeAlias = Callable[[bytes, int, int], tuple[object, int]]

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I8: Final = struct.Struct(">b")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")
_SIZE_COUNT_32: Final = struct.Struct(">II")


# -- reading --------------------------------------------------------------------------


def decode(buffer: bytes, offset: int = 0) -> tuple[object, int]:
    """The value at `offset` and the offset after it."""
    try:
        return DECODERS[buffer[offset]](buffer, offset + 1, NESTING_MAX)
    except MALFORMED as cause:
        raise WireError(f"malformed AMQP value at byte {offset}: {cause}") from None


# Each reader gets the offset after the constructor byte, and how many more levels
# may be nested below it.


def _decode_unknown(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    raise WireError(f"0x{buffer[pos - 1]:02x} at byte {pos - 1} is no AMQP type")


def _decode_null(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return None, pos


def _decode_true(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return True, pos


def _decode_false(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return False, pos


def _decode_boolean(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    octet = buffer[pos]
    if octet > 1:
        raise WireError(f"0x{octet:02x} at byte {pos} is no boolean")
    return octet == 1, pos + 1


def _decode_uint0(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return UInt(0), pos


def _decode_ulong0(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return ULong(0), pos


def _decode_list0(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    empty: list[object] = []
    return empty, pos


def _octet_decoder(kind: Callable[[int], object]) -> Decoder:
    def decode_octet(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
        return kind(buffer[pos]), pos + 1

    return decode_octet


def _number_decoder(layout: struct.Struct, kind: Callable[[Any], object]) -> Decoder:
    unpack, width = layout.unpack_from, layout.size

    def decode_number(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
        return kind(unpack(buffer, pos)[0]), pos + width

    return decode_number


def _plain_number_decoder(layout: struct.Struct) -> Decoder:
    """For long and double, which are plain Python types."""
    unpack, width = layout.unpack_from, layout.size

    def decode_plain_number(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
        return unpack(buffer, pos)[0], pos + width

    return decode_plain_number


def _slice(buffer: bytes, pos: int, size: int) -> bytes:
    end = pos + size
    if end > len(buffer):
        raise WireError(f"{size} bytes announced at byte {pos}, {len(buffer) - pos} are there")
    return buffer[pos:end]


def _decimal_decoder(width: int, kind: Callable[[bytes], object]) -> Decoder:
    def decode_decimal(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
        return kind(_slice(buffer, pos, width)), pos + width

    return decode_decimal


def _decode_char(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    point = _U32.unpack_from(buffer, pos)[0]
    # "UTF-32BE encoded": neither beyond Unicode nor half of a surrogate pair [AMQP 1.6.16]
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise WireError(f"0x{point:x} at byte {pos} is no Unicode character")
    return Char(chr(point)), pos + 4


def _decode_uuid(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return UUID(bytes=_slice(buffer, pos, 16)), pos + 16


def _decode_binary8(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    size = buffer[pos]
    return _slice(buffer, pos + 1, size), pos + 1 + size


def _decode_binary32(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    size = _U32.unpack_from(buffer, pos)[0]
    return _slice(buffer, pos + 4, size), pos + 4 + size


def _decode_string8(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    size = buffer[pos]
    return _slice(buffer, pos + 1, size).decode(), pos + 1 + size


def _decode_string32(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    size = _U32.unpack_from(buffer, pos)[0]
    return _slice(buffer, pos + 4, size).decode(), pos + 4 + size


def _decode_symbol8(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    size = buffer[pos]
    return Symbol(_slice(buffer, pos + 1, size).decode("ascii")), pos + 1 + size


def _decode_symbol32(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    size = _U32.unpack_from(buffer, pos)[0]
    return Symbol(_slice(buffer, pos + 4, size).decode("ascii")), pos + 4 + size


def _bounds8(buffer: bytes, pos: int) -> tuple[int, int, int]:
    """Count, first item and end of a compound whose size byte is at `pos`."""
    size, count = buffer[pos], buffer[pos + 1]
    end = pos + 1 + size
    # Every item takes at least a byte, and the count is part of the size.
    if end > len(buffer) or count >= size:
        raise _untrue(count, size, pos, len(buffer))
    return count, pos + 2, end


def _bounds32(buffer: bytes, pos: int) -> tuple[int, int, int]:
    size, count = _SIZE_COUNT_32.unpack_from(buffer, pos)
    end = pos + 4 + size
    if end > len(buffer) or count + 4 > size:
        raise _untrue(count, size, pos, len(buffer))
    return count, pos + 8, end


def _untrue(count: int, size: int, pos: int, length: int) -> WireError:
    return WireError(f"{count} items in {size} bytes announced at byte {pos}, {length - pos} are there")


def _items(buffer: bytes, bounds: tuple[int, int, int], depth: int) -> tuple[list[object], int]:
    if depth <= 0:
        raise NestingTooDeep(f"values nested deeper than {NESTING_MAX} at byte {bounds[1]}")
    count, pos, end = bounds
    decoders = DECODERS
    items: list[object] = []
    for _ in range(count):
        item, pos = decoders[buffer[pos]](buffer, pos + 1, depth - 1)
        items.append(item)
    if pos != end:
        raise _misfit(pos, end)
    return items, end


def _misfit(pos: int, end: int) -> WireError:
    return WireError(f"items of a list, map or array end at byte {pos}, its size says {end}")


def _pairs(buffer: bytes, bounds: tuple[int, int, int], depth: int) -> tuple[dict[object, object], int]:
    # "a map with an odd number of entries is invalid" [AMQP 1.6.23]
    if bounds[0] & 1:
        raise WireError(f"a map of {bounds[0]} items at byte {bounds[1]} leaves a key without value")
    items, end = _items(buffer, bounds, depth)
    try:
        if bounds[0] > 2 * COLLISIONS_MAX:
            _refuse_collisions(items[::2], bounds[1])
        return dict(zip(items[::2], items[1::2], strict=True)), end
    except TypeError:
        raise WireError(f"a list, map or array is a key of the map at byte {bounds[1]}") from None


def _refuse_collisions(keys: list[object], pos: int) -> None:
    """Refuse a map whose keys were chosen to have the same hash. `TypeError` if a key has none."""
    hashes = [hash(key) for key in keys if type(key) is UUID or type(key) is Described]
    if len(hashes) - len(set(hashes)) > COLLISIONS_MAX:
        raise WireError(f"too many keys of the map at byte {pos} are the same or have the same hash")


def _decode_list8(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return _items(buffer, _bounds8(buffer, pos), depth)


def _decode_list32(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return _items(buffer, _bounds32(buffer, pos), depth)


def _decode_map8(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return _pairs(buffer, _bounds8(buffer, pos), depth)


def _decode_map32(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    return _pairs(buffer, _bounds32(buffer, pos), depth)


def _decode_array8(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    size, count = buffer[pos], buffer[pos + 1]
    return _array(buffer, count, pos + 2, pos + 1 + size, depth)


def _decode_array32(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    size, count = _SIZE_COUNT_32.unpack_from(buffer, pos)
    return _array(buffer, count, pos + 8, pos + 4 + size, depth)


def _array(buffer: bytes, count: int, pos: int, end: int, depth: int) -> tuple[Array, int]:
    if depth <= 0:
        raise NestingTooDeep(f"values nested deeper than {NESTING_MAX} at byte {pos}")
    if end > len(buffer):
        raise WireError(f"an array announced to end at byte {end}, only {len(buffer)} are there")
    # Some clients omit the constructor of an array without elements.
    if count == 0 and pos == end:
        return Array(type(None), []), end
    descriptors: list[object] = []
    while buffer[pos] == 0x00:
        if len(descriptors) >= depth:
            raise NestingTooDeep(f"values nested deeper than {NESTING_MAX} at byte {pos}")
        descriptor, pos = DECODERS[buffer[pos + 1]](buffer, pos + 2, depth - 1)
        descriptors.append(descriptor)
    code = buffer[pos]
    pos += 1
    element = _ELEMENT_BY_CODE.get(code)
    if element is None:
        raise WireError(f"0x{code:02x} at byte {pos - 1} is no AMQP type")
    kind, width = element
    # `width` is the minimum width of an element, so the count is checked before the loop.
    if count * width > end - pos or (width == 0 and count > ZERO_WIDTH_COUNT_MAX):
        raise WireError(f"an array of {count} elements announced in {end - pos} bytes at byte {pos}")
    decoder = DECODERS[code]
    values: list[object] = []
    for _ in range(count):
        value, pos = decoder(buffer, pos, depth - 1)
        values.append(value)
    if pos != end:
        raise _misfit(pos, end)
    return Array(kind, values, tuple(descriptors)), end


def _decode_described(buffer: bytes, pos: int, depth: int) -> tuple[object, int]:
    if depth <= 0:
        raise NestingTooDeep(f"values nested deeper than {NESTING_MAX} at byte {pos}")
    descriptor, pos = DECODERS[buffer[pos]](buffer, pos + 1, depth - 1)
    value, pos = DECODERS[buffer[pos]](buffer, pos + 1, depth - 1)
    return Described(descriptor, value), pos


_BY_CODE: Final[dict[int, tuple[Decoder, type[object], int]]] = {
    # constructor: reader, Python class, minimum width of an element after the constructor
    0x40: (_decode_null, type(None), 0),
    0x41: (_decode_true, bool, 0),
    0x42: (_decode_false, bool, 0),
    0x43: (_decode_uint0, UInt, 0),
    0x44: (_decode_ulong0, ULong, 0),
    0x45: (_decode_list0, list, 0),
    0x50: (_octet_decoder(UByte), UByte, 1),
    0x51: (_number_decoder(_I8, Byte), Byte, 1),
    0x52: (_octet_decoder(UInt), UInt, 1),
    0x53: (_octet_decoder(ULong), ULong, 1),
    0x54: (_number_decoder(_I8, Int), Int, 1),
    0x55: (_plain_number_decoder(_I8), int, 1),
    0x56: (_decode_boolean, bool, 1),
    0x60: (_number_decoder(_U16, UShort), UShort, 2),
    0x61: (_number_decoder(_I16, Short), Short, 2),
    0x70: (_number_decoder(_U32, UInt), UInt, 4),
    0x71: (_number_decoder(_I32, Int), Int, 4),
    0x72: (_number_decoder(_F32, Float32), Float32, 4),
    0x73: (_decode_char, Char, 4),
    0x74: (_decimal_decoder(4, Decimal32), Decimal32, 4),
    0x80: (_number_decoder(_U64, ULong), ULong, 8),
    0x81: (_plain_number_decoder(_I64), int, 8),
    0x82: (_plain_number_decoder(_F64), float, 8),
    0x83: (_number_decoder(_I64, Timestamp), Timestamp, 8),
    0x84: (_decimal_decoder(8, Decimal64), Decimal64, 8),
    0x94: (_decimal_decoder(16, Decimal128), Decimal128, 16),
    0x98: (_decode_uuid, UUID, 16),
    0xA0: (_decode_binary8, bytes, 1),
    0xA1: (_decode_string8, str, 1),
    0xA3: (_decode_symbol8, Symbol, 1),
    0xB0: (_decode_binary32, bytes, 4),
    0xB1: (_decode_string32, str, 4),
    0xB3: (_decode_symbol32, Symbol, 4),
    0xC0: (_decode_list8, list, 2),
    0xC1: (_decode_map8, dict, 2),
    0xD0: (_decode_list32, list, 8),
    0xD1: (_decode_map32, dict, 8),
    0xE0: (_decode_array8, Array, 3),
    0xF0: (_decode_array32, Array, 9),
}

DECODERS: Final[list[Decoder]] = [_decode_unknown] * 256
"""Readers by constructor byte, for modules that read parts of a value in place."""

DECODERS[0x00] = _decode_described
for _code, (_reader, _kind, _width) in _BY_CODE.items():
    DECODERS[_code] = _reader

_ELEMENT_BY_CODE: Final = {code: (kind, width) for code, (_, kind, width) in _BY_CODE.items()}


# -- reading in place -------------------------------------------------------------------


def list_bounds(buffer: bytes, pos: int) -> tuple[int, int, int]:
    """Count, first item and end of the list whose constructor is at `pos`."""
    code = buffer[pos]
    if code == 0xC0:
        return _bounds8(buffer, pos + 1)
    if code == 0xD0:
        return _bounds32(buffer, pos + 1)
    if code == 0x45:
        return 0, pos + 1, pos + 1
    raise WireError(f"0x{code:02x} at byte {pos} is no list")


def map_bounds(buffer: bytes, pos: int) -> tuple[int, int, int]:
    """Count (keys and values), first key and end of the map whose constructor is at `pos`."""
    code = buffer[pos]
    if code == 0xC1:
        bounds = _bounds8(buffer, pos + 1)
    elif code == 0xD1:
        bounds = _bounds32(buffer, pos + 1)
    else:
        raise WireError(f"0x{code:02x} at byte {pos} is no map")
    if bounds[0] & 1:
        raise WireError(f"a map of {bounds[0]} items at byte {pos} leaves a key without value")
    return bounds


# The upper half of a constructor byte says how its data is measured [AMQP 1.2]:
# 4-9 by a fixed width, A C E by a size of one byte, B D F by a size of four.
_FIXED_WIDTH: Final = {0x40: 0, 0x50: 1, 0x60: 2, 0x70: 4, 0x80: 8, 0x90: 16}


def skip(buffer: bytes, pos: int) -> int:
    """The offset after the value whose constructor is at `pos`. Reads only its size."""
    levels = NESTING_MAX
    # One value per iteration. A descriptor adds the described value to the list.
    waiting = 1
    while waiting:
        code = buffer[pos]
        waiting -= 1
        if code == 0x00:
            waiting += 2
            levels -= 1
            if levels == 0:
                raise NestingTooDeep(f"values nested deeper than {NESTING_MAX} at byte {pos}")
            pos += 1
            continue
        family = code & 0xF0
        if family >= 0xA0:
            if family & 0x10:
                pos += 5 + _U32.unpack_from(buffer, pos + 1)[0]
            else:
                pos += 2 + buffer[pos + 1]
        elif family in _FIXED_WIDTH:
            pos += 1 + _FIXED_WIDTH[family]
        else:
            raise WireError(f"0x{code:02x} at byte {pos} is no AMQP type")
    if pos > len(buffer):
        raise WireError(f"a value ends at byte {pos}, only {len(buffer)} are there")
    return pos
