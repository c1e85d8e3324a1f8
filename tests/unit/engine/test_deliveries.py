"""Delivery records: ranges of ids, putting a delivery together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.serial import SERIAL_MAX
from bendybus.engine.deliveries import PartialDelivery, WaitingDelivery, id_ranges


def expand(ranges: list[tuple[int, int]]) -> list[int]:
    return [
        (first + step) & SERIAL_MAX
        for first, last in ranges
        for step in range(((last - first) & SERIAL_MAX) + 1)
    ]


def test_neighbours_share_a_range() -> None:
    assert id_ranges([]) == []
    assert id_ranges([7]) == [(7, 7)]
    assert id_ranges([3, 1, 2, 9, 8, 20]) == [(1, 3), (8, 9), (20, 20)]


def test_a_run_over_the_wrap_is_one_range() -> None:
    assert id_ranges([SERIAL_MAX - 1, SERIAL_MAX, 0, 1]) == [(SERIAL_MAX - 1, 1)]
    assert id_ranges([0, SERIAL_MAX]) == [(SERIAL_MAX, 0)]
    assert id_ranges([0, 5, SERIAL_MAX]) == [(5, 5), (SERIAL_MAX, 0)]


@given(st.sets(st.integers(0, 30)), st.sampled_from([0, 1000, SERIAL_MAX - 15]))
def test_ranges_hold_exactly_the_ids_and_never_touch(offsets: set[int], start: int) -> None:
    ids = {(start + offset) & SERIAL_MAX for offset in offsets}
    ranges = id_ranges(ids)
    assert sorted(expand(ranges)) == sorted(ids)
    firsts = {first for first, _ in ranges}
    assert not any(((last + 1) & SERIAL_MAX) in firsts for _, last in ranges)


@given(st.lists(st.binary(max_size=8)), st.integers(0, 20))
def test_a_delivery_is_whole_or_oversize(pieces: list[bytes], size_max: int) -> None:
    partial = PartialDelivery(1, b"t", 0)
    for piece in pieces:
        partial.add(piece, size_max)
        assert partial.payload is None or len(partial.payload) <= size_max
    delivery = partial.complete()
    whole = b"".join(pieces)
    assert delivery.oversize is (len(whole) > size_max)
    assert delivery.payload == (b"" if delivery.oversize else whole)


@given(st.binary(max_size=20), st.binary(max_size=60), st.integers(1, 40))
def test_the_pieces_of_a_payload_are_the_payload(head: bytes, body: bytes, frame_size: int) -> None:
    waiting = WaitingDelivery(None, b"t", head, memoryview(body), settled=False, message_format=0)
    starts = range(0, waiting.size, frame_size)
    frames = [b"".join(waiting.pieces(start, start + frame_size)) for start in starts]
    assert b"".join(frames) == head + body
    assert all(len(frame) == frame_size for frame in frames[:-1])
