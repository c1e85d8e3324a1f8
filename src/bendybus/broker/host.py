"""Runs one partition: command in, apply, commit, reply out.

`Host` is what partitions of every kind have in common, `PartitionHost` the one of
a queue or subscription; a topic's: topic_host.py.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from bendybus.broker.clock import now
from bendybus.broker.holders import SessionHolders
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
from bendybus.domain.effects import (
    DurableEffect,
    Effect,
    MessagesAvailable,
    RemoveMessages,
    SessionsLost,
    SessionsReady,
)
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.session_commands import (
    AcceptSession,
    FindSessionState,
    LockInSession,
    SessionAccepted,
    SessionLock,
    SessionStateFound,
)
from bendybus.errors import BrokerError, EntityNotFound, SessionLockLost, StoreUnavailable
from bendybus.names import Epoch, Instant, LockToken, PartitionNumber, SequenceNumber
from bendybus.store.protocol import PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.entity import Entity
    from bendybus.broker.queue import Queue

__all__ = ["Availability", "Host", "OnReply", "PartitionHost"]

OnReply: TypeAlias = Callable[[Reply | BrokerError], None]

logger = logging.getLogger(__name__)

# How long to leave a failed store alone before its partitions are loaded again.
RELOAD_AFTER_S: Final = 1.0

# Effects that are not for the store.
_FOR_RECEIVERS: Final = (MessagesAvailable, SessionsReady, SessionsLost)


class Availability(Enum):
    LOADING = "loading"
    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    GONE = "gone"
    """Its entity has been deleted."""


class _Hosted(Protocol):
    """What a host has to know of a partition to have one."""

    # Each kind of partition has its own kind of description.
    description: Any

    def confirmed(self) -> Iterator[Message]: ...
    def next_deadline(self) -> Instant | None: ...


P = TypeVar("P", bound=_Hosted)


class Host(ABC, Generic[P]):
    """A partition of some entity, while it is loaded, there, away or gone."""

    def __init__(
        self,
        entity: Entity[Any, Any],
        number: PartitionNumber,
        key: PartitionKey,
        store: AttachedStore,
        cache: PayloadCache,
        epoch: Epoch | None = None,
    ) -> None:
        self._entity = entity
        self.number = number
        self.store = store
        self.availability = Availability.LOADING
        self._key = key
        self._cache = cache
        self._epoch = epoch
        """Under which claim the partition is ours; None to claim it (again) when it is loaded."""
        self._partition: P | None = None
        self._mailbox: list[tuple[Command, OnReply]] = []

    # -- life ---------------------------------------------------------------------

    def load(self) -> None:
        """Begin to read the partition from its store."""
        if self.availability is Availability.GONE:
            return
        self.availability = Availability.LOADING
        self.store.load(self._key, self._epoch, self._built, self._loaded)

    @abstractmethod
    def _built(self, snapshot: Snapshot, epoch: Epoch) -> tuple[P, Epoch]:
        """The partition that a store holds; called in the reader's thread."""

    def _loaded(self, built: tuple[P, Epoch] | Exception) -> None:
        if self.availability is Availability.GONE:
            return
        if isinstance(built, Exception):
            logger.error("%s: cannot be loaded: %s", self, built)
            self._fail(built)
            return
        partition, self._epoch = built
        # The entity may have been updated while the partition was being built.
        partition.description = self._entity.description
        self._partition = partition
        self.availability = Availability.AVAILABLE
        self._deliver_mailbox()
        self._entity.keep_time(self)
        self._entity.availability_changed(self)

    def _deliver_mailbox(self) -> None:
        mailbox, self._mailbox = self._mailbox, []
        for command, done in mailbox:
            self.submit(command, done)

    def close(self) -> None:
        """The entity is deleted: nothing more is submitted to the store, and who asks is told."""
        self._forget(Availability.GONE, EntityNotFound(self._entity.path))

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
        self._entity.availability_changed(self)

    def _unavailable(self, cause: Exception | None = None) -> StoreUnavailable:
        error = StoreUnavailable(
            f"Partition {self.number} of '{self._entity.path}' is unavailable: its messaging store "
            f"'{self.store.name}' does not answer. Please retry the operation."
        )
        error.__cause__ = cause
        return error

    # -- commands -----------------------------------------------------------------

    @abstractmethod
    def submit(self, command: Command, done: OnReply) -> None:
        """Ask; `done` is called, perhaps before this returns, with the reply or the reason why not."""

    def _submit_later(self, command: Command, done: OnReply) -> None:
        """`submit` while the partition is not there: it waits for one that is being loaded."""
        if self.availability is Availability.LOADING:
            self._mailbox.append((command, done))
        elif self.availability is Availability.GONE:
            done(EntityNotFound(self._entity.path))
        else:
            done(self._unavailable())

    @abstractmethod
    def check(self, commands: Sequence[Command], at: Instant) -> None:
        """Raise what stands against these commands of a transaction."""

    @abstractmethod
    def prepare(self, command: Command, at: Instant) -> list[tuple[Share, OnCommitted]]:
        """Apply a command as a part of a commit that somebody else makes, who puts the shares into it and
        calls back how it went. The partition must be there.
        """

    async def ask(self, command: Command) -> Reply:
        """`submit` for those who have time to wait; raises what was refused."""
        answer: asyncio.Future[Reply | BrokerError] = asyncio.get_running_loop().create_future()
        self.submit(command, lambda reply: None if answer.done() else answer.set_result(reply))
        reply = await answer
        if isinstance(reply, BrokerError):
            raise reply
        return reply

    def describe(self, description: object) -> None:
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

    async def loaded(self) -> None:
        """Return when the partition is not being loaded, or no longer."""
        if self.availability is Availability.LOADING:
            with contextlib.suppress(BrokerError):
                await self.ask(Peek(SequenceNumber(0), 0))

    @property
    def partition(self) -> P | None:
        """For those who only look: counts, sizes."""
        return self._partition

    def __repr__(self) -> str:
        return f"{self._entity.path}[{self.number}]"


