"""Who is held back and who is disconnected, when, and how it ends."""

from __future__ import annotations

import pytest

from bendybus.errors import BrokerError, MemoryLimitReached
from bendybus.gateway.memory_budget import HELD_BACK_MAX_TICKS, MemoryAccount, MemoryBudget

LIMIT = 1000


class FakeHolder:
    def __init__(self, budget: MemoryBudget, holds: int = 0) -> None:
        self.held_back = False
        self.evicted: BrokerError | None = None
        self.account: MemoryAccount = budget.open(self)
        self.account.update(holds)

    def hold_back(self, held_back: bool) -> None:
        self.held_back = held_back

    def evict(self, reason: BrokerError) -> None:
        self.evicted = reason


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(LIMIT)


def test_below_four_fifths_nobody_is_held_back(budget: MemoryBudget) -> None:
    holders = [FakeHolder(budget, 400), FakeHolder(budget, 400)]
    assert not any(holder.held_back for holder in holders)
    assert budget.used_bytes == 800


def test_above_four_fifths_the_largest_are_held_back_and_the_small_go_on(budget: MemoryBudget) -> None:
    small, large, middle = (FakeHolder(budget, each) for each in (10, 600, 200))
    assert [each.held_back for each in (small, large, middle)] == [False, True, False]
    assert not large.evicted


def test_the_closer_the_limit_the_more_are_held_back(budget: MemoryBudget) -> None:
    small, large, middle = (FakeHolder(budget, each) for each in (10, 600, 200))
    middle.account.update(260)
    assert [each.held_back for each in (small, large, middle)] == [False, True, True]


def test_those_held_back_go_on_only_below_seven_tenths(budget: MemoryBudget) -> None:
    small, large = FakeHolder(budget, 10), FakeHolder(budget, 800)
    large.account.update(720)
    assert large.held_back
    large.account.update(680)
    assert not large.held_back and not small.held_back


def test_beyond_the_limit_the_largest_is_disconnected_and_told_why(budget: MemoryBudget) -> None:
    small, large, middle = (FakeHolder(budget, each) for each in (10, 600, 300))
    small.account.update(150)
    assert isinstance(large.evicted, MemoryLimitReached)
    assert large.evicted.condition == "amqp:connection:forced"
    assert not middle.evicted and not small.evicted
    assert budget.evictions == 1


def test_what_a_disconnected_client_leaves_is_counted_and_nobody_else_pays_for_it(
    budget: MemoryBudget,
) -> None:
    large, small = FakeHolder(budget, 900), FakeHolder(budget, 10)
    large.account.update(1100)
    assert large.evicted and budget.used_bytes == 1110
    small.account.update(100)
    assert not small.held_back and not small.evicted
    large.account.update(0)
    assert budget.used_bytes == 100


def test_a_client_that_is_held_back_for_too_long_is_disconnected(budget: MemoryBudget) -> None:
    large, small = FakeHolder(budget, 800), FakeHolder(budget, 10)
    for _ in range(HELD_BACK_MAX_TICKS):
        budget.tick()
    assert large.held_back and not large.evicted
    budget.tick()
    assert large.evicted and not small.evicted


def test_a_connection_that_ends_leaves_nothing_behind(budget: MemoryBudget) -> None:
    holder = FakeHolder(budget, 900)
    holder.account.close()
    holder.account.update(0)
    assert budget.used_bytes == 0
    assert not FakeHolder(budget, 700).held_back
