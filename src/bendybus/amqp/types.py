"""AMQP types that Python lacks, so that a value is written back with the type it was read with.

| AMQP                      | Python                    | AMQP                     | Python            |
| ------------------------- | ------------------------- | ------------------------ | ----------------- |
| null                      | `None`                    | timestamp (ms)           | `Timestamp`       |
| boolean                   | `bool`                    | uuid                     | `uuid.UUID`       |
| ubyte, ushort, uint, ulong| `UByte` … `ULong`         | binary                   | `bytes`           |
| byte, short, int          | `Byte`, `Short`, `Int`    | string                   | `str`             |
| long                      | `int`                     | symbol                   | `Symbol`          |
| float, double             | `Float32`, `float`        | list, map                | `list`, `dict`    |
| decimal32, 64, 128        | `Decimal32` … (raw bytes) | array                    | `Array`           |
| char                      | `Char`                    | described                | `Described`       |

They compare like the plain Python values they hold; only codec.py looks at the
class. Ranges are checked when a value is encoded, not when it is created, because decoding
creates millions of them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Array",
    "Byte",
    "Char",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "Float32",
    "Int",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
]


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    """32 bits. A plain `int` is a long. Some clients insist on one of the two."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the Unix epoch, UTC."""

    __slots__ = ()


class Float32(float):
    __slots__ = ()


class Decimal32(bytes):
    """Four bytes of IEEE 754 decimal, passed through without decoding."""

    __slots__ = ()


class Decimal64(bytes):
    __slots__ = ()


class Decimal128(bytes):
    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class Symbol(str):
    """ASCII text from a known vocabulary. Equal to the same text as `str`, also as a key."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor that says what it means."""

    descriptor: object
    value: object


@dataclass(slots=True)
class Array:
    """Values of one type. An empty array also has a type.

    `element` is the Python class from the table above (`type(None)` for null).
    `descriptors`, outermost first, apply to every element.
    """

    element: type[object]
    values: list[object]
    descriptors: tuple[object, ...] = ()
