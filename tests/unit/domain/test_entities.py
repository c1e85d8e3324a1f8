from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from bendybus.domain.entities import (
    EntityStatus,
    QueueDescription,
    Tier,
    check_path,
    effective_max_size_mb,
    normalise_path,
)
from bendybus.domain.expiry import ExpiryWatch
from bendybus.domain.intake import Intake
from bendybus.domain.shelf import Shelf
from bendybus.errors import ArgumentError, InvalidOperation, QuotaExceeded
from bendybus.names import EntityPath, PartitionNumber

ORDERS = QueueDescription(EntityPath("orders"))


@pytest.mark.parametrize(
    ("field", "wire_name", "allowed", "refused"),
    [
        ("lock_duration_s", "LockDuration", (5, 300), (4.9, 301, 0, -1)),
        ("duplicate_detection_window_s", "DuplicateDetectionHistoryTimeWindow", (20, 604_800), (19, 604_801)),
        ("default_message_ttl_s", "DefaultMessageTimeToLive", (1, 10**9, None), (0.5, 0)),
        ("auto_delete_on_idle_s", "AutoDeleteOnIdle", (300, 10**9, None), (299,)),
        ("max_delivery_count", "MaxDeliveryCount", (1, 2001, 2_147_483_647), (0, 2_147_483_648)),
        ("max_size_mb", "MaxSizeInMegabytes", (1024, 5120, 81_920), (0, 1, 6144, 81_921)),
        ("max_message_size_kb", "MaxMessageSizeInKilobytes", (1, 102_400), (0, 1 << 31)),
        ("user_metadata", "UserMetadata", ("", "m" * 1024, None), ("m" * 1025,)),
    ],
)
def test_each_property_keeps_its_range(
    field: str, wire_name: str, allowed: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    for value in allowed:
        assert getattr(replace(ORDERS, **{field: value}), field) == value
    for value in refused:
        with pytest.raises(ArgumentError) as raised:
            replace(ORDERS, **{field: value})
        shown = str(len(value)) if isinstance(value, str) else str(value)
        assert "'orders'" in str(raised.value)
        assert wire_name in str(raised.value)
        assert shown in str(raised.value)


def test_an_error_names_the_allowed_range() -> None:
    with pytest.raises(ArgumentError, match="at least PT5S and at most PT5M"):
        replace(ORDERS, lock_duration_s=301)
    with pytest.raises(ArgumentError, match="from 1 to 2147483647"):
        replace(ORDERS, max_delivery_count=0)
    with pytest.raises(ArgumentError, match="one of 1024, 2048,"):
        replace(ORDERS, max_size_mb=1)


@pytest.mark.parametrize("field", ["forward_to", "forward_dead_lettered_to"])
def test_a_queue_may_forward_to_itself_and_with_sessions(field: str) -> None:
    for target in ("ORDERS", "archive"):
        described = replace(ORDERS, requires_session=True, **{field: EntityPath(target)})
        assert getattr(described, field) == target
    with pytest.raises(ArgumentError, match="not allowed"):
        replace(ORDERS, **{field: EntityPath("a b")})


def test_an_entity_that_forwards_is_never_idle() -> None:
    idle = replace(ORDERS, auto_delete_on_idle_s=300)
    assert replace(idle, forward_to=EntityPath("archive")).auto_delete_on_idle_s is None
    assert replace(idle, forward_dead_lettered_to=EntityPath("archive")).auto_delete_on_idle_s == 300


def test_express_excludes_duplicate_detection() -> None:
    with pytest.raises(ArgumentError, match="EnableExpress"):
        replace(ORDERS, enable_express=True, requires_duplicate_detection=True)


def test_a_description_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        ORDERS.max_delivery_count = 1


@pytest.mark.parametrize("path", ["orders", "a", "Orders.v2_x-1", "eu/west/orders", "q" * 260, "9"])
def test_a_legal_path_is_kept_as_spelt(path: str) -> None:
    assert check_path(path) == path


def test_a_backslash_is_a_slash() -> None:
    assert QueueDescription(EntityPath("eu\\orders")).path == "eu/orders"


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "a@b", "a?b", "a#b", "a*b", "$management", "q" * 261, "a b", "a\n"]
)
def test_an_illegal_path_is_refused(path: str) -> None:
    with pytest.raises(ArgumentError):
        QueueDescription(EntityPath(path))


