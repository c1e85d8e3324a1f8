"""Actions, correlation filters, and what the rules of a subscription make of a message."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bendybus.domain.filters import (
    DEFAULT_RULE,
    Changes,
    Copy,
    CorrelationFilter,
    Failure,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    SystemProperty,
    TrueFilter,
    match,
    rule_from_record,
    rule_to_record,
)
from bendybus.domain.filters.rules import UNCHANGED
from bendybus.domain.filters.values import TEXT_VALUE_LENGTH_MAX
from bendybus.errors import ArgumentError, FilterError
from fix_filters import reading

LABEL = SystemProperty.LABEL
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

# -- actions


def changes(action, user=None, system=None, parameters=None):
    return SqlRuleAction(action, parameters or {}).apply(reading(user, system))


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("SET b = 1", Changes(user={"b": 1})),
        ("SET A = 'new'", Changes(user={"a": "new"})),
        ("SET b = a + '!'", Changes(user={"b": "old!"})),
        ("SET b = missing", Changes(user={"b": None})),
        ("SET b = NULL", Changes(user={"b": None})),
        ("SET d = 3", Changes(user={"d": 3.0})),
        ("SET a = 3", Changes(user={"a": 3})),
        ("SET b = 1; SET c = b + 1", Changes(user={"b": 1, "c": 2})),
        ("SET b = 1; SET B = 2", Changes(user={"b": 2})),
        ("REMOVE A", Changes(removed=("a",))),
        ("REMOVE missing", Changes()),
        ("REMOVE a; SET a = 1", Changes(user={"a": 1})),
        ("SET b = 1; REMOVE b", Changes()),
        ("SET a = 1; REMOVE a", Changes(removed=("a",))),
        ("REMOVE a; SET b = a", Changes(user={"b": None}, removed=("a",))),
        ("SET sys.Label = a", Changes(system={LABEL: "old"})),
        ("SET sys.subject = 'x'; SET b = sys.Label", Changes(system={LABEL: "x"}, user={"b": "x"})),
        ("SET sys.Label = 7", Changes(system={LABEL: "7"})),
        ("REMOVE sys.Label", Changes(system={LABEL: None})),
        ("SET sys.Label = NULL", Changes(system={LABEL: None})),
        ("SET sys.MessageId = newid()", Changes(system={SystemProperty.MESSAGE_ID: str(UUID(int=1))})),
        ("SET b = @x * 2", Changes(user={"b": 42})),
        ("SET sys.TimeToLive = @span", Changes(system={SystemProperty.TIME_TO_LIVE: timedelta(hours=1)})),
    ],
)
def test_an_action_says_what_changes(action, expected):
    parameters = {"@x": 21, "span": timedelta(hours=1)}
    assert changes(action, {"a": "old", "d": 1.5}, {LABEL: "label"}, parameters) == expected


def test_an_action_leaves_the_message_alone():
    user = {"a": "old"}
    changes("SET a = 'new'; SET b = 1; REMOVE a", user)
    assert user == {"a": "old"}


def test_set_replaces_the_exact_spelling_before_any_other():
    both = {"color": 1, "COLOR": 2}
    assert changes("SET COLOR = 3", both) == Changes(user={"COLOR": 3})
    assert changes("SET Color = 3", both) == Changes(user={"color": 3})


def test_a_removed_name_is_gone_under_every_spelling():
    assert changes("REMOVE color", {"Color": 1, "x": 2, "COLOR": 3}).removed == ("Color", "COLOR")


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("SET sys.Foo = 1", "there is no system property 'Foo'"),
        ("REMOVE sys.Foo", "there is no system property 'Foo'"),
        ("SET a = sys.Foo", "there is no system property 'Foo'"),
        ("SET sys.SequenceNumber = 1", "'SequenceNumber' is the broker's own"),
        ("SET sys.TimeToLive = 5", "sys.TimeToLive must be a timedelta, not Int64"),
        ("SET sys.SessionId = @long", "129 characters; at most 128"),
        ("SET a = 1 / 0", "division by zero"),
        ("SET a = 'x' - 1", "does not take String and Int64"),
    ],
)
def test_an_action_that_fails_is_a_rule_action_exception(action, said):
    with pytest.raises(FilterError) as failed:
        changes(action, parameters={"long": "x" * 129})
    assert said in str(failed.value)
    assert failed.value.reason == "RuleActionException"


def test_text_cannot_be_doubled_without_end():
    with pytest.raises(FilterError, match=f"at most {TEXT_VALUE_LENGTH_MAX}"):
        changes("SET a = a + a;" * 32, {"a": "x"})


# -- correlation


@pytest.mark.parametrize("name", CorrelationFilter.FIELDS)
def test_every_correlation_field_is_compared(name):
    system = CorrelationFilter.FIELDS[name]
    wanted = CorrelationFilter(**{name: "x"})
    assert wanted.matches(reading(None, {system: "x"}))
    assert not wanted.matches(reading(None, {system: "X"}))
    assert not wanted.matches(reading())


@pytest.mark.parametrize(
    ("wanted", "user", "matches"),
    [
        ({"a": "x"}, {"a": "x"}, True),
        ({"A": "x"}, {"a": "x"}, True),
        ({"a": "x"}, {"a": "X"}, False),
        ({"a": "x"}, {}, False),
        ({"a": 5}, {"a": 5}, True),
        ({"a": 5}, {"a": 5.0}, True),
        ({"a": 5}, {"a": "5"}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({}, {"a": 1}, True),
    ],
)
def test_correlation_properties_are_equal_by_value_and_type(wanted, user, matches):
    assert CorrelationFilter(properties=wanted).matches(reading(user)) is matches


def test_fields_and_properties_must_all_agree():
    wanted = CorrelationFilter(label="l", to="t", properties={"a": 1})
    fits = {LABEL: "l", SystemProperty.TO: "t"}
    assert wanted.matches(reading({"a": 1}, fits))
    assert not wanted.matches(reading({"a": 2}, fits))
    assert not wanted.matches(reading({"a": 1}, {LABEL: "l"}))


def test_a_correlation_property_must_be_a_value():
    with pytest.raises(ArgumentError, match="correlation property 'a' is of type list"):
        CorrelationFilter(properties={"a": []})


# -- rules


def rule(name, condition="1=1", action=None):
    return RuleDescription(name, SqlFilter(condition), SqlRuleAction(action) if action else None)


def test_a_subscription_is_born_with_a_rule_that_takes_everything():
    assert DEFAULT_RULE.name == "$Default"
    assert match([DEFAULT_RULE], reading()).copies == (UNCHANGED,)


def test_no_rule_no_copy():
    assert match([], reading()).copies == ()
    assert match([RuleDescription("none", FalseFilter())], reading()).copies == ()


def test_rules_without_an_action_make_one_copy_together():
    assert match([rule("a"), rule("b", "1=0"), rule("c"), DEFAULT_RULE], reading()).copies == (UNCHANGED,)


def test_every_rule_with_an_action_makes_its_own_copy_and_signs_it():
    rules = [
        rule("up", action="SET a = 1"),
        rule("b"),
        rule("no", "1=0", "SET a = 2"),
        rule("x", action="REMOVE a"),
    ]
    assert match(rules, reading({"a": 0})).copies == (
        UNCHANGED,
        Copy(Changes(user={"a": 1, "RuleName": "up"}), "up"),
        Copy(Changes(user={"RuleName": "x"}, removed=("a",)), "x"),
    )


def test_the_brokers_rule_name_wins_over_the_actions():
    rules = [rule("mine", action="SET rulename = 'forged'; SET b = 1")]
    assert match(rules, reading()).copies[0].changes.user == {"RuleName": "mine", "b": 1}
    rules = [rule("mine", action="REMOVE RuleName")]
    assert match(rules, reading({"RuleName": "old"})).copies[0].changes == Changes(user={"RuleName": "mine"})


def test_a_rule_that_fails_hinders_no_other():
    rules = [rule("bad", "sys.Foo = 1"), rule("act", action="SET a = 1 / 0"), rule("good")]
    outcome = match(rules, reading())
    assert outcome.copies == (UNCHANGED,)
    assert outcome.failures == (
        Failure("bad", "FilterException", "Rule 'bad': there is no system property 'Foo'."),
        Failure("act", "RuleActionException", "Rule 'act': division by zero in: 1 / 0."),
    )


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "größe", "$Default", "$default", "x" * 50])
def test_a_rule_name_may_have_letters_digits_and_little_else(name):
    assert RuleDescription(name).name == name


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a?", "@a", "#", "*", "a\\b", "$Other", "x" * 51])
def test_other_rule_names_are_refused(name):
    with pytest.raises(ArgumentError, match="rule name"):
        RuleDescription(name)


# -- records


@pytest.mark.parametrize(
    "kept",
    [
        DEFAULT_RULE,
        RuleDescription("f", FalseFilter()),
        RuleDescription("s", SqlFilter("a = @x", {"@x": 1.0}), SqlRuleAction("SET a = @y", {"y": NOON})),
        RuleDescription(
            "c",
            CorrelationFilter(
                label="l", properties={"a": True, "b": None, "c": UUID(int=5), "d": timedelta(microseconds=3)}
            ),
        ),
    ],
    ids=lambda rule: rule.name,
)
def test_a_rule_survives_being_kept_as_json(kept):
    assert rule_from_record(json.loads(json.dumps(rule_to_record(kept)))) == kept


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"name": "a", "action": None, "filter": {"type": "Unheard"}},
        {"name": "a", "action": None, "filter": {"type": "SqlFilter"}},
        {"name": "a", "action": None, "filter": {"type": "SqlFilter", "expression": "a", "parameters": {}}},
    ],
)
def test_a_record_that_is_none_is_refused(record):
    with pytest.raises(ArgumentError):
        rule_from_record(record)


def test_equal_rules_are_equal_and_can_be_keys():
    assert rule("a", action="SET a = 1") == rule("a", action="SET a = 1")
    assert len({rule("a"), rule("a"), RuleDescription("a", TrueFilter())}) == 2
