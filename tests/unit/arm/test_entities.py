"""Entities as JSON, through the one table of properties."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bendybus.arm.entities import arm_name, read_entity, read_subscription
from bendybus.domain.entities import EntityStatus, QueueDescription, Tier
from bendybus.domain.properties import QUEUE, SUBSCRIPTION, TOPIC
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import ArgumentError, NotSupported
from bendybus.names import EntityPath


def read_queue(given):
    return read_entity(QueueDescription, "orders", given, Tier.STANDARD)


@pytest.mark.parametrize("rows", [QUEUE, TOPIC, SUBSCRIPTION], ids=["queue", "topic", "subscription"])
def test_the_released_models_have_every_property_by_its_name_here(rows):
    from azure.mgmt.servicebus import models

    model = {QUEUE: "SBQueueProperties", TOPIC: "SBTopicProperties"}.get(rows, "SBSubscriptionProperties")
    known = {field._rest_name for field in getattr(models, model)()._attr_to_rest_field.values()}
    assert {arm_name(row) for row in rows if not row.ours} <= known


def test_values_are_read_by_their_types():
    made = read_queue(
        {
            "lockDuration": "PT30S",
            "RequiresSession": True,
            "maxDeliveryCount": 3,
            "defaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
            "status": "SendDisabled",
            "forwardTo": "sb://host/plain",
            "userMetadata": None,
            "countDetails": {"activeMessageCount": 5},
            "retryDelay": "PT5S",
        }
    )
    assert made == QueueDescription(
        EntityPath("orders"),
        lock_duration_s=30,
        requires_session=True,
        max_delivery_count=3,
        status=EntityStatus.SEND_DISABLED,
        forward_to=EntityPath("plain"),
        retry_delay_s=5,
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"lockDuration": "1 minute"}, "lockDuration is '1 minute'; it must be an ISO 8601 duration"),
        ({"lockDuration": ""}, "lockDuration"),
        ({"lockDuration": 60}, "'lockDuration' must be a string"),
        ({"requiresSession": "true"}, "'requiresSession' must be true or false"),
        ({"maxDeliveryCount": True}, "'maxDeliveryCount' must be a whole number"),
        ({"maxDeliveryCount": 0}, "MaxDeliveryCount is 0"),
        ({"status": "Restoring"}, "status is 'Restoring'"),
        ({"maxSize": 1024}, "there is no property 'maxSize'"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_name(given, reason):
    with pytest.raises(ArgumentError, match=reason):
        read_queue(given)


def test_a_size_may_be_that_of_all_sixteen_partitions():
    assert read_queue({"enablePartitioning": True, "maxSizeInMegabytes": 32 * 1024}).max_size_mb == 2048
    assert read_queue({"enablePartitioning": True, "maxSizeInMegabytes": 2048}).max_size_mb == 2048


def test_what_a_put_leaves_out_gets_its_default_and_some_properties_stay():
    present = SubscriptionDescription.of(
        "news", "all", lock_duration_s=30, requires_session=True, user_metadata="x", catch_unmatched=True
    )
    changed = read_subscription("news", "all", {"maxDeliveryCount": 2}, present)
    assert changed == replace(present, max_delivery_count=2, lock_duration_s=60, user_metadata=None)
    assert (changed.requires_session, changed.catch_unmatched) == (True, True)


def test_a_subscription_has_neither_a_history_nor_an_owner():
    with pytest.raises(ArgumentError, match="duplicates are detected by the topic"):
        read_subscription("news", "all", {"duplicateDetectionHistoryTimeWindow": "PT1M"})
    with pytest.raises(NotSupported, match="JMS"):
        read_subscription("news", "all", {"isClientAffine": True})
    read_subscription("news", "all", {"isClientAffine": False, "clientAffineProperties": None})


def test_a_topic_keeps_whether_it_supports_ordering():
    made = read_entity(TopicDescription, "news", {"supportOrdering": False}, Tier.STANDARD)
    assert made.as_sent == {"SupportOrdering": "false"}
