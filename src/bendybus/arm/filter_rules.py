"""Filter rules as Azure Resource Manager describes them: JSON, read and written.

Resource Manager has SQL and correlation filters. A filter that matches everything or nothing is shown as the
SQL that says so. Values of a correlation filter are texts there. What a rule means: domain/filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bendybus.arm.members import member, refuse_unknown
from bendybus.atom import COMPATIBILITY_LEVEL, CORRELATION_ELEMENTS
from bendybus.domain.filters import (
    FALSE_EXPRESSION,
    TRUE_EXPRESSION,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SelectorFilter,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from bendybus.errors import ArgumentError

__all__ = ["read_rule", "rule_properties"]

SQL: Final = "SqlFilter"
CORRELATION: Final = "CorrelationFilter"

_PREPROCESSING: Final = "requiresPreprocessing"
_SQL_MEMBERS: Final = ("sqlExpression", "compatibilityLevel", _PREPROCESSING)
# Field of a correlation filter -> its name here.
_FIELDS: Final = {field: name[0].lower() + name[1:] for field, name in CORRELATION_ELEMENTS.items()}


def read_rule(name: str, given: Mapping[str, Any]) -> RuleDescription:
    """The rule that the `properties` of a PUT describe."""
    refuse_unknown(f"Rule '{name}'", given, ("filterType", "sqlFilter", "correlationFilter", "action"))
    action = member(given, "action", dict) or {}
    refuse_unknown(f"The action of rule '{name}'", action, _SQL_MEMBERS)
    return RuleDescription(name, _read_filter(name, given), _read_action(action))


def _read_filter(name: str, given: Mapping[str, Any]) -> Filter:
    # `az` sends the kind that is not used as an empty object.
    sql, correlation = member(given, "sqlFilter", dict), member(given, "correlationFilter", dict)
    kind = member(given, "filterType", str) or (CORRELATION if correlation and not sql else SQL)
    other = {SQL.lower(): correlation, CORRELATION.lower(): sql}.get(kind.lower())
    if any(value not in (None, {}) for value in (other or {}).values()):
        raise ArgumentError(f"Rule '{name}': filterType is {kind}, and the filter is of another type.")
    if kind.lower() == SQL.lower():
        return _read_sql(name, sql or {})
    if kind.lower() == CORRELATION.lower():
        return _read_correlation(name, correlation or {})
    raise ArgumentError(f"Rule '{name}': filterType is '{kind[:60]}'; allowed are {SQL} and {CORRELATION}.")


def _read_sql(name: str, given: Mapping[str, Any]) -> Filter:
    refuse_unknown(f"The sqlFilter of rule '{name}'", given, _SQL_MEMBERS)
    expression = member(given, "sqlExpression", str)
    if expression is None:
        return TrueFilter()
    _check_level(given)
    return SqlFilter(expression, preprocessing=member(given, _PREPROCESSING, bool))


def _read_action(given: Mapping[str, Any]) -> SqlRuleAction | None:
    expression = member(given, "sqlExpression", str)
    if not expression:
        return None
    _check_level(given)
    return SqlRuleAction(expression, preprocessing=member(given, _PREPROCESSING, bool))


def _check_level(given: Mapping[str, Any]) -> None:
    level = member(given, "compatibilityLevel", int)
    if level not in (None, COMPATIBILITY_LEVEL):
        raise ArgumentError(f"compatibilityLevel is {level}; only {COMPATIBILITY_LEVEL} is supported.")


def _read_correlation(name: str, given: Mapping[str, Any]) -> CorrelationFilter:
    where = f"The correlationFilter of rule '{name}'"
    refuse_unknown(where, given, (*_FIELDS.values(), "properties", _PREPROCESSING))
    if member(given, _PREPROCESSING, bool):
        raise ArgumentError(f"{where} has {_PREPROCESSING}, which only SQL filters have.")
    properties = member(given, "properties", dict) or {}
    for key, value in properties.items():
        if not isinstance(value, str):
            raise ArgumentError(f"{where}: the value of '{key[:60]}' must be a string.")
    fields: dict[str, Any] = {field: member(given, known, str) or None for field, known in _FIELDS.items()}
    return CorrelationFilter(**fields, properties=properties)


def rule_properties(rule: RuleDescription) -> dict[str, object]:
    """The `properties` of a rule."""
    shown: dict[str, object] = {"action": {} if rule.action is None else _sql(rule.action)}
    match found := rule.filter:
        case CorrelationFilter():
            fields = {name: getattr(found, field) for field, name in _FIELDS.items()}
            filled: dict[str, object] = {name: value for name, value in fields.items() if value is not None}
            texts = {key: _text(found, key) for key in found.properties}
            return {**shown, "filterType": CORRELATION, "correlationFilter": {"properties": texts, **filled}}
        case TrueFilter():
            sql: dict[str, object] = {"sqlExpression": TRUE_EXPRESSION}
        case FalseFilter():
            sql = {"sqlExpression": FALSE_EXPRESSION}
        case SelectorFilter():
            sql = {"sqlExpression": found.expression}
        case SqlFilter():
            sql = _sql(found)
    return {**shown, "filterType": SQL, "sqlFilter": {"compatibilityLevel": COMPATIBILITY_LEVEL, **sql}}


def _sql(sql: SqlFilter | SqlRuleAction) -> dict[str, object]:
    flag = {} if sql.preprocessing is None else {_PREPROCESSING: sql.preprocessing}
    return {"sqlExpression": sql.expression, "compatibilityLevel": COMPATIBILITY_LEVEL, **flag}


def _text(found: CorrelationFilter, key: str) -> str:
    spelled = found.spelled.get(key)
    return str(found.properties[key]) if spelled is None else spelled.text
