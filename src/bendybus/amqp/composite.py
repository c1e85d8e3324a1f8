"""Composite types: a described list whose items have names, as a slotted dataclass.

`register` ties a class to its descriptor and its fields' wire types. Both directions
are derived from that one table. Decoding checks each field,
so code above can rely on a handle being a number. The classes and
the table: performatives.py. Header and properties of a message: message.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, cast
from uuid import UUID

from bendybus.amqp.decoder import DECODERS, MALFORMED, NESTING_MAX, list_bounds
from bendybus.amqp.encoder import (
    LIST,
    Encoder,
    encode_into,
    encode_string_into,
    encode_symbol_into,
    encode_symbol_keys_into,
    encode_uint_into,
    register_encoder,
    wrap_into,
)
from bendybus.amqp.types import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort
from bendybus.errors import WireError

__all__ = [
    "ANY",
    "BINARY",
    "BOOLEAN",
    "COMPOSITE",
    "FIELDS",
    "MAP",
    "MESSAGE_ID",
    "STRING",
    "SYMBOL",
    "SYMBOLS",
    "TIMESTAMP",
    "UBYTE",
    "UINT",
    "ULONG",
    "USHORT",
    "Composite",
    "WireType",
    "composed",
    "decode_composite",
    "descriptor_at",
    "encode_composite_into",
    "register",
]


@dataclass(frozen=True, slots=True)
class WireType:
    """The type of a field: `check` validates what was read, `write` encodes what is sent. Never null."""

    name: str
    check: Callable[[object], object]
    write: Encoder


@dataclass(frozen=True, slots=True)
class Composite:
    kind: type[object]
    code: int
    name: str
    fields: tuple[str, ...]
    types: tuple[WireType, ...]
    mandatory: frozenset[str]
    values_of: Callable[[object], tuple[object, ...]]
    """The fields of an instance, in order."""


_BY_CODE: Final[dict[int, Composite]] = {}
_BY_NAME: Final[dict[str, Composite]] = {}
_BY_KIND: Final[dict[type[object], Composite]] = {}


def register(kind: type[object], code: int, name: str, *types: WireType) -> None:
    """Make `kind` a composite: `types` in the order of its dataclass fields."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # each caller's class is a dataclass
    assert len(fields) == len(types), f"{kind.__name__} has {len(fields)} fields, not {len(types)}"
    mandatory = frozenset(field.name for field in fields if field.default is dataclasses.MISSING)
    names = tuple(field.name for field in fields)
    composite = Composite(kind, code, name, names, types, mandatory, _getter(names))
    _BY_CODE[code] = _BY_NAME[name] = _BY_KIND[kind] = composite
    register_encoder(kind, encode_composite_into)


def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    # For several names, one call that loops in C. For fewer, `attrgetter` returns no tuple.
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, n) for n in names)


# -- reading ------------------------------------------------------------------------------


def descriptor_at(buffer: bytes, pos: int) -> tuple[int, int]:
    """Code of the described value at `pos`, and the offset of what it describes.

    A descriptor may be a ulong in any of its forms, or a symbol [AMQP 1.3.2].
    An unknown symbol has the code -1.
    """
    if buffer[pos] != 0x00:
        raise WireError(f"0x{buffer[pos]:02x} at byte {pos} is no described value")
    if buffer[pos + 1] == 0x53:
        return buffer[pos + 2], pos + 3
    descriptor, after = DECODERS[buffer[pos + 1]](buffer, pos + 2, 0)
    return _code_of(descriptor), after


def _code_of(descriptor: object) -> int:
    if type(descriptor) is ULong:
        return descriptor
    if type(descriptor) is Symbol:
        composite = _BY_NAME.get(descriptor)
        return -1 if composite is None else composite.code
    raise WireError(f"a {type(descriptor).__name__} cannot describe a composite")


def decode_composite(buffer: bytes, pos: int) -> tuple[object, int]:
    """The composite at `pos` as its class, and the offset after it."""
    try:
        code, pos = descriptor_at(buffer, pos)
        composite = _BY_CODE.get(code)
        if composite is None:
            raise WireError(f"no composite has the descriptor 0x{code:x}")
        count, pos, end = list_bounds(buffer, pos)
        values: list[object] = []
        for _ in range(count):
            value, pos = DECODERS[buffer[pos]](buffer, pos + 1, NESTING_MAX - 1)
            values.append(value)
    except MALFORMED as cause:
        raise WireError(f"malformed composite at byte {pos}: {cause}") from None
    if pos != end:
        raise WireError(f"fields of a {composite.name} end at byte {pos}, its size says {end}")
    return _build(composite, values), end


def composed(value: object) -> object:
    """A described value as an instance of its class, if it is registered; any other value unchanged."""
    if type(value) is not Described:
        return value
    descriptor = value.descriptor
    if type(descriptor) is ULong:
        composite = _BY_CODE.get(descriptor)
    elif type(descriptor) is Symbol:
        composite = _BY_NAME.get(descriptor)
    else:
        return value
    if composite is None:
        return value
    if type(value.value) is not list:
        raise WireError(f"a {composite.name} is a list, not a {type(value.value).__name__}")
    return _build(composite, value.value)


def _build(composite: Composite, values: list[object]) -> object:
    if len(values) > len(composite.fields):
        raise WireError(f"{len(values)} fields in a {composite.name}, which has {len(composite.fields)}")
    present: dict[str, object] = {}
    for name, wire_type, value in zip(composite.fields, composite.types, values, strict=False):
        if value is not None:
            try:
                present[name] = wire_type.check(value)
            except WireError as cause:
                raise WireError(f"{name} of a {composite.name}: {cause}") from None
    if not composite.mandatory <= present.keys():
        missing = ", ".join(sorted(composite.mandatory - present.keys()))
        raise WireError(f"a {composite.name} lacks {missing}")
    return composite.kind(**present)


