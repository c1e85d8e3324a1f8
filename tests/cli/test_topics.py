"""Topics, subscriptions and rules from the command line, against a real server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import EntityNotFound
from bendybus.management.client import ManagementClient
from cli.conftest import Bendybus, BendybusJson
from fix_server import ServerProcess


@pytest.fixture
def topic(server: ServerProcess) -> Iterator[str]:
    """Of a topic to be; it is deleted afterwards."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    yield name
    with (
        ManagementClient(ConnectionString.parse(server.connection_string)) as management,
        suppress(EntityNotFound),
    ):
        management.delete(name)


@pytest.mark.row("P-06")
def test_a_topic_is_partitioned_unless_told_otherwise(bendybus_json: BendybusJson, topic: str) -> None:
    made = bendybus_json("topic", "create", topic, "--max-size", "2048", "--default-message-ttl", "1h")
    assert (made["enablePartitioning"], made["maxSizeInMegabytes"]) == (True, 32768)
    assert made["defaultMessageTimeToLive"] == "PT1H"
    changed = bendybus_json("topic", "update", topic, "--user-metadata", "ours")
    assert (changed["userMetadata"], changed["defaultMessageTimeToLive"]) == ("ours", "PT1H")
    assert topic in [listed["name"] for listed in bendybus_json("topic", "list")]


def test_a_topic_is_no_queue(bendybus: Bendybus, attempt: Bendybus, topic: str) -> None:
    bendybus("topic", "create", topic)
    refused = attempt("queue", "show", topic)
    assert refused.returncode == 1
    assert refused.stderr == f"bendybus: '{topic}' is a topic and not a queue: use 'bendybus topic'.\n"
    bendybus("topic", "delete", topic, "--yes")
    assert attempt("topic", "show", topic).returncode == 1


def test_subscriptions_are_managed(bendybus: Bendybus, bendybus_json: BendybusJson, topic: str) -> None:
    bendybus("topic", "create", topic)
    own = ("--enable-session", "--dead-letter-on-filter-error", "--lock-duration", "30s")
    made = bendybus_json("subscription", "create", topic, "all", *own)
    assert (made["name"], made["lockDuration"], made["requiresSession"]) == ("all", "PT30S", True)
    assert made["deadLetteringOnFilterEvaluationExceptions"] is True
    changed = bendybus_json("subscription", "update", topic, "all", "--max-delivery-count", "3")
    assert (changed["maxDeliveryCount"], changed["lockDuration"]) == (3, "PT30S")
    assert bendybus_json("subscription", "show", topic, "all")["maxDeliveryCount"] == 3
    row = bendybus("subscription", "list", topic).stdout.splitlines()[-1]
    assert row.split() == ["all", "Active", "0", "0", "yes"]
    bendybus("subscription", "delete", topic, "all", "--yes")
    assert bendybus_json("subscription", "list", topic) == []


def test_rules_decide_what_a_subscription_gets(
    bendybus: Bendybus, bendybus_json: BendybusJson, topic: str
) -> None:
    bendybus("topic", "create", topic)
    bendybus("subscription", "create", topic, "some")
    assert [rule["name"] for rule in bendybus_json("rule", "list", topic, "some")] == ["$Default"]
    bendybus(
        "rule", "create", topic, "some", "big", "--filter-sql", "size > 5", "--action-sql", "SET big = 'yes'"
    )
    bendybus("rule", "create", topic, "some", "ours", "--subject", "ours", "--property", "n:=1")
    bendybus("rule", "delete", topic, "some", "$Default", "--yes")
    listed = bendybus("rule", "list", topic, "some").stdout
    assert "size > 5" in listed
    assert "label = ours" in listed
    assert bendybus_json("rule", "show", topic, "some", "big")["action"] == "SET big = 'yes'"

    bendybus("send", topic, "--body", "small", "-p", "size:=1")
    bendybus("send", topic, "--body", "big", "-p", "size:=9")
    bendybus("send", topic, "--body", "ours", "--subject", "ours", "-p", "n:=1")
    received = bendybus("receive", f"{topic}/Subscriptions/some", "--max", "2", "-o", "json").stdout
    bodies = {message["body"]: message for message in map(json.loads, received.splitlines())}
    assert bodies.keys() == {"big", "ours"}
    assert bodies["big"]["applicationProperties"]["big"] == "yes"

    bendybus("rule", "update", topic, "some", "big", "--filter-sql", "size > 100")
    changed = bendybus_json("rule", "show", topic, "some", "big")
    assert (changed["sqlExpression"], changed["action"]) == ("size > 100", None)


def test_dead_letters_of_a_subscription_are_sent_to_its_topic_again(
    bendybus: Bendybus, bendybus_json: BendybusJson, topic: str
) -> None:
    bendybus("topic", "create", topic)
    bendybus("subscription", "create", topic, "all")
    path = f"{topic}/Subscriptions/all"
    bendybus("send", topic, "--body", "x")
    bendybus("receive", path, "--dead-letter", "--reason", "Because")
    assert "Because" in bendybus("dead-letter", "list", path).stdout
    assert bendybus_json("dead-letter", "resubmit", path) == {"entity": path, "to": topic, "resubmitted": 1}
    assert bendybus_json("purge", path, "--state", "active", "--yes")["purged"] == 1


@pytest.mark.row("B-05")
def test_messages_that_no_subscription_takes_are_caught_and_forwarded(
    bendybus: Bendybus, bendybus_json: BendybusJson, topic: str, partitioned: str
) -> None:
    bendybus("topic", "create", topic)
    bendybus("subscription", "create", topic, "big")
    bendybus("rule", "update", topic, "big", "$Default", "--filter-sql", "size > 5")
    caught = ("--catch-unmatched", "--forward-to", partitioned)
    assert bendybus_json("subscription", "create", topic, "rest", *caught)["catchUnmatched"] is True
    for size in (3, 7):
        bendybus("send", topic, "--body", str(size), "-p", f"size:={size}")
    assert json.loads(bendybus("receive", partitioned, "-o", "json").stdout)["body"] == "3"
    assert json.loads(bendybus("receive", f"{topic}/Subscriptions/big", "-o", "json").stdout)["body"] == "7"
    bendybus("subscription", "update", topic, "rest", "--no-catch-unmatched")
    assert "catchUnmatched" not in bendybus_json("subscription", "show", topic, "rest")
    bendybus("send", topic, "--body", "9", "-p", "size:=9")
    assert json.loads(bendybus("receive", partitioned, "-o", "json").stdout)["body"] == "9"
