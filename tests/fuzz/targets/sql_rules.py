"""SQL rules and JMS selectors: conditions, actions, their evaluation (`domain/filters/`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from bendybus.domain.filters import (
    Reading,
    RuleDescription,
    Selector,
    SqlFilter,
    SqlRuleAction,
    SystemProperty,
    Value,
    match,
    rule_from_record,
    rule_to_record,
)
from bendybus.domain.filters.parser import parse_action, parse_condition
from bendybus.domain.filters.text import to_text
from bendybus.errors import ArgumentError, FilterError
from fuzz.target import Target, refusals

PARAMETERS: dict[str, Value] = {"p": 5, "text": "a%b_c", "When": datetime(2026, 1, 1, tzinfo=UTC)}


class Message:
    """A message with a property of every kind."""

    user: dict[str, Value] = {  # noqa: RUF012  never changed
        "a": 1,
        "b": "text with % and _ in it",
        "Color": "blue",
        "price": 12.5,
        "flag": True,
        "none": None,
        "id": UUID(int=1),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "span": timedelta(seconds=90),
        "raw": b"\x00\x01",
        "big": 2**62,
        "nan": float("nan"),
    }

    def system(self, name: SystemProperty) -> Value:
        return 7 if name in (SystemProperty.SEQUENCE_NUMBER, SystemProperty.SIZE) else name.value

    def field(self, name: str) -> Value:
        return 4 if name == "JMSPriority" else name


def check(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with refusals(ArgumentError):
        condition = parse_condition(text)
        if len(again := to_text(condition)) <= 1024:
            assert parse_condition(again) == condition
        _check_rule(RuleDescription("r", SqlFilter(text, PARAMETERS)))
    with refusals(ArgumentError):
        statements = parse_action(text)
        if len(again := "; ".join(map(to_text, statements))) <= 1024:
            assert parse_action(again) == statements
        action = SqlRuleAction(text, PARAMETERS)
        _check_rule(RuleDescription("r", action=action))
        with refusals(FilterError):
            action.apply(_reading())
    with refusals(ArgumentError):
        assert Selector(text).matches(Message()) in (True, False)


def _check_rule(rule: RuleDescription) -> None:
    assert rule_from_record(rule_to_record(rule)) == rule
    # A rule that cannot be applied is a failure that is told; nothing is raised.
    match([rule], _reading())


def _reading() -> Reading:
    return Reading(Message(), lambda: UUID(int=7))


WORDS = (
    *("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS NULL", "EXISTS", "TRUE", "FALSE", "NULL", "BETWEEN"),
    *(
        "SET",
        "REMOVE",
        "newid()",
        "property(",
        "sys.",
        "user.",
        "amqp.",
        "JMSPriority",
        "@p",
        "@text",
        "@When",
    ),
    *(
        "'%a%'",
        "'_%'",
        "[",
        "]",
        "''",
        '"',
        "0x7F",
        "1e308",
        "9223372036854775808",
        "<>",
        ">=",
        "(",
        ")",
        ";",
    ),
    *(f" {name} " for name in Message.user),
)

TARGET = Target(
    name="sql_rules",
    parses="conditions and actions of rules, JMS selectors",
    check=check,
    may_raise=(ArgumentError, FilterError),
    share=60,
    words=tuple(word.encode() for word in WORDS),
    length_max=1100,
)
