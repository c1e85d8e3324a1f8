"""What one broker has of entities: the counts of its partitions, and each partition as our routes show it.

A server with one broker has the whole of every entity. With several, each broker answers with its parts, and
the one that was asked adds them up (overview_routes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
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

__all__ = ["EntityPart", "ShownPartition", "own_partitions"]

_COUNTER: Final = (1 << PARTITION_SHIFT) - 1

ShownPartition: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class EntityPart:
    """Counts and sizes of the partitions that one broker owns. A topic's are those of its subscriptions."""

    active: int = 0
    scheduled: int = 0
    dead_letters: int = 0
    size_bytes: int = 0
    completed: int = 0
    """Kept after their completion."""
    completed_bytes: int = 0
    arrived: int = 0
    limited: bool = False

    @classmethod
    def of(cls, entity: Queue | Topic) -> EntityPart:
        if isinstance(entity, Topic):
            totals, subscriptions = Totals.of_topic(entity, own=True), entity.subscriptions
        else:
            totals, subscriptions = Totals.of(entity, own=True), []
        part = cls(totals.active, totals.scheduled, totals.dead_letters, totals.size_bytes)
        part.completed, part.completed_bytes = totals.completed, totals.completed_bytes
        part.limited = totals.limited
        for subscription in subscriptions:
            of_subscription = Totals.of(subscription, own=True)
            part.active += of_subscription.active
            part.dead_letters += of_subscription.dead_letters
            part.completed += of_subscription.completed
            part.completed_bytes += of_subscription.completed_bytes
            part.limited = part.limited or of_subscription.limited
        part.arrived = sum(
            _arrived(host.partition.next_sequence_number)
            for host in entity.own.values()
            if host.partition is not None
        )
        return part

    def add(self, other: EntityPart) -> None:
        self.active += other.active
        self.scheduled += other.scheduled
        self.dead_letters += other.dead_letters
        self.size_bytes += other.size_bytes
        self.completed += other.completed
        self.completed_bytes += other.completed_bytes
        self.arrived += other.arrived
        self.limited = self.limited or other.limited


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
