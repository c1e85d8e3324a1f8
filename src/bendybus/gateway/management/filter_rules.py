"""Rules over AMQP: `add-rule`, `remove-rule` and `enumerate-rules` at a subscription's `$management`.

A request has a rule as maps. The answer has rules as described lists, with numeric codes that the SDKs know.
True and false filters travel as the SQL filters `1=1` and `1=0`. What a rule may be: domain/filters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from bendybus.amqp.dotnet import timespan
from bendybus.amqp.types import Described, Int, Timestamp, ULong
from bendybus.auth.rights import Right
from bendybus.domain.filters import (
    FALSE_EXPRESSION,
    TRUE_EXPRESSION,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SelectorFilter,
    Spelling,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
    Value,
    sql_filter,
)
from bendybus.errors import ArgumentError
from bendybus.gateway.management.fields import Body, whole_number
from bendybus.gateway.management.operation import Answer, Managed, Operation
from bendybus.gateway.transaction import Transaction

__all__ = ["OPERATIONS", "encode_rule", "read_rule"]

# Descriptors; the filters' have one hexadecimal digit fewer than the others.
RULE_DESCRIPTION: Final = ULong(0x13700000004)
EMPTY_RULE_ACTION: Final = ULong(0x13700000005)
SQL_RULE_ACTION: Final = ULong(0x13700000006)
SQL_FILTER: Final = ULong(0x1370000006)
TRUE_FILTER: Final = ULong(0x1370000007)
FALSE_FILTER: Final = ULong(0x1370000008)
CORRELATION_FILTER: Final = ULong(0x1370000009)

COMPATIBILITY_LEVEL: Final = Int(20)

# Field of a correlation filter -> its name in a request, in the order of the described list.
_FIELDS: Final = {
    "correlation_id": "correlation-id",
    "message_id": "message-id",
    "to": "to",
    "reply_to": "reply-to",
    "label": "label",
    "session_id": "session-id",
    "reply_to_session_id": "reply-to-session-id",
    "content_type": "content-type",
}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


# -- requests ---------------------------------------------------------------------


async def _add_rule(managed: Managed, body: Body) -> Answer:
    subscription = managed.subscription
    await managed.topics.add_rule(subscription.topic_path, subscription.name, read_rule(body))
    return {}


async def _add_rule_in_transaction(managed: Managed, body: Body, transaction: Transaction) -> Answer:
    rule = replace(read_rule(body), created_at=managed.entity.now())
    transaction.change_rule(managed.subscription, rule)
    return {}


async def _remove_rule(managed: Managed, body: Body) -> Answer:
    subscription, name = managed.subscription, _name(body)
    await managed.topics.remove_rule(subscription.topic_path, subscription.name, name)
    return {}


async def _remove_rule_in_transaction(managed: Managed, body: Body, transaction: Transaction) -> Answer:
    name = _name(body)
    transaction.change_rule(managed.subscription, name)
    return {}


async def _enumerate_rules(managed: Managed, body: Body) -> Answer:
    skip, top = max(0, whole_number(body, "skip")), max(0, whole_number(body, "top"))
    rules = sorted(managed.subscription.description.rules, key=_by_name)[skip : skip + top]
    return {"rules": [encode_rule(rule) for rule in rules]} if rules else None


def _by_name(rule: RuleDescription) -> str:
    """The order in which Service Bus lists them, whatever order they were made in."""
    return rule.name.lower()


OPERATIONS: Final[Mapping[str, Operation]] = {
    "com.microsoft:add-rule": Operation(Right.MANAGE, _add_rule, _add_rule_in_transaction),
    "com.microsoft:remove-rule": Operation(Right.MANAGE, _remove_rule, _remove_rule_in_transaction),
    "com.microsoft:enumerate-rules": Operation(Right.MANAGE, _enumerate_rules),
}

# -- what they bring --------------------------------------------------------------


def read_rule(body: Body) -> RuleDescription:
    """The rule of an add-rule request."""
    name = _name(body)
    description = _map(body.get("rule-description"), "rule-description")
    given = [key for key in ("sql-filter", "correlation-filter") if description.get(key) is not None]
    if len(given) != 1:
        raise ArgumentError("A rule needs either 'sql-filter' or 'correlation-filter'.")
    what = _map(description[given[0]], given[0])
    rule_filter = sql_filter(_expression(what)) if given == ["sql-filter"] else _correlation_filter(what)
    action = description.get("sql-rule-action")
    if action is None:
        return RuleDescription(name, rule_filter)
    return RuleDescription(name, rule_filter, SqlRuleAction(_expression(_map(action, "sql-rule-action"))))


def _name(body: Body) -> str:
    name = body.get("rule-name")
    if not isinstance(name, str):
        raise ArgumentError(f"'rule-name' must be a string, not {name!r}.")
    return name


def _correlation_filter(what: Mapping[object, object]) -> CorrelationFilter:
    fields: dict[str, str | None] = {}
    for field, name in _FIELDS.items():
        value = what.get(name)
        if value is not None and not isinstance(value, str):
            raise ArgumentError(f"'{name}' of a correlation filter must be a string, not {value!r}.")
        fields[field] = value
    properties = what.get("properties")
    given = {} if properties is None else _map(properties, "properties")
    return CorrelationFilter(
        **fields,
        properties={str(name): _value(name, value) for name, value in given.items()},
        spelled={str(name): Spelling(*kind) for name, value in given.items() if (kind := _spelling(value))},
    )


def _spelling(value: object) -> tuple[str, str] | None:
    """The types of whole numbers, which the filter language does not distinguish by width."""
    if type(value) is int:
        return "long", str(value)
    return ("int", str(int(value))) if isinstance(value, Int) else None


def _value(name: object, value: object) -> Value:
    """A property's value in the filter language: times arrive as numbers, and numbers in many sizes."""
    if isinstance(value, Timestamp):
        return _EPOCH + timedelta(milliseconds=value)
    if value is None or isinstance(value, bool | UUID):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise ArgumentError(f"The property '{name}' of a correlation filter cannot be {value!r}.")


