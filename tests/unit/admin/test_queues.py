"""A queue's description as XML, both ways."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.admin.documents import Element, parse_entry
from bendybus.admin.queues import queue_elements, read_queue
from bendybus.atom import SERVICE_BUS
from bendybus.broker.lifecycle import Availability, StoreState
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Confirm, Enqueue
from bendybus.domain.entities import EntityStatus, QueueDescription, Tier
from bendybus.domain.partition import Partition
from bendybus.errors import ArgumentError, BrokerError
from bendybus.names import EntityPath, Instant, PartitionNumber
from fix_broker import message

PATH = EntityPath("orders")
# As the real service serves them; clients that read in order need this order.
SERVED = [
    "LockDuration",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "SizeInBytes",
    "MessageCount",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "ForwardTo",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "UserMetadata",
    "SupportOrdering",
    "CountDetails",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "ForwardDeadLetteredMessagesTo",
    "EnableExpress",
    "MaxMessageSizeInKilobytes",
]

EVERYTHING = QueueDescription(
    PATH,
    lock_duration_s=30.5,
    max_size_mb=2048,
    max_message_size_kb=100,
    default_message_ttl_s=3600,
    dead_letter_on_expiry=True,
    max_delivery_count=7,
    auto_delete_on_idle_s=600,
    enable_partitioning=True,
    enable_batched_operations=False,
    forward_to=EntityPath("elsewhere"),
    forward_dead_lettered_to=EntityPath("a/b"),
    status=EntityStatus.SEND_DISABLED,
    user_metadata="<&> \u2603",
)

PLAIN = QueueDescription(PATH, max_message_size_kb=256, enable_partitioning=False)


def a_queue(description: QueueDescription, partitions: int) -> Queue:
    """With a message of three bytes in each partition."""
    queue = Queue(description, partitions, lambda host: None)
    for number in range(partitions):
        partition = Partition(PartitionNumber(number), description)
        arrived = [message("abc")]
        partition.apply(Enqueue(arrived), Instant(1))
        partition.apply(Confirm(arrived[-1].sequence_number), Instant(1))
        store = SimpleNamespace(state=StoreState.AVAILABLE)
        queue.hosts.append(
            SimpleNamespace(figures=partition, availability=Availability.AVAILABLE, store=store)
        )
    return queue


def written(queue: Queue, version: str = "2024-05") -> ElementTree.Element:
    text = queue_elements(queue, version)
    return ElementTree.fromstring(f'<QueueDescription xmlns="{SERVICE_BUS}">{text}</QueueDescription>')


def read(elements: str, tier: Tier = Tier.STANDARD, current: Queue | None = None) -> QueueDescription:
    body = f"<entry><content><QueueDescription>{elements}</QueueDescription></content></entry>"
    return read_queue(PATH, parse_entry(body.encode()).elements, tier, current)


def text_of(shown: ElementTree.Element, name: str) -> str | None:
    return shown.findtext(f"{{{SERVICE_BUS}}}{name}")


def test_what_is_shown_is_in_the_order_of_the_real_service() -> None:
    shown = written(a_queue(EVERYTHING, 16))
    assert [child.tag.rpartition("}")[2] for child in shown] == SERVED


@pytest.mark.parametrize("tier", [Tier.STANDARD, Tier.PREMIUM])
@pytest.mark.parametrize("description", [EVERYTHING, PLAIN])
def test_what_is_shown_means_the_same_when_it_comes_back(description: QueueDescription, tier: Tier) -> None:
    if tier is Tier.PREMIUM:
        description = replace(description, max_message_size_kb=2048)
    standard, premium = (16, 2) if description.enable_partitioning else (1, 1)
    queue = a_queue(description, premium if tier is Tier.PREMIUM else standard)
    shown = queue_elements(queue, "2024-05")
    assert read(shown, tier) == description
    assert read(shown, tier, current=queue) == description


@pytest.mark.row("P-09")
@pytest.mark.parametrize("tier", [Tier.STANDARD, Tier.PREMIUM])
@pytest.mark.parametrize("partitions", [16, 2])
def test_an_update_in_another_tier_than_it_was_created_in_changes_nothing(
    partitions: int, tier: Tier
) -> None:
    queue = a_queue(EVERYTHING, partitions)
    assert read(queue_elements(queue, "2024-05"), tier, current=queue) == EVERYTHING


@pytest.mark.row("P-08")
def test_a_partitioned_queue_shows_the_size_of_all_partitions() -> None:
    five = QueueDescription(PATH, max_size_mb=5120, enable_partitioning=True)
    assert text_of(written(a_queue(five, 16)), "MaxSizeInMegabytes") == "81920"
    assert text_of(written(a_queue(five, 2)), "MaxSizeInMegabytes") == "5120"
    both = "<EnablePartitioning>true</EnablePartitioning><MaxSizeInMegabytes>{}</MaxSizeInMegabytes>"
    assert read(both.format(81_920)) == read(both.format(5120)) == five


@pytest.mark.row("P-09")
def test_what_the_client_does_not_say_is_left_to_the_namespace() -> None:
    asked = read("<MaxDeliveryCount>3</MaxDeliveryCount>", Tier.PREMIUM)
    assert (asked.enable_partitioning, asked.max_message_size_kb) == (None, None)
    asked = read("<EnablePartitioning>false</EnablePartitioning>", Tier.PREMIUM)
    assert asked.enable_partitioning is False


@pytest.mark.row("P-33")
def test_counts_and_sizes_are_summed_over_the_partitions() -> None:
    queue = a_queue(EVERYTHING, 16)
    shown = written(queue)
    assert (text_of(shown, "MessageCount"), text_of(shown, "SizeInBytes")) == ("16", "48")
    assert text_of(shown, "EntityAvailabilityStatus") == "Available"
    queue.hosts[3] = SimpleNamespace(figures=None, availability=Availability.UNAVAILABLE)
    shown = written(queue)
    assert (text_of(shown, "MessageCount"), text_of(shown, "SizeInBytes")) == ("15", "45")
    assert text_of(shown, "EntityAvailabilityStatus") == "Limited"


def test_the_prefix_of_the_counts_is_declared_where_the_javascript_client_looks() -> None:
    text = queue_elements(a_queue(EVERYTHING, 1), "2024-05")
    assert '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">' in text
    assert "<d2p1:ActiveMessageCount>1</d2p1:ActiveMessageCount>" in text


@pytest.mark.row("P-10")
@pytest.mark.parametrize(
    ("version", "hidden"),
    [
        ("", {"EnablePartitioning", "EntityAvailabilityStatus", "MaxMessageSizeInKilobytes"}),
        ("2013-09", {"EnablePartitioning", "EntityAvailabilityStatus", "MaxMessageSizeInKilobytes"}),
        ("2017-04", {"MaxMessageSizeInKilobytes"}),
        ("2099-01", set()),
    ],
)
def test_older_versions_see_less(version: str, hidden: set[str]) -> None:
    shown = {child.tag.rpartition("}")[2] for child in written(a_queue(EVERYTHING, 1), version=version)}
    assert set(SERVED) - shown == hidden


@pytest.mark.parametrize(
    "sent", ["elsewhere", "sb://h:5672/elsewhere", "https://h/elsewhere/", "sb://h.windows.net/elsewhere"]
)
def test_a_forward_is_a_name_or_a_url(sent: str) -> None:
    assert read(f"<ForwardTo>{sent}</ForwardTo>").forward_to == "elsewhere"


def test_an_update_takes_away_what_it_leaves_out_only_where_that_is_how_it_is_taken_away() -> None:
    changed = read("<MaxDeliveryCount>3</MaxDeliveryCount>", current=a_queue(EVERYTHING, 16))
    assert (changed.max_delivery_count, changed.lock_duration_s, changed.max_size_mb) == (3, 30.5, 2048)
    assert (changed.forward_to, changed.forward_dead_lettered_to, changed.user_metadata) == (None, None, None)


def test_unlimited_in_any_rounding_is_unlimited() -> None:
    for text in ("P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.477539S", "P10675199DT2H48M5.477S"):
        assert read(f"<DefaultMessageTimeToLive>{text}</DefaultMessageTimeToLive>") == QueueDescription(PATH)


def test_unknown_and_read_only_elements_are_passed_over() -> None:
    assert read("<Fancy>1</Fancy><SizeInBytes>x</SizeInBytes><UserMetadata/>") == QueueDescription(PATH)


@pytest.mark.parametrize(
    ("elements", "error", "reason"),
    [
        ("<LockDuration>soon</LockDuration>", ArgumentError, "LockDuration is 'soon'; it must be an ISO"),
        ("<LockDuration>P10675199D</LockDuration>", ArgumentError, "cannot be unlimited"),
        ("<LockDuration>PT10M</LockDuration>", ArgumentError, "at most PT5M"),
        ("<MaxDeliveryCount>-1</MaxDeliveryCount>", ArgumentError, "a whole number"),
        ("<MaxDeliveryCount>\u0663</MaxDeliveryCount>", ArgumentError, "a whole number"),
        (f"<MaxDeliveryCount>{'9' * 5000}</MaxDeliveryCount>", ArgumentError, "a whole number"),
        ("<RequiresSession>maybe</RequiresSession>", ArgumentError, "true or false"),
        ("<Status>Creating</Status>", ArgumentError, "one of Active"),
        ("<ForwardTo>sb://host</ForwardTo>", ArgumentError, "entity path ''"),
        (f"<UserMetadata>{'x' * 1025}</UserMetadata>", ArgumentError, "UserMetadata"),
        ("<AuthorizationRules><R/></AuthorizationRules>", ArgumentError, "AuthorizationRules"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(elements: str, error: type[BrokerError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        read(elements)


@given(
    st.dictionaries(
        st.sampled_from([*(row.name for row in QueueDescription.PROPERTIES), "AuthorizationRules"]),
        st.one_of(
            st.text(max_size=40), st.integers().map(str), st.sampled_from(["true", "PT1M", "P7D", "1024"])
        ),
    )
)
def test_whatever_the_elements_say_it_is_a_queue_or_a_refusal(values: dict[str, str]) -> None:
    elements = {name: Element(name) for name in values}
    for name, text in values.items():
        elements[name].text = text
    for current in (None, a_queue(EVERYTHING, 16)):
        with suppress(BrokerError):
            description = read_queue(PATH, elements, Tier.STANDARD, current)
            partitions = 16 if description.enable_partitioning else 1
            again = Queue(description, partitions, lambda host: None)
            assert read_queue(PATH, elements, Tier.STANDARD, again) == description


@given(st.binary(max_size=200), st.integers(0, 200))
def test_whatever_the_body_is_it_is_an_entry_or_a_refusal(noise: bytes, at: int) -> None:
    whole = b"<entry><content><QueueDescription><Status>Active</Status></QueueDescription></content></entry>"
    for body in (noise, whole[:at] + noise + whole[at:], whole[:at] + noise):
        with suppress(BrokerError):
            parse_entry(body)
