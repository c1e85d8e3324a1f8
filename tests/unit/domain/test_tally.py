"""The tally of a partition: counts per command, and a histogram of the time that messages waited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain.messages import Message
from bendybus.domain.tally import LATENCY_BOUNDS_MS, Tally
from bendybus.names import Instant


def message(enqueued_at: int) -> Message:
    made = Message(b"x", size=1)
    made.enqueued_at = Instant(enqueued_at)
    return made


@given(st.lists(st.integers(0, 10**8), max_size=30))
def test_a_batch_is_counted_as_its_messages_would_be_one_by_one(times: list[int]) -> None:
    at = Instant(10**8)
    together, apart = Tally(), Tally()
    together.give([message(time) for time in times], at)
    for time in times:
        apart.give([message(time)], at)
    assert (together.latency, together.latency_sum_ms) == (apart.latency, apart.latency_sum_ms)
    assert together.outgoing == sum(together.latency) == len(times)


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    tally = Tally()
    tally.give([message(1000 - LATENCY_BOUNDS_MS[2])], Instant(1000))
    assert tally.latency.index(1) == 2
    tally.give([message(0)], Instant(LATENCY_BOUNDS_MS[-1] + 1))
    assert tally.latency[-1] == 1
