"""Rules as plain values for a catalog, and back.

A record holds the text of a filter, not its tree: a later version parses it again. Values
of types that JSON does not have carry the name of their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, cast
from uuid import UUID

from bendybus.domain.filters.actions import SqlRuleAction
from bendybus.domain.filters.correlation import CorrelationFilter
from bendybus.domain.filters.rules import FalseFilter, Filter, RuleDescription, SqlFilter, TrueFilter
from bendybus.domain.filters.selectors import SelectorFilter
from bendybus.domain.filters.values import Spelling, Value
from bendybus.errors import ArgumentError
from bendybus.names import Instant

__all__ = ["rule_from_record", "rule_to_record"]

_MICROSECOND: Final = timedelta(microseconds=1)


def rule_to_record(rule: RuleDescription) -> dict[str, object]:
    action = rule.action
    return {
        "name": rule.name,
        "filter": _filter_to_record(rule.filter),
        "action": None if action is None else _sql_to_record(action),
        "created_at": rule.created_at,
    }


def rule_from_record(record: Mapping[str, object]) -> RuleDescription:
    """Read a record made by `rule_to_record`. `ArgumentError` for any other value."""
    try:
        action = cast("Mapping[str, object] | None", record["action"])
        return RuleDescription(
            cast("str", record["name"]),
            _filter_from_record(cast("Mapping[str, object]", record["filter"])),
            None if action is None else SqlRuleAction(*_sql_from_record(action)),
            Instant(cast("int", record.get("created_at", 0))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"The record of a rule cannot be read: {error!r}.") from None


def _filter_to_record(rule_filter: Filter) -> dict[str, object]:
    kind: dict[str, object] = {"type": type(rule_filter).__name__}
    match rule_filter:
        case SqlFilter():
            return kind | _sql_to_record(rule_filter)
        case SelectorFilter():
            return kind | {"expression": rule_filter.expression}
        case CorrelationFilter():
            fields = {name: getattr(rule_filter, name) for name in CorrelationFilter.FIELDS}
            values = _values_to_record(rule_filter.properties)
            return kind | fields | {"properties": values, "spelled": _spelled_to_record(rule_filter.spelled)}
        case _:
            return kind


def _filter_from_record(record: Mapping[str, object]) -> Filter:
    match record["type"]:
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(*_sql_from_record(record))
        case "SelectorFilter":
            return SelectorFilter(cast("str", record["expression"]))
        case "CorrelationFilter":
            fields = {name: cast("str | None", record.get(name)) for name in CorrelationFilter.FIELDS}
            values = _values_from_record(record["properties"])
            return CorrelationFilter(**fields, properties=values, spelled=_spelled_from_record(record))
        case other:
            raise ValueError(f"no filter is called {other}")


def _sql_to_record(sql: SqlFilter | SqlRuleAction) -> dict[str, object]:
    values = _values_to_record(sql.parameters)
    return {
        "expression": sql.expression,
        "parameters": values,
        "spelled": _spelled_to_record(sql.spelled),
        "preprocessing": sql.preprocessing,
    }


def _sql_from_record(
    record: Mapping[str, object],
) -> tuple[str, dict[str, Value], dict[str, Spelling], bool | None]:
    values = _values_from_record(record["parameters"])
    flag = cast("bool | None", record.get("preprocessing"))
    return cast("str", record["expression"]), values, _spelled_from_record(record), flag


def _spelled_to_record(spelled: Mapping[str, Spelling]) -> dict[str, object]:
    return {name: list(spelling) for name, spelling in spelled.items()}


def _spelled_from_record(record: Mapping[str, object]) -> dict[str, Spelling]:
    """Read properties. Records of an earlier version contain only the values."""
    kept = cast("Mapping[str, tuple[str, str]]", record.get("spelled", {}))
    return {name: Spelling(*spelling) for name, spelling in kept.items()}


def _values_to_record(values: Mapping[str, Value]) -> dict[str, object]:
    return {name: _value_to_record(value) for name, value in values.items()}


def _value_to_record(value: Value) -> object:
    match value:
        case UUID():
            return {"Guid": str(value)}
        case datetime():
            return {"DateTime": value.isoformat()}
        case timedelta():
            return {"TimeSpan": value // _MICROSECOND}
        case _:
            return value


def _values_from_record(record: object) -> dict[str, Value]:
    return {name: _value_from_record(kept) for name, kept in cast("Mapping[str, object]", record).items()}


def _value_from_record(kept: object) -> Value:
    match kept:
        case {"Guid": str(text)}:
            return UUID(text)
        case {"DateTime": str(text)}:
            return datetime.fromisoformat(text)
        case {"TimeSpan": int(microseconds)}:
            return timedelta(microseconds=microseconds)
        case _:
            return cast("Value", kept)
