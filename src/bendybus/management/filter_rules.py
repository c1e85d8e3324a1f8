"""Filter rules of subscriptions as the management API writes them: filters and actions with their types.

A rule has a filter (SQL, a correlation, everything or nothing) and may have an action.
The server alone decides which SQL is valid: docs/reference/filters.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final
from xml.etree.ElementTree import Element

from bendybus.atom import (
    COMPATIBILITY_LEVEL,
    CORRELATION_ELEMENTS,
    INSTANCE,
    RULE_DESCRIPTION,
    SCHEMA,
    SERVICE_BUS,
    element,
)
from bendybus.management.entries import Entry, bare_name
from bendybus.management.properties import shown_name

__all__ = ["RULE_DESCRIPTION", "correlation_elements", "rule_elements", "shown_rule", "sql_elements"]

_SCHEMA_TYPES: Final[Mapping[type, str]] = {bool: "boolean", int: "long", float: "double"}

_READ_TYPES: Final[Mapping[str, Callable[[str], object]]] = {
    **dict.fromkeys(("", "string"), str),
    **dict.fromkeys(("int", "long"), int),
    "double": float,
    "boolean": lambda text: text.strip().lower() == "true",
}

_TYPE: Final = f"{{{INSTANCE}}}type"


def sql_elements(kind: str, expression: str, parameters: Mapping[str, object] | None = None) -> str:
    """The inside of a filter or an action in SQL; `kind` is SqlFilter, TrueFilter, SqlRuleAction..."""
    inside = element("SqlExpression", expression) + element("CompatibilityLevel", COMPATIBILITY_LEVEL)
    if parameters:
        inside += f"<Parameters>{''.join(map(_property, parameters.items()))}</Parameters>"
    return _typed("Action" if kind.endswith("Action") else "Filter", kind, inside)


def correlation_elements(fields: Mapping[str, str], properties: Mapping[str, object]) -> str:
    """`fields` are those of `CORRELATION_ELEMENTS`; `properties` are the message's own."""
    inside = "".join(
        element(name, fields[field]) for field, name in CORRELATION_ELEMENTS.items() if field in fields
    )
    if properties:
        inside += f"<Properties>{''.join(map(_property, properties.items()))}</Properties>"
    return _typed("Filter", "CorrelationFilter", inside)


def rule_elements(
    name: str, filter_element: str, action: str | None, parameters: Mapping[str, object] | None = None
) -> Iterator[str]:
    """The whole description; without an action the rule changes nothing. `parameters` are the action's."""
    yield filter_element
    if action:
        yield sql_elements("SqlRuleAction", action, parameters)
    else:
        yield _typed("Action", "EmptyRuleAction", "")
    yield element("Name", name)


def shown_rule(entry: Entry) -> dict[str, object]:
    """A rule as `--output json` shows it."""
    shown: dict[str, object] = {"name": entry.name}
    for child in entry.description:
        match bare_name(child):
            case "Filter":
                shown |= {"filterType": _kind(child), **_filter(child)}
            case "Action":
                expression = child.findtext(f"{{{SERVICE_BUS}}}SqlExpression")
                shown["action"] = expression or None
                if parameters := _pairs(child, "Parameters"):
                    shown["actionParameters"] = parameters
            case "CreatedAt":
                shown["createdAt"] = child.text
    return shown


def _filter(child: Element) -> dict[str, object]:
    if _kind(child) != "CorrelationFilter":
        parameters = _pairs(child, "Parameters")
        also: dict[str, object] = {"parameters": parameters} if parameters else {}
        return {"sqlExpression": child.findtext(f"{{{SERVICE_BUS}}}SqlExpression"), **also}
    fields: dict[str, object] = {}
    for field in child:
        name = bare_name(field)
        if name == "Properties":
            fields["properties"] = _pairs(child, name)
        elif field.text:
            fields[shown_name(name)] = field.text
    return fields


def _pairs(parent: Element, name: str) -> dict[str, object]:
    """Names and values: the properties of a correlation, or the parameters of SQL."""
    return {
        pair.findtext(f"{{{SERVICE_BUS}}}Key", ""): _value(pair.find(f"{{{SERVICE_BUS}}}Value"))
        for pair in parent.find(f"{{{SERVICE_BUS}}}{name}") or ()
    }


class _TypedText(str):
    """A value of a type that JSON does not have: a time, a duration, an id."""

    __slots__ = ("kind",)

    kind: str


def _value(found: Element | None) -> object:
    """As it was given, so that a rule that is shown can be created again."""
    if found is None or found.text is None:
        return None
    kind = _kind(found)
    if kind in _READ_TYPES:
        try:
            return _READ_TYPES[kind](found.text)
        except ValueError:
            pass
    text = _TypedText(found.text)
    text.kind = kind
    return text


def _typed(name: str, kind: str, inside: str) -> str:
    return f'<{name} i:type="{kind}">{inside}</{name}>'


def _property(item: tuple[str, object]) -> str:
    name, value = item
    kind = value.kind if isinstance(value, _TypedText) else _SCHEMA_TYPES.get(type(value), "string")
    # The type stands in an attribute of the element, with a prefix that is declared there.
    typed = element("Value", value).removeprefix("<Value>")
    return (
        f"<KeyValueOfstringanyType>{element('Key', name)}"
        f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:{kind}">{typed}'
        "</KeyValueOfstringanyType>"
    )


def _kind(child: Element) -> str:
    return child.get(_TYPE, "").rpartition(":")[2]
