"""A running topic: its partitions, its subscriptions, and the copies that go from one to the other.

A subscription is a queue that nobody can send to. It has as many partitions as
its topic, and its partition i takes copies only from the topic's partition i.
A change of rules applies from the next message on: a new `FanOut` is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import uuid4

from bendybus.broker.clock import Clock
from bendybus.broker.commit_group import OnCommitted, Share
from bendybus.broker.entity import Entity
from bendybus.broker.entropy import EntropyPool
from bendybus.broker.host import Host
from bendybus.broker.partition_lifecycle import PartitionLifecycle
from bendybus.broker.partition_port import PartitionPort, PartitionStatus
from bendybus.broker.queue import Queue
from bendybus.broker.topic_host import TopicHost
from bendybus.domain.evaluation import Evaluated
from bendybus.domain.fanout import Contents, FanOut
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.topic import TopicPartition
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.errors import EntityDisabled, InvalidOperation
from bendybus.names import EntityPath, Instant, PartitionNumber

__all__ = ["Subscription", "SendTarget", "Topic"]


class Topic(Entity[PartitionPort, TopicHost, TopicDescription]):
    def __init__(
        self,
        description: TopicDescription,
        partition_count: int,
        keep_time: Callable[[Host[Any]], None],
        contents: Contents,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(description, partition_count, keep_time, clock)
        self._contents = contents
        self._subscriptions: dict[str, Subscription] = {}
        """By name, in lower case."""
        self._ordered: list[Subscription] | None = []
        self._fan_out: FanOut | None = None
        """Both are built when they are needed and set to None when subscriptions or their rules change:
        a topic may be opened or closed with 2,000 subscriptions."""

    # -- subscriptions ------------------------------------------------------------

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """By name."""
        if self._ordered is None:
            self._ordered = sorted(self._subscriptions.values(), key=lambda each: each.name.lower())
        return self._ordered

    def subscription(self, name: str) -> Subscription | None:
        return self._subscriptions.get(name.lower())

    def add(self, subscription: Subscription) -> None:
        """Add a subscription. It takes copies from the next message on."""
        self._subscriptions[subscription.name.lower()] = subscription
        for number, host in self.own.items():
            host.subscription_changed(subscription.own[number])
        self.rules_changed()

    def remove(self, subscription: Subscription) -> None:
        del self._subscriptions[subscription.name.lower()]
        self.rules_changed()

    def rules_changed(self) -> None:
        """The subscriptions or their descriptions have changed."""
        self._ordered = self._fan_out = None

    def tell_subscriptions(self) -> None:
        """The topic's description has changed."""
        for subscription in self.subscriptions:
            subscription.topic_changed()

    # -- publishing ---------------------------------------------------------------

    def publish(
        self,
        messages: Sequence[Message],
        number: PartitionNumber,
        partition: TopicPartition,
        at: Instant,
        retractable: bool,
        evaluated: object = None,
    ) -> Iterator[tuple[Share, OnCommitted]]:
        """Enqueue copies as the rules say. Returns the subscriptions' shares of the commit and callbacks."""
        subscriptions, fan_out = self.subscriptions, self.fan_out()
        known = evaluated if isinstance(evaluated, Evaluated) and evaluated.fan_out is fan_out else None
        takings = fan_out.take(messages, partition.expiry_limit(at), number, known)
        for subscription, taking in zip(subscriptions, takings, strict=True):
            if taking is not None:
                yield from subscription.own[number].prepare(taking, at, retractable=retractable)

    def fan_out(self) -> FanOut:
        """The current rules of all subscriptions."""
        if self._fan_out is None:
            self._fan_out = FanOut(
                [each.description for each in self.subscriptions], self._contents, uuid4, len(self.hosts)
            )
        return self._fan_out

    def held_bytes(self, number: PartitionNumber) -> int:
        """The bytes that the subscriptions hold in this partition, for the topic's quota."""
        partitions = [subscription.own[number].partition for subscription in self.subscriptions]
        return sum([partition.size_bytes for partition in partitions if partition is not None])

    # -- life ---------------------------------------------------------------------

    def availability_changed(self, host: PartitionStatus) -> None:
        """Nothing to do: nobody waits to receive from a topic."""

    def refuse_sending(self, subqueue: SubQueue = SubQueue.MAIN) -> None:
        if subqueue is not SubQueue.MAIN:
            raise InvalidOperation(f"'{self.path}' is a topic, and topics have no sub-queues.")
        if not self.description.status.can_send:
            raise EntityDisabled(f"'{self.path}' is {self.description.status} and takes no messages.")


class Subscription(Queue):
    def __init__(
        self,
        topic: Topic,
        description: SubscriptionDescription,
        partition_count: int,
        keep_time: Callable[[Host[Any]], None],
        clock: Clock | None = None,
        entropy: EntropyPool | None = None,
    ) -> None:
        description = _with_size_of(topic, description)
        super().__init__(description, partition_count, keep_time, clock, entropy)
        self.topic = topic
        # In transactions, a topic and its subscriptions are one entity.
        self.top_level = topic.top_level
        self.description: SubscriptionDescription = description

    def topic_changed(self) -> None:
        self.description = _with_size_of(self.topic, self.description)
        for host in self.own.values():
            host.describe(self.description)

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def topic_path(self) -> EntityPath:
        return self.topic.path

    def sent_to(self, at: Instant) -> None:
        """Nothing to note: the topic's messages are no use of a subscription."""

    def refuse_sending(self, subqueue: SubQueue = SubQueue.MAIN) -> None:
        raise InvalidOperation(
            f"'{self.path}' is a subscription, to which nobody can send; send to the topic "
            f"'{self.topic.path}'."
        )

    def availability_changed(self, host: PartitionStatus) -> None:
        super().availability_changed(host)
        if isinstance(host, PartitionLifecycle) and self.own.get(host.number) is host:
            self.topic.own[host.number].subscription_changed(host)


SendTarget: TypeAlias = Queue | Topic
"""An entity that messages can be sent to."""


def _with_size_of(topic: Topic, description: SubscriptionDescription) -> SubscriptionDescription:
    """The largest message is the topic's, and a session state may have its size."""
    return replace(description, max_message_size_kb=topic.description.max_message_size_kb)
