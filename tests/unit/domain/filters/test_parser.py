"""The grammar: what each production gives, what binds how, and what is refused where."""

from __future__ import annotations

import pytest

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
from bendybus.domain.filters.lexer import TEXT_LENGTH_MAX, TOKENS_MAX
from bendybus.domain.filters.parser import NESTING_MAX, STATEMENTS_MAX, parse_action, parse_condition
from bendybus.errors import ArgumentError

a, b, c = Property("a"), Property("b"), Property("c")
one, two, three = Constant(1), Constant(2), Constant(3)


def is_one(prop):
    return Comparison("=", prop, one)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = 1", is_one(a)),
        ("a <> 1", Comparison("<>", a, one)),
        ("a != 1", Comparison("<>", a, one)),
        ("a < 1", Comparison("<", a, one)),
        ("a <= 1", Comparison("<=", a, one)),
        ("a > 1", Comparison(">", a, one)),
        ("a >= 1", Comparison(">=", a, one)),
        ("a IS NULL", IsNull(a)),
        ("a IS NOT NULL", IsNull(a, negated=True)),
        ("p('a') IS NULL", IsNull(PropertyCall(Constant("a")))),
        ("a IN (1)", In(a, (one,))),
        ("a NOT IN (1, b + 1)", In(a, (one, Arithmetic(b, (Step("+", one),))), negated=True)),
        ("a LIKE 'x%'", Like(a, Constant("x%"))),
        ("a NOT LIKE b ESCAPE '\\'", Like(a, b, Constant("\\"), negated=True)),
        ("EXISTS(a)", Exists(a)),
        ("EXISTS (sys.Label)", Exists(Property("Label", "sys"))),
        ("NOT a = 1", Not(is_one(a))),
        ("(a = 1)", is_one(a)),
        ("a = 1 AND b = 1", And((is_one(a), is_one(b)))),
        ("a = 1 OR b = 1", Or((is_one(a), is_one(b)))),
        ("a = newid()", Comparison("=", a, NewId())),
        ("a = PROPERTY('b')", Comparison("=", a, PropertyCall(Constant("b")))),
        ("a = p(b + 'x')", Comparison("=", a, PropertyCall(Arithmetic(b, (Step("+", Constant("x")),))))),
        ("a = @limit", Comparison("=", a, Parameter("limit"))),
        ("user.a = 1", is_one(a)),
        ("USER.a = 1", is_one(a)),
        ("Sys.To = 1", is_one(Property("To", "sys"))),
    ],
)
def test_every_production_has_its_node(text, tree):
    assert parse_condition(text) == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1894", 1894),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("1894.1204", 1894.1204),
        ("2.", 2.0),
        (".5", 0.5),
        ("101.5E5", 101.5e5),
        ("0.5e-2", 0.005),
        ("1E3", 1000.0),
        ("TRUE", True),
        ("false", False),
        ("Null", None),
        ("'it''s'", "it's"),
        ("''", ""),
        ("'[\"]'", '["]'),
        ("'Grüße 🚌'", "Grüße 🚌"),
    ],
)
def test_constants_have_the_documented_types(text, value):
    tree = parse_condition(f"a = {text}")
    assert isinstance(tree, Comparison)
    assert isinstance(tree.right, Constant)
    assert tree.right.value == value
    assert type(tree.right.value) is type(value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a", "a"),
        ("größe_1", "größe_1"),
        ("\N{LATIN SMALL LETTER DOTLESS I}s", "\N{LATIN SMALL LETTER DOTLESS I}s"),
        ("x²", None),
        ("[Property With Space]", "Property With Space"),
        ("[a]]b]", "a]b"),
        ("[]]]", "]"),
        ('"Contoso & Northwind"', "Contoso & Northwind"),
        ('"a""b"', 'a"b'),
        ("[AND]", "AND"),
        ("user.[IN]", "IN"),
        ("sys", "sys"),
        ("newid", "newid"),
        ("p", "p"),
        ("set", "set"),
        ("remove", "remove"),
    ],
)
def test_names_are_regular_delimited_or_quoted(text, name):
    if name is None:
        with pytest.raises(ArgumentError):
            parse_condition(f"{text} = 1")
    else:
        assert parse_condition(f"{text} = 1") == is_one(Property(name))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a = 1 OR b = 1 AND c = 1", "a = 1 OR (b = 1 AND c = 1)"),
        ("a = 1 AND b = 1 OR c = 1", "(a = 1 AND b = 1) OR c = 1"),
        ("NOT a = 1 AND b = 1", "(NOT (a = 1)) AND b = 1"),
        ("NOT a = 1 OR b = 1", "(NOT (a = 1)) OR b = 1"),
        ("a = 1 AND NOT b = 1 AND c = 1", "a = 1 AND (NOT b = 1) AND c = 1"),
        ("NOT NOT a = 1", "NOT (NOT (a = 1))"),
        ("NOT a IN (1) AND b = 1", "(NOT (a IN (1))) AND b = 1"),
        ("a + b * c > 1", "a + (b * c) > 1"),
        ("a * b + c > 1", "(a * b) + c > 1"),
        ("a + b > c - 1", "(a + b) > (c - 1)"),
        ("-a * b = 1", "(-a) * b = 1"),
        ("a - -b = 1", "a - (-b) = 1"),
        ("a + b LIKE 'x' + c", "(a + b) LIKE ('x' + c)"),
        ("a LIKE 'x' ESCAPE '!' AND b = 1", "(a LIKE 'x' ESCAPE '!') AND b = 1"),
        ("a+1 IN (1) OR b=1", "((a + 1) IN (1)) OR (b = 1)"),
        ("a=1 and(b=1)", "a = 1 AND b = 1"),
        ("  a\t=\n1 ", "a = 1"),
        ("a LiKe 'x' aNd nOt eXists(b)", "a LIKE 'x' AND NOT EXISTS(b)"),
    ],
)
def test_operators_bind_as_in_sql(text, same):
    assert parse_condition(text) == parse_condition(same)


