"""A queue in the management API: QueueDescription as XML, both ways.

Elements are written in the order of the real service and read in any. Which values
a property may have is not decided here: domain/entities.py refuses them by name.
A partitioned queue of the Standard tier shows the size of all its partitions
together (P-08), and that size, sent back in an update, means what it showed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bendybus.admin.atom import Element, element, format_time
from bendybus.admin.rules_xml import read_rules, rules_element
from bendybus.broker.host import Availability
from bendybus.broker.queue import Queue
from bendybus.domain.access import AuthorizationRule
from bendybus.domain.durations import format_duration, parse_duration
from bendybus.domain.entities import STANDARD_PARTITIONS, EntityStatus, QueueDescription, Tier
from bendybus.domain.messages import SubQueue
from bendybus.errors import ArgumentError
from bendybus.names import EntityPath

__all__ = ["FIRST_WITH_PARTITIONS", "PROPERTIES", "queue_elements", "read_queue"]

# "api-version=2013-10 or later" to create or see partitioned entities (P-10).
FIRST_WITH_PARTITIONS: Final = "2013-10"
FIRST_WITH_MESSAGE_SIZES: Final = "2021-05"

COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"

_WHOLE_NUMBER: Final = re.compile("[0-9]{1,18}")
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


# -- reading ------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ArgumentError("it must be true or false")
    return value


def _whole_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ArgumentError("it must be a whole number")
    return int(text)


def _duration(text: str) -> float | None:
    try:
        return parse_duration(text)
    except ArgumentError:
        raise ArgumentError("it must be an ISO 8601 duration such as PT1M or P14D") from None


def _bounded_duration(text: str) -> float:
    seconds = _duration(text)
    if seconds is None:
        raise ArgumentError("this duration cannot be unlimited")
    return seconds


def _status(text: str) -> EntityStatus:
    try:
        return EntityStatus(text)
    except ValueError:
        raise ArgumentError(f"it must be one of {', '.join(EntityStatus)}") from None


def _entity(text: str) -> EntityPath:
    """Clients send a bare name, or the URL of the entity with any scheme and host."""
    _, separator, rest = text.partition("://")
    return EntityPath((rest.partition("/")[2] if separator else text).strip("/"))


def _same(text: str) -> str:
    return text


# Element -> field of the description, and how its text is read. All others are read-only or unknown: clients
# send back the whole of what they got, so those are passed over.
PROPERTIES: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "LockDuration": ("lock_duration_s", _bounded_duration),
    "MaxSizeInMegabytes": ("max_size_mb", _whole_number),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _boolean),
    "RequiresSession": ("requires_session", _boolean),
    "DefaultMessageTimeToLive": ("default_message_ttl_s", _duration),
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiry", _boolean),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_s", _bounded_duration),
    "MaxDeliveryCount": ("max_delivery_count", _whole_number),
    "EnableBatchedOperations": ("enable_batched_operations", _boolean),
    "Status": ("status", _status),
    "ForwardTo": ("forward_to", _entity),
    "UserMetadata": ("user_metadata", _same),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_s", _duration),
    "EnablePartitioning": ("enable_partitioning", _boolean),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", _entity),
    "EnableExpress": ("enable_express", _boolean),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", _whole_number),
}

# An update that leaves one of these out takes it away; what else it leaves out stays as it is.
REMOVABLE: Final = ("forward_to", "forward_dead_lettered_to", "user_metadata")


def read_queue(
    path: str, elements: Mapping[str, Element], tier: Tier, current: QueueDescription | None = None
) -> QueueDescription:
    """The queue that a client describes; with `current`, what an update would make of that."""
    values: dict[str, Any] = {}
    if (rules := elements.get("AuthorizationRules")) is not None:
        values["authorization_rules"] = read_rules(rules, current.authorization_rules if current else ())
    for name, (field, read) in PROPERTIES.items():
        # An empty element, such as i:nil="true" has, says as much as none.
        text = elements[name].text.strip() if name in elements else ""
        if text:
            try:
                values[field] = read(text)
            except ArgumentError as reason:
                raise ArgumentError(f"Queue '{path}': {name} is '{text[:60]}'; {reason}.") from None
    if current is None:
        partitioned = bool(values.get("enable_partitioning"))
    else:
        partitioned = current.enable_partitioning
        if tier is Tier.PREMIUM:
            # There the namespace decides about partitions, and the flag has no effect (P-09).
            values.pop("enable_partitioning", None)
    if partitioned and tier is not Tier.PREMIUM and "max_size_mb" in values:
        values["max_size_mb"] = _size_of_one(values["max_size_mb"], tier)
    if current is None:
        return QueueDescription(EntityPath(path), **values)
    left_out: dict[str, Any] = dict.fromkeys(REMOVABLE)
    return replace(current, **(left_out | values))


def _size_of_one(shown_mb: int, tier: Tier) -> int:
    """The size of one of the 16 partitions, from a size that may be all partitions' (P-08)."""
    one_mb, rest = divmod(shown_mb, STANDARD_PARTITIONS)
    return one_mb if not rest and one_mb in tier.sizes_mb else shown_mb


# -- writing ------------------------------------------------------------------------


def queue_elements(queue: Queue, tier: Tier, api_version: str, *, with_rules: bool = True) -> str:
    """The children of QueueDescription, as this version of the API shows them.

    `with_rules`: to somebody who may manage the queue, since the rules have their keys in them.
    """
    shown = _shown(queue, tier, api_version, queue.description.authorization_rules if with_rules else ())
    return "".join(element(*one) if isinstance(one, tuple) else one for one in shown)


def _shown(
    queue: Queue, tier: Tier, api_version: str, rules: Sequence[AuthorizationRule]
) -> Iterator[tuple[str, object] | str]:
    description, totals = queue.description, _Totals.of(queue)
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


@dataclass(slots=True)
class _Totals:
    """Counts and sizes over all partitions that answer (P-33)."""

    active: int = 0
    scheduled: int = 0
    dead_letters: int = 0
    transfer_dead_letters: int = 0
    in_transfer: int = 0
    messages: int = 0
    size_bytes: int = 0
    limited: bool = False

    @classmethod
    def of(cls, queue: Queue) -> _Totals:
        totals = cls()
        for host in queue.hosts:
            partition = host.partition
            if partition is None:
                totals.limited |= host.availability is Availability.UNAVAILABLE
                continue
            totals.size_bytes += partition.size_bytes
            for subqueue in SubQueue:
                counts = partition.counts(subqueue)
                held = counts.active + counts.deferred + counts.scheduled
                totals.messages += held
                if subqueue is SubQueue.MAIN:
                    totals.active += counts.active
                    totals.scheduled += counts.scheduled
                elif subqueue is SubQueue.DEAD_LETTER:
                    totals.dead_letters += held
                elif subqueue is SubQueue.OUTBOX:
                    totals.in_transfer += held
                else:
                    totals.transfer_dead_letters += held
        return totals

    def count_details(self) -> str:
        # The JavaScript client looks for the prefix on this very element, and nowhere else.
        return (
            f'<CountDetails xmlns:d2p1="{COUNTS}">'
            f"{element('d2p1:ActiveMessageCount', self.active)}"
            f"{element('d2p1:DeadLetterMessageCount', self.dead_letters)}"
            f"{element('d2p1:ScheduledMessageCount', self.scheduled)}"
            f"{element('d2p1:TransferMessageCount', self.in_transfer)}"
            f"{element('d2p1:TransferDeadLetterMessageCount', self.transfer_dead_letters)}"
            "</CountDetails>"
        )
