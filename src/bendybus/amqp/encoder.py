"""One AMQP value -> bytes, in the shortest form of its type.

Dispatched on the Python class; a subclass is written as the nearest class in the
table. A value without an AMQP type is the caller's mistake: `TypeError`,
or `ValueError` if it does not fit its type. The other direction: decoder.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, cast
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

__all__ = [
    "Encoder",
    "encode",
    "encode_into",
    "encode_list_into",
    "encode_string_into",
    "encode_symbol_into",
    "encode_symbol_keys_into",
    "encode_uint_into",
    "register_encoder",
    "wrap_into",
]

Encoder: TypeAlias = Callable[[bytearray, object], None]

_CODE_OCTET: Final = struct.Struct(">BB")
_CODE_U16: Final = struct.Struct(">BH")
_CODE_U32: Final = struct.Struct(">BI")
_CODE_U64: Final = struct.Struct(">BQ")
_CODE_I8: Final = struct.Struct(">Bb")
_CODE_I16: Final = struct.Struct(">Bh")
_CODE_I32: Final = struct.Struct(">Bi")
_CODE_I64: Final = struct.Struct(">Bq")
_CODE_F32: Final = struct.Struct(">Bf")
_CODE_F64: Final = struct.Struct(">Bd")
_CODE_SIZE_COUNT_8: Final = struct.Struct(">BBB")
_CODE_SIZE_COUNT_32: Final = struct.Struct(">BII")

# Constructors of the compounds, short form and long form.
LIST: Final = (0xC0, 0xD0)
MAP: Final = (0xC1, 0xD1)
ARRAY: Final = (0xE0, 0xF0)


def encode(value: object) -> bytes:
    """The bytes of one value, constructor included."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: object) -> None:
    """Append one value, constructor included."""
    encoder = _ENCODERS.get(type(value)) or _inherited_encoder(type(value))
    try:
        encoder(out, value)
    except struct.error as cause:
        raise ValueError(f"{value!r} does not fit {type(value).__name__}: {cause}") from None


def register_encoder(kind: type[object], encoder: Encoder) -> None:
    """Add another class to `encode`. composite.py does so for every composite."""
    _ENCODERS[kind] = encoder


def _inherited_encoder(kind: type[object]) -> Encoder:
    for ancestor in kind.__mro__:
        if ancestor in _ENCODERS:
            return _ENCODERS[ancestor]
    raise TypeError(f"{kind.__name__} has no AMQP type")


# -- scalars ------------------------------------------------------------------------------


def _encode_null(out: bytearray, value: object) -> None:
    out.append(0x40)


def _encode_boolean(out: bytearray, value: object) -> None:
    out.append(0x41 if value else 0x42)


def encode_uint_into(out: bytearray, number: int) -> None:
    if number == 0:
        out.append(0x43)
    elif 0 < number < 256:
        out += _CODE_OCTET.pack(0x52, number)
    else:
        out += _CODE_U32.pack(0x70, number)


def _encode_uint(out: bytearray, value: object) -> None:
    encode_uint_into(out, cast(int, value))


def _encode_ulong(out: bytearray, value: object) -> None:
    number = cast(int, value)
    if number == 0:
        out.append(0x44)
    elif 0 < number < 256:
        out += _CODE_OCTET.pack(0x53, number)
    else:
        out += _CODE_U64.pack(0x80, number)


def _encode_int(out: bytearray, value: object) -> None:
    number = cast(int, value)
    out += _CODE_I8.pack(0x54, number) if -128 <= number < 128 else _CODE_I32.pack(0x71, number)


def _encode_long(out: bytearray, value: object) -> None:
    number = cast(int, value)
    out += _CODE_I8.pack(0x55, number) if -128 <= number < 128 else _CODE_I64.pack(0x81, number)


def _number_encoder(layout: struct.Struct, code: int) -> Encoder:
    pack = layout.pack

    def encode_number(out: bytearray, value: object) -> None:
        try:
            out += pack(code, value)
        except OverflowError as cause:  # raised for a float beyond 32 bits
            raise ValueError(str(cause)) from None

    return encode_number


def _encode_char(out: bytearray, value: object) -> None:
    out += _CODE_U32.pack(0x73, ord(cast(str, value)))


