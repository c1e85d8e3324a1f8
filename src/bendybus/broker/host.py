"""Runs one partition: command in, apply, commit, reply out.

This is what partitions of every kind have in common. Those of queues and
subscriptions: partition_host.py; a topic's: topic_host.py.

The output-commit rule lives here. The partition's memory moves at once; a reply
with durable effects leaves only when the commit that holds them (and so all
before it) is on disk; a message can be locked only once it is confirmed durable.
A failed commit throws the partition's memory away, and it is loaded anew from
its store as soon as that answers (stores.py). While it is away, commands fail
with a retryable error; while it is loading, they wait, but not for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from bendybus.broker.doubts import Doubts
from bendybus.broker.health import StoreState
from bendybus.broker.stores import AttachedStore, PayloadCache
from bendybus.broker.writer import OnCommitted, Share
from bendybus.domain.commands import Command, Peek, Reply, Tick
from bendybus.domain.effects import DurableEffect, RemoveMessages
from bendybus.domain.messages import Message
from bendybus.errors import BrokerError, EntityNotFound, StoreUnavailable
from bendybus.names import EntityPath, Epoch, Instant, PartitionNumber, SequenceNumber
from bendybus.store.protocol import PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.entity import Entity

__all__ = ["Availability", "Host", "Mailbox", "OnReply", "ignore"]

OnReply: TypeAlias = Callable[[Reply | BrokerError], None]
Mailbox: TypeAlias = list[tuple[Command, OnReply]]

logger = logging.getLogger(__name__)

# A partition that cannot be loaded though its store answers (damage, say) is tried again ever more seldom.
RELOAD_AFTER_S: Final = 1.0
RELOAD_AFTER_MAX_S: Final = 60.0


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

    @property
    def next_sequence_number(self) -> SequenceNumber: ...
    def confirmed(self) -> Iterator[Message]: ...
    def next_deadline(self) -> Instant | None: ...


P = TypeVar("P", bound=_Hosted)


class Host(ABC, Generic[P]):
    """A partition of some entity, while it is loaded, there, away or gone."""

    def __init__(
        self,
        entity: Entity[Any, Any],
        number: PartitionNumber,
        key: PartitionKey | None,
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
        """What takes commands."""
        self._held: P | None = None
        """The same, and also while it takes none because it moves to another store (moving.py)."""
        self._journal: list[DurableEffect] | None = None
        """What is submitted to its store, for the one who copies it to another."""
        self._mailbox: Mailbox = []
        self._load_under_way: object | None = None
        """Stands for the load that is under way, so that one that was given up can be told from it."""
        self._reload_at = 0.0
        self._reload_after_s = RELOAD_AFTER_S
        self._doubts = Doubts()
        store.hosts[self] = None

    @property
    def path(self) -> EntityPath:
        return self._entity.path

    def now(self) -> Instant:
        """The time in its namespace."""
        return self._entity.now()

    @property
    def key(self) -> PartitionKey | None:
        """The store's number for it; None while the store has never been open."""
        return self._key

    # -- life ---------------------------------------------------------------------

    def load(self) -> None:
        """Begin to read the partition from its store."""
        if self.availability is Availability.GONE:
            return
        assert self._key is not None, "a partition that was never seen cannot be read"
        self.availability = Availability.LOADING
        self._load_under_way = this = object()
        self._entity.availability_changed(self)
        loaded, late = partial(self._loaded, this), partial(self._late, this)
        self.store.load(self._key, self._epoch, self._read, loaded, late)

    def load_claimed(self, key: PartitionKey, epoch: Epoch) -> None:
        """Begin to read it under this claim."""
        self._key, self._epoch = key, epoch
        self.load()

    def wants_load(self, at: float) -> bool:
        """Whether it is away, and nobody reads it yet, and it is time to try."""
        is_away = self._partition is None and self.availability is Availability.UNAVAILABLE
        return is_away and self._load_under_way is None and self._reload_at <= at

    def _read(self, snapshot: Snapshot, epoch: Epoch) -> tuple[P, Epoch, list[Message]]:
        """The partition that a store holds, and what is to be taken back; in the reader's thread."""
        snapshot.messages, taken_back = self._doubts.apart(snapshot.messages, epoch)
        return self._built(snapshot), epoch, taken_back

    @abstractmethod
    def _built(self, snapshot: Snapshot) -> P:
        """The partition that a store holds; called in the reader's thread."""

    def _loaded(self, this: object, read: tuple[P, Epoch, list[Message]] | Exception) -> None:
        if self._load_under_way is not this:
            return
        self._load_under_way = None
        if isinstance(read, Exception):
            if not isinstance(read, StoreUnavailable):
                logger.error("%s: cannot be loaded: %s", self, read)
                self._reload_after_s = min(self._reload_after_s * 2, RELOAD_AFTER_MAX_S)
            self._fail(read)
            return
        partition, self._epoch, taken_back = read
        # The entity may have been updated while the partition was being built.
        partition.description = self._entity.description
        self._partition = self._held = partition
        self.availability = Availability.AVAILABLE
        self._reload_after_s = RELOAD_AFTER_S
        self._take_back(partition, taken_back)
        self._deliver_mailbox()
        self._entity.keep_time(self)
        self._entity.availability_changed(self)

    def _take_back(self, partition: P, messages: list[Message]) -> None:
        """Remove what came to be stored although its sender was told otherwise."""
        self._doubts.remain(messages)

        def removed(failure: Exception | None) -> None:
            if failure is None:
                self._doubts.remain(())

        if messages:
            logger.warning("%s: %d messages, reported as not stored, are taken back", self, len(messages))
            self.store.writer.submit((self._share(partition, [RemoveMessages(messages)]),), removed)

    def let_go(self) -> None:
        """All messages are about to be taken away: what is asked from now on waits for `begin_anew`."""
        if self._held is not None:
            messages = list(self._held.confirmed())
            self._cache.forget(messages)
            # A receiver may keep some that are locked for it: it must not send them now.
            for message in messages:
                message.lock_token = None
        self._partition = self._held = self._epoch = self._journal = self._load_under_way = None
        self.availability = Availability.LOADING
        self._entity.availability_changed(self)

    def begin_anew(self, key: PartitionKey) -> None:
        """Its store has made an empty partition in the place of the old one."""
        self._key = key
        if self.store.state is StoreState.AWAY:
            # It is loaded when its store is back.
            self._forget(Availability.UNAVAILABLE, self._unavailable())
        else:
            self.load()

    def look_again(self, cause: Exception) -> None:
        """Its store has failed in making it anew, and has to be asked what it has now."""
        self._key = None
        self._fail(cause)
        self._reload_at = 0.0
        self.store.recover()

    def _late(self, this: object) -> None:
        """It takes so long to load that nobody should wait for it, or count on it."""
        if self._load_under_way is this and self.availability is Availability.LOADING:
            self._forget(Availability.UNAVAILABLE, self._unavailable())

    def _deliver_mailbox(self) -> None:
        mailbox, self._mailbox = self._mailbox, []
        for command, done in mailbox:
            self.submit(command, done)

    def close(self) -> None:
        """The entity is deleted: nothing more is submitted to the store, and who asks is told."""
        self._load_under_way = None
        self.store.hosts.pop(self, None)
        self._forget(Availability.GONE, EntityNotFound(self._entity.path))

    def _fail(self, error: Exception) -> None:
        """Only the store knows what is true now; ask it again later."""
        if self.availability is Availability.GONE:
            return
        self._load_under_way = None
        self._forget(Availability.UNAVAILABLE, self._unavailable(error))
        self._reload_at = asyncio.get_running_loop().time() + self._reload_after_s
        self.store.reload_later(self._reload_after_s)

    def _forget(self, availability: Availability, reason: BrokerError) -> None:
        """Let go of what is in memory, and tell those who wait for it."""
        self._tell_forgotten(self._clear(availability), reason)

    def _clear(self, availability: Availability) -> Mailbox:
        if self._held is not None:
            self._cache.forget(self._held.confirmed())
            # A link may keep some that were locked for it: they are no longer its to send.
            for message in self._held.confirmed():
                message.lock_token = None
        if self._epoch is not None:
            self._doubts.epoch = self._epoch
        self._partition = self._held = self._epoch = self._journal = None
        self.availability = availability
        mailbox, self._mailbox = self._mailbox, []
        return mailbox

    def _tell_forgotten(self, mailbox: Mailbox, reason: BrokerError) -> None:
        for _, done in mailbox:
            done(reason)
        self._entity.availability_changed(self)

    # -- moving to another store (moving.py) --------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether memory holds every message that it has read a place of."""
        return True

    def keep_journal(self) -> None:
        """Note what is submitted from now on."""
        self._journal = []

    def take_journal(self) -> list[DurableEffect]:
        """What was submitted since the last time."""
        taken, self._journal = self._journal or [], None if self._journal is None else []
        return taken

    def end_journal(self) -> None:
        self._journal = None

    def freeze(self) -> None:
        """Let commands wait, as while the partition is loaded, though memory still holds it."""
        self._partition = None
        self.availability = Availability.LOADING
        self._entity.availability_changed(self)

    def thaw(self) -> None:
        """Take commands again, those first that have waited; nothing for one that was lost meanwhile."""
        if self._held is None or self._partition is not None:
            return
        self._partition = self._held
        self.availability = Availability.AVAILABLE
        self._deliver_mailbox()
        self._entity.keep_time(self)
        self._entity.availability_changed(self)

    def relocate(self, store: AttachedStore, key: PartitionKey, epoch: Epoch) -> None:
        """Its messages are in this store from now on."""
        self.store.hosts.pop(self, None)
        store.hosts[self] = None
        self.store, self._key, self._epoch = store, key, epoch
        self._entity.arrange_turns()
        # Nothing is in doubt in a store that has taken everything in answered commits.
        self._doubts = Doubts()

    # -- what its store says ------------------------------------------------------

    def withdraw(self) -> Mailbox:
        """The store is away: take no commands, and give those that wait, to be refused."""
        self._load_under_way = None
        self._reload_at = 0.0
        return self._clear(Availability.UNAVAILABLE)

    def refuse(self, mailbox: Mailbox, cause: Exception) -> None:
        """Answer these, and tell those who wait for this partition to say what it has."""
        self._tell_forgotten(mailbox, self._unavailable(cause))

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
    def prepare(
        self, command: Command, at: Instant, *, retractable: bool = False
    ) -> list[tuple[Share, OnCommitted]]:
        """Apply a command as a part of a commit that somebody else makes, who puts the shares into it and
        calls back how it went. The partition must be there.

        `retractable`: nothing in that commit but messages, which are taken back should they come to be
        stored after it was reported as failed (doubts.py).
        """

    def _share(self, partition: P, effects: list[DurableEffect]) -> Share:
        assert self._epoch is not None and self._key is not None, "a loaded partition is a claimed one"
        if self._journal is not None:
            self._journal += effects
        return Share(self._key, self._epoch, partition.next_sequence_number, effects)

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
        if self._held is not None:
            self._held.description = description

    def tick(self, at: Instant) -> bool:
        """End what has run out; False when time no longer matters here."""
        if self._partition is None:
            return False
        deadline = self._partition.next_deadline()
        if deadline is not None and deadline <= at:
            self.submit(Tick(), ignore)
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
    def partition(self) -> P | None:
        """For those who only look: counts, sizes."""
        return self._held

    def __repr__(self) -> str:
        return f"{self._entity.path}[{self.number}]"


def ignore(_: object) -> None:
    """For commands nobody waits for."""
