"""Rules, topics and subscriptions as XML, both ways."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.admin.documents import parse_entry
from bendybus.admin.filter_rules import read_rule, rule_elements
from bendybus.atom import INSTANCE, SERVICE_BUS
from bendybus.domain.filters import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from bendybus.domain.filters.records import rule_from_record, rule_to_record
from bendybus.errors import ArgumentError, BrokerError

PARAMETERS = {
    "text": "<&>",
    "int": 5,
    "long": 2**40,
    "double": 0.5,
    "flag": True,
    "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "span": timedelta(seconds=90),
    "id": UUID(int=5),
}
RULES = [
    RuleDescription("r"),
    RuleDescription("r", FalseFilter()),
    RuleDescription("r", SqlFilter("a < @text", PARAMETERS), SqlRuleAction("SET b = @int", {"int": 1})),
    RuleDescription("r", CorrelationFilter(correlation_id="c", label="<l>", properties=PARAMETERS)),
    RuleDescription(
        "r",
        CorrelationFilter("a", "b", "c", "d", "e", "f", "g", "h"),
        SqlRuleAction("REMOVE x; SET sys.Label = 'y'"),
    ),
]


def read(elements: str, name: str = "r") -> RuleDescription:
    body = (
        f'<entry><content><RuleDescription xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{elements}'
        "</RuleDescription></content></entry>"
    )
    return read_rule(parse_entry(body.encode()).elements, name)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_shown_means_the_same_when_it_comes_back(rule: RuleDescription) -> None:
    assert read(rule_elements(rule)) == rule


def test_values_have_the_prefix_that_the_javascript_client_counts_on() -> None:
    shown = rule_elements(RULES[2])
    assert '<Filter i:type="SqlFilter">' in shown
    assert '<Value xmlns:d6p1="http://www.w3.org/2001/XMLSchema" i:type="d6p1:int">5</Value>' in shown
    assert shown.index("<Filter") < shown.index("<Action") < shown.index("<CreatedAt") < shown.index("<Name>")


def test_any_prefix_will_do_for_the_type() -> None:
    elements = (
        f'<Filter xmlns:p4="{INSTANCE}" p4:type="SqlFilter"><SqlExpression>a = @p</SqlExpression><Parameters>'
        f'<KeyValueOfstringanyType><Key>@p</Key><Value xmlns:l28="http://www.w3.org/2001/XMLSchema" '
        'p4:type="l28:double">2</Value></KeyValueOfstringanyType></Parameters></Filter>'
    )
    assert read(elements).filter == SqlFilter("a = @p", {"@p": 2.0})


def test_a_rule_without_a_filter_takes_everything_and_without_a_name_is_the_default() -> None:
    assert read("") == RuleDescription("r", TrueFilter())
    assert read("<Name>mine</Name>", "").name == "mine"
    assert read("", "").name == "$Default"


def filter_of(kind: str, children: str) -> str:
    return f'<Filter i:type="{kind}">{children}</Filter>'


def parameter(kind: str, text: str) -> str:
    value = f'<Value i:type="{kind}">{text}</Value>'
    pair = f"<KeyValueOfstringanyType><Key>p</Key>{value}</KeyValueOfstringanyType>"
    return filter_of("SqlFilter", f"<SqlExpression>1=2</SqlExpression><Parameters>{pair}</Parameters>")


@pytest.mark.parametrize(
    ("elements", "told"),
    [
        (filter_of("RegexFilter", ""), "of type 'RegexFilter'; allowed are SqlFilter"),
        ("<Filter/>", "of type ''"),
        (filter_of("SqlFilter", ""), "expected"),
        (filter_of("SqlFilter", "<SqlExpression>a =</SqlExpression>"), "At position"),
        ('<Action i:type="Other"/>', "of type 'Other'"),
        ('<Action i:type="SqlRuleAction"><SqlExpression>SET</SqlExpression></Action>', "At position"),
        (parameter("d6p1:int", "x"), "'x', which is no int"),
        (parameter("d6p1:boolean", "maybe"), "which is no boolean"),
        (parameter("d6p1:dateTime", "soon"), "which is no dateTime"),
        (parameter("d6p1:duration", "long"), "which is no duration"),
        (parameter("d6p1:base64Binary", "QQ=="), "which is no base64Binary"),
        (
            filter_of("CorrelationFilter", "<Properties><Pair/></Properties>"),
            "Pair is not a Key with its Value",
        ),
    ],
)
def test_what_is_no_rule_is_refused_by_name(elements: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        read(elements)


@given(
    st.sampled_from(["int", "long", "double", "boolean", "dateTime", "duration", "guid", "string", "?"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<&>"), max_size=20),
)
def test_any_value_is_read_or_refused(kind: str, text: str) -> None:
    with suppress(BrokerError):
        read(parameter(f"d6p1:{kind}", text))


# -- what was written ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", "3"),
        ("int", "3"),
        ("short", "3"),
        ("double", "3"),
        ("decimal", "3.10"),
        ("dateTime", "2026-03-04T05:06:07.1234567Z"),
        ("dateTime", "2026-03-04T05:06:07"),
        ("dateTime", "2026-03-04T05:06:07.5+02:00"),
        ("duration", "P1DT0S"),
        ("boolean", "true"),
        ("string", " 3 "),
    ],
)
def test_a_value_is_shown_with_the_type_and_the_text_it_was_written_with(kind: str, text: str) -> None:
    rule = read(parameter(f"d6p1:{kind}", text))
    schema = "http://www.w3.org/2001/XMLSchema"
    if kind == "duration":
        schema = "http://schemas.microsoft.com/2003/10/Serialization/"
    shown = f'<Value xmlns:d6p1="{schema}" i:type="d6p1:{kind}">{text}</Value>'
    assert shown in rule_elements(rule)
    # After a restart too.
    assert shown in rule_elements(rule_from_record(json.loads(json.dumps(rule_to_record(rule)))))


@pytest.mark.parametrize(
    ("text", "constant"), [("1 = 1", True), ("1=1", True), ("1 =0", False), ("1=2", None)]
)
def test_a_sql_filter_that_takes_everything_stays_one_with_its_text_and_parameters(
    text: str, constant: bool | None
) -> None:
    pair = (
        '<KeyValueOfstringanyType><Key>p</Key><Value i:type="d6p1:long">3</Value></KeyValueOfstringanyType>'
    )
    rule = read(
        filter_of("SqlFilter", f"<SqlExpression>{text}</SqlExpression><Parameters>{pair}</Parameters>")
    )
    assert isinstance(rule.filter, SqlFilter)
    assert rule.filter.constant is constant
    assert f'<Filter i:type="SqlFilter"><SqlExpression>{text}</SqlExpression>' in rule_elements(rule)
    assert 'i:type="d6p1:long">3</Value>' in rule_elements(rule)