def _decimal_encoder(width: int, code: int) -> Encoder:
    def encode_decimal(out: bytearray, value: object) -> None:
        octets = cast(bytes, value)
        if len(octets) != width:
            raise ValueError(f"a decimal of {8 * width} bits has {width} bytes, not {len(octets)}")
        out.append(code)
        out += octets

    return encode_decimal


def _encode_uuid(out: bytearray, value: object) -> None:
    out.append(0x98)
    out += cast(UUID, value).bytes


def _variable_into(out: bytearray, octets: bytes | bytearray | memoryview, code: int) -> None:
    size = len(octets)
    # The long form's constructor is the short one's plus 0x10 [AMQP 1.2].
    out += _CODE_OCTET.pack(code, size) if size < 256 else _CODE_U32.pack(code + 0x10, size)
    out += octets


def _encode_binary(out: bytearray, value: object) -> None:
    if isinstance(value, memoryview):
        value = value.cast("B") if value.contiguous else value.tobytes()
    _variable_into(out, cast(bytes, value), 0xA0)


def encode_string_into(out: bytearray, value: object) -> None:
    _variable_into(out, cast(str, value).encode(), 0xA1)


def encode_symbol_into(out: bytearray, value: object) -> None:
    _variable_into(out, cast(str, value).encode("ascii"), 0xA3)


# -- compounds ----------------------------------------------------------------------------


def wrap_into(out: bytearray, codes: tuple[int, int], count: int, items: bytes | bytearray) -> None:
    """Append a list, map or array of `count` items that are already encoded."""
    # The size covers what follows it: the count and the items, each at least a byte.
    if len(items) < 255:
        out += _CODE_SIZE_COUNT_8.pack(codes[0], len(items) + 1, count)
    else:
        out += _CODE_SIZE_COUNT_32.pack(codes[1], len(items) + 4, count)
    out += items


def encode_list_into(out: bytearray, values: Sequence[object]) -> None:
    if not values:
        out.append(0x45)
        return
    items = bytearray()
    for item in values:
        encode_into(items, item)
    wrap_into(out, LIST, len(values), items)


def _encode_list(out: bytearray, value: object) -> None:
    encode_list_into(out, cast("Sequence[object]", value))


def _encode_map(out: bytearray, value: object) -> None:
    entries = cast("Mapping[object, object]", value)
    items = bytearray()
    for key, entry in entries.items():
        encode_into(items, key)
        encode_into(items, entry)
    wrap_into(out, MAP, 2 * len(entries), items)


def encode_symbol_keys_into(out: bytearray, entries: Mapping[str, object]) -> None:
    """Append a map of the kind AMQP calls fields or annotations: its text keys are symbols."""
    items = bytearray()
    for key, entry in entries.items():
        # Keys are symbols [AMQP 2.8.13, 3.2.10], but clients also send strings, which
        # may contain what a symbol cannot. Such keys stay strings.
        if isinstance(key, str) and key.isascii():
            encode_symbol_into(items, key)
        else:
            encode_into(items, key)
        encode_into(items, entry)
    wrap_into(out, MAP, 2 * len(entries), items)


def _encode_described(out: bytearray, value: object) -> None:
    described = cast(Described, value)
    out.append(0x00)
    encode_into(out, described.descriptor)
    encode_into(out, described.value)


def _encode_array(out: bytearray, value: object) -> None:
    array = cast(Array, value)
    items = bytearray()
    for descriptor in array.descriptors:
        items.append(0x00)
        encode_into(items, descriptor)
    code, elements = _array_elements(array)
    items.append(code)
    items += elements
    wrap_into(out, ARRAY, len(array.values), items)


def _array_elements(array: Array) -> tuple[int, bytearray]:
    """The constructor that all elements share, and the elements without it."""
    kind, values = array.element, array.values
    if kind in _ARRAY_FIXED:
        return _fixed_elements(kind, values)
    if kind in _ARRAY_VARIABLE:
        return _variable_elements(kind, values)
    if kind is type(None):
        return 0x40, bytearray()
    raise TypeError(f"{kind.__name__} cannot be the element of an AMQP array")


def _fixed_elements(kind: type[object], values: Sequence[object]) -> tuple[int, bytearray]:
    code, encoder = _ARRAY_FIXED[kind]
    elements = bytearray()
    one = bytearray()
    for value in values:
        one.clear()
        encoder(one, value)
        elements += one[1:]
    return code, elements


