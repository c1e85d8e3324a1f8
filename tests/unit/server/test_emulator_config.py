"""The emulator's Config.json: what it gives, and how every mistake in it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bendybus.domain.access import AuthorizationRule
from bendybus.domain.entities import EntityStatus, QueueDescription
from bendybus.domain.filters import CorrelationFilter, RuleDescription, SqlFilter, SqlRuleAction
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import ConfigError
from bendybus.server.emulator_config import NamespaceConfig, load_config


def _file(folder: Path, **namespace: Any) -> Path:
    file = folder / "Config.json"
    namespaces = [{"Name": "sbemulatorns", **namespace}]
    file.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces, "Logging": {"Type": "File"}}}))
    return file


def _with_queue(folder: Path, **properties: Any) -> Path:
    return _file(folder, Queues=[{"Name": "q", "Properties": properties}])


def _only(file: Path) -> NamespaceConfig:
    (namespace,) = load_config(file)
    return namespace


# As the vendor's own sample writes a queue, with what this broker cannot do yet switched off.
VENDORS_QUEUE = {
    "DeadLetteringOnMessageExpiration": False,
    "DefaultMessageTimeToLive": "PT1H",
    "DuplicateDetectionHistoryTimeWindow": "PT20S",
    "ForwardDeadLetteredMessagesTo": "",
    "ForwardTo": "",
    "LockDuration": "PT1M",
    "MaxDeliveryCount": 3,
    "RequiresDuplicateDetection": False,
    "RequiresSession": False,
}


def test_the_vendors_sample_queue_is_read(tmp_path) -> None:
    (queue,) = _only(_with_queue(tmp_path, **VENDORS_QUEUE)).queues
    assert queue == QueueDescription(
        "q",
        lock_duration_s=60,
        default_message_ttl_s=3600,
        duplicate_detection_window_s=20,
        max_delivery_count=3,
    )


def test_our_own_properties_are_read(tmp_path) -> None:
    file = _with_queue(
        tmp_path,
        EnablePartitioning=True,
        MaxSizeInMegabytes=5120,
        MaxMessageSizeInKilobytes=1024,
        Status="SendDisabled",
        UserMetadata="ours",
        DefaultMessageTimeToLive="P10675199DT2H48M5.4775807S",
        DeadLetteringOnMessageExpiration=True,
    )
    assert _only(file).queues == (
        QueueDescription(
            "q",
            enable_partitioning=True,
            max_size_mb=5120,
            max_message_size_kb=1024,
            status=EntityStatus.SEND_DISABLED,
            user_metadata="ours",
            dead_letter_on_expiry=True,
        ),
    )


def test_a_queue_needs_no_properties(tmp_path) -> None:
    queues = [{"Name": "a"}, {"Name": "b/c", "Properties": {"LockDuration": None}}]
    file = _file(tmp_path, Queues=queues, Topics=[])
    assert _only(file).queues == (QueueDescription("a"), QueueDescription("b/c"))


def test_a_byte_order_mark_is_no_mistake(tmp_path) -> None:
    file = tmp_path / "Config.json"
    file.write_text('\ufeff{"UserConfig": {}}', encoding="utf-8")
    assert load_config(file) == ()


def test_rules_are_read_for_the_namespace_and_for_a_queue(tmp_path) -> None:
    reader = {"Name": "reader", "PrimaryKey": "one", "SecondaryKey": "two", "Rights": ["Listen"]}
    sender = {"Name": "sender", "PrimaryKey": "three", "Rights": ["Send", "listen"]}
    queue = {"Name": "q", "AuthorizationRules": [sender]}
    file = _file(tmp_path, AuthorizationRules=[reader], Queues=[queue])
    assert _only(file).rules == {
        "": (AuthorizationRule("reader", ("Listen",), "one", "two"),),
        "q": (AuthorizationRule("sender", ("Send", "Listen"), "three"),),
    }


# As the vendor's own sample writes a topic, with sessions switched off.
VENDORS_TOPIC = {
    "Name": "topic.1",
    "Properties": {
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "RequiresDuplicateDetection": False,
    },
    "Subscriptions": [
        {
            "Name": "subscription.1",
            "Properties": {
                "DeadLetteringOnMessageExpiration": False,
                "DefaultMessageTimeToLive": "PT1H",
                "LockDuration": "PT1M",
                "MaxDeliveryCount": 3,
                "ForwardDeadLetteredMessagesTo": "",
                "ForwardTo": "",
                "RequiresSession": False,
            },
            "Rules": [
                {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                        "FilterType": "Correlation",
                        "CorrelationFilter": {
                            "ContentType": "application/text",
                            "CorrelationId": "id1",
                            "Label": "subject1",
                            "MessageId": "msgid1",
                            "ReplyTo": "someQueue",
                            "ReplyToSessionId": "sessionId",
                            "SessionId": "session1",
                            "To": "xyz",
                        },
                    },
                },
                {
                    "Name": "user-prop-filter-1",
                    "Properties": {
                        "FilterType": "Correlation",
                        "CorrelationFilter": {"Properties": {"prop1": "value1", "prop2": 2}},
                    },
                },
                {
                    "Name": "sql",
                    "Properties": {
                        "FilterType": "Sql",
                        "SqlFilter": {"SqlExpression": "color = 'blue'"},
                        "Action": {"SqlExpression": "SET quantity = quantity / 2"},
                    },
                },
            ],
        },
        {"Name": "subscription.2"},
    ],
}


def test_the_vendors_sample_topic_is_read(tmp_path) -> None:
    (config,) = load_config(_file(tmp_path, Topics=[VENDORS_TOPIC]))
    assert config.topics == (
        TopicDescription("topic.1", default_message_ttl_s=3600, duplicate_detection_window_s=20),
    )
    rules = (
        RuleDescription(
            "app-prop-filter-1",
            CorrelationFilter(
                content_type="application/text",
                correlation_id="id1",
                label="subject1",
                message_id="msgid1",
                reply_to="someQueue",
                reply_to_session_id="sessionId",
                session_id="session1",
                to="xyz",
            ),
        ),
        RuleDescription("user-prop-filter-1", CorrelationFilter(properties={"prop1": "value1", "prop2": 2})),
        RuleDescription("sql", SqlFilter("color = 'blue'"), SqlRuleAction("SET quantity = quantity / 2")),
    )
    assert config.subscriptions == (
        SubscriptionDescription.of(
            *("topic.1", "subscription.1"),
            default_message_ttl_s=3600,
            max_delivery_count=3,
            rules=rules,
        ),
        # Without rules of its own it takes everything.
        SubscriptionDescription.of("topic.1", "subscription.2"),
    )


def _rule(**properties: Any) -> dict[str, Any]:
    rules = [{"Name": "r", "Properties": properties}]
    return {"Name": "t", "Subscriptions": [{"Name": "s", "Rules": rules}]}


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ({}, r"Topics\[0\] is \{\}; a topic needs a 'Name'"),
        ({"Name": "q"}, "another queue of this file has that name"),
        ({"Name": "a/Subscriptions/b"}, "'Subscriptions' is what topics have"),
        ({"Name": "t", "Properties": {"LockDuration": "PT1M"}}, "unknown key 'LockDuration'"),
        ({"Name": "t", "Subscriptions": [{}]}, "a subscription needs a 'Name'"),
        ({"Name": "t", "Subscriptions": [{"Name": "s" * 51}]}, "has 51 characters; at most 50"),
        (
            {"Name": "t", "Subscriptions": [{"Name": "s"}, {"Name": "S"}]},
            "another subscription of this topic",
        ),
        (_rule(), "expected a 'FilterType', Sql or Correlation"),
        (_rule(FilterType="Sql", CorrelationFilter={}), "expected a 'FilterType', Sql or Correlation"),
        (_rule(FilterType="Sql", SqlFilter={}), "expected a 'SqlExpression'"),
        (
            _rule(FilterType="Sql", SqlFilter={"SqlExpression": "a ="}),
            r"Rules\[0\]: At position 4: found the end",
        ),
        (_rule(FilterType="Correlation", CorrelationFilter={"Properties": 1}), "expected an object"),
        (
            _rule(FilterType="Correlation", CorrelationFilter={"Properties": {"a": []}}),
            "property 'a' is of type",
        ),
    ],
)
def test_a_mistake_in_a_topic_is_told_with_its_place(tmp_path, topic, told) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(_file(tmp_path, Queues=[{"Name": "q"}], Topics=[topic]))


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"LockDuration": "1 minute"}, r'LockDuration is "1 minute"; expected an ISO 8601 duration'),
        ({"LockDuration": 60}, "LockDuration is 60; expected a text"),
        ({"LockDuration": "PT10M"}, r"Queues\[0\]: Queue 'q': LockDuration is 600"),
        ({"LockDuration": "P10675199DT2H48M5.4775807S"}, "this duration cannot be unlimited"),
        ({"MaxDeliveryCount": True}, "MaxDeliveryCount is true; expected a whole number"),
        ({"MaxDeliveryCount": 0}, "MaxDeliveryCount is 0; .*from 1"),
        ({"RequiresSession": "false"}, r'RequiresSession is "false"; expected true or false'),
        ({"Status": "Paused"}, r'Status is "Paused"; allowed are Active, Disabled'),
        ({"MaxSizeInMegabytes": 7}, "MaxSizeInMegabytes is 7; .*1024"),
        ({"LockDurations": "PT1M"}, "Properties has the unknown key 'LockDurations'; known are "),
    ],
)
def test_a_wrong_property_is_told_with_place_value_and_what_is_allowed(tmp_path, properties, told) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        load_config(_with_queue(tmp_path, **properties))
    assert str(refused.value).startswith(f"{tmp_path}/Config.json: $.UserConfig.Namespaces[0].Queues[0]")


RULE = {"Name": "r", "PrimaryKey": "k", "Rights": ["Send"]}


@pytest.mark.parametrize(
    ("namespace", "told"),
    [
        ({"Queues": {}}, r"Queues is \{\}; expected a list"),
        ({"Queues": ["q"]}, r'Queues\[0\] is "q"; expected an object'),
        ({"Queues": [{}]}, "a queue needs a 'Name'"),
        ({"Queues": [{"Name": " "}]}, "expected a name"),
        ({"Queues": [{"Name": "a*b"}]}, r"Queues\[0\]: The entity path 'a\*b' is not allowed"),
        ({"Queues": [{"Name": "a/b"}, {"Name": "A\\B"}]}, r"Queues\[1\]\.Name .* another queue"),
        ({"Queues": [{"Name": "q", "Kind": 1}]}, r"Queues\[0\] has the unknown key 'Kind'"),
        ({"Subscriptions": []}, "unknown key 'Subscriptions'"),
        ({"AuthorizationRules": [{"Name": "r"}]}, "lacks 'PrimaryKey'"),
        ({"AuthorizationRules": [{**RULE, "PrimaryKey": ""}]}, "PrimaryKey is empty"),
        ({"AuthorizationRules": [{**RULE, "Rights": []}]}, "expected at least one of Send"),
        ({"AuthorizationRules": [{**RULE, "Rights": ["Own"]}]}, r'Rights\[0\] is "Own"; allowed are Send'),
        ({"AuthorizationRules": [RULE, RULE]}, "another rule of this place has that name"),
        ({"AuthorizationRules": [{**RULE, "Name": f"r{n}"} for n in range(13)]}, "more than 12 rules"),
    ],
)
def test_a_wrong_shape_is_told_with_its_place(tmp_path, namespace, told) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(_file(tmp_path, **namespace))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", r"\$ is \[\]; expected an object"),
        ("{}", "has no 'UserConfig'"),
        ('{"UserConfig": {"Namespaces": [{}, {}]}}', r"Namespaces\[0\] is {}; one of several needs a 'Name'"),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "A"}]}}',
            r"Namespaces\[1\].Name is \"A\"; another namespace of this file has that name",
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "b.c"}]}}',
            "cannot name one of several namespaces",
        ),
        ('{"UserConfig": {}, "UserConfig": {}}', "'UserConfig' appears twice"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, told) -> None:
    file = tmp_path / "Config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_config(file)


def test_a_file_that_is_not_there_is_told(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        load_config(tmp_path / "none.json")
