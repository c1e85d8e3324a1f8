"""How long is too long: patience with a store, counted in the broker's own turns."""

from __future__ import annotations

import pytest

from bendybus.broker.health import PATIENCE_MAX_S, STALL_AFTER_S, Patience


def turns(patience: Patience, seconds: float, step: int | None = 1) -> float:
    """Turns of a fifth of a second; how long the writer was then seen to wait."""
    at, waited_s = patience.turned_at or 0.0, 0.0
    for _ in range(round(seconds / 0.2)):
        at += 0.2
        patience.turn(at, 0.0)
        waited_s = patience.waited_s("writer", step)
    return waited_s


def test_one_call_that_goes_on_is_waited_for():
    patience = Patience()
    assert turns(patience, 3.0) == pytest.approx(2.8, abs=0.3)


def test_every_call_starts_a_new_wait():
    patience = Patience()
    turns(patience, 3.0, step=1)
    assert turns(patience, 0.2, step=2) == 0.0
    assert turns(patience, 0.2, step=None) == 0.0


def test_a_process_that_was_held_up_itself_does_not_blame_its_stores():
    patience = Patience()
    turns(patience, 0.4)
    patience.turn((patience.turned_at or 0.0) + 3600, 0.0)
    assert patience.waited_s("writer", 1) < STALL_AFTER_S


def test_a_busy_disk_is_given_more_time_and_a_fast_one_is_not():
    patience = Patience(2.0)
    patience.turn(0.0, slowest_s=0.01)
    assert patience.stall_after_s == 2.0
    patience.turn(0.2, slowest_s=0.5)
    assert patience.stall_after_s == pytest.approx(5.0)
    patience.turn(0.4, slowest_s=60)
    assert patience.stall_after_s == PATIENCE_MAX_S
    turns(patience, 180, step=None)
    assert patience.stall_after_s == 2.0


def test_more_patience_may_be_asked_for_than_any_disk_is_given():
    assert Patience(30.0).stall_after_s == 30.0
