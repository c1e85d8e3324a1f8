"""Rates and latencies, made of what partitions tell again and again."""

from __future__ import annotations

import pytest

from bendybus_portal.history import EntityHistory


def reading(at_ms: int, *partitions: tuple[int, int, int | None]):
    return {
        "at": at_ms,
        "partitions": [
            {"partition": number, "arrived": arrived, "active": active, "oldestEnqueuedAt": oldest}
            for number, (arrived, active, oldest) in enumerate(partitions)
        ],
    }


def test_rates_depth_and_latency_come_from_counters():
    history = EntityHistory()
    history.add(0.0, reading(10_000, (100, 40, 4_000), (100, 0, None)))
    history.add(2.0, reading(12_000, (160, 60, 5_000), (140, 0, None)))
    # 100 have arrived in two seconds, and 20 more wait: 80 have left.
    assert (history.arriving.last, history.leaving.last, history.depth.last) == (50.0, 40.0, 60)
    assert history.oldest_s.last == 7.0
    # 50 waited on average, and 40 a second left.
    assert history.wait_s.last == pytest.approx(1.25)
    assert history.rates == {0: 30.0, 1: 20.0}


def test_nothing_is_said_of_a_wait_while_nothing_leaves():
    history = EntityHistory()
    history.add(0.0, reading(10_000, (0, 0, None)))
    history.add(2.0, reading(12_000, (10, 10, 11_000)))
    assert history.leaving.last == 0.0
    assert history.wait_s.last is None


def test_a_partition_that_is_away_does_not_count_as_one_whose_messages_left():
    history = EntityHistory()
    history.add(0.0, reading(10_000, (10, 10, None), (10, 10, None)))
    told = reading(12_000, (10, 10, None))
    told["partitions"].append({"partition": 1, "available": False})
    history.add(2.0, told)
    assert history.leaving.points == []
    history.add(4.0, reading(14_000, (10, 10, None), (10, 10, None)))
    assert history.leaving.points == []
    history.add(6.0, reading(16_000, (12, 10, None), (10, 10, None)))
    assert history.leaving.points == [(6.0, 1.0)]
