"""The language under text nobody meant, and under every tree there can be."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bendybus.domain.filters import SqlFilter, SqlRuleAction, SystemProperty
from bendybus.domain.filters.ast import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    NewId,
    Not,
    Or,
    Parameter,
    Property,
    PropertyCall,
    Remove,
    Set,
    Signed,
    Step,
)
from bendybus.domain.filters.evaluate import compile_condition
from bendybus.domain.filters.lexer import KEYWORDS, TEXT_LENGTH_MAX, TOKENS_MAX, tokenize
from bendybus.domain.filters.like import compile_like
from bendybus.domain.filters.parser import parse_action, parse_condition
from bendybus.domain.filters.text import to_text
from bendybus.errors import ArgumentError, FilterError
from fix_examples import examples
from fix_filters import reading

SIGNS = [*"()(),;.=<>+-*/%!_'[]", '"', "<>", "!=", "<=", ">="]
WORDS = [*sorted(KEYWORDS), "SET", "REMOVE", "sys", "user", "p", "property", "newid"]
OPERANDS = ["a", "b", "[x_y]", "sys.Label", "user.a", '"q"', "@v", "1", "2.5", "1e3", ".5", "'x'", "''"]
soups = st.lists(st.sampled_from(SIGNS + WORDS + OPERANDS), max_size=80).map(" ".join)
# Closer to the language: what is parsed to the end is also evaluated.
PIECES = ["a = 1", "b LIKE 'x%'", "EXISTS(a)", "a + b > 2", "(", ")", "NOT", "AND", "OR", "-", "+ 1"]
nearly = st.lists(st.sampled_from(PIECES), max_size=15).map(" ".join)

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
    st.uuids(),
    st.binary(max_size=3),
    st.timedeltas(),
    st.datetimes(timezones=st.none() | st.timezones()),
)


@given(st.text(max_size=200) | soups | nearly, st.dictionaries(st.sampled_from(["a", "b", "x_y"]), values))
@example("(" * 1000, {})
@example("NOT " * 256, {})
@example("a=" + "-" * 500 + "1", {})
@example("a=" + "1+" * 200 + "1", {})
@example("[" * 1024, {})
@example("'" * 1023, {})
@settings(max_examples=examples(600), deadline=5000)
def test_any_text_is_a_filter_or_an_argument_error(text, user):
    try:
        sql = SqlFilter(text, {"v": 1})
    except ArgumentError as refused:
        assert re.match(r"At position \d+: |The text has ", str(refused)), refused
        return
    with suppress(FilterError):
        assert sql.matches(reading(user, {SystemProperty.LABEL: "x"})) in (True, False)


@given(st.text(max_size=200) | soups | nearly.map("SET a = 1; ".__add__))
@settings(max_examples=examples(300), deadline=5000)
def test_any_text_is_an_action_or_an_argument_error(text):
    try:
        action = SqlRuleAction(text, {"v": 1})
    except ArgumentError:
        return
    with suppress(FilterError):
        action.apply(reading({"a": "x", "b": 5}))


# -- trees


names = st.one_of(
    st.sampled_from(["a", "Größe_1", "sys", "p", "newid", "and", "set", "x y", "]", '"', "1", "_a", "é.ü"]),
    st.text(min_size=1, max_size=6),
)
constants = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
).map(Constant)
properties = st.builds(Property, names, st.sampled_from(["sys", "user"]))
leaves = constants | properties | st.builds(NewId) | st.sampled_from(["x", "Long_1"]).map(Parameter)


def steps(signs, operands):
    return st.lists(st.builds(Step, st.sampled_from(signs), operands), min_size=1, max_size=3).map(tuple)


expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(PropertyCall, inner),
        st.builds(Signed, st.sampled_from("+-"), inner),
        st.builds(Arithmetic, inner, steps("+-", inner)),
        st.builds(Arithmetic, inner, steps("*/%", inner)),
    ),
    max_leaves=6,
)
references = properties | st.builds(PropertyCall, expressions)
simple = st.one_of(
    st.builds(Comparison, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), expressions, expressions),
    st.builds(IsNull, references, st.booleans()),
    st.builds(Exists, references),
    st.builds(In, expressions, st.lists(expressions, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(Like, expressions, expressions, st.none() | expressions, st.booleans()),
)


def junctions(inner):
    operands = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, inner), st.builds(And, operands), st.builds(Or, operands))


predicates = st.recursive(simple, junctions, max_leaves=5)
statements = st.builds(Set, properties, expressions) | st.builds(Remove, properties)


def is_short_enough(text):
    with suppress(ArgumentError):
        return len(text) <= TEXT_LENGTH_MAX and len(tokenize(text)) <= TOKENS_MAX
    return False


@given(predicates)
@settings(max_examples=examples(500), deadline=5000)
def test_a_condition_written_down_reads_the_same(tree):
    text = to_text(tree)
    if is_short_enough(text):
        assert parse_condition(text) == tree
        assert to_text(parse_condition(text)) == text


@given(st.lists(statements, min_size=1, max_size=4))
@settings(max_examples=examples(200), deadline=5000)
def test_an_action_written_down_reads_the_same(trees):
    text = "; ".join(map(to_text, trees))
    if is_short_enough(text):
        assert parse_action(text) == tuple(trees)


@given(predicates, st.dictionaries(names, values, max_size=4))
@settings(max_examples=examples(300), deadline=5000)
def test_any_condition_answers_or_fails_in_a_named_way(tree, user):
    try:
        compiled = compile_condition(tree, {"x": 1, "long_1": "text"})
        assert compiled(reading(user)) in (True, False, None)
    except (ArgumentError, FilterError):
        pass


# -- patterns


def is_like(text, pattern, escape=None):
    """The definition, at any price."""
    if not pattern:
        return not text
    if pattern[0] == escape:
        return bool(text) and pattern[1] == text[0] and is_like(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(is_like(text[start:], pattern[1:], escape) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and is_like(text[1:], pattern[1:], escape)


@given(st.text("ab\n", max_size=8), st.text("ab%_", max_size=8))
@settings(max_examples=examples(1000))
def test_patterns_match_as_defined(text, pattern):
    assert compile_like(pattern, None).fits(text) is is_like(text, pattern)


@given(
    st.text("ab%_!", max_size=7),
    st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "!a"]), max_size=7),
)
@settings(max_examples=examples(1000))
def test_patterns_with_an_escape_character_match_as_defined(text, pattern):
    assert compile_like("".join(pattern), "!").fits(text) is is_like(text, "".join(pattern), "!")


@given(st.data())
@settings(max_examples=examples(300))
def test_a_text_made_from_a_pattern_is_like_it(data):
    """Longer ones than the definition can be asked about: every `%` and `_` is filled in."""
    pattern = data.draw(st.text("ab%_", max_size=40))
    runs = {"%": st.text("abc", max_size=9), "_": st.sampled_from("abc")}
    text = "".join(data.draw(runs[each]) if each in runs else each for each in pattern)
    assert compile_like(pattern, None).fits(text)


@pytest.mark.parametrize("pattern", ["%" + "a" * 900 + "b%", "%" + "a_" * 450 + "b%", "%a" * 450 + "%b"])
def test_the_worst_pattern_over_the_longest_text_ends(pattern):
    assert compile_like(pattern, None).fits("a" * 32_768) is False
