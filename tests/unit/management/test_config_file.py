"""A Config.json that is imported: an interrupted import can be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError
from bendybus.management.client import ManagementClient
from bendybus.management.config_file import Step, exported_namespace, imported
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


def outcomes(steps: Iterable[Step]) -> list[tuple[str, str]]:
    return [(step.path, step.outcome.value) for step in steps]


def stopped_after(steps: Iterator[Step], count: int) -> None:
    """What a kill leaves behind: the import is not continued after this many steps."""
    for _ in range(count):
        next(steps)
    steps.close()


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("metadata", [None, "of the file"])
def test_a_subscription_gets_the_rest_of_its_rules_when_an_interrupted_import_is_repeated(
    management, count, metadata
):
    rules = [rule("one", "n=1"), rule("two", "n=2"), rule("three", "n=3")]
    properties = {} if metadata is None else {"UserMetadata": metadata}
    described = {"Name": "s", "Properties": properties, "Rules": rules}
    namespace = {"Topics": [{"Name": "t", "Subscriptions": [described]}]}
    stopped_after(imported(management, namespace), count)
    missing = [(f"t/Subscriptions/s/Rules/{name}", "created") for name in ("two", "three")[count - 2 :]]
    first = [("t", "exists"), ("t/Subscriptions/s", "completed")]
    assert outcomes(imported(management, namespace, dry_run=True)) == first + missing
    assert outcomes(imported(management, namespace)) == first + missing
    assert [entry.name for entry in management.list("t/Subscriptions/s/Rules")] == ["one", "two", "three"]
    assert management.get("t/Subscriptions/s").text("UserMetadata") == metadata
    assert outcomes(imported(management, namespace)) == [("t", "exists"), ("t/Subscriptions/s", "exists")]


def test_a_subscription_that_an_import_completes_is_kept_if_a_rule_is_refused(management):
    rules = [rule("one", "n=1"), rule("two", "n=2"), rule("three", "n=@three")]
    namespace = {"Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": rules}]}]}
    stopped_after(imported(management, namespace), 2)
    with pytest.raises(ArgumentError):
        list(imported(management, namespace))
    rules[2] = rule("three", "n=3")
    assert outcomes(imported(management, namespace))[1:] == [
        ("t/Subscriptions/s", "completed"),
        ("t/Subscriptions/s/Rules/three", "created"),
    ]


def test_a_subscription_that_no_import_has_begun_gets_no_rules(management):
    one = {"Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule("one", "n=1")]}]}]}
    list(imported(management, one))
    assert management.get("t/Subscriptions/s").text("UserMetadata") is None
    one["Topics"][0]["Subscriptions"][0]["Rules"].append(rule("two", "n=2"))
    assert outcomes(imported(management, one)) == [("t", "exists"), ("t/Subscriptions/s", "exists")]
    assert [entry.name for entry in management.list("t/Subscriptions/s/Rules")] == ["one"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_circle_gets_its_forwards_when_an_interrupted_import_is_repeated(management, count):
    namespace = {"Queues": [queue("a", ForwardTo="b"), queue("b", ForwardDeadLetteredMessagesTo="a")]}
    stopped_after(imported(management, namespace), count)
    assert ("a", "completed") in outcomes(imported(management, namespace))
    assert management.get("a").text("ForwardTo") == "b"
    assert management.get("a").text("UserMetadata") is None
    assert management.get("b").text("ForwardDeadLetteredMessagesTo") == "a"


def test_a_queue_that_no_import_has_begun_does_not_become_part_of_a_circle(management):
    management.create("a", "QueueDescription", [])
    namespace = {"Queues": [queue("a", ForwardTo="b"), queue("b", ForwardDeadLetteredMessagesTo="a")]}
    assert outcomes(imported(management, namespace)) == [("a", "exists"), ("b", "created")]
    assert management.get("a").text("ForwardTo") is None


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