def test_a_chain_is_computed_from_left_to_right():
    assert parse_condition("a - b - c = 1") == is_one(Arithmetic(a, (Step("-", b), Step("-", c))))
    assert parse_condition("a - (b - c) = 1") == is_one(
        Arithmetic(a, (Step("-", Arithmetic(b, (Step("-", c),))),))
    )
    assert parse_condition("a / b * c % 2 = 1") == is_one(
        Arithmetic(a, (Step("/", b), Step("*", c), Step("%", two)))
    )


def test_a_sign_before_a_number_is_part_of_it_and_before_anything_else_is_not():
    assert parse_condition("a = -3") == Comparison("=", a, Constant(-3))
    assert parse_condition("a = - -3") == Comparison("=", a, Signed("-", Constant(-3)))
    assert parse_condition("a = -b") == Comparison("=", a, Signed("-", b))
    assert parse_condition("a = +3") == Comparison("=", a, Signed("+", three))
    assert parse_condition("a -3 = 1") == is_one(Arithmetic(a, (Step("-", three),)))


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SET a = 1", (Set(a, one),)),
        (
            "set sys.Label = 'x' + b;",
            (Set(Property("Label", "sys"), Arithmetic(Constant("x"), (Step("+", b),))),),
        ),
        ("REMOVE a", (Remove(a),)),
        ("SET a = 1; REMOVE b", (Set(a, one), Remove(b))),
        ("SET a = 1, SET b = 2", (Set(a, one), Set(b, two))),
        ("SET a = b REMOVE c SET [set] = 1", (Set(a, b), Remove(c), Set(Property("set"), one))),
    ],
)
def test_an_action_is_a_row_of_statements(text, statements):
    assert parse_action(text) == statements


