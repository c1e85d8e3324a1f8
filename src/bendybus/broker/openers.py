"""Opening an entity from its record in the catalog: what differs between queues, topics and subscriptions.

A partition in a store of this broker gets a host. One in a store of another broker is what `Elsewhere` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.placing import Located
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget, Subscription, Topic
from bendybus.broker.topic_host import TopicHost
from bendybus.domain.entities import QueueDescription
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.store.catalog import EntityKind, EntityRecord

if TYPE_CHECKING:
    from bendybus.broker.entities import Entities

__all__ = ["OPENERS", "description_of"]

S = TypeVar("S", QueueDescription, TopicDescription)


def description_of(record: EntityRecord) -> QueueDescription | TopicDescription | SubscriptionDescription:
    """The description in a record of any kind."""
    if record.kind == "subscription":
        return SubscriptionDescription.from_record(record.description)
    if record.kind == "topic":
        return _with_partitions(TopicDescription.from_record(record.description), record)
    return _with_partitions(QueueDescription.from_record(record.description), record)


def _open_queue(entities: Entities, record: EntityRecord, at: Iterable[Located]) -> Queue:
    description = _with_partitions(QueueDescription.from_record(record.description), record)
    queue = Queue(description, record.partition_count, entities.keep_time, entities.clock, entities.entropy)
    _add_partitions(entities, queue, record, at)
    return queue


def _add_partitions(entities: Entities, queue: Queue, record: EntityRecord, at: Iterable[Located]) -> None:
    for number, key, store, epoch in at:
        if isinstance(store, str):
            port = entities.elsewhere.queue_partition(queue, record.generation, number, store)
            queue.add_partition(port, None)
        else:
            host = PartitionHost(queue, number, key, store, entities.cache, epoch)
            queue.add_partition(host, host)


def _open_topic(entities: Entities, record: EntityRecord, at: Iterable[Located]) -> Topic:
    description = _with_partitions(TopicDescription.from_record(record.description), record)
    topic = Topic(description, record.partition_count, entities.keep_time, entities.contents, entities.clock)
    for number, key, store, epoch in at:
        if isinstance(store, str):
            port = entities.elsewhere.topic_partition(topic, record.generation, number, store)
            topic.add_partition(port, None)
        else:
            host = TopicHost(topic, number, key, store, entities.cache, epoch)
            topic.add_partition(host, host)
    return topic


def _open_subscription(entities: Entities, record: EntityRecord, at: Iterable[Located]) -> Subscription:
    description = SubscriptionDescription.from_record(record.description)
    topic = entities.look_up(description.topic_path)
    assert isinstance(topic, Topic), "a subscription is opened after its topic"
    subscription = Subscription(
        topic, description, record.partition_count, entities.keep_time, entities.clock, entities.entropy
    )
    _add_partitions(entities, subscription, record, at)
    topic.add(subscription)
    return subscription


def _with_partitions(description: S, record: EntityRecord) -> S:
    """Earlier versions did not record that an entity of the Premium tier is partitioned."""
    return replace(description, enable_partitioning=record.partition_count > 1)


Opener: TypeAlias = "Callable[[Entities, EntityRecord, Iterable[Located]], SendTarget]"

OPENERS: Final[dict[EntityKind, Opener]] = {
    "queue": _open_queue,
    "topic": _open_topic,
    "subscription": _open_subscription,
}
"""In the order in which they are opened at a start."""