# -- writing ------------------------------------------------------------------------------


def encode_composite_into(out: bytearray, value: object, *, trim: bool = False) -> None:
    """Append a composite with all its fields or, if trimmed, those up to the last that is set.

    Frames are never trimmed: some clients find fields by position and cannot handle
    a list that ends early.
    """
    composite = _BY_KIND[type(value)]
    items = bytearray()
    set_count = set_size = 0
    for count, field in enumerate(composite.values_of(value), 1):
        if field is None:
            items.append(0x40)
            continue
        wire_type = composite.types[count - 1]
        # An empty list of symbols means the same as null, and more clients can read null.
        if wire_type is SYMBOLS and not field:
            items.append(0x40)
        else:
            wire_type.write(items, field)
            set_count, set_size = count, len(items)
    if trim:
        del items[set_size:]
    out += b"\x00\x53"
    out.append(composite.code)
    if items:
        wrap_into(out, LIST, set_count if trim else len(composite.fields), items)
    else:
        out.append(0x45)


# -- wire types ---------------------------------------------------------------------------


def _expected(name: str, value: object) -> WireError:
    return WireError(f"a {type(value).__name__} where a {name} belongs")


def _unsigned(name: str, kind: Callable[[int], object], maximum: int) -> WireType:
    """Reads any integer type, because some clients send the type of their language. Writes one type."""

    def check(value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _expected(name, value)
        if not 0 <= value <= maximum:
            raise WireError(f"{value} is no {name}")
        return int(value)

    def write(out: bytearray, value: object) -> None:
        number = cast(int, value)
        if kind is UInt and 0 <= number <= maximum:
            encode_uint_into(out, number)
        else:
            encode_into(out, kind(number))

    return WireType(name, check, write)


def _check_boolean(value: object) -> object:
    if type(value) is not bool:
        raise _expected("boolean", value)
    return value


def _write_boolean(out: bytearray, value: object) -> None:
    if type(value) is bool:
        out.append(0x41 if value else 0x42)
    else:
        encode_into(out, value)


def _check_binary(value: object) -> object:
    if type(value) is not bytes:
        raise _expected("binary", value)
    return value


def _check_string(value: object) -> object:
    if not isinstance(value, str):
        raise _expected("string", value)
    return str(value)


def _write_string(out: bytearray, value: object) -> None:
    encode_string_into(out, value)


def _check_symbol(value: object) -> object:
    if not isinstance(value, str) or not value.isascii():
        raise _expected("symbol", value)
    return Symbol(value)


def _write_symbol(out: bytearray, value: object) -> None:
    encode_symbol_into(out, value)


def _check_symbols(value: object) -> object:
    """ "multiple=true": a single value, or an array of them [AMQP 1.4]. Some clients send lists."""
    values = value.values if type(value) is Array else value if type(value) is list else [value]
    return [_check_symbol(item) for item in cast("list[object]", values)]


def _write_symbols(out: bytearray, value: object) -> None:
    encode_into(out, Array(Symbol, [Symbol(item) for item in cast("list[str]", value)]))


def _check_timestamp(value: object) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or value >= 1 << 63:
        raise _expected("timestamp", value)
    return Timestamp(value)


def _write_timestamp(out: bytearray, value: object) -> None:
    encode_into(out, Timestamp(cast(int, value)))


def _check_map(value: object) -> object:
    if type(value) is not dict:
        raise _expected("map", value)
    return value


def _check_fields(value: object) -> object:
    if type(value) is not dict:
        raise _expected("map", value)
    for key in value:
        if not isinstance(key, str):
            raise _expected("symbol", key)
    return value


def _write_fields(out: bytearray, value: object) -> None:
    encode_symbol_keys_into(out, cast("dict[str, object]", value))


def _check_message_id(value: object) -> object:
    """Keeps the type of the id: a reply must name the request in that same type."""
    if not isinstance(value, (str, int, UUID, bytes)) or isinstance(value, bool):
        raise _expected("message-id", value)
    return value


def _check_any(value: object) -> object:
    return value


def COMPOSITE(*kinds: type[object]) -> WireType:  # noqa: N802  reads as one of the wire types
    """A nested composite of one of these classes. `Described` among them allows unknown ones."""
    names = " or ".join(kind.__name__ for kind in kinds)

    def check(value: object) -> object:
        known = composed(value)
        if type(known) not in kinds:
            raise _expected(names, known)
        return known

    return WireType(names, check, encode_into)


UBYTE: Final = _unsigned("ubyte", UByte, 0xFF)
USHORT: Final = _unsigned("ushort", UShort, 0xFFFF)
UINT: Final = _unsigned("uint", UInt, 0xFFFFFFFF)
ULONG: Final = _unsigned("ulong", ULong, 0xFFFFFFFFFFFFFFFF)
BOOLEAN: Final = WireType("boolean", _check_boolean, _write_boolean)
BINARY: Final = WireType("binary", _check_binary, encode_into)
STRING: Final = WireType("string", _check_string, _write_string)
SYMBOL: Final = WireType("symbol", _check_symbol, _write_symbol)
SYMBOLS: Final = WireType("symbols", _check_symbols, _write_symbols)
TIMESTAMP: Final = WireType("timestamp", _check_timestamp, _write_timestamp)
MAP: Final = WireType("map", _check_map, encode_into)
FIELDS: Final = WireType("fields", _check_fields, _write_fields)
MESSAGE_ID: Final = WireType("message-id", _check_message_id, encode_into)
ANY: Final = WireType("any", _check_any, encode_into)
