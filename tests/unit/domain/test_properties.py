"""The table of properties: whole, without contradictions, and true of the descriptions."""

from __future__ import annotations

from collections import Counter
from dataclasses import MISSING, fields

import pytest

from bendybus.domain.entities import QueueDescription
from bendybus.domain.properties import (
    ALL,
    ENABLE_PARTITIONING,
    LOCK_DURATION,
    MAX_DELIVERY_COUNT,
    MAX_MESSAGE_SIZE,
    QUEUE,
    STATUS,
    SUBSCRIPTION,
    TOPIC,
    USER_METADATA,
    Property,
)
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import ArgumentError

DESCRIPTIONS = (QueueDescription, TopicDescription, SubscriptionDescription)

# What a description has besides properties: a name, lists with rules of their own, and how keys were
# compared when the entity was made, which nobody can set.
NOT_PROPERTIES = {"path", "authorization_rules", "rules", "exact_keys", "temporary", "as_sent"}


@pytest.mark.parametrize("kind", DESCRIPTIONS, ids=lambda kind: kind.__name__)
def test_a_description_has_the_fields_and_defaults_of_the_table(kind: type[QueueDescription]) -> None:
    described = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    for row in kind.PROPERTIES:
        # These two are left to the namespace, which knows its tier.
        default = None if row in (ENABLE_PARTITIONING, MAX_MESSAGE_SIZE) else row.default
        assert described[row.field] == default, row.name


@pytest.mark.parametrize("kind", [QueueDescription, TopicDescription], ids=lambda kind: kind.__name__)
def test_every_field_of_a_description_is_in_the_table(kind: type[QueueDescription]) -> None:
    named = {field.name for field in fields(kind)} - NOT_PROPERTIES
    assert named == {row.field for row in kind.PROPERTIES}


def test_a_subscription_has_what_a_queue_has_but_for_what_is_its_topics() -> None:
    topics_own = {row for row in QUEUE if row not in SUBSCRIPTION}
    assert topics_own <= set(TOPIC)
    assert {row.name for row in SUBSCRIPTION if row not in QUEUE} == {
        "CatchUnmatched",
        "DeadLetteringOnFilterEvaluationExceptions",
    }


@pytest.mark.parametrize("column", ["name", "field", "option"])
def test_no_two_properties_share_a_name(column: str) -> None:
    names = Counter(name for row in ALL if (name := getattr(row, column)))
    assert max(names.values()) == 1


def test_all_has_every_property_of_every_kind_once() -> None:
    assert len(set(ALL)) == len(ALL)
    assert set(ALL) == {*QUEUE, *TOPIC, *SUBSCRIPTION}


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_a_default_is_allowed(row: Property) -> None:
    row.check("it", row.default)


@pytest.mark.parametrize(
    ("row", "value", "told"),
    [
        (LOCK_DURATION, 4.9, "it: LockDuration is 4.9 seconds; it must be at least PT5S and at most PT5M."),
        (MAX_DELIVERY_COUNT, 0, "it: MaxDeliveryCount is 0; it must be from 1 to "),
        (USER_METADATA, "x" * 1025, "it: the length of UserMetadata is 1025; it must be from 0 to 1024."),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(row: Property, value: object, told: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        row.check("it", value)
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    ("row", "limits"),
    [
        (LOCK_DURATION, "5s to 5m"),
        (MAX_MESSAGE_SIZE, "1 to 256; in Premium 1024 to 102400"),
        (STATUS, "Active, Disabled, SendDisabled or ReceiveDisabled"),
        (USER_METADATA, "at most 1024 characters"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_limits_are_told_in_plain_words(row: Property, limits: str) -> None:
    assert row.limits == limits
