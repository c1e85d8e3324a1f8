"""Runs one partition: command in, apply, commit, reply out.

The output-commit rule lives here. The partition's memory moves at once; a reply
with durable effects leaves only when the commit that holds them (and so all
before it) is on disk; a message can be locked only once it is confirmed durable.
A failed commit throws the partition's memory away, and it is loaded anew from
its store as soon as that answers. While it is away, commands fail with a
retryable error; while it is loading, they wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Final, TypeAlias

from bendybus.broker.stores import AttachedStore, PayloadCache
from bendybus.broker.writer import OnCommitted, Share
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Command,
    Confirm,
    Enqueue,
    Enqueued,
    Given,
    Lock,
    Peek,
    Release,
    Reply,
    Tick,
)
from bendybus.domain.effects import DurableEffect, Effect, MessagesAvailable, RemoveMessages
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.errors import BrokerError, EntityNotFound, StoreUnavailable
from bendybus.names import Epoch, Instant, LockToken, PartitionNumber, SequenceNumber
from bendybus.store.protocol import PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.queue import Queue

__all__ = ["Availability", "OnReply", "PartitionHost"]

OnReply: TypeAlias = Callable[[Reply | BrokerError], None]

logger = logging.getLogger(__name__)

# How long to leave a failed store alone before its partitions are loaded again.
RELOAD_AFTER_S: Final = 1.0


class Availability(Enum):
    LOADING = "loading"
    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    GONE = "gone"
    """Its queue has been deleted."""


class PartitionHost:
    def __init__(
        self,
        queue: Queue,
        number: PartitionNumber,
        key: PartitionKey,
        store: AttachedStore,
        cache: PayloadCache,
        epoch: Epoch | None = None,
    ) -> None:
        self.queue = queue
        self.number = number
        self.store = store
        self.availability = Availability.LOADING
        self._key = key
        self._cache = cache
        self._epoch = epoch
        """Under which claim the partition is ours; None to claim it (again) when it is loaded."""
        self._partition: Partition | None = None
        self._mailbox: list[tuple[Command, OnReply]] = []

    # -- life ---------------------------------------------------------------------

    def load(self) -> None:
        """Begin to read the partition from its store."""
        if self.availability is Availability.GONE:
            return
        self.availability = Availability.LOADING
        self.store.load(self._key, self._epoch, self._built, self._loaded)

    def _built(self, snapshot: Snapshot, epoch: Epoch) -> tuple[Partition, Epoch]:
        partition = Partition(self.number, self.queue.description, snapshot.next_sequence_number)
        partition.restore(snapshot.messages, snapshot.identities, snapshot.transferred)
        return partition, epoch

    def _loaded(self, built: tuple[Partition, Epoch] | Exception) -> None:
        if self.availability is Availability.GONE:
            return
        if isinstance(built, Exception):
            logger.error("%s: cannot be loaded: %s", self, built)
            self._fail(built)
            return
        partition, self._epoch = built
        # The queue may have been updated while the partition was being built.
        partition.description = self.queue.description
        self._partition = partition
        self.availability = Availability.AVAILABLE
        mailbox, self._mailbox = self._mailbox, []
        for command, done in mailbox:
            self.submit(command, done)
        self.queue.keep_time(self)
        self.queue.wake_all()

    def let_go(self) -> None:
        """All messages are about to be taken away: what is asked from now on waits for `begin_anew`."""
        if self._partition is not None:
            messages = list(self._partition.confirmed())
            self._cache.forget(messages)
            # A receiver may keep some that are locked for it: it must not send them now.
            for message in messages:
                message.lock_token = None
        self._partition = self._epoch = None
        self.availability = Availability.LOADING

    def begin_anew(self, key: PartitionKey) -> None:
        """Its store has made an empty partition in the place of the old one."""
        self._key = key
        self.load()

    def close(self) -> None:
        """The queue is deleted: nothing more is submitted to the store, and who asks is told."""
        self._forget(Availability.GONE, EntityNotFound(self.queue.path))

    def _fail(self, error: Exception) -> None:
        """Only the store knows what is true now; ask it again later."""
        if self.availability is Availability.GONE:
            return
        self._forget(Availability.UNAVAILABLE, self._unavailable(error))
        asyncio.get_running_loop().call_later(RELOAD_AFTER_S, self.load)

    def _forget(self, availability: Availability, reason: BrokerError) -> None:
        """Let go of what is in memory, and tell those who wait for it."""
        if self._partition is not None:
            self._cache.forget(self._partition.confirmed())
        self._partition = self._epoch = None
        self.availability = availability
        mailbox, self._mailbox = self._mailbox, []
        for _, done in mailbox:
            done(reason)

    def _unavailable(self, cause: Exception | None = None) -> StoreUnavailable:
        error = StoreUnavailable(
            f"Partition {self.number} of '{self.queue.path}' is unavailable: its messaging store "
            f"'{self.store.name}' does not answer. Please retry the operation."
        )
        error.__cause__ = cause
        return error

    # -- commands -----------------------------------------------------------------

    def submit(self, command: Command, done: OnReply) -> None:
        """Ask; `done` is called, perhaps before this returns, with the reply or the reason why not."""
        partition = self._partition
        if partition is None:
            if self.availability is Availability.LOADING:
                self._mailbox.append((command, done))
            elif self.availability is Availability.GONE:
                done(EntityNotFound(self.queue.path))
            else:
                done(self._unavailable())
            return
        try:
            reply, effects = partition.apply(command, self.queue.now())
        except BrokerError as refusal:
            done(refusal)
            return
        self._perform(partition, command, reply, effects, done)

    def check(self, commands: Sequence[Command], at: Instant) -> None:
        """Raise what stands against these commands of a transaction."""
        if self._partition is None:
            raise EntityNotFound(self.queue.path) if self.queue.deleted else self._unavailable()
        self._partition.check(commands, at)

    def prepare(self, command: Command, at: Instant) -> tuple[Share, OnCommitted]:
        """Apply a command as a part of a commit that somebody else makes, who puts the share into it and
        calls back how it went. The partition must be there.
        """
        partition = self._partition
        assert partition is not None and self._epoch is not None, "only what is loaded can be changed"
        reply, effects = partition.apply(command, at)
        share = Share(self._key, self._epoch, partition.next_sequence_number, self._durable(effects))
        # What becomes free is free at once, as everywhere; but not before all of the work is applied.
        asyncio.get_running_loop().call_soon(self._wake, effects)
        return share, partial(self._committed, partition, command, reply, _ignore)

    async def ask(self, command: Command) -> Reply:
        """`submit` for those who have time to wait; raises what was refused."""
        answer: asyncio.Future[Reply | BrokerError] = asyncio.get_running_loop().create_future()
        self.submit(command, lambda reply: None if answer.done() else answer.set_result(reply))
        reply = await answer
        if isinstance(reply, BrokerError):
            raise reply
        return reply

    def available(self, subqueue: SubQueue) -> int:
        """How many messages could be locked now."""
        return 0 if self._partition is None else self._partition.available(subqueue)

    def lock(self, count: int, size_max: int, subqueue: SubQueue) -> list[Message]:
        """Peek-lock at once what can be had at once; nothing while the partition is away.

        Up to `count` messages that have `size_max` bytes together, but one however large it is.
        """
        partition = self._partition
        if partition is None:
            return []
        count = partition.fitting(count, size_max, subqueue)
        if not count:
            return []
        command = Lock(count, urandom(ENTROPY_PER_LOCK * count), subqueue)
        self.queue.accessed_at = at = self.queue.now()
        reply, effects = partition.apply(command, at)
        assert isinstance(reply, Given)
        if effects:
            # Messages whose time was up made way. Who locked the others need not wait for that.
            self._perform(partition, command, reply, effects, _ignore)
        self.queue.keep_time(self)
        return reply.messages

    def release(self, tokens: Sequence[LockToken]) -> None:
        """Give back what was locked and never left."""
        self.submit(Release(tokens), _ignore)

    def describe(self, description: QueueDescription) -> None:
        """The entity was updated."""
        if self._partition is not None:
            self._partition.description = description

    def tick(self, at: Instant) -> bool:
        """End what has run out; False when time no longer matters here."""
        if self._partition is None:
            return False
        deadline = self._partition.next_deadline()
        if deadline is not None and deadline <= at:
            self.submit(Tick(), _ignore)
        return deadline is not None

    def due(self, at: Instant) -> bool:
        """Whether something here has run out."""
        deadline = None if self._partition is None else self._partition.next_deadline()
        return deadline is not None and deadline <= at

    async def loaded(self) -> None:
        """Return when the partition is not being loaded, or no longer."""
        if self.availability is Availability.LOADING:
            with contextlib.suppress(BrokerError):
                await self.ask(Peek(SequenceNumber(0), 0))

    @property
    def partition(self) -> Partition | None:
        """For those who only look: counts, sizes."""
        return self._partition

    # -- effects ------------------------------------------------------------------

    def _perform(
        self, partition: Partition, command: Command, reply: Reply, effects: list[Effect], done: OnReply
    ) -> None:
        """Commit the durable effects and reply then; reply at once when there are none."""
        durable = self._durable(effects)
        if durable:
            assert self._epoch is not None, "a loaded partition is a claimed one"
            share = Share(self._key, self._epoch, partition.next_sequence_number, durable)
            self.store.writer.submit((share,), partial(self._committed, partition, command, reply, done))
        else:
            done(reply)
        self._wake(effects)

    def _durable(self, effects: list[Effect]) -> list[DurableEffect]:
        durable: list[DurableEffect] = []
        for effect in effects:
            if not isinstance(effect, MessagesAvailable):
                durable.append(effect)
                if isinstance(effect, RemoveMessages):
                    self._cache.forget(effect.messages)
        return durable

    def _wake(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, MessagesAvailable):
                self.queue.wake(effect.subqueue)

    def _committed(
        self, partition: Partition, command: Command, reply: Reply, done: OnReply, failure: Exception | None
    ) -> None:
        if failure is not None:
            if partition is self._partition:
                logger.error("%s: %s", self, failure)
                self._fail(failure)
            done(self._unavailable(failure))
            return
        done(reply)
        if isinstance(reply, Enqueued) and partition is self._partition:
            if isinstance(command, Enqueue):
                self._keep_payloads(command.messages, reply)
            self._confirm(partition, SequenceNumber(reply.first + reply.count - 1))

    def _keep_payloads(self, messages: list[Message], enqueued: Enqueued) -> None:
        """The store has these payloads now; memory keeps those that are soon asked for."""
        if enqueued.duplicates:
            dropped = set(enqueued.duplicates)
            messages = [message for place, message in enumerate(messages) if place not in dropped]
        if enqueued.scheduled:
            for message in messages:
                if message.state is MessageState.SCHEDULED:
                    message.payload = None
            messages = [message for message in messages if message.payload is not None]
        self._cache.admit(messages)

    def _confirm(self, partition: Partition, number: SequenceNumber) -> None:
        """All up to this number are durable: whoever waits may have them."""
        _, effects = partition.apply(Confirm(number), self.queue.now())
        self.queue.keep_time(self)
        self._wake(effects)

    # -- payloads -----------------------------------------------------------------

    def read(
        self, messages: Sequence[Message], done: Callable[[list[bytes | None] | BrokerError], None]
    ) -> None:
        """The payloads of these messages, from memory or from the store; None where one is gone meanwhile.

        What is read back is not kept: a browse through a long backlog must not fill the memory.
        """
        partition = self._partition
        known = [message.payload for message in messages]
        cold = [message.body_place for message in messages if message.payload is None]
        if not cold:
            done(known)
            return

        def answer(payloads: list[bytes | None] | Exception) -> None:
            if isinstance(payloads, Exception):
                logger.error("%s: payloads cannot be read: %s", self, payloads)
                if partition is self._partition:
                    self._fail(payloads)
                done(self._unavailable(payloads))
                return
            fresh = iter(payloads)
            done([next(fresh) if payload is None else payload for payload in known])

        self.store.read(cold, answer)

    async def payloads(self, messages: Sequence[Message]) -> list[bytes | None]:
        """`read` for those who have time to wait."""
        answer: asyncio.Future[list[bytes | None] | BrokerError] = asyncio.get_running_loop().create_future()
        self.read(messages, lambda payloads: None if answer.done() else answer.set_result(payloads))
        payloads = await answer
        if isinstance(payloads, BrokerError):
            raise payloads
        return payloads

    def __repr__(self) -> str:
        return f"{self.queue.path}[{self.number}]"


def _ignore(_: object) -> None:
    """For commands nobody waits for."""
