"""A Config.json that is imported: an interrupted import can be repeated."""

from __future__ import annotations

from typing import Any

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError
from bendybus.management.client import ManagementClient
from bendybus.management.config_file import exported_namespace, imported
from bendybus.management.filter_rules import RULE_DESCRIPTION, rule_elements, shown_rule, sql_elements
from bendybus.testing import Server


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def management(server):
    with (
        server.namespace() as made,
        ManagementClient(ConnectionString.parse(made.connection_string)) as client,
    ):
        yield client


def queue(name: str, **properties: str) -> dict[str, Any]:
    return {"Name": name, "Properties": properties}


def rule(name: str, sql: str) -> dict[str, Any]:
    return {"Name": name, "Properties": {"SqlFilter": {"SqlExpression": sql}}}


def test_forwards_are_complete_after_an_import_that_was_refused_is_repeated(management):
    wrong = queue("m", LockDuration="PT9H")
    namespace = {"Queues": [queue("a", ForwardTo="z"), wrong, queue("z", ForwardTo="b"), queue("b")]}
    with pytest.raises(ArgumentError):
        list(imported(management, namespace))
    wrong["Properties"] = {}
    list(imported(management, namespace))
    forwards = {name: management.get(name).text("ForwardTo") for name in ("a", "m", "z", "b")}
    assert forwards == {"a": "z", "m": None, "z": "b", "b": None}


def test_queues_that_forward_in_a_circle_are_imported(management):
    namespace = {"Queues": [queue("a", ForwardTo="B"), queue("b", ForwardDeadLetteredMessagesTo="a")]}
    assert sorted(step.path for step in imported(management, namespace)) == ["a", "b"]
    assert management.get("a").text("ForwardTo") == "B"
    assert management.get("b").text("ForwardDeadLetteredMessagesTo") == "a"


def test_a_subscription_has_all_its_rules_or_does_not_exist(management):
    rules = [rule("one", "n=1"), rule("two", "n=@two"), rule("three", "n=3")]
    namespace = {"Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": rules}]}]}
    with pytest.raises(ArgumentError):
        list(imported(management, namespace))
    assert list(management.list("t/Subscriptions")) == []
    rules[1] = rule("two", "n=2")
    list(imported(management, namespace))
    made = [entry.name for entry in management.list("t/Subscriptions/s/Rules")]
    assert made == ["one", "two", "three"]


def test_parameters_of_rules_come_along_from_another_namespace(server, management):
    filters = sql_elements("SqlFilter", "n > @n", {"@n": 5})
    with (
        server.namespace() as other,
        ManagementClient(ConnectionString.parse(other.connection_string)) as source,
    ):
        source.create("t", "TopicDescription", [])
        source.create("t/Subscriptions/s", "SubscriptionDescription", [])
        made = rule_elements("r", filters, "SET x = @x", {"@x": 1})
        source.create("t/Subscriptions/s/Rules/r", RULE_DESCRIPTION, made)
        list(imported(management, exported_namespace(source, "other")))
    shown = shown_rule(management.get("t/Subscriptions/s/Rules/r"))
    assert (shown["parameters"], shown["actionParameters"]) == ({"@n": 5}, {"@x": 1})
