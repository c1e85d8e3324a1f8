"""Topics and subscriptions by description: names, limits, rules, and records of them."""

from __future__ import annotations

import json

import pytest

from bendybus.domain.entities import EntityStatus, QueueDescription, Tier
from bendybus.domain.filters import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
    sql_filter,
)
from bendybus.domain.topic_entities import (
    SubscriptionDescription,
    TopicDescription,
    check_topic_tier,
    count_filters,
    split_subscription,
)
from bendybus.errors import ArgumentError, EntityExists, EntityNotFound, InvalidOperation
from bendybus.names import EntityPath

RED = RuleDescription("Red", SqlFilter("colour = @c", {"c": "red"}), SqlRuleAction("SET n = 1"))


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("t/Subscriptions/s", ("t", "s")),
        ("a/b/SUBSCRIPTIONS/s", ("a/b", "s")),
        ("t/Subscriptions", None),
        ("t/Subscriptions/s/more", None),
        ("t", None),
        ("subscriptions/s", None),
    ],
)
def test_a_subscription_is_known_by_its_path_in_any_case(path, split):
    assert split_subscription(path) == split


@pytest.mark.parametrize("name", ["", "a/b", "a b", "s" * 51, "a*", "a@b"])
def test_bad_subscription_names_are_refused(name):
    with pytest.raises(ArgumentError):
        SubscriptionDescription.of("t", name)


def test_queues_and_topics_cannot_pass_for_subscriptions():
    for kind in (QueueDescription, TopicDescription):
        with pytest.raises(ArgumentError, match="is what topics have"):
            kind(EntityPath("t/subscriptions/s"))


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"max_size_mb": 7}, "Topic 't': MaxSizeInMegabytes is 7"),
        ({"default_message_ttl_s": 0}, "Topic 't': DefaultMessageTimeToLive"),
        ({"duplicate_detection_window_s": 5}, "DuplicateDetectionHistoryTimeWindow"),
        ({"auto_delete_on_idle_s": 5}, "AutoDeleteOnIdle"),
        ({"max_message_size_kb": 0}, "MaxMessageSizeInKilobytes"),
        ({"user_metadata": "x" * 1025}, "UserMetadata"),
        ({"status": EntityStatus.RECEIVE_DISABLED}, "nobody receives from a topic"),
        ({"enable_express": True, "requires_duplicate_detection": True}, "cannot be combined"),
    ],
)
def test_what_no_topic_may_be_is_refused_by_name(properties, told):
    with pytest.raises(ArgumentError, match=told):
        TopicDescription(EntityPath("t"), **properties)


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"lock_duration_s": 301}, "Subscription 't/Subscriptions/s': LockDuration"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount"),
        ({"requires_duplicate_detection": True}, "detected at the topic"),
    ],
)
def test_what_no_subscription_may_be_is_refused_by_name(properties, told):
    with pytest.raises(ArgumentError, match=told):
        SubscriptionDescription.of("t", "s", **properties)


def test_tiers_decide_about_topics():
    with pytest.raises(InvalidOperation, match="does not offer topics"):
        check_topic_tier(Tier.BASIC, TopicDescription(EntityPath("t")))
    with pytest.raises(InvalidOperation, match="does not offer EnableExpress"):
        check_topic_tier(Tier.PREMIUM, TopicDescription(EntityPath("t"), enable_express=True))
    with pytest.raises(ArgumentError, match="MaxMessageSizeInKilobytes"):
        check_topic_tier(Tier.STANDARD, TopicDescription(EntityPath("t"), max_message_size_kb=1024))


def test_records_come_back_as_they_were():
    topic = TopicDescription(EntityPath("t"), max_size_mb=2048, status=EntityStatus.SEND_DISABLED)
    assert TopicDescription.from_record(json.loads(json.dumps(topic.to_record()))) == topic
    subscription = SubscriptionDescription.of(
        *("t", "s"), lock_duration_s=30, dead_letter_on_filter_errors=False, rules=(DEFAULT_RULE, RED)
    )
    again = SubscriptionDescription.from_record(json.loads(json.dumps(subscription.to_record())))
    assert again == subscription
    assert (again.name, again.topic_path) == ("s", "t")


def test_rules_are_found_in_any_case_and_keep_their_spelling():
    subscription = SubscriptionDescription.of("t", "s").with_rule(RED)
    assert subscription.rule("RED") is RED
    with pytest.raises(EntityExists, match="t/Subscriptions/s/Rules/red"):
        subscription.with_rule(RuleDescription("red"))
    changed = subscription.with_changed_rule(RuleDescription("rED", FalseFilter()))
    assert [(rule.name, rule.filter) for rule in changed.rules] == [
        ("$Default", TrueFilter()),
        ("Red", FalseFilter()),
    ]
    assert changed.without_rule("$default").without_rule("red").rules == ()
    for missing in (subscription.without_rule, subscription.rule):
        with pytest.raises(EntityNotFound, match="'t/Subscriptions/s/Rules/blue' could not be found"):
            missing("blue")


def test_filters_are_counted_by_their_kind():
    other = SubscriptionDescription.of("t", "o", rules=(RuleDescription("c", CorrelationFilter(to="x")),))
    assert count_filters([SubscriptionDescription.of("t", "s", rules=(DEFAULT_RULE, RED)), other]) == (2, 1)


def test_the_texts_of_the_true_and_the_false_filter_are_known():
    assert [sql_filter(text) for text in ("1=1", "1=0")] == [TrueFilter(), FalseFilter()]
    # A client that writes it otherwise gets back what it wrote.
    assert [sql_filter(text) for text in ("1 = 1", "1=2")] == [SqlFilter("1 = 1"), SqlFilter("1=2")]