def _expression(what: Mapping[object, object]) -> str:
    expression = what.get("expression")
    if not isinstance(expression, str):
        raise ArgumentError(f"'expression' must be a string, not {expression!r}.")
    return expression


def _map(value: object, name: str) -> Mapping[object, object]:
    if not isinstance(value, Mapping):
        raise ArgumentError(f"'{name}' must be a map.")
    return value


# -- what is answered -------------------------------------------------------------


def encode_rule(rule: RuleDescription) -> dict[str, object]:
    """One of the rules in the answer to enumerate-rules."""
    action: Sequence[object] = () if rule.action is None else (rule.action.expression, COMPATIBILITY_LEVEL)
    return {
        "rule-description": Described(
            RULE_DESCRIPTION,
            [
                _encode_filter(rule.filter),
                # Always present, because two SDKs read it without a check.
                Described(EMPTY_RULE_ACTION if rule.action is None else SQL_RULE_ACTION, [*action]),
                rule.name,
                Timestamp(rule.created_at),
            ],
        )
    }


def _encode_filter(rule_filter: Filter) -> Described:
    match rule_filter:
        case TrueFilter():
            return Described(TRUE_FILTER, [TRUE_EXPRESSION, COMPATIBILITY_LEVEL])
        case FalseFilter():
            return Described(FALSE_FILTER, [FALSE_EXPRESSION, COMPATIBILITY_LEVEL])
        case SqlFilter() | SelectorFilter():
            return Described(SQL_FILTER, [rule_filter.expression, COMPATIBILITY_LEVEL])
        case CorrelationFilter():
            fields: list[object] = [getattr(rule_filter, field) for field in _FIELDS]
            spelled = rule_filter.spelled
            properties = {
                name: Int(value)
                if isinstance(value, int) and name in spelled and spelled[name].kind == "int"
                else _wire_value(value)
                for name, value in rule_filter.properties.items()
            }
            return Described(CORRELATION_FILTER, [*fields, properties])


def _wire_value(value: Value) -> object:
    if isinstance(value, datetime):
        return Timestamp((value - _EPOCH) // _MILLISECOND)
    if isinstance(value, timedelta):
        return timespan(value)
    return value