@pytest.mark.parametrize(
    ("text", "position", "found", "expected"),
    [
        ("", 1, "the end of the text", "a value"),
        ("a =", 4, "the end of the text", "a value"),
        ("a", 1, "'a'", "a condition"),
        ("a b", 3, "'b'", "a comparison"),
        ("a AND b = 1", 1, "'a'", "a condition"),
        ("a = 1 AND b", 11, "'b'", "a condition"),
        ("a = 1 b", 7, "'b'", "an operator or the end"),
        ("a = b = c", 7, "'='", "AND, OR, ')' or the end"),
        ("a = (b = c)", 5, "a condition beginning with '('", "a value"),
        ("(a = 1", 7, "the end of the text", "an operator or ')'"),
        ("a = 1)", 6, "')'", "an operator or the end"),
        ("a = 1 + ", 9, "the end of the text", "a value"),
        ("a IN 1", 6, "'1'", "'('"),
        ("a IN ()", 7, "')'", "a value"),
        ("a IN (1 2)", 9, "'2'", "',' or ')'"),
        ("a NOT = 1", 7, "'='", "IN or LIKE after NOT"),
        ("1 IS NULL", 1, "'1'", "a property before IS"),
        ("a IS 1", 6, "'1'", "'NULL'"),
        ("EXISTS a", 8, "'a'", "'('"),
        ("EXISTS('a')", 8, "the string 'a'", "a property"),
        ("EXISTS(newid())", 8, "'newid'", "a property"),
        ("foo(a) = 1", 1, "'foo'", "one of the functions"),
        ("newid(1) = a", 7, "'1'", "')'"),
        ("foo.a = 1", 1, "'foo'", "'sys' or 'user'"),
        ("[sys].a = 1", 1, "'sys'", "'sys' or 'user'"),
        ("sys.1 = a", 4, "'.1'", "a comparison"),
        ("sys.'a' = 1", 5, "the string 'a'", "the name of a property"),
        ("and = 1", 1, "'AND'", "written [AND]"),
        ("a = 'x", 5, "' without its end", "a closing '"),
        ("[a = 1", 1, "[ without its end", "a closing ]"),
        ("[] = 1", 1, "'[]'", "a property name"),
        ("_a = 1", 1, "'_'", "begin with a letter"),
        ("a = 1x", 5, "'1x'", "end before a letter"),
        ("a = 1.2.3", 5, "'1.2.'", "end before a letter"),
        ("a = 9223372036854775808", 5, "9223372036854775808", "at most 9223372036854775807"),
        ("a = 99999999999999999999", 5, "99999999999999999999", "at most"),
        ("a = 1e999", 5, "1e999", "range of a double"),
        ("a = @", 5, "'@'", "@name"),
        ("a ? 1", 3, "'?'", "a name, value or operator"),
        ("a ! = 1", 3, "'!'", "a name, value or operator"),
    ],
)
def test_bad_sql_is_refused_with_its_place_what_is_there_and_what_should_be(text, position, found, expected):
    with pytest.raises(ArgumentError) as refused:
        parse_condition(text)
    said = str(refused.value)
    assert said.startswith(f"At position {position}: found {found}")
    assert expected in said.partition(", expected ")[2]


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 1, "SET or REMOVE"),
        ("DELETE a", 1, "SET or REMOVE"),
        ("SET a", 6, "'='"),
        ("SET 1 = 1", 5, "a property"),
        ("SET p('a') = 1", 6, "'='"),
        ("SET a = 1 b", 11, "another statement"),
        ("SET a = b = 1", 11, "another statement"),
        ("SET a = NOT b = 1", 9, "a value"),
        ("SET a = 1;;", 11, "SET or REMOVE"),
        ("REMOVE", 7, "a property"),
        ("REMOVE a = 1", 10, "another statement"),
    ],
)
def test_a_bad_action_is_refused_with_its_place(text, position, expected):
    with pytest.raises(ArgumentError) as refused:
        parse_action(text)
    assert str(refused.value).startswith(f"At position {position}: ")
    assert expected in str(refused.value)


def test_a_text_may_have_1024_characters_and_no_more():
    fits = "a = '" + "x" * (TEXT_LENGTH_MAX - 6) + "'"
    assert len(fits) == TEXT_LENGTH_MAX == 1024
    parse_condition(fits)
    with pytest.raises(ArgumentError, match="1025 characters"):
        parse_condition(fits + " ")


def test_tokens_are_counted():
    def chain(terms):
        return "a=" + "+".join("1" * terms)

    parse_condition(chain((TOKENS_MAX - 2) // 2))
    with pytest.raises(ArgumentError, match=f"more than {TOKENS_MAX} words and signs"):
        parse_condition(chain(TOKENS_MAX // 2 + 1))


@pytest.mark.parametrize(
    ("lead", "opening", "inner", "closing"),
    [
        ("", "(", "a = 1", ")"),
        ("", "NOT ", "a = 1", ""),
        ("1 = ", "(", "a", ")"),
        ("1 = ", "p(", "a", ")"),
        ("1 = ", "-", "a", ""),
        ("1 = ", "(1 + ", "a", ")"),
    ],
)
def test_nesting_is_bounded(lead, opening, inner, closing):
    def nested(depth):
        return lead + opening * depth + inner + closing * depth

    parse_condition(nested(NESTING_MAX))
    with pytest.raises(ArgumentError, match=f"more than {NESTING_MAX} deep"):
        parse_condition(nested(NESTING_MAX + 1))


def test_an_action_has_at_most_32_statements():
    assert len(parse_action("SET a=1;" * STATEMENTS_MAX)) == STATEMENTS_MAX == 32
    with pytest.raises(ArgumentError, match="more than 32 statements"):
        parse_action("SET a=1;" * 33)
