"""No bytes make the decoder raise anything but a WireError, nor cost more than their length warrants."""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.codec import NESTING_MAX, decode, encode
from bendybus.amqp.composite import decode_composite
from bendybus.amqp.decoder import skip
from bendybus.amqp.types import Array, Described, Symbol, ULong
from bendybus.errors import NestingTooDeep, WireError

_SAMPLES = [
    encode(value)
    for value in (
        [None, True, 5, "text", b"octets", Symbol("symbol"), 1.5, {"key": ["value", {}]}],
        {"long": "x" * 300, Symbol("map"): {1: 2}},
        Array(Symbol, [Symbol("a"), Symbol("bc")]),
        Array(Array, [Array(int, [1, 2]), Array(str, ["a" * 300])]),
        Described(ULong(0x28), ["queue", None, {Symbol("filter"): Described(Symbol("d"), "s")}]),
        Array(str, ["x"], (Symbol("descriptor"),)),
    )
]


@pytest.mark.parametrize("encoded", _SAMPLES)
def test_a_value_cut_short_anywhere_is_a_wire_error(encoded: bytes) -> None:
    for length in range(len(encoded)):
        with pytest.raises(WireError):
            decode(encoded[:length])


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_wire_errors(octets: bytes) -> None:
    for read in (decode, decode_composite):
        with contextlib.suppress(WireError):
            read(octets, 0)


# Bytes that look like AMQP go deeper into the decoder than bytes that do not.
_PIECES = [
    *(bytes([code]) for code in (0x00, 0x02, 0x40, 0x41, 0x43, 0x45, 0x50, 0x52, 0x53, 0x54, 0x56, 0x60)),
    *(bytes([code]) for code in (0x70, 0x73, 0x80, 0x98, 0xA0, 0xA1, 0xA3, 0xB0, 0xFF)),
    *map(bytes.fromhex, ("c004", "c00201", "c10602", "c103", "d0000000", "e003", "e00402", "f000", "005324")),
]


@given(st.lists(st.sampled_from(_PIECES), max_size=40).map(b"".join))
def test_near_misses_raise_nothing_but_wire_errors(octets: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(octets)


@given(st.sampled_from(_SAMPLES), st.data())
def test_one_changed_byte_raises_nothing_but_wire_errors(encoded: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(encoded) - 1))
    changed = encoded[:at] + bytes([data.draw(st.integers(0, 255))]) + encoded[at + 1 :]
    with contextlib.suppress(WireError):
        decode(changed)


def _nested_lists(levels: int) -> bytes:
    value = b"\x45"
    for _ in range(levels):
        value = b"\xd0" + (len(value) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + value
    return value


def test_nesting_is_bounded() -> None:
    decode(_nested_lists(NESTING_MAX))
    with pytest.raises(NestingTooDeep):
        decode(_nested_lists(NESTING_MAX + 1))
    with pytest.raises(NestingTooDeep):
        decode(_nested_lists(5000))


@pytest.mark.parametrize(
    "opening", ["00", "005301", "e0ff0100", "e0ff01e0", "e0ff010053", "c0ff02", "c1ff02"]
)
def test_endless_openings_are_refused(opening: str) -> None:
    octets = bytes.fromhex(opening) * 100_000
    with pytest.raises(WireError):
        decode(octets)


def test_descriptors_of_an_array_are_bounded() -> None:
    inside = b"\x00\x53\x01" * (NESTING_MAX + 1) + b"\x50\x07"
    with pytest.raises(NestingTooDeep):
        decode(b"\xe0" + bytes([len(inside) + 1, 1]) + inside)


def test_skipping_what_is_not_there_is_refused() -> None:
    for octets in (b"\xa0\x05\x00", b"\x80\x00", b"\xd0\x00\x00\x00\x05\x00"):
        with pytest.raises(WireError):
            skip(octets, 0)


def test_skipping_endless_descriptors_is_refused() -> None:
    with pytest.raises(NestingTooDeep):
        skip(b"\x00" * 100_000, 0)


@pytest.mark.parametrize(
    "octets",
    [
        "d0 00000010 ffffffff 40404040404040404040404040",
        "d0 ffffffff ffffffff 40",
        "d0 00000004 00000001",
        "d0 00000000 00000000",
        "c0 00 00",
        "c0 05 ff 40 40 40 40",
        "d1 0000000e ffffffff 4040404040404040404040",
        "f0 00000010 ffffffff 52 0101010101010101010101",
        "f0 0000000c 00000003 80 0000000000000001",
        "b0 ffffffff 01",
        "b1 7fffffff 41",
        "b3 ffffffff 41",
    ],
)
def test_false_sizes_and_counts_are_refused_before_memory_is_taken(octets: str) -> None:
    encoded = bytes.fromhex(octets)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(encoded)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "octets",
    ["c003 05 4040", "d000000006 000186a0 4040", "d100000006 000186a0 4040", "f000000006 000186a0 50 01"],
)
def test_a_false_count_does_not_reach_into_the_bytes_that_follow(octets: str) -> None:
    encoded = bytes.fromhex(octets) + b"\x40" * 200_000
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="announced"):
            decode(encoded)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


