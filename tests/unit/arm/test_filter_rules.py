"""Filter rules as JSON: what Azure's tools send, and what they are shown."""

from __future__ import annotations

import pytest

from bendybus.arm.filter_rules import read_rule, rule_properties
from bendybus.domain.filters import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from bendybus.errors import ArgumentError


@pytest.mark.parametrize(
    "rule",
    [
        RuleDescription("r", SqlFilter("size > 5", preprocessing=True), SqlRuleAction("SET a = 1")),
        RuleDescription("r", CorrelationFilter(label="red", properties={"region": "north"})),
        RuleDescription("r", CorrelationFilter(reply_to_session_id="s", content_type="text/plain")),
    ],
    ids=["sql", "properties", "fields"],
)
def test_what_is_shown_is_read_as_the_same_rule(rule):
    shown = rule_properties(rule)
    assert read_rule("r", shown) == rule
    assert rule_properties(read_rule("r", shown)) == shown


def test_filters_that_azure_does_not_show_are_shown_as_sql():
    for made, text in ((TrueFilter(), "1=1"), (FalseFilter(), "1=0")):
        shown = rule_properties(RuleDescription("r", made))
        assert shown["filterType"] == "SqlFilter"
        assert shown["sqlFilter"] == {"sqlExpression": text, "compatibilityLevel": 20}


def test_a_rule_without_a_filter_matches_everything():
    assert read_rule("r", {}).filter == TrueFilter()


def test_the_filter_that_is_not_used_may_be_empty():
    given = {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": "a=1"}, "correlationFilter": {}}
    assert read_rule("r", given).filter == SqlFilter("a=1")
    assert read_rule("r", {"correlationFilter": {"label": "red"}}).filter == CorrelationFilter(label="red")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"filterType": "TrueFilter"}, "filterType"),
        ({"filterType": "SqlFilter", "correlationFilter": {"label": "x"}}, "another type"),
        ({"sqlFilter": {"sqlExpression": "a ="}}, "At position 4"),
        ({"sqlFilter": {"sqlExpression": "a=1", "compatibilityLevel": 30}}, "compatibilityLevel"),
        ({"sqlFilter": {"expression": "a=1"}}, "unknown member 'expression'"),
        ({"correlationFilter": {"properties": {"size": 5}}}, "'size' must be a string"),
        ({"correlationFilter": {"label": "x", "requiresPreprocessing": True}}, "requiresPreprocessing"),
        ({"filter": {}}, "unknown member 'filter'"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, reason):
    with pytest.raises(ArgumentError, match=reason):
        read_rule("r", given)
