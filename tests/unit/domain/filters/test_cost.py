"""What rules may cost: a limit for the filters of a topic, and one for each message."""

from __future__ import annotations

import pytest

from bendybus.domain.filters import RuleDescription, SqlFilter
from bendybus.domain.filters.like import SHIFT_AND_COST
from bendybus.domain.filters.reading import MESSAGE_COST_MAX
from bendybus.domain.filters.rules import match
from bendybus.domain.filters.values import TEXT_VALUE_LENGTH_MAX
from bendybus.domain.topic_entities import FILTER_COST_MAX, SubscriptionDescription, check_filter_cost
from bendybus.errors import QuotaExceeded, RulesTooCostly
from fix_filters import reading


@pytest.mark.parametrize(
    ("condition", "cost"),
    [
        ("a = 1", 1),
        ("a LIKE 'begins%'", 1),
        ("a LIKE '%ends'", 1),
        ("a LIKE 'b_gins%_nds'", 1),
        ("a LIKE '%in it%'", 2),
        ("NOT (a LIKE '%x%' OR b LIKE '%y%z%') AND c = 1", 3),
        ("a LIKE '%x_y%'", 1 + SHIFT_AND_COST),
        ("a LIKE '%x!_y%' ESCAPE '!'", 2),
        ("a LIKE @p", 2),
        ("a LIKE b", 1 + SHIFT_AND_COST),
        ("a LIKE '%x%' ESCAPE b", 1 + SHIFT_AND_COST),
        ("a LIKE NULL", 1 + SHIFT_AND_COST),
    ],
)
def test_a_filter_costs_what_it_searches(condition, cost):
    assert SqlFilter(condition, {"@p": "%x%"}).cost == cost


def subscription(name: str, condition: str, count: int) -> SubscriptionDescription:
    rules = tuple(RuleDescription(f"r{number}", SqlFilter(condition)) for number in range(count))
    return SubscriptionDescription.of("t", name, rules=rules)


def test_filters_that_cost_too_much_together_are_refused_by_name():
    enough = subscription("a", "x LIKE '%y%'", FILTER_COST_MAX // 2)
    check_filter_cost("t", [], [enough])
    more = subscription("b", "x LIKE '%y_z%'", 1)
    with pytest.raises(RulesTooCostly, match=f"cost {FILTER_COST_MAX + 1 + SHIFT_AND_COST}") as refused:
        check_filter_cost("t", [enough], [enough, more])
    assert isinstance(refused.value, QuotaExceeded)


def test_what_costs_too_much_already_may_become_cheaper():
    """A topic of an earlier version, which had no limit."""
    before = subscription("a", "x LIKE '%y_z%'", 400)
    after = subscription("a", "x LIKE '%y_z%'", 399)
    check_filter_cost("t", [before], [after])
    check_filter_cost("t", [before], [before])
    with pytest.raises(RulesTooCostly):
        check_filter_cost("t", [after], [before])


def test_a_message_whose_texts_cost_too_much_fails_the_rules_that_would_go_on():
    text = "a" * TEXT_VALUE_LENGTH_MAX
    affordable = MESSAGE_COST_MAX // TEXT_VALUE_LENGTH_MAX
    rules = [RuleDescription(f"r{n}", SqlFilter("x LIKE '%b%'")) for n in range(affordable + 3)]
    outcome = match([*rules, RuleDescription("cheap", SqlFilter("y = 1"))], reading({"x": text, "y": 1}))
    assert [failure.rule_name for failure in outcome.failures] == [rule.name for rule in rules[affordable:]]
    assert {failure.reason for failure in outcome.failures} == {"FilterException"}
    assert "search more text of this message" in outcome.failures[0].description
    assert len(outcome.copies) == 1


def test_like_searches_no_text_beyond_the_longest_property():
    outcome = match([RuleDescription("r", SqlFilter("x LIKE '%b%'"))], reading({"x": "a" * 32_769}))
    assert "LIKE searches at most 32768" in outcome.failures[0].description
    # Its ends are looked at, however long it is.
    ends = match([RuleDescription("r", SqlFilter("x LIKE 'a%a'"))], reading({"x": "a" * 32_769}))
    assert len(ends.copies) == 1