# null, true, false, uint 0, ulong 0, empty list: elements that take no bytes
@pytest.mark.parametrize("constructor", ["40", "41", "42", "43", "44", "45"])
@pytest.mark.parametrize("count", ["80000000", "ffffffff", "00000011"])
def test_an_array_of_elements_without_bytes_is_bounded(constructor: str, count: str) -> None:
    with pytest.raises(WireError):
        decode(bytes.fromhex(f"f0 00000005 {count} {constructor}"))


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        ("c1 05 03 a1 00 40 40", "odd number of items in a map"),
        ("d1 00000007 00000003 404040", "odd number of items in a long map"),
        ("c1 03 02 45 40", "list as a key"),
        ("c1 05 02 c1 01 00 40", "map as a key"),
        ("c1 06 02 e0 02 00 50 40", "array as a key"),
        ("c1 06 02 00 53 01 45 40", "described list as a key"),
        ("a1 01 ff", "no UTF-8"),
        ("a1 03 eda080", "surrogate in UTF-8"),
        ("b1 00000001 c3", "UTF-8 cut short"),
        ("a3 02 c3a9", "symbol beyond ASCII"),
        ("73 00110000", "char beyond Unicode"),
        ("73 ffffffff", "char far beyond Unicode"),
        ("73 0000d800", "surrogate as char"),
        ("56 02", "boolean that is neither"),
        ("c0 04 02 40 40 40", "list longer than its items"),
        ("c0 02 01 52 07", "item longer than its list"),
        ("e0 05 01 52 01 02 03", "array longer than its elements"),
        ("e0 03 01 a1 05 6162636465", "element longer than its array"),
        ("e0 03 01 00 53", "array that ends in a descriptor"),
        ("e0 03 01 57 00", "array of an unknown type"),
        ("01", "unknown type"),
        ("46", "unknown type"),
        ("a2 00", "unknown type"),
        ("", "nothing at all"),
    ],
)
def test_malformed_values_are_refused(octets: str, why: str) -> None:
    with pytest.raises(WireError):
        decode(bytes.fromhex(octets))


def test_memory_stays_in_proportion_to_hostile_bytes() -> None:
    # The densest legal bytes: arrays of empty lists, sixteen objects from six bytes.
    inner = bytes.fromhex("e0021045") * 2000
    octets = b"\xd0" + (len(inner) + 4).to_bytes(4, "big") + (2000).to_bytes(4, "big") + inner
    tracemalloc.start()
    try:
        decode(octets)
        assert tracemalloc.get_traced_memory()[1] < 500 * len(octets)
    finally:
        tracemalloc.stop()


# What Python reduces numbers by, to hash them.
_MODULUS = sys.hash_info.modulus


@pytest.mark.parametrize("kind", ["uuid", "described"])
def test_keys_of_a_map_with_the_same_hash_are_refused(kind: str) -> None:
    keys: list[object] = [UUID(int=7 + number * _MODULUS) for number in range(5000)]
    if kind == "described":
        keys = [Described(ULong(1), key) for key in keys]
    assert len(set(map(hash, keys))) == 1
    entries = b"".join(encode(key) + b"\x40" for key in keys)
    size, count = len(entries) + 4, 2 * len(keys)
    with pytest.raises(WireError, match="same hash"):
        decode(b"\xd1" + size.to_bytes(4, "big") + count.to_bytes(4, "big") + entries)


def test_a_large_map_with_keys_of_any_type_is_read() -> None:
    keys = [
        key for number in range(500) for key in (UUID(int=number), Described(ULong(1), number), str(number))
    ]
    assert decode(encode(dict.fromkeys(keys)))[0] == dict.fromkeys(keys)
