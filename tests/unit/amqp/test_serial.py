"""Numbers that wrap keep their order across the wrap [RFC 1982]."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.serial import SERIAL_MAX, add, before, distance

_SERIALS = st.integers(0, SERIAL_MAX)


@given(_SERIALS, st.integers(0, 2**31 - 1))
def test_what_is_added_is_the_distance(start: int, count: int) -> None:
    assert distance(start, add(start, count)) == count
    assert distance(add(start, count), start) == -count
    assert add(add(start, count), -count) == start


@given(_SERIALS, st.integers(1, 2**31 - 1))
def test_a_number_comes_before_those_added_to_it(start: int, count: int) -> None:
    assert before(start, add(start, count))
    assert not before(add(start, count), start)


def test_the_number_after_the_last_is_zero() -> None:
    assert add(SERIAL_MAX, 1) == 0
    assert distance(SERIAL_MAX, 0) == 1
    assert before(SERIAL_MAX, 0)
    assert not before(7, 7)
