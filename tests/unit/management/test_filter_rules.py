"""Rules as XML: what is put names its types, and what comes back is shown in plain words."""

from __future__ import annotations

from xml.etree import ElementTree

from bendybus.management.entries import Entry, entry_body, read_answer
from bendybus.management.filter_rules import (
    RULE_DESCRIPTION,
    correlation_elements,
    rule_elements,
    shown_rule,
    sql_elements,
)

TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"
BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"


def entry_of(filter_element: str, action: str | None = None) -> Entry:
    answer = read_answer(entry_body(RULE_DESCRIPTION, rule_elements("r", filter_element, action)))
    assert isinstance(answer, Entry)
    return answer


def test_a_sql_rule_is_put_with_its_types_and_read_back() -> None:
    entry = entry_of(sql_elements("SqlFilter", "a < 'b & c'"), "SET x = 1")
    assert [child.get(TYPE) for child in entry.description] == ["SqlFilter", "SqlRuleAction", None]
    assert entry.text("Name") == "r"
    assert shown_rule(entry) == {
        "name": "",
        "filterType": "SqlFilter",
        "sqlExpression": "a < 'b & c'",
        "action": "SET x = 1",
    }


def test_a_rule_without_an_action_says_so_by_type() -> None:
    entry = entry_of(sql_elements("TrueFilter", "1=1"))
    assert entry.description[1].get(TYPE) == "EmptyRuleAction"
    assert shown_rule(entry)["action"] is None


def test_a_correlation_names_the_type_of_each_property() -> None:
    made = correlation_elements(
        {"label": "s", "correlation_id": "<c>"}, {"text": "5", "number": 5, "yes": True, "part": 0.5}
    )
    entry = entry_of(made)
    filter_element = entry.description[0]
    # In the order of the API, under its names.
    names = [child.tag.removeprefix(BUS) for child in filter_element]
    assert names == ["CorrelationId", "Label", "Properties"]
    typed = [(pair[0].text, pair[1].get(TYPE), pair[1].text) for pair in filter_element[2]]
    assert typed == [
        ("text", "d6p1:string", "5"),
        ("number", "d6p1:long", "5"),
        ("yes", "d6p1:boolean", "true"),
        ("part", "d6p1:double", "0.5"),
    ]
    assert 'xmlns:d6p1="http://www.w3.org/2001/XMLSchema"' in made
    assert shown_rule(entry) | {"correlationId": "<c>", "label": "s"} == shown_rule(entry)
    assert ElementTree.tostring(entry.description)


def test_a_correlation_that_is_shown_can_be_put_again_with_its_types() -> None:
    own = {"text": "5", "number": 5, "yes": True, "part": 0.5}
    made = correlation_elements({}, own).replace("d6p1:double", "d6p1:dateTime", 1)
    shown = shown_rule(entry_of(made))["properties"]
    assert isinstance(shown, dict)
    assert {name: shown[name] for name in ("text", "number", "yes")} == {
        "text": "5",
        "number": 5,
        "yes": True,
    }
    # A time is shown as text, and is still a time when it is put again.
    assert shown["part"] == "0.5"
    assert correlation_elements({}, shown) == made


def test_a_rule_that_is_shown_can_be_made_again_with_its_parameters() -> None:
    filters = sql_elements("SqlFilter", "colour = @c AND n > @n", {"@c": "red", "@n": 5})
    entry = read_answer(entry_body(RULE_DESCRIPTION, rule_elements("r", filters, "SET x = @x", {"@x": True})))
    assert isinstance(entry, Entry)
    shown = shown_rule(entry)
    assert (shown["parameters"], shown["actionParameters"]) == ({"@c": "red", "@n": 5}, {"@x": True})
    again = sql_elements("SqlFilter", str(shown["sqlExpression"]), {"@c": "red", "@n": 5})
    assert again == filters
