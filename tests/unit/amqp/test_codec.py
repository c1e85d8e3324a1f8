"""Values keep their type and value through bytes, in every encoding the standard gives them."""

from __future__ import annotations

import math
from enum import IntEnum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.codec import decode, encode
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

# Sizes on both sides of 255 make the short and the long forms meet.
_TEXT = st.one_of(st.text(max_size=20), st.text("aé", min_size=120, max_size=300))
_ASCII = st.one_of(
    st.text(st.characters(max_codepoint=127), max_size=20), st.text("s", min_size=250, max_size=260)
)
_BINARY = st.one_of(st.binary(max_size=20), st.binary(min_size=250, max_size=260))

SCALARS: dict[type[object], st.SearchStrategy[object]] = {
    type(None): st.none(),
    bool: st.booleans(),
    UByte: st.integers(0, 2**8 - 1).map(UByte),
    UShort: st.integers(0, 2**16 - 1).map(UShort),
    UInt: st.integers(0, 2**32 - 1).map(UInt),
    ULong: st.integers(0, 2**64 - 1).map(ULong),
    Byte: st.integers(-(2**7), 2**7 - 1).map(Byte),
    Short: st.integers(-(2**15), 2**15 - 1).map(Short),
    Int: st.integers(-(2**31), 2**31 - 1).map(Int),
    int: st.integers(-(2**63), 2**63 - 1),
    Float32: st.floats(width=32).map(Float32),
    float: st.floats(),
    Decimal32: st.binary(min_size=4, max_size=4).map(Decimal32),
    Decimal64: st.binary(min_size=8, max_size=8).map(Decimal64),
    Decimal128: st.binary(min_size=16, max_size=16).map(Decimal128),
    Char: st.characters(exclude_categories=["Cs"]).map(Char),
    Timestamp: st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    UUID: st.uuids(),
    bytes: _BINARY,
    str: _TEXT,
    Symbol: _ASCII.map(Symbol),
}
_SCALAR = st.one_of(*SCALARS.values())
_KEY = st.one_of(SCALARS[str], SCALARS[Symbol], SCALARS[int], SCALARS[ULong], SCALARS[UUID], SCALARS[bytes])
_DESCRIPTOR = st.one_of(SCALARS[ULong], SCALARS[Symbol])


def _arrays_of(element: type[object], values: st.SearchStrategy[object]) -> st.SearchStrategy[Array]:
    descriptors = st.lists(_DESCRIPTOR, max_size=2).map(tuple)
    return st.builds(Array, st.just(element), st.lists(values, max_size=6), descriptors)


_ARRAY_OF_SCALARS = st.sampled_from(sorted(SCALARS, key=str)).flatmap(
    lambda kind: _arrays_of(kind, SCALARS[kind])
)


