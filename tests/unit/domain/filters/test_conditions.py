"""What conditions answer: values, types, the unknown, patterns."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from bendybus.domain.filters import SqlFilter, SystemProperty
from bendybus.domain.filters.lexer import KEYWORDS
from bendybus.domain.filters.like import PATTERN_LENGTH_MAX
from bendybus.errors import ArgumentError, FilterError
from fix_filters import ask, reading

T, F, U = "1 = 1", "1 = 0", "missing = 1"
ANSWERS = {T: True, F: False, U: None}

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Int(int):
    """As a 32-bit AMQP int comes."""


# -- three-valued logic


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (T, T, True, True),
        (T, F, False, True),
        (T, U, None, True),
        (F, T, False, True),
        (F, F, False, False),
        (F, U, False, None),
        (U, T, None, True),
        (U, F, False, None),
        (U, U, None, None),
    ],
)
def test_and_and_or_follow_the_documented_tables(left, right, both, either):
    assert ask(f"{left} AND {right}") is both
    assert ask(f"{left} OR {right}") is either
    # Longer chains are compiled in another way.
    assert ask(f"{left} AND {right} AND {right}") is both
    assert ask(f"{left} OR {right} OR {right}") is either


@pytest.mark.parametrize(("condition", "answer"), [(T, False), (F, True), (U, None)])
def test_not_leaves_the_unknown_unknown(condition, answer):
    assert ask(f"NOT {condition}") is answer


@pytest.mark.parametrize(
    "condition",
    [
        "missing = 1",
        "missing <> 1",
        "1 < missing",
        "missing = missing",
        "missing = NULL",
        "a = NULL",
        "NULL = NULL",
        "nothing = 1",
        "nothing = nothing",
        "missing + 1 = 1",
        "1 - missing = 1",
        "-missing = 1",
        "+missing = 1",
        "missing LIKE 'x'",
        "a LIKE missing",
        "a LIKE 'x' ESCAPE missing",
        "a LIKE NULL",
        "a LIKE 'x' ESCAPE NULL",
        "missing NOT LIKE 'x'",
        "missing IN (1, 2)",
        "missing NOT IN (1, 2)",
        "nothing IN ('x', 'y')",
        "a IN ('z', missing)",
        "a NOT IN ('z', NULL)",
        "p(missing) = 1",
        "p('missing') = 1",
        "sys.Label = 'x'",
    ],
)
def test_an_operator_on_something_unknown_is_unknown(condition):
    assert ask(condition, a="x", nothing=None) is None


def test_an_unknown_answer_is_no_match():
    assert SqlFilter("missing = 1").matches(reading()) is False
    assert SqlFilter("NOT missing = 1").matches(reading()) is False


def test_in_finds_what_stands_beside_an_unknown():
    assert ask("a IN (missing, 'x')", a="x") is True
    assert ask("a NOT IN (missing, 'x')", a="x") is False


# -- null, missing, there


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("missing IS NULL", True),
        ("nothing IS NULL", True),
        ("a IS NULL", False),
        ("missing IS NOT NULL", False),
        ("nothing IS NOT NULL", False),
        ("a IS NOT NULL", True),
        ("p('a') IS NOT NULL", True),
        ("sys.Label IS NULL", True),
        ("EXISTS(a)", True),
        ("EXISTS(A)", True),
        ("EXISTS(nothing)", True),
        ("EXISTS(missing)", False),
        ("NOT EXISTS(missing)", True),
        ("EXISTS(sys.Label)", False),
        ("EXISTS(p('A'))", True),
        ("EXISTS(p('user.a'))", True),
        ("EXISTS(p('sys.Label'))", False),
        ("EXISTS(p(missing))", None),
    ],
)
def test_null_is_there_but_missing_is_not(condition, answer):
    assert ask(condition, a="x", nothing=None) is answer


# -- comparisons and types


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("n = 5", True),
        ("n = 5.0", True),
        ("n <> 5", False),
        ("n != 4", True),
        ("n < 5.5", True),
        ("n <= 5", True),
        ("n > 4", True),
        ("n >= 6", False),
        ("5 = n", True),
        ("small = 7", True),
        ("small > n", True),
        ("d = 2.5", True),
        ("d > 2", True),
        ("n > d", True),
        ("s = 'Red'", True),
        ("s = 'red'", False),
        ("s <> 'red'", True),
        ("s < 'Rex'", True),
        ("'A' < 'a'", True),
        ("yes = TRUE", True),
        ("yes <> FALSE", True),
        ("TRUE = yes", True),
        ("yes = no", False),
        ("id = id", True),
        ("id <> newid()", True),
        ("raw = raw", True),
        ("at = at", True),
        ("at >= at", True),
        ("span < @hour", True),
        ("at < @later", True),
        ("9007199254740993 = 9007199254740992.0", True),
        ("9007199254740993 = 9007199254740992", False),
    ],
)
def test_comparisons_promote_as_csharp_does(condition, answer):
    properties = {
        "n": 5,
        "small": Int(7),
        "d": 2.5,
        "s": "Red",
        "yes": True,
        "no": False,
        "id": UUID(int=77),
        "raw": b"x",
        "at": NOON,
        "span": timedelta(minutes=1),
    }
    elsewhere = NOON.astimezone(timezone(timedelta(hours=2))) + timedelta(seconds=1)
    parameters = {"@hour": timedelta(hours=1), "later": elsewhere}
    assert ask(condition, parameters, **properties) is answer


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("n = 'x'", "Int64 and String cannot be compared in: n = 'x'"),
        ("'5' = n", "String and Int64 cannot be compared"),
        ("s > 5", "String and Int64"),
        ("s = TRUE", "String and Boolean"),
        ("yes = 1", "Boolean and Int64"),
        ("n = yes", "Int64 and Boolean"),
        ("n = TRUE", "Int64 and Boolean"),
        ("yes > no", "type Boolean have no order"),
        ("yes < TRUE", "type Boolean have no order"),
        ("id < id", "type Guid have no order"),
        ("id = 's'", "Guid and String"),
        ("at > naive", "DateTime and DateTime cannot be"),
        ("at = 's'", "DateTime and String"),
        ("n IN ('x', 'y')", "Int64 and String"),
        ("s IN ('x', 1)", "String and Int64"),
        ("n LIKE '5%'", "the left side must be a string, not Int64, in: n LIKE '5%'"),
        ("s LIKE n", "the pattern must be a string, not Int64"),
        ("s LIKE s ESCAPE n", "ESCAPE must be a string, not Int64"),
        ("s LIKE s ESCAPE s", "3 characters, not one"),
        ("s LIKE 'x' + 'd' ESCAPE 'd'", "ends with its ESCAPE character"),
        ("p(n) = 1", "the name must be a string, not Int64"),
        ("EXISTS(p(n))", "the name must be a string, not Int64"),
        ("s - 1 = 1", "'-' does not take String and Int64 in: s - 1"),
        ("yes + 1 = 1", "'+' does not take Boolean and Int64"),
        ("-s = 1", "a sign does not go before String"),
        ("+yes = 1", "a sign does not go before Boolean"),
        ("s + raw = 'x'", "Byte[] has no form as text"),
        ("n / 0 = 1", "division by zero in: n / 0"),
        ("n % 0 = 1", "division by zero"),
        ("9223372036854775807 + 1 = n", "does not fit in 64 bits"),
        ("-9223372036854775808 / -1 = n", "does not fit in 64 bits"),
        ("- -9223372036854775808 = n", "does not fit in 64 bits"),
        ("sys.Foo = 1", "there is no system property 'Foo'"),
        ("sys.Foo IS NULL", "there is no system property 'Foo'"),
        ("EXISTS(sys.Foo)", "there is no system property 'Foo'"),
        ("p('sys.Foo') = 1", "there is no system property 'Foo'"),
    ],
)
def test_what_has_no_answer_is_a_filter_exception(condition, said):
    properties = {
        "n": 5,
        "s": "Red",
        "yes": True,
        "no": False,
        "id": UUID(int=77),
        "raw": b"x",
        "at": NOON,
        "naive": NOON.replace(tzinfo=None),
    }
    with pytest.raises(FilterError) as failed:
        ask(condition, **properties)
    assert said in str(failed.value)
    assert failed.value.reason == "FilterException"


def test_a_decided_condition_asks_no_further():
    assert ask("1 = 0 AND sys.Foo = 1") is False
    assert ask("1 = 1 OR sys.Foo = 1") is True


# -- arithmetic


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("10 - 4 - 3", 3),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("7 % 3", 1),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("7 / 2.0", 3.5),
        ("7.5 % 2", 1.5),
        ("-7.5 % 2", -1.5),
        ("2 * 1.5", 3.0),
        ("- -3", 3),
        ("+3", 3),
        ("+(-9223372036854775808)", -(2**63)),
        ("-(2 + 3)", -5),
        ("1.0 / 0", math.inf),
        ("-1.0 / 0", -math.inf),
        ("'a' + 'b'", "ab"),
        ("'a' + 1", "a1"),
        ("1 + 'a'", "1a"),
        ("1 + 2 + 'a'", "3a"),
        ("'a' + 1.5", "a1.5"),
        ("'a' + 2.0", "a2"),
        ("'a' + TRUE", "aTrue"),
    ],
)
def test_arithmetic_follows_csharp(expression, value):
    assert ask(f"{expression} = @value", {"value": value}) is True


@pytest.mark.parametrize("expression", ["0.0 / 0", "1.0 % 0", "@infinite % 2"])
def test_what_is_no_number_equals_nothing(expression):
    parameters = {"infinite": math.inf}
    assert ask(f"{expression} = {expression}", parameters) is False
    assert ask(f"{expression} <> 1", parameters) is True


def test_times_and_ids_become_text_when_added_to_a_string():
    assert ask("'' + at = '2026-01-01T12:00:00Z'", at=NOON) is True
    assert ask("'id ' + id = 'id 00000000-0000-0000-0000-00000000004d'", id=UUID(int=77)) is True


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(hours=1), "01:00:00"),
        (timedelta(days=14, seconds=61), "14.00:01:01"),
        (timedelta(microseconds=-500_000), "-00:00:00.5000000"),
    ],
)
def test_a_span_becomes_text_as_dotnet_writes_it(span, text):
    assert ask(f"'' + span = '{text}'", span=span) is True


# -- IN and LIKE


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("s IN ('Red', 'blue')", True),
        ("s IN ('red')", False),
        ("s NOT IN ('red')", True),
        ("n IN (1, 5)", True),
        ("n IN (1, 5.0)", True),
        ("n IN (1, 2 + 3)", True),
        ("n NOT IN (1, 2)", True),
        ("1 IN (n, one)", True),
        ("yes IN (FALSE, TRUE)", True),
        ("s IN (@colour)", True),
    ],
)
def test_in_is_equality_with_any(condition, answer):
    assert ask(condition, {"@Colour": "Red"}, s="Red", n=5, one=1, yes=True) is answer


@pytest.mark.parametrize(
    ("text", "pattern", "escape", "answer"),
    [
        ("abc", "abc", None, True),
        ("abc", "ABC", None, False),
        ("abc", "ab", None, False),
        ("abc", "a%", None, True),
        ("abc", "%c", None, True),
        ("abc", "%b%", None, True),
        ("abc", "%", None, True),
        ("", "%", None, True),
        ("", "", None, True),
        ("", "_", None, False),
        ("abc", "a_c", None, True),
        ("abc", "____", None, False),
        ("abc", "%a%b%c%", None, True),
        ("abc", "%%c", None, True),
        ("abc", "%b", None, False),
        ("aXbXc", "a%b%c", None, True),
        ("abab", "%ab", None, True),
        ("aab", "%ab", None, True),
        ("ab", "ab%ab", None, False),
        ("abxab", "%a_x%b", None, True),
        ("a\nb", "a_b", None, True),
        ("a\nb\n", "a%", None, True),
        ("a\n", "a", None, False),
        ("a.c", "a.c", None, True),
        ("abc", "a.c", None, False),
        ("abc", "[a]bc", None, False),
        ("ABC%", r"ABC\%", "\\", True),
        ("ABCD", r"ABC\%", "\\", False),
        ("A_C", "A!_C", "!", True),
        ("ABC", "A!_C", "!", False),
        ("A!C", "A!!C", "!", True),
        ("50%", "50%%", "%", True),
        ("50x", "50%%", "%", False),
        ("xa", "x!a", "!", True),
    ],
)
def test_like_knows_runs_single_characters_and_escapes(text, pattern, escape, answer):
    tail = "" if escape is None else f" ESCAPE '{escape}'"
    assert ask(f"x LIKE '{pattern}'{tail}", x=text) is answer
    assert ask(f"x NOT LIKE '{pattern}'{tail}", x=text) is not answer
    # The same from a parameter, and from the message.
    assert ask(f"x LIKE @pattern{tail}", {"pattern": pattern}, x=text) is answer
    assert ask(f"x LIKE y{tail}", x=text, y=pattern) is answer


@pytest.mark.parametrize(
    ("condition", "position", "said"),
    [
        ("a LIKE 5", 8, "found 5, expected a string as the pattern"),
        ("a LIKE @n", 8, "found 5, expected a string as the pattern"),
        ("a LIKE 'x' ESCAPE 5", 8, "one character after ESCAPE"),
        ("a LIKE 'x' ESCAPE 'ab'", 8, "2 characters, not one"),
        ("a LIKE 'x' ESCAPE ''", 8, "0 characters, not one"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "ends with its ESCAPE character"),
    ],
)
def test_a_pattern_that_could_never_match_is_refused_at_once(condition, position, said):
    with pytest.raises(ArgumentError) as refused:
        SqlFilter(condition, {"n": 5})
    assert str(refused.value).startswith(f"At position {position}: ")
    assert said in str(refused.value)


def test_a_pattern_from_a_message_has_a_bound():
    assert ask("'x' LIKE y", y="%" * PATTERN_LENGTH_MAX) is True
    with pytest.raises(FilterError, match="1025 characters"):
        ask("'x' LIKE y", y="%" * (PATTERN_LENGTH_MAX + 1))


def test_runs_do_not_multiply():
    # With a plain `.*` for each run this would not end in the life of the universe.
    assert ask("x LIKE '" + "%a" * 400 + "%b'", x="a" * 20_000) is False


# -- names


def test_property_names_have_no_case_but_the_exact_spelling_wins():
    assert ask("COLOR = 'red'", Color="red") is True
    assert ask("[color] = 'red'", Color="red") is True
    assert ask("color = 'red' AND Color = 'blue' AND COLOR = 'blue'", Color="blue", color="red") is True


def test_scopes_name_two_worlds():
    message = reading({"label": "mine"}, {SystemProperty.LABEL: "theirs"})
    for condition in (
        "label = 'mine'",
        "user.Label = 'mine'",
        "sys.label = 'theirs'",
        "SYS.[Label] = 'theirs'",
        "sys.Subject = 'theirs'",
        "p('label') = 'mine'",
        "property('USER.label') = 'mine'",
        "p('sys.Label') = 'theirs'",
        "p('sys.' + 'Subject') = 'theirs'",
    ):
        assert SqlFilter(condition).matches(message), condition


@pytest.mark.parametrize("name", SystemProperty)
def test_every_system_property_can_be_read(name):
    assert SqlFilter(f"sys.{name.upper()} = 'x'").matches(reading(None, {name: "x"}))


@pytest.mark.parametrize("keyword", sorted(KEYWORDS))
def test_a_property_may_be_called_like_a_keyword_in_brackets(keyword):
    assert ask(f"[{keyword.lower()}] = 1", **{keyword: 1}) is True


def test_each_newid_is_new():
    assert ask("newid() = newid()") is False


# -- parameters


def test_parameters_are_found_with_or_without_their_sign_in_any_case():
    assert ask("a = @First AND b = @second", {"@first": 1, "SECOND": "x"}, a=1, b="x") is True


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, r"At position 5: found '@limit', expected a name among Parameters \(none\)"),
        ({"@other": 1}, r"Parameters \(@other\)"),
        ({"@limit": 1, "Limit": 2}, "'@limit' more than once"),
        ({"@": 1}, "which is none"),
        ({"limit": b"x"}, r"of type Byte\[\]; allowed are"),
        ({"limit": [1]}, "of type list; allowed are"),
        ({"limit": NOON.replace(tzinfo=None)}, "does not say its zone"),
        ({"limit": 2**63}, "does not fit in 64 bits"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters, said):
    with pytest.raises(ArgumentError, match=said):
        SqlFilter("a = @limit", parameters)