class PartitionHost(Host[Partition]):
    def __init__(
        self,
        queue: Queue,
        number: PartitionNumber,
        key: PartitionKey,
        store: AttachedStore,
        cache: PayloadCache,
        epoch: Epoch | None = None,
    ) -> None:
        super().__init__(queue, number, key, store, cache, epoch)
        self.queue = queue
        self.holders = SessionHolders()

    def _built(self, snapshot: Snapshot, epoch: Epoch) -> tuple[Partition, Epoch]:
        partition = Partition(self.number, self.queue.description, snapshot.next_sequence_number)
        sessions = [(each.session_id, each.size, each.updated_at) for each in snapshot.sessions]
        partition.restore(snapshot.messages, snapshot.identities, snapshot.transferred, sessions)
        return partition, epoch

    def _forget(self, availability: Availability, reason: BrokerError) -> None:
        if self._partition is not None:
            # A link may keep some that were locked for it: they are no longer its to send.
            for message in self._partition.confirmed():
                message.lock_token = None
        super()._forget(availability, reason)
        self.holders.lose_all()

    # -- commands -----------------------------------------------------------------

    def submit(self, command: Command, done: OnReply) -> None:
        partition = self._partition
        if partition is None:
            self._submit_later(command, done)
            return
        try:
            reply, effects = partition.apply(command, now())
        except BrokerError as refusal:
            done(refusal)
            return
        self._perform(partition, command, reply, effects, done)

    def check(self, commands: Sequence[Command], at: Instant) -> None:
        if self._partition is None:
            raise EntityNotFound(self.queue.path) if self.queue.deleted else self._unavailable()
        self._partition.check(commands, at)

    def prepare(self, command: Command, at: Instant) -> list[tuple[Share, OnCommitted]]:
        partition = self._partition
        assert partition is not None and self._epoch is not None, "only what is loaded can be changed"
        reply, effects = partition.apply(command, at)
        durable = self._durable(effects)
        if len(durable) < len(effects):
            # What becomes free is free at once, as everywhere; but not before all of the work is applied.
            asyncio.get_running_loop().call_soon(self._tell, effects)
        share = Share(self._key, self._epoch, partition.next_sequence_number, durable)
        return [(share, partial(self._committed, partition, command, reply, _ignore))]

    def available(self, subqueue: SubQueue) -> int:
        """How many messages could be locked now, or how many sessions."""
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
        reply = self._apply_at_once(partition, Lock(count, urandom(ENTROPY_PER_LOCK * count), subqueue))
        assert isinstance(reply, Given)
        return reply.messages

    def _apply_at_once(self, partition: Partition, command: Command) -> Reply:
        """Lock something, without waiting for any commit."""
        self.queue.accessed_at = at = now()
        reply, effects = partition.apply(command, at)
        if effects:
            # Messages whose time was up made way. Who locked the others need not wait for that.
            self._perform(partition, command, reply, effects, _ignore)
        self.queue.keep_time(self)
        return reply

    def release(self, tokens: Sequence[LockToken]) -> None:
        """Give back what was locked and never left."""
        self.submit(Release(tokens), _ignore)

    # -- sessions -----------------------------------------------------------------

    def accept_next_session(self) -> SessionAccepted | None:
        """Lock the next session that is free and has messages, if that can be had at once."""
        partition = self._partition
        if partition is None or not partition.available():
            return None
        reply = self._apply_at_once(partition, AcceptSession(None, urandom(ENTROPY_PER_LOCK)))
        assert isinstance(reply, SessionAccepted)
        return reply if reply.lock is not None else None

    def lock_in_session(self, lock: SessionLock, count: int, size_max: int) -> list[Message]:
        """`lock` for a session's holder; nothing when the session is lost."""
        partition = self._partition
        count = 0 if partition is None else partition.fitting_in_session(lock, count, size_max)
        if partition is None or not count:
            return []
        try:
            reply = self._apply_at_once(
                partition, LockInSession(lock, count, urandom(ENTROPY_PER_LOCK * count))
            )
        except SessionLockLost:
            return []
        assert isinstance(reply, Given)
        return reply.messages

    def waiting_in_session(self, lock: SessionLock) -> bool:
        """Whether there are more messages for a session's holder."""
        return self._partition is not None and self._partition.fitting_in_session(lock, 1, 1) > 0

    async def session_state(self, lock: SessionLock) -> bytes | None:
        """What is remembered for a session, for its holder."""
        found = await self.ask(FindSessionState(lock))
        assert isinstance(found, SessionStateFound)
        if found.size is None:
            return None
        answer: asyncio.Future[bytes | Exception | None] = asyncio.get_running_loop().create_future()
        self.store.read_session_state(
            self._key,
            lock.session_id,
            lambda state: None if answer.done() else answer.set_result(state),
        )
        state = await answer
        if isinstance(state, Exception):
            raise self._unavailable(state)
        return state

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
        self._tell(effects)

    def _durable(self, effects: list[Effect]) -> list[DurableEffect]:
        durable: list[DurableEffect] = []
        for effect in effects:
            if not isinstance(effect, _FOR_RECEIVERS):
                durable.append(effect)
                if isinstance(effect, RemoveMessages):
                    self._cache.forget(effect.messages)
        return durable

    def _tell(self, effects: list[Effect]) -> None:
        """Let receivers know."""
        for effect in effects:
            if isinstance(effect, MessagesAvailable):
                self.queue.wake(effect.subqueue)
            elif isinstance(effect, SessionsReady):
                self.holders.wake(effect.locks)
            elif isinstance(effect, SessionsLost):
                self.holders.lose(effect.locks)

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
        _, effects = partition.apply(Confirm(number), now())
        self.queue.keep_time(self)
        self._tell(effects)

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


def _ignore(_: object) -> None:
    """For commands nobody waits for."""
