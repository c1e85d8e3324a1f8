"""Rules over AMQP, as the SDKs write and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bendybus.admin.filter_rules import rule_elements
from bendybus.amqp.codec import decode, encode
from bendybus.amqp.types import Char, Described, Float32, Int, Symbol, Timestamp, ULong
from bendybus.domain.filters import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from bendybus.errors import ArgumentError
from bendybus.gateway.management.filter_rules import encode_rule, read_rule
from bendybus.names import Instant


def body(**description: object) -> dict[object, object]:
    return {
        "rule-name": "r",
        "rule-description": {key.replace("_", "-"): v for key, v in description.items()},
    }


def test_a_sql_rule_with_an_action_is_read() -> None:
    given = body(
        sql_filter={"expression": "a = 1"}, sql_rule_action={"expression": "SET b = 2"}, rule_name="r"
    )
    assert read_rule(given) == RuleDescription("r", SqlFilter("a = 1"), SqlRuleAction("SET b = 2"))


@pytest.mark.parametrize(("text", "expected"), [("1=1", TrueFilter()), ("1=0", FalseFilter())])
def test_true_and_false_arrive_as_sql(text: str, expected: object) -> None:
    assert read_rule(body(sql_filter={"expression": text}, sql_rule_action=None)).filter == expected


def test_a_correlation_rule_is_read() -> None:
    given = body(
        correlation_filter={
            "correlation-id": "c",
            "message-id": None,
            "label": "l",
            "properties": {"n": Int(1), "at": Timestamp(1000), "s": Symbol("x")},
        }
    )
    assert read_rule(given).filter == CorrelationFilter(
        correlation_id="c",
        label="l",
        properties={"n": 1, "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "s": "x"},
    )


@pytest.mark.parametrize(
    ("sent", "kept"), [(Int(5), int), (ULong(5), int), (True, bool), (Float32(0.5), float), (Char("x"), str)]
)
def test_values_are_kept_without_their_types_on_the_wire(sent: object, kept: type) -> None:
    # `in range(...)` tries one number after the other for a class derived from int: over HTTP such a rule
    # was shown after a minute.
    rule_filter = read_rule(body(correlation_filter={"properties": {"n": sent}})).filter
    assert isinstance(rule_filter, CorrelationFilter)
    assert type(rule_filter.properties["n"]) is kept


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"rule-name": "r"},
        {"rule-name": 5, "rule-description": {"sql-filter": {"expression": "1=1"}}},
        body(),
        body(sql_filter={"expression": "1=1"}, correlation_filter={}),
        body(sql_filter="1=1"),
        body(sql_filter={"expression": 1}),
        body(sql_filter={"expression": "a ="}),
        body(sql_filter={"expression": "1=1"}, sql_rule_action={"expression": "SET"}),
        body(correlation_filter={"label": 5}),
        body(correlation_filter={"properties": [1]}),
        body(correlation_filter={"properties": {"a": [1]}}),
        {"rule-name": "a/b", "rule-description": {"sql-filter": {"expression": "1=1"}}},
    ],
)
def test_what_is_no_rule_is_an_argument_error(bad: dict[object, object]) -> None:
    with pytest.raises(ArgumentError):
        read_rule(bad)


@pytest.mark.parametrize(
    ("rule", "rule_filter", "action"),
    [
        (RuleDescription("r"), (0x1370000007, ["1=1", 20]), (0x13700000005, [])),
        (RuleDescription("r", FalseFilter()), (0x1370000008, ["1=0", 20]), (0x13700000005, [])),
        (
            RuleDescription("r", SqlFilter("a=1"), SqlRuleAction("SET b = 1")),
            (0x1370000006, ["a=1", 20]),
            (0x13700000006, ["SET b = 1", 20]),
        ),
        (
            RuleDescription("r", CorrelationFilter(to="t", properties={"d": timedelta(seconds=1)})),
            (
                0x1370000009,
                [
                    *(None, None, "t"),
                    *[None] * 5,
                    {"d": Described(Symbol("com.microsoft:timespan"), 10_000_000)},
                ],
            ),
            (0x13700000005, []),
        ),
    ],
)
def test_rules_are_told_under_the_codes_that_the_sdks_know(
    rule: RuleDescription, rule_filter: tuple[int, list[object]], action: tuple[int, list[object]]
) -> None:
    told, _ = decode(encode(encode_rule(rule)))
    description = told["rule-description"]  # type: ignore[call-overload, index]
    assert isinstance(description, Described)
    assert type(description.descriptor) is ULong and description.descriptor == 0x13700000004
    shown_filter, shown_action, name, created_at = description.value
    assert (shown_filter.descriptor, shown_filter.value) == rule_filter
    assert (shown_action.descriptor, shown_action.value) == action
    assert (name, created_at) == ("r", Instant(0))


def test_whole_numbers_of_a_correlation_filter_keep_their_width() -> None:
    given = body(correlation_filter={"properties": {"int": Int(3), "long": 3}})
    found = encode_rule(read_rule(given))["rule-description"].value[0].value[-1]
    assert {name: type(value) for name, value in found.items()} == {"int": Int, "long": int}
    shown = rule_elements(read_rule(given))
    assert 'i:type="d6p1:int">3<' in shown
    assert 'i:type="d6p1:long">3<' in shown


@pytest.mark.parametrize("text", ["1 = 1", "1 = 0"])
def test_another_spelling_of_true_and_false_stays_a_sql_filter(text: str) -> None:
    rule = read_rule(body(sql_filter={"expression": text}, sql_rule_action=None))
    assert rule.filter == SqlFilter(text)
