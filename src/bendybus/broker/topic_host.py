"""Runs one partition of a topic: messages and the copies for its subscriptions, in one commit.

Partition i of a subscription is in the store of the topic's partition i, so
that a message, its number, and all its copies are durable together or not at
all. While a subscription's partition is being loaded, publishing waits for it.
While one is away, this partition of the topic is away too. When a scheduled message is
due, its payload is read first; its copies then take over its stored body.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bendybus.broker.commit_group import OnCommitted, Share
from bendybus.broker.evaluating import COPIES_MAX, Evaluations, evaluate, is_long
from bendybus.broker.host import Host, ignore
from bendybus.broker.lifecycle import Availability
from bendybus.broker.mailbox import OnReply
from bendybus.broker.partition_lifecycle import PartitionLifecycle
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.stores import AttachedStore
from bendybus.broker.transactions import refuse_former_numbers
from bendybus.domain.commands import Command, Confirm, Enqueue, Enqueued, Publish, Reply
from bendybus.domain.effects import (
    ActivateMessages,
    DurableEffect,
    MessagesAvailable,
    PublishMessages,
    SessionsLost,
    SessionsReady,
)
from bendybus.domain.messages import Message
from bendybus.domain.topic import TopicPartition
from bendybus.errors import BrokerError, EntityNotFound, PartitionMoved
from bendybus.names import Epoch, Instant, PartitionNumber, SequenceNumber
from bendybus.store.protocol import PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.topic import Topic

__all__ = ["TopicHost"]

logger = logging.getLogger(__name__)

# How much of due messages is read and published at once: about 24 of the largest messages in Standard.
ACTIVATED_BYTES_MAX: Final = 8 * 1024 * 1024


class TopicHost(Host[TopicPartition]):
    def __init__(
        self,
        topic: Topic,
        number: PartitionNumber,
        key: PartitionKey | None,
        store: AttachedStore,
        cache: PayloadCache,
        epoch: Epoch | None = None,
    ) -> None:
        super().__init__(topic, number, key, store, cache, epoch)
        self.topic = topic
        self._loading: set[PartitionLifecycle[Any]] = set()
        """Partitions of subscriptions that publishing waits for."""
        self._away: set[PartitionLifecycle[Any]] = set()
        """Partitions of subscriptions that are away, so that nothing can be published."""
        self._evaluations = Evaluations(self)
        self._activations = 0
        self._activated = asyncio.Event()
        self._activated.set()

    def _built(self, snapshot: Snapshot) -> TopicPartition:
        topic = self.topic
        partition = TopicPartition(
            self.number, topic.description, snapshot.next_sequence_number, topic.partition_count
        )
        partition.restore(snapshot.messages, snapshot.identities, snapshot.transferred)
        return partition

    # -- life ---------------------------------------------------------------------

    def _derived_availability(self) -> Availability:
        """Combines the partition's own availability with that of its subscriptions."""
        own = super()._derived_availability()
        if own is Availability.AVAILABLE:
            if self._away:
                return Availability.UNAVAILABLE
            if self._loading:
                return Availability.LOADING
        return own

    def subscription_changed(self, host: PartitionLifecycle[Any]) -> None:
        """The availability of a subscription's partition has changed: derive this partition's."""
        self._loading.discard(host)
        self._away.discard(host)
        if host.availability is Availability.LOADING:
            self._loading.add(host)
        elif host.availability is Availability.UNAVAILABLE:
            self._away.add(host)
        self.availability = self._derived_availability()
        if self._partition is not None and self.availability is not Availability.LOADING:
            self._deliver_mailbox()
            self._entity.keep_time(self)

    def tick(self, at: Instant) -> bool:
        # Due messages wait for the subscriptions. `subscription_changed` asks again.
        return self.availability is Availability.AVAILABLE and super().tick(at)

    @property
    def at_rest(self) -> bool:
        return self._activated.is_set()

    # -- commands -----------------------------------------------------------------

    def submit(self, command: Command, done: OnReply) -> None:
        if not self._evaluations.detain(command, done):
            self.submit_evaluated(command, done)

    def submit_evaluated(self, command: Command, done: OnReply) -> None:
        """`submit` for a command that does not have to wait for the evaluation of rules (evaluating.py)."""
        partition = self._partition
        if partition is None or self.availability is not Availability.AVAILABLE:
            self._submit_later(command, done)
            return
        at = self.topic.now()
        self._complete_command(command)
        try:
            reply, own, published = self._apply(partition, command, at, _is_retractable(command))
        except BrokerError as refusal:
            done(refusal)
            return
        if not own and not published:
            if isinstance(reply, Enqueued):
                self._confirm(partition, reply)
            self._count(command, reply)
            done(reply)
            return
        shares = [share for share, _ in published]
        told = [each for _, each in published]
        self.store.writer.submit(
            (self._share(partition, own), *shares),
            partial(self._published, partial(self._committed, partition, command, reply, own, done), told),
        )

    def must_look_ahead(self, command: Command) -> bool:
        return is_long(command, self.topic.fan_out())

    async def look_ahead(self, command: Command) -> None:
        await evaluate(self, command)

    def check(self, commands: Sequence[Command], at: Instant) -> None:
        partition = self._partition
        if partition is None or self.availability is not Availability.AVAILABLE:
            raise EntityNotFound(self.topic.path) if self.topic.deleted else self._unavailable()
        refuse_former_numbers(self.topic, commands)
        for command in commands:
            self._complete_command(command)
        partition.check(commands)

    def prepare(
        self, command: Command, at: Instant, *, retractable: bool = False
    ) -> list[tuple[Share, OnCommitted]]:
        partition = self._partition
        assert partition is not None, "only what is loaded can be changed"
        reply, own, published = self._apply(partition, command, at, retractable)
        removable = own if retractable else None
        committed = partial(self._committed, partition, command, reply, removable, ignore)
        return [(self._share(partition, own), committed), *published]

    def _apply(
        self, partition: TopicPartition, command: Command, at: Instant, retractable: bool
    ) -> tuple[Reply, list[DurableEffect], list[tuple[Share, OnCommitted]]]:
        """What the partition itself has to store, and what its subscriptions have to."""
        reply, effects = partition.apply(command, at)
        if isinstance(reply, Enqueued):
            self.topic.sent_to(at)
        own: list[DurableEffect] = []
        published: list[tuple[Share, OnCommitted]] = []
        for effect in effects:
            if isinstance(effect, PublishMessages):
                evaluated = getattr(command, "evaluated", None)
                published += self.topic.publish(
                    effect.messages, self.number, partition, at, retractable, evaluated
                )
            elif isinstance(effect, ActivateMessages):
                self.topic.sent_to(at)
                self._activate(partition, effect.messages)
            elif not isinstance(effect, MessagesAvailable | SessionsReady | SessionsLost):
                own.append(effect)
        return reply, own, published

    def _complete_command(self, command: Command) -> None:
        """Add what the partition needs for its quota, which a sender cannot know.

        In a transaction, `check` does this for all commands. The copies of one must not make the next one
        exceed the quota, after the first has been applied.
        """
        if isinstance(command, Enqueue):
            command.held_elsewhere = self.topic.held_bytes(self.number)

    @staticmethod
    def _published(own: OnCommitted, others: Sequence[OnCommitted], failure: Exception | None) -> None:
        """The commit of the topic's partition and its subscriptions is durable or has failed."""
        own(failure)
        for committed in others:
            committed(failure)

    def _stored(self, partition: TopicPartition, command: Command, reply: Enqueued) -> None:
        if isinstance(command, Enqueue) and reply.scheduled:
            for message in command.messages:
                # The copies have the payload, or the store has it until the message is due.
                message.payload = None
        self._confirm(partition, reply)

    def _confirm(self, partition: TopicPartition, reply: Enqueued) -> None:
        partition.apply(Confirm(SequenceNumber(reply.first + reply.count - 1)), self.topic.now())
        if reply.scheduled or partition.next_deadline() is not None:
            self._entity.keep_time(self)

    # -- scheduled messages -------------------------------------------------------

    async def activated(self) -> None:
        """Return once everything that was due has been published, or has to wait for its store."""
        await self._activated.wait()

    def _activate(self, partition: TopicPartition, due: list[Message]) -> None:
        self._activations += 1
        self._activated.clear()
        self._activate_page(partition, due)

    def _end_activation(self) -> None:
        self._activations -= 1
        if not self._activations:
            self._activated.set()

    def _activate_page(self, partition: TopicPartition, due: list[Message]) -> None:
        """Publish these messages with all their copies, as many at a time as fit into memory."""
        size, count = 0, 0
        most = max(1, COPIES_MAX // max(1, len(self.topic.subscriptions)))
        while count < min(len(due), most) and (not count or size + due[count].size <= ACTIVATED_BYTES_MAX):
            size += due[count].size
            count += 1
        page, rest = due[:count], due[count:]

        def published(reply: Reply | BrokerError) -> None:
            if rest and partition is self._held and not isinstance(reply, BrokerError):
                self._activate_page(partition, rest)
                return
            self._end_activation()
            if isinstance(reply, BrokerError) and partition is self._held:
                # They are out of the schedule, but the store still has them: load the partition again.
                self.fail(reply)

        def read(payloads: list[bytes | None] | Exception) -> None:
            if partition is not self._held:
                self._end_activation()
                return
            if isinstance(payloads, Exception):
                logger.error("%s: payloads cannot be read: %s", self, payloads)
                self._end_activation()
                self.fail(payloads)
                return
            if None in payloads:
                # Another broker has published them. It owns the store now, as the next load finds out.
                self._end_activation()
                self.fail(PartitionMoved(f"{self}: scheduled messages are gone from its store"))
                return
            for message, payload in zip(page, payloads, strict=True):
                message.payload = payload
            self.submit(Publish(page), published)

        self.store.read([message.body_row_id for message in page], read)


def _is_retractable(command: Command) -> bool:
    """Whether the commit of a command contains only messages, including copies.

    With duplicate detection, a sender that repeats a message is told that it is here already. The source of a
    forwarded message will send it again to this same partition. Removing copies would lose such messages.
    """
    return isinstance(command, Enqueue) and command.identities is None and command.transfer is None
