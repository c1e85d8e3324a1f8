"""Filter rules in the management API: filters and actions as XML, read and written.

The attribute i:type names the kind of filter, with exactly this prefix for the JavaScript
client. Values of parameters and properties have their XML Schema type. What a rule means: domain/filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from bendybus.admin.documents import Element
from bendybus.admin.fields import boolean
from bendybus.atom import COMPATIBILITY_LEVEL, CORRELATION_ELEMENTS, SCHEMA, element, format_time
from bendybus.domain.durations import format_duration, parse_duration
from bendybus.domain.filters import (
    DEFAULT_RULE_NAME,
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
)
from bendybus.errors import ArgumentError

__all__ = ["read_rule", "rule_elements"]

# The namespace of the one type that Azure does not take from XML Schema.
SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"

INT32: Final = range(-(2**31), 2**31)


# -- reading ------------------------------------------------------------------------


def read_rule(elements: Mapping[str, Element], name: str = "") -> RuleDescription:
    """The rule that a client describes, with the name in its URL if there is one."""
    named = elements.get("Name")
    name = name or (named.text.strip() if named is not None else "") or DEFAULT_RULE_NAME
    return RuleDescription(name, _read_filter(elements.get("Filter")), _read_action(elements.get("Action")))


def _read_filter(given: Element | None) -> Filter:
    if given is None:
        return TrueFilter()
    match given.kind:
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(*_read_sql(given))
        case "CorrelationFilter":
            fields = {field: _text(given, name) or None for field, name in CORRELATION_ELEMENTS.items()}
            values, spelled = _read_values(given.find("Properties"))
            return CorrelationFilter(**fields, properties=values, spelled=spelled)
        case other:
            raise ArgumentError(
                f"The Filter is of type '{other[:60]}'; allowed are SqlFilter, TrueFilter, FalseFilter and "
                "CorrelationFilter."
            )


def _read_action(given: Element | None) -> SqlRuleAction | None:
    match "EmptyRuleAction" if given is None else given.kind:
        case "EmptyRuleAction" | "":
            return None
        case "SqlRuleAction":
            assert given is not None
            return SqlRuleAction(*_read_sql(given))
        case other:
            raise ArgumentError(
                f"The Action is of type '{other[:60]}'; allowed are SqlRuleAction and EmptyRuleAction."
            )


def _read_sql(given: Element) -> tuple[str, dict[str, Value], dict[str, Spelling], bool | None]:
    """The text of a condition or of statements, its parameters, how they are written, and the flag."""
    flag = _text(given, "RequiresPreprocessing").strip()
    values, spelled = _read_values(given.find("Parameters"))
    return _text(given, "SqlExpression"), values, spelled, boolean(flag) if flag else None


def _text(parent: Element, name: str) -> str:
    child = parent.find(name)
    return "" if child is None else child.text


def _read_values(parent: Element | None) -> tuple[dict[str, Value], dict[str, Spelling]]:
    """What they mean, and how they are written."""
    values: dict[str, Value] = {}
    spelled: dict[str, Spelling] = {}
    for pair in () if parent is None else parent.children:
        value = pair.find("Value")
        if pair.name != "KeyValueOfstringanyType" or pair.find("Key") is None or value is None:
            raise ArgumentError(f"The element {pair.name[:60]} is not a Key with its Value.")
        key = _text(pair, "Key")
        if key in values:
            raise ArgumentError(f"The Key '{key[:60]}' stands there twice.")
        try:
            values[key] = _read_value(value.kind, value.text)
            spelled[key] = Spelling(value.kind, value.text)
        except (ValueError, OverflowError, ArgumentError):
            raise ArgumentError(
                f"The Value of '{key[:60]}' is '{value.text[:60]}', which is no {value.kind[:60]}."
            ) from None
    return values, spelled


def _read_value(kind: str, text: str) -> Value:
    match kind:
        case "string":
            return text
        case "int" | "long" | "short" | "byte":
            return int(text)
        case "double" | "float" | "decimal":
            return float(text)
        case "boolean":
            return boolean(text.strip())
        case "dateTime":
            at = datetime.fromisoformat(text)
            return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        case "duration":
            seconds = parse_duration(text)
            if seconds is None:
                raise ValueError("unlimited")
            return timedelta(seconds=seconds)
        case "guid":
            return UUID(text)
        case _:
            raise ValueError(kind)


# -- writing ------------------------------------------------------------------------


def rule_elements(rule: RuleDescription) -> str:
    """The children of RuleDescription."""
    action = '<Action i:type="EmptyRuleAction"/>'
    if rule.action is not None:
        action = f'<Action i:type="SqlRuleAction">{_sql(rule.action)}</Action>'
    return (
        f"{_filter_element(rule)}{action}"
        f"{element('CreatedAt', format_time(rule.created_at))}{element('Name', rule.name)}"
    )


def _filter_element(rule: RuleDescription) -> str:
    match rule_filter := rule.filter:
        case TrueFilter():
            # Azure's rule that a subscription is created with has this element, and no other has it empty.
            empty = "<Parameters/>" if rule.name == DEFAULT_RULE_NAME else ""
            inner = _expression(TRUE_EXPRESSION) + empty
        case FalseFilter():
            inner = _expression(FALSE_EXPRESSION)
        case SqlFilter():
            inner = _sql(rule_filter)
        case SelectorFilter():
            # SDKs know no selectors. They show it as the condition that it is.
            return f'<Filter i:type="SqlFilter">{_expression(rule_filter.expression)}</Filter>'
        case CorrelationFilter():
            fields = {name: getattr(rule_filter, field) for field, name in CORRELATION_ELEMENTS.items()}
            inner = "".join(element(name, value) for name, value in fields.items() if value is not None)
            inner += _values("Properties", rule_filter.properties, rule_filter.spelled)
    return f'<Filter i:type="{type(rule_filter).__name__}">{inner}</Filter>'


def _expression(text: str) -> str:
    return element("SqlExpression", text) + element("CompatibilityLevel", COMPATIBILITY_LEVEL)


def _sql(sql: SqlFilter | SqlRuleAction) -> str:
    flag = "" if sql.preprocessing is None else element("RequiresPreprocessing", sql.preprocessing)
    return f"{_expression(sql.expression)}{_values('Parameters', sql.parameters, sql.spelled)}{flag}"


def _values(name: str, values: Mapping[str, Value], spelled: Mapping[str, Spelling]) -> str:
    pairs = "".join(_pair(key, spelled.get(key) or _typed(value)) for key, value in values.items())
    return f"<{name}>{pairs}</{name}>" if pairs else ""


def _pair(key: str, spelling: tuple[str, object]) -> str:
    kind, text = spelling
    # The JavaScript client drops five characters of the type, whatever they are: `d6p1:` it must be.
    schema = SERIALIZATION if kind == "duration" else SCHEMA
    shown = element("Value", text).replace(
        "<Value>", f'<Value xmlns:d6p1="{schema}" i:type="d6p1:{kind}">', 1
    )
    return f"<KeyValueOfstringanyType>{element('Key', key)}{shown}</KeyValueOfstringanyType>"


def _typed(value: Value) -> tuple[str, object]:
    match value:
        case bool():
            return "boolean", value
        case int():
            return "int" if value in INT32 else "long", value
        case float():
            return "double", repr(value)
        case datetime():
            return "dateTime", value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return "duration", format_duration(value.total_seconds())
        case UUID():
            return "guid", value
        case _:
            return "string", "" if value is None else value