def _deeper(children: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    lists = st.lists(children, max_size=5)
    maps = st.dictionaries(_KEY, children, max_size=4)
    return st.one_of(
        lists,
        maps,
        st.builds(Described, _DESCRIPTOR, children),
        _arrays_of(list, lists),
        _arrays_of(dict, maps),
        _arrays_of(Array, _ARRAY_OF_SCALARS),
    )


VALUES = st.recursive(st.one_of(_SCALAR, _ARRAY_OF_SCALARS), _deeper, max_leaves=12)


def same(left: object, right: object) -> bool:
    """Equal in value and in type, all the way down; NaN is itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return same([*left.keys(), *left.values()], [*right.keys(), *right.values()])
    if isinstance(left, Described) and isinstance(right, Described):
        return same([left.descriptor, left.value], [right.descriptor, right.value])
    if isinstance(left, Array) and isinstance(right, Array):
        return left.element is right.element and same(
            [*left.descriptors, *left.values], [*right.descriptors, *right.values]
        )
    return left == right


@given(VALUES)
def test_a_value_keeps_type_and_value_through_bytes(value: object) -> None:
    encoded = encode(value)
    decoded, end = decode(encoded)
    assert same(decoded, value)
    assert end == len(encoded)


@given(VALUES, st.binary(max_size=5), st.binary(max_size=5))
def test_a_value_is_read_between_other_bytes(value: object, before: bytes, after: bytes) -> None:
    encoded = encode(value)
    decoded, end = decode(before + encoded + after, len(before))
    assert same(decoded, value)
    assert end == len(before) + len(encoded)


@pytest.mark.parametrize("element", sorted(SCALARS, key=str), ids=lambda element: element.__name__)
def test_an_empty_array_keeps_its_element_type(element: type[object]) -> None:
    assert decode(encode(Array(element, []))) == (Array(element, []), len(encode(Array(element, []))))


# Every encoding of the standard's type list [AMQP 1.6], whether or not we write it.
_ENCODINGS: list[tuple[str, object]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("56 01", True),
    ("56 00", False),
    ("50 ff", UByte(255)),
    ("60 ffff", UShort(65535)),
    ("43", UInt(0)),
    ("52 07", UInt(7)),
    ("70 00000007", UInt(7)),
    ("44", ULong(0)),
    ("53 07", ULong(7)),
    ("80 0000000000000007", ULong(7)),
    ("80 ffffffffffffffff", ULong(2**64 - 1)),
    ("51 80", Byte(-128)),
    ("61 8000", Short(-32768)),
    ("54 ff", Int(-1)),
    ("71 ffffffff", Int(-1)),
    ("55 ff", -1),
    ("81 ffffffffffffffff", -1),
    ("72 3fc00000", Float32(1.5)),
    ("82 3ff8000000000000", 1.5),
    ("74 01020304", Decimal32(bytes([1, 2, 3, 4]))),
    ("84 0102030405060708", Decimal64(bytes(range(1, 9)))),
    ("94 0102030405060708090a0b0c0d0e0f10", Decimal128(bytes(range(1, 17)))),
    ("73 0001f68c", Char("\N{BUS}")),
    ("83 0000000000000001", Timestamp(1)),
    ("98 0102030405060708090a0b0c0d0e0f10", UUID(bytes=bytes(range(1, 17)))),
    ("a0 02 0102", b"\x01\x02"),
    ("b0 00000002 0102", b"\x01\x02"),
    ("a1 02 c3a9", "é"),
    ("b1 00000002 c3a9", "é"),
    ("a3 02 6162", Symbol("ab")),
    ("b3 00000002 6162", Symbol("ab")),
    ("45", []),
    ("c0 01 00", []),
    ("c0 03 02 41 40", [True, None]),
    ("d0 00000004 00000000", []),
    ("d0 00000006 00000002 41 40", [True, None]),
    ("c1 01 00", {}),
    ("c1 06 02 a1 01 61 52 01", {"a": UInt(1)}),
    ("d1 00000004 00000000", {}),
    ("d1 00000009 00000002 a1 01 61 52 01", {"a": UInt(1)}),
    ("e0 01 00", Array(type(None), [])),
    ("e0 02 00 a3", Array(Symbol, [])),
    ("e0 04 02 55 01 ff", Array(int, [1, -1])),
    ("e0 03 01 56 01", Array(bool, [True])),
    ("e0 02 03 41", Array(bool, [True, True, True])),
    ("e0 02 02 43", Array(UInt, [UInt(0), UInt(0)])),
    ("e0 02 02 45", Array(list, [[], []])),
    ("f0 00000009 00000001 71 00000005", Array(Int, [Int(5)])),
    ("e0 07 01 a3 04 61626364", Array(Symbol, [Symbol("abcd")])),
    ("e0 07 02 00 53 09 50 01 02", Array(UByte, [UByte(1), UByte(2)], (ULong(9),))),
    ("e0 09 02 e0 02 00 50 03 01 50 07", Array(Array, [Array(UByte, []), Array(UByte, [UByte(7)])])),
    ("00 53 24 45", Described(ULong(0x24), [])),
    ("00 80 0000000000000024 45", Described(ULong(0x24), [])),
    ("00 a3 01 78 a1 01 79", Described(Symbol("x"), "y")),
    ("00 53 01 00 53 02 41", Described(ULong(1), Described(ULong(2), True))),
]


@pytest.mark.parametrize(("octets", "value"), _ENCODINGS, ids=[octets for octets, _ in _ENCODINGS])
def test_every_encoding_of_a_type_is_read(octets: str, value: object) -> None:
    encoded = bytes.fromhex(octets)
    decoded, end = decode(encoded)
    assert same(decoded, value)
    assert end == len(encoded)


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (UInt(0), "43"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (ULong(0), "44"),
        (ULong(255), "53ff"),
        (ULong(256), "800000000000000100"),
        (Int(-128), "5480"),
        (Int(128), "7100000080"),
        (127, "557f"),
        (-129, "81ffffffffffffff7f"),
        ([], "45"),
        ([None], "c0020140"),
        ({}, "c10100"),
        ("", "a100"),
        (b"", "a000"),
        (Symbol("a"), "a30161"),
        (Array(Symbol, [Symbol("a")]), "e00401a30161"),
        (Array(int, [1]), "e00a01810000000000000001"),
        (True, "41"),
    ],
)
def test_the_shortest_encoding_is_written(value: object, octets: str) -> None:
    assert encode(value).hex() == octets


@pytest.mark.parametrize("size", [0, 254, 255, 256, 65536])
def test_binaries_and_lists_change_form_where_a_size_byte_ends(size: int) -> None:
    assert decode(encode(bytes(size)))[0] == bytes(size)
    assert decode(encode([None] * size))[0] == [None] * size
    assert encode(bytes(size))[0] == (0xA0 if size < 256 else 0xB0)


@pytest.mark.parametrize("octets", [bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b")[::2]])
def test_any_kind_of_octets_is_written_as_binary(octets: object) -> None:
    assert decode(encode(octets))[0] == b"ab"


def test_a_tuple_is_a_list_and_a_subclass_is_what_it_inherits() -> None:
    class Colour(IntEnum):
        RED = 3

    assert encode((1, "a")) == encode([1, "a"])
    assert encode(Colour.RED) == encode(3)


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UShort(-1),
        UInt(-1),
        UInt(2**32),
        ULong(2**64),
        Byte(128),
        Short(2**15),
        Int(2**31),
        2**63,
        Timestamp(2**63),
        Float32(1e300),
        Decimal32(b"123"),
        Symbol("é"),
        [UInt(-1)],
        Array(Int, [2**31]),
    ],
)
def test_what_does_not_fit_its_type_is_refused_on_writing(value: object) -> None:
    with pytest.raises(ValueError):
        encode(value)


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, Array(set, []), Array(Described, [])])
def test_what_has_no_amqp_type_is_refused_on_writing(value: object) -> None:
    with pytest.raises(TypeError):
        encode(value)