def _variable_elements(kind: type[object], values: Sequence[object]) -> tuple[int, bytearray]:
    """Strings, binaries and compounds: all sizes have the same width."""
    short, encoder = _ARRAY_VARIABLE[kind]
    parts: list[bytearray] = []
    for value in values:
        part = bytearray()
        encoder(part, value)
        parts.append(part)
    fits = all(part[0] in (short, 0x45) for part in parts)
    elements = bytearray()
    for part in parts:
        elements += _body8(part) if fits else _body32(part)
    return short if fits else short + 0x10, elements


def _body8(part: bytearray) -> bytearray:
    return bytearray((1, 0)) if part[0] == 0x45 else part[1:]


def _body32(part: bytearray) -> bytearray:
    """What follows the constructor in the long form, whichever form the part has."""
    code = part[0]
    if code == 0x45:
        return bytearray((0, 0, 0, 4, 0, 0, 0, 0))
    if code & 0x10:
        return part[1:]
    if code < 0xC0:
        return bytearray(part[1].to_bytes(4, "big")) + part[2:]
    # A compound's size includes the count, which grows from one byte to four.
    return bytearray((part[1] + 3).to_bytes(4, "big") + part[2].to_bytes(4, "big")) + part[3:]


# -- the tables ---------------------------------------------------------------------------

_encode_timestamp: Final = _number_encoder(_CODE_I64, 0x83)
_encode_double: Final = _number_encoder(_CODE_F64, 0x82)

_ENCODERS: Final[dict[type[object], Encoder]] = {
    type(None): _encode_null,
    bool: _encode_boolean,
    UByte: _number_encoder(_CODE_OCTET, 0x50),
    UShort: _number_encoder(_CODE_U16, 0x60),
    UInt: _encode_uint,
    ULong: _encode_ulong,
    Byte: _number_encoder(_CODE_I8, 0x51),
    Short: _number_encoder(_CODE_I16, 0x61),
    Int: _encode_int,
    int: _encode_long,
    Float32: _number_encoder(_CODE_F32, 0x72),
    float: _encode_double,
    Decimal32: _decimal_encoder(4, 0x74),
    Decimal64: _decimal_encoder(8, 0x84),
    Decimal128: _decimal_encoder(16, 0x94),
    Char: _encode_char,
    Timestamp: _encode_timestamp,
    UUID: _encode_uuid,
    bytes: _encode_binary,
    bytearray: _encode_binary,
    memoryview: _encode_binary,
    str: encode_string_into,
    Symbol: encode_symbol_into,
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
    Array: _encode_array,
    Described: _encode_described,
}


def _boolean_octet(out: bytearray, value: object) -> None:
    out += b"\x56\x01" if value else b"\x56\x00"


# The elements of an array share one constructor, so each type has one full width here.
_ARRAY_FIXED: Final[dict[type[object], tuple[int, Encoder]]] = {
    bool: (0x56, _boolean_octet),
    UByte: (0x50, _ENCODERS[UByte]),
    UShort: (0x60, _ENCODERS[UShort]),
    UInt: (0x70, _number_encoder(_CODE_U32, 0x70)),
    ULong: (0x80, _number_encoder(_CODE_U64, 0x80)),
    Byte: (0x51, _ENCODERS[Byte]),
    Short: (0x61, _ENCODERS[Short]),
    Int: (0x71, _number_encoder(_CODE_I32, 0x71)),
    int: (0x81, _number_encoder(_CODE_I64, 0x81)),
    Float32: (0x72, _ENCODERS[Float32]),
    float: (0x82, _encode_double),
    Decimal32: (0x74, _ENCODERS[Decimal32]),
    Decimal64: (0x84, _ENCODERS[Decimal64]),
    Decimal128: (0x94, _ENCODERS[Decimal128]),
    Char: (0x73, _encode_char),
    Timestamp: (0x83, _encode_timestamp),
    UUID: (0x98, _encode_uuid),
}

# By the constructor of the short form. The long form is used if one element needs it.
_ARRAY_VARIABLE: Final[dict[type[object], tuple[int, Encoder]]] = {
    bytes: (0xA0, _encode_binary),
    str: (0xA1, encode_string_into),
    Symbol: (0xA3, encode_symbol_into),
    list: (LIST[0], _encode_list),
    dict: (MAP[0], _encode_map),
    Array: (ARRAY[0], _encode_array),
}