def test_paths_are_compared_without_case() -> None:
    assert normalise_path("EU\\Orders") == normalise_path("eu/orders")
    assert normalise_path("orders") != normalise_path("orders2")


@pytest.mark.parametrize(
    ("status", "can_send", "can_receive"),
    [
        ("Active", True, True),
        ("Disabled", False, False),
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
    ],
)
def test_a_status_says_what_is_allowed(status: str, can_send: bool, can_receive: bool) -> None:
    assert EntityStatus(status).can_send is can_send
    assert EntityStatus(status).can_receive is can_receive


@pytest.mark.row("P-08")
@pytest.mark.parametrize("tier", [Tier.BASIC, Tier.STANDARD])
def test_standard_partitions_by_the_entitys_own_choice(tier: Tier) -> None:
    assert tier.partition_count(enable_partitioning=True) == 16
    assert tier.partition_count(enable_partitioning=False) == 1


def premium_count(premium_partitions: int, enable_partitioning: bool | None = None) -> int:
    return Tier.PREMIUM.partition_count(
        enable_partitioning=enable_partitioning, premium_partitions=premium_partitions
    )


@pytest.mark.row("P-09")
def test_premium_partitions_by_the_namespaces_choice() -> None:
    assert [premium_count(1), premium_count(2), premium_count(4)] == [1, 2, 4]
    assert Tier.PREMIUM.partition_count(enable_partitioning=None) == 2
    with pytest.raises(ArgumentError, match="premiumMessagingPartitions is 3"):
        premium_count(3)


@pytest.mark.row("P-09")
def test_in_premium_an_entity_may_ask_only_for_what_the_namespace_has() -> None:
    assert [premium_count(1, False), premium_count(2, True), premium_count(4, True)] == [1, 2, 4]
    for partitions, asked, azure in (
        (2, False, "Non-partitioned entities are not allowed in partitioned namespace."),
        (4, False, "Non-partitioned entities are not allowed in partitioned namespace."),
        (1, True, "Partitioned entities are not allowed in non-partitioned namespace."),
    ):
        with pytest.raises(ArgumentError, match=f"premiumMessagingPartitions {partitions}") as refused:
            premium_count(partitions, asked)
        assert refused.value.azure == azure


@pytest.mark.row("P-08", "P-09")
def test_sixteen_partitions_of_5_gb_are_80_gb_and_two_are_5_gb() -> None:
    large = replace(ORDERS, max_size_mb=5120)
    assert [effective_max_size_mb(large, count) for count in (16, 4, 2, 1)] == [81_920, 5120, 5120, 5120]


@pytest.mark.row("P-08", "P-09")
@pytest.mark.parametrize(("partitions", "share_mb"), [(16, 1024), (4, 256), (2, 512), (1, 1024)])
def test_the_partitions_hold_together_what_the_entity_shows(partitions: int, share_mb: int) -> None:
    intake = Intake(PartitionNumber(0), ORDERS, None, Shelf(), ExpiryWatch(), partitions)
    intake.refuse_beyond_quota(0, share_mb << 20)
    with pytest.raises(QuotaExceeded):
        intake.refuse_beyond_quota(1, share_mb << 20)
    assert effective_max_size_mb(ORDERS, partitions) == share_mb * partitions


@pytest.mark.row("P-08", "P-09")
def test_sizes_beyond_5_gb_are_for_premium() -> None:
    large = replace(ORDERS, max_size_mb=10_240)
    Tier.PREMIUM.check(large)
    with pytest.raises(ArgumentError, match="MaxSizeInMegabytes is 10240"):
        Tier.STANDARD.check(large)


