"""A queue in the management API: QueueDescription as XML, both ways.

Elements are written in the order of the real service and read in any. Which values
a property may have is not decided here: domain/entities.py refuses them by name.
A partitioned queue of the Standard tier shows the size of all its partitions
together (P-08), and that size, sent back in an update, means what it showed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bendybus.admin.documents import Element
from bendybus.admin.fields import (
    Properties,
    boolean,
    bounded_duration,
    duration,
    entity_path,
    plain_text,
    read_sendable,
    status,
    whole_number,
)
from bendybus.admin.rules_xml import rules_element
from bendybus.admin.totals import Totals
from bendybus.atom import elements_of, format_time
from bendybus.broker.queue import Queue
from bendybus.domain.access import AuthorizationRule
from bendybus.domain.durations import format_duration
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.names import EntityPath

__all__ = ["FIRST_WITH_MESSAGE_SIZES", "FIRST_WITH_PARTITIONS", "PROPERTIES", "queue_elements", "read_queue"]

# "api-version=2013-10 or later" to create or see partitioned entities (P-10).
FIRST_WITH_PARTITIONS: Final = "2013-10"
FIRST_WITH_MESSAGE_SIZES: Final = "2021-05"


# -- reading ------------------------------------------------------------------------


PROPERTIES: Final[Properties] = {
    "LockDuration": ("lock_duration_s", bounded_duration),
    "MaxSizeInMegabytes": ("max_size_mb", whole_number),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", boolean),
    "RequiresSession": ("requires_session", boolean),
    "DefaultMessageTimeToLive": ("default_message_ttl_s", duration),
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiry", boolean),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_s", bounded_duration),
    "MaxDeliveryCount": ("max_delivery_count", whole_number),
    "EnableBatchedOperations": ("enable_batched_operations", boolean),
    "Status": ("status", status),
    "ForwardTo": ("forward_to", entity_path),
    "UserMetadata": ("user_metadata", plain_text),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_s", duration),
    "EnablePartitioning": ("enable_partitioning", boolean),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", entity_path),
    "EnableExpress": ("enable_express", boolean),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", whole_number),
}

# An update that leaves one of these out takes it away; what else it leaves out stays as it is.
REMOVABLE: Final = ("forward_to", "forward_dead_lettered_to", "user_metadata")


def read_queue(
    path: str, elements: Mapping[str, Element], tier: Tier, current: QueueDescription | None = None
) -> QueueDescription:
    """The queue that a client describes; with `current`, what an update would make of that."""
    values = read_sendable(f"Queue '{path}'", elements, PROPERTIES, tier, current)
    if current is None:
        return QueueDescription(EntityPath(path), **values)
    left_out: dict[str, Any] = dict.fromkeys(REMOVABLE)
    return replace(current, **(left_out | values))


# -- writing ------------------------------------------------------------------------


def queue_elements(queue: Queue, tier: Tier, api_version: str, *, with_rules: bool = True) -> str:
    """The children of QueueDescription, as this version of the API shows them.

    `with_rules`: to somebody who may manage the queue, since the rules have their keys in them.
    """
    rules = queue.description.authorization_rules if with_rules else ()
    return elements_of(_shown(queue, tier, api_version, rules))


def _shown(
    queue: Queue, tier: Tier, api_version: str, rules: Sequence[AuthorizationRule]
) -> Iterator[tuple[str, object] | str]:
    description, totals = queue.description, Totals.of(queue)
    partitioned = len(queue.hosts) > 1
    yield "LockDuration", format_duration(description.lock_duration_s)
    yield "MaxSizeInMegabytes", tier.effective_max_size_mb(description)
    yield "RequiresDuplicateDetection", description.requires_duplicate_detection
    yield "RequiresSession", description.requires_session
    yield "DefaultMessageTimeToLive", format_duration(description.default_message_ttl_s)
    yield "DeadLetteringOnMessageExpiration", description.dead_letter_on_expiry
    yield "DuplicateDetectionHistoryTimeWindow", format_duration(description.duplicate_detection_window_s)
    yield "MaxDeliveryCount", description.max_delivery_count
    yield "EnableBatchedOperations", description.enable_batched_operations
    yield "SizeInBytes", totals.size_bytes
    yield "MessageCount", totals.messages
    yield "IsAnonymousAccessible", False
    yield rules_element(rules)
    yield "Status", description.status
    if description.forward_to is not None:
        yield "ForwardTo", description.forward_to
    if description.user_metadata is not None:
        yield "UserMetadata", description.user_metadata
    yield "CreatedAt", format_time(queue.created_at)
    yield "UpdatedAt", format_time(queue.updated_at)
    yield "AccessedAt", format_time(queue.accessed_at)
    yield "SupportOrdering", not partitioned
    yield totals.count_details()
    yield "AutoDeleteOnIdle", format_duration(description.auto_delete_on_idle_s)
    if api_version >= FIRST_WITH_PARTITIONS:
        yield "EnablePartitioning", partitioned
        yield "EntityAvailabilityStatus", "Limited" if totals.limited else "Available"
    if description.forward_dead_lettered_to is not None:
        yield "ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_to
    yield "EnableExpress", description.enable_express
    if api_version >= FIRST_WITH_MESSAGE_SIZES:
        yield "MaxMessageSizeInKilobytes", description.max_message_size_kb
