"""What one broker has of entities: the counts of its partitions, and each partition as our routes show it.

A server with one broker has the whole of every entity. With several, each broker answers with its parts, and
the one that was asked adds them up (overview_routes.py).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bendybus.admin.totals import Totals
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.broker.topic_host import TopicHost
from bendybus.domain.messages import SubQueue
from bendybus.names import PARTITION_SHIFT, SequenceNumber

__all__ = ["ShownPartition", "own_part", "own_partitions"]

_COUNTER: Final = (1 << PARTITION_SHIFT) - 1

ShownPartition: TypeAlias = dict[str, Any]


def own_part(entity: Queue | Topic) -> Totals:
    """Counts and sizes of the partitions that this broker owns. A topic's are those of its subscriptions."""
    if isinstance(entity, Topic):
        part = Totals.of_topic(entity, own=True)
        # It includes the sizes of the subscriptions already.
        size_bytes = part.size_bytes
        for subscription in entity.subscriptions:
            part.add(Totals.of(subscription, own=True))
        part.size_bytes = size_bytes
    else:
        part = Totals.of(entity, own=True)
    part.arrived = sum(
        _arrived(host.partition.next_sequence_number)
        for host in entity.own.values()
        if host.partition is not None
    )
    return part


def own_partitions(entity: Queue | Topic) -> list[ShownPartition]:
    """The partitions of an entity that this broker owns."""
    if isinstance(entity, Topic):
        return [_shown_topic_partition(host) for host in entity.own.values()]
    return [_shown_partition(host) for host in entity.own.values()]


def _shown_topic_partition(host: TopicHost) -> ShownPartition:
    partition = host.partition
    if partition is None:
        return _located(host)
    return _located(host) | {
        "scheduled": partition.scheduled_count,
        "sizeBytes": partition.size_bytes,
        "arrived": _arrived(partition.next_sequence_number),
    }


def _shown_partition(host: PartitionHost) -> ShownPartition:
    partition = host.partition
    shown = _located(host)
    if partition is None:
        return shown
    counts, letters = partition.counts(SubQueue.MAIN), partition.counts(SubQueue.DEAD_LETTER)
    oldest = partition.waiting(SequenceNumber(0), 1, 0)
    return shown | {
        "active": counts.active,
        "deferred": counts.deferred,
        "scheduled": counts.scheduled,
        "locked": counts.locked,
        "deadLetters": letters.active + letters.deferred,
        "completed": partition.counts(SubQueue.COMPLETED).active,
        "sizeBytes": partition.size_bytes,
        "arrived": _arrived(partition.next_sequence_number),
        # Of those that can be received; None if there is none.
        "oldestEnqueuedAt": oldest[0].enqueued_at if oldest else None,
    }


def _located(host: Host[Any]) -> ShownPartition:
    return {
        "partition": int(host.number),
        "store": host.store.name,
        "storeState": host.store.state.value,
        "state": host.state.value,
        "available": host.availability is Availability.AVAILABLE,
    }


def _arrived(following: SequenceNumber) -> int:
    """How many numbers the partition has given: to messages that arrived and to scheduled ones twice."""
    return max(0, (following & _COUNTER) - 1)
