"""Message selectors as JMS clients write them."""

from __future__ import annotations

from typing import Any

import pytest

from bendybus.domain.filters import Selector, SystemProperty
from bendybus.domain.filters.values import Value
from bendybus.errors import ArgumentError


class View:
    def __init__(self, **user: Any) -> None:
        self.user: dict[str, Value] = user

    def system(self, name: SystemProperty) -> Value:
        return "system" if name is SystemProperty.LABEL else None

    def field(self, name: str) -> Value:
        return {"JMSPriority": 4, "amqp.subject": "s"}.get(name)


def is_selected(text: str, **user: Any) -> bool:
    return Selector(text).matches(View(**user))


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("a BETWEEN 1 AND 3", {"a": 3}),
        ("a NOT BETWEEN 1 AND 3", {"a": 4}),
        ("a between 1 and 3 and b = 'x'", {"a": 1, "b": "x"}),
        ("NOT (a BETWEEN 1 AND 3 OR b = 2)", {"a": 9, "b": 9}),
        ("flag", {"flag": True}),
        ("NOT flag", {"flag": False}),
        ("flag AND a = 1 OR TRUE = FALSE", {"flag": True, "a": 1}),
        ("TRUE", {}),
        ("a IS NULL AND b IS NOT NULL", {"b": 0}),
        ("a IN ('x', 'y') AND b NOT IN ('x')", {"a": "y", "b": "y"}),
        ("a LIKE 'x\\_%' ESCAPE '\\'", {"a": "x_1"}),
        ("_a = 1 AND $b = 2 AND c$d = 3", {"_a": 1, "$b": 2, "c$d": 3}),
        ("a = 0x1F AND b = 017 AND c = 5L", {"a": 31, "b": 15, "c": 5}),
        ("a * 2 + 1 > 6.5", {"a": 3}),
        ("JMSPriority = 4", {}),
        ("amqp.subject = 's' AND \"amqp.subject\" = 's'", {}),
        ("sys.Label = 'system'", {}),
        ("between = 1", {"between": 1}),
    ],
)
def test_what_is_selected(text: str, user: dict[str, Any]) -> None:
    assert is_selected(text, **user)


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("a BETWEEN 1 AND 3", {"a": 4}),
        ("a BETWEEN 1 AND 3", {}),
        ("a NOT BETWEEN 1 AND 3", {}),
        ("flag", {}),
        ("NOT flag", {}),
        ("flag", {"flag": 1}),
        ("Colour = 'red'", {"colour": "red"}),
        ("JMSUnheardOf = 4", {}),
    ],
)
def test_what_is_not_selected(text: str, user: dict[str, Any]) -> None:
    assert not is_selected(text, **user)


def test_values_of_two_kinds_are_neither_equal_nor_an_error() -> None:
    assert not is_selected("a = 1", a="1")
    assert not is_selected("a > 1", a="x")
    assert not is_selected("a LIKE '1%'", a=1)
    assert not is_selected("-a = 1", a="x")
    assert is_selected("a = 1 OR b = 'x'", a="1", b="x")
    assert is_selected("NOT (a = 1)", a="1")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 1),
        ("a", None),
        ("a =", 4),
        ("a = 1 AND", 10),
        ("a BETWEEN 1", 12),
        ("a NOT 1", 7),
        ("1", 1),
        ("'text'", 1),
        ("a == 1", 4),
        ("newid() = 'x'", 1),
        ("@p = 1", 1),
        ("other.scope = 1", 1),
        ("a = 0x1G", 5),
        ("a = 99999999999999999999L", 5),
        ("a LIKE 'x' ESCAPE 'ab'", 8),
        ("a = 08L", 5),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, position: int | None) -> None:
    if position is None:
        Selector(text)
        return
    with pytest.raises(ArgumentError, match=f"position {position}:"):
        Selector(text)