@pytest.mark.row("P-09")
def test_large_messages_are_for_premium() -> None:
    large = replace(ORDERS, max_message_size_kb=1024)
    Tier.PREMIUM.check(large)
    with pytest.raises(ArgumentError, match="MaxMessageSizeInKilobytes is 1023; it must be from 1024"):
        Tier.PREMIUM.check(replace(ORDERS, max_message_size_kb=1023))
    with pytest.raises(ArgumentError, match="MaxMessageSizeInKilobytes is 1024"):
        Tier.STANDARD.check(large)


@pytest.mark.row("P-09")
def test_a_tier_accepts_what_an_entity_has_already() -> None:
    before = replace(ORDERS, max_size_mb=10_240, max_message_size_kb=2048)
    Tier.STANDARD.check(replace(before, max_delivery_count=3), before)
    with pytest.raises(ArgumentError, match="MaxSizeInMegabytes is 20480"):
        Tier.STANDARD.check(replace(before, max_size_mb=20_480), before)
    express = replace(ORDERS, enable_express=True)
    Tier.PREMIUM.check(replace(express, max_delivery_count=3), express)


@pytest.mark.parametrize(
    ("tier", "properties", "name"),
    [
        (Tier.BASIC, {"requires_session": True}, "RequiresSession"),
        (Tier.BASIC, {"requires_duplicate_detection": True}, "RequiresDuplicateDetection"),
        (Tier.BASIC, {"forward_to": "archive"}, "ForwardTo"),
        (Tier.BASIC, {"forward_dead_lettered_to": "archive"}, "ForwardDeadLetteredMessagesTo"),
        (Tier.BASIC, {"auto_delete_on_idle_s": 300}, "AutoDeleteOnIdle"),
        (Tier.PREMIUM, {"enable_express": True}, "EnableExpress"),
    ],
)
def test_a_tier_refuses_what_it_does_not_offer(tier: Tier, properties: dict[str, Any], name: str) -> None:
    description = replace(ORDERS, **properties)
    Tier.STANDARD.check(description)
    with pytest.raises(InvalidOperation, match=f"does not offer {name}"):
        tier.check(description)
    for each in Tier:
        each.check(ORDERS)


def test_a_description_survives_being_kept_as_json() -> None:
    kept = replace(ORDERS, status=EntityStatus.SEND_DISABLED, forward_to=EntityPath("archive"))
    record = json.loads(json.dumps(kept.to_record()))
    assert QueueDescription.from_record(record) == kept
    assert type(QueueDescription.from_record(record).status) is EntityStatus


def test_a_record_may_lack_properties_or_hold_unknown_ones() -> None:
    # Keys are compared as they were when it was written.
    recorded = QueueDescription.from_record({"path": "orders", "from_the_future": 1})
    assert recorded == replace(ORDERS, exact_keys=True)


@pytest.mark.row("P-07")
@pytest.mark.parametrize(
    ("field", "label"),
    [
        ("enable_partitioning", "EnablePartitioning"),
        ("requires_session", "RequiresSession"),
        ("requires_duplicate_detection", "RequiresDuplicateDetection"),
    ],
)
def test_what_was_fixed_at_creation_is_not_changed(field: str, label: str) -> None:
    made = replace(ORDERS, enable_partitioning=False)
    with pytest.raises(InvalidOperation, match=f"{label} is False"):
        made.refuse_immutable_changes(replace(made, **{field: True}))
    made.refuse_immutable_changes(ORDERS)
    ORDERS.refuse_immutable_changes(replace(ORDERS, max_delivery_count=5, lock_duration_s=30))


@pytest.mark.row("P-11")
@pytest.mark.parametrize(
    ("tier", "counts", "refused"),
    [
        (Tier.STANDARD, {"entities": 9_999, "partitioned_entities": 99}, False),
        (Tier.STANDARD, {"entities": 10_000, "partitioned_entities": 99}, True),
        (Tier.STANDARD, {"entities": 500, "partitioned_entities": 100}, True),
        (Tier.PREMIUM, {"entities": 20_000, "partitioned_entities": 20_000}, False),
    ],
)
def test_the_tier_limits_how_many_entities_there_are(tier, counts, refused):
    with pytest.raises(QuotaExceeded) if refused else nullcontext():
        tier.check_quota("q", partitioned=True, **counts)
