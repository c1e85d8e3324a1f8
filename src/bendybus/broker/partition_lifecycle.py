"""The life of one partition in a messaging store: loaded, lost, moved, emptied, deleted.

The states and transitions are a table (lifecycle.py). `_change` is the one place that sets the
state: a transition to a state without memory also discards the memory. A failed commit causes one,
because then only the store knows what is true; the partition is loaded again as soon as its store
answers (recovery.py). What a partition does with commands: host.py.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from bendybus.broker.commit_group import Share
from bendybus.broker.journal import Journal
from bendybus.broker.lifecycle import (
    AVAILABILITY,
    IN_MEMORY,
    PARTITION,
    Availability,
    PartitionEvent,
    PartitionState,
    after,
)
from bendybus.broker.mailbox import Mailbox, OnReply
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.stores import AttachedStore
from bendybus.broker.uncertain import UncertainSends
from bendybus.domain.commands import Command
from bendybus.domain.effects import DurableEffect, RemoveMessages
from bendybus.domain.messages import Message
from bendybus.domain.tally import Tally
from bendybus.errors import BrokerError, EntityNotFound, StoreUnavailable
from bendybus.names import EntityPath, Epoch, Instant, PartitionNumber, SequenceNumber
from bendybus.store.protocol import PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.entity import Entity

__all__ = ["PartitionLifecycle"]

logger = logging.getLogger(__name__)

# A partition that cannot be loaded although its store answers (damage, for example) is tried ever less often.
RELOAD_AFTER_S: Final = 1.0
RELOAD_AFTER_MAX_S: Final = 60.0


class _Hosted(Protocol):
    """What a host needs to know about a partition."""

    # Each kind of partition has its own kind of description.
    description: Any

    @property
    def next_sequence_number(self) -> SequenceNumber: ...
    @property
    def size_bytes(self) -> int: ...
    def confirmed(self) -> Iterator[Message]: ...
    def next_deadline(self) -> Instant | None: ...


P = TypeVar("P", bound=_Hosted)


# Not an ABC: when compiled, all subclasses of one would share its answers to `isinstance`.
class PartitionLifecycle(Generic[P]):
    def __init__(
        self,
        entity: Entity[Any, Any, Any],
        number: PartitionNumber,
        key: PartitionKey | None,
        store: AttachedStore,
        cache: PayloadCache,
        epoch: Epoch | None = None,
    ) -> None:
        self._entity = entity
        self.number = number
        self.tally = Tally()
        """What the partition has done since the server started, however often it was loaded."""
        self.store = store
        self.state = PartitionState.LOADING
        self.availability = Availability.LOADING
        """What happens to a command that is submitted now."""
        self._key = key
        self._cache = cache
        self._epoch = epoch
        """The claim by which this broker owns the partition; None to claim it (again) at the next load."""
        self._held: P | None = None
        """The partition, in the states in which it is in memory."""
        self._partition: P | None = None
        """The same while it takes commands."""
        self.journal = Journal()
        self._mailbox: Mailbox = []
        """The commands that wait."""
        self._load_count = 0
        """Distinguishes the current load from those that were given up."""
        self._reload_at = 0.0
        self._reload_after_s = RELOAD_AFTER_S
        self._uncertain = UncertainSends()
        self._pass_on: Callable[[Command, OnReply], None]
        """What happens to commands once another broker owns the partition (`Host.give_up`)."""
        self.last_count: int | None = None
        """How many messages it had when it was last in memory; None if it never was."""

    @property
    def path(self) -> EntityPath:
        return self._entity.path

    def now(self) -> Instant:
        """The time in its namespace."""
        return self._entity.now()

    @property
    def key(self) -> PartitionKey | None:
        """The store's key for the partition; None if the store was never open."""
        return self._key

    @property
    def current(self) -> Any:
        """The object that represents the partition now: another one, once another broker owns it."""
        return self._entity.hosts[self.number]

    @property
    def partition(self) -> P | None:
        """The partition, for callers that only read counts and sizes."""
        return self._held

    @property
    def figures(self) -> P | None:
        """What the partition counts, for users of the port (partition_port.py)."""
        return self._held

    @property
    def size_bytes(self) -> int:
        """The size of its messages; 0 while it is unknown."""
        return 0 if self._held is None else self._held.size_bytes

    # -- the state ----------------------------------------------------------------

    def _change(self, event: PartitionEvent) -> None:
        """The one place that sets the state. The caller then notifies those concerned."""
        self.state = after(PARTITION, self.state, event)
        if self.state not in IN_MEMORY:
            self._discard_memory()
            if event is not PartitionEvent.LOAD:
                self._give_up_claim()
        self._partition = self._held if self.state is PartitionState.SERVING else None
        self.availability = self._derived_availability()
        self.store.changes.notify()

    def _discard_memory(self) -> None:
        if self._held is not None:
            self._cache.forget(self._held.confirmed())
            self.last_count = sum(1 for _ in self._held.confirmed())
        self._held = None
        self.journal.end()

    def _give_up_claim(self) -> None:
        # The result of a load that is under way is discarded, unless the load is only late.
        if self.state is not PartitionState.LATE:
            self._load_count += 1
        if self._epoch is not None:
            self._uncertain.epoch = self._epoch
        self._epoch = None

    def _derived_availability(self) -> Availability:
        return AVAILABILITY[self.state]

    def _refuse_waiting(self, reason: BrokerError) -> None:
        """Answer the waiting commands, and notify the entity."""
        mailbox, self._mailbox = self._mailbox, []
        self._tell_refused(mailbox, reason)

    def _tell_refused(self, mailbox: Mailbox, reason: BrokerError) -> None:
        for _, done in mailbox:
            done(reason)
        self._entity.availability_changed(self)

    @abstractmethod
    def _serve_waiting(self) -> None:
        """The partition takes commands again, those that have waited first."""

    def _unavailable(self, cause: Exception | None = None) -> StoreUnavailable:
        error = StoreUnavailable(
            f"Partition {self.number} of '{self._entity.path}' is unavailable: its messaging store "
            f"'{self.store.name}' does not answer. Please retry the operation."
        )
        error.__cause__ = cause
        return error

    # -- loading ------------------------------------------------------------------

    def load(self) -> None:
        """Start reading the partition from its store."""
        if self.state is PartitionState.GONE:
            return
        assert self._key is not None, "a partition that was never seen cannot be read"
        self._change(PartitionEvent.LOAD)
        self._load_count += 1
        self._entity.availability_changed(self)
        loaded, late = partial(self._loaded, self._load_count), partial(self._late, self._load_count)
        self.store.load(self._key, self._epoch, self._read, loaded, late)

    def load_claimed(self, key: PartitionKey, epoch: Epoch) -> None:
        """Start reading the partition under this claim."""
        self._key, self._epoch = key, epoch
        self.load()

    @property
    def reload_at(self) -> float | None:
        """When to try to load it again, by the loop's time; None if the partition is not away."""
        return self._reload_at if self.state is PartitionState.AWAY else None

    def _read(self, snapshot: Snapshot, epoch: Epoch) -> tuple[P, Epoch, list[Message]]:
        """The partition from a store, and the uncertain sends in it. Runs in the reader's thread."""
        snapshot.messages, uncertain = self._uncertain.split(snapshot.messages, epoch)
        return self._built(snapshot), epoch, uncertain

    @abstractmethod
    def _built(self, snapshot: Snapshot) -> P:
        """The partition from a store. Runs in the reader's thread."""

    def _loaded(self, load: int, read: tuple[P, Epoch, list[Message]] | Exception) -> None:
        if load != self._load_count:
            return
        if isinstance(read, Exception):
            if not isinstance(read, StoreUnavailable):
                logger.error("%s: cannot be loaded: %s", self, read)
                self._reload_after_s = min(self._reload_after_s * 2, RELOAD_AFTER_MAX_S)
            self.fail(read)
            return
        partition, self._epoch, uncertain = read
        # The entity may have been updated during the load.
        partition.description = self._entity.description
        self._held = partition
        self._change(PartitionEvent.LOADED)
        self._reload_after_s = RELOAD_AFTER_S
        self._remove_uncertain(partition, uncertain)
        self._serve_waiting()

    def _late(self, load: int) -> None:
        """Loading takes too long to wait for."""
        if load == self._load_count and self.state is PartitionState.LOADING:
            self._change(PartitionEvent.OVERDUE)
            self._refuse_waiting(self._unavailable())

    def _remove_uncertain(self, partition: P, messages: list[Message]) -> None:
        """Remove messages that were stored although their senders were told that they were not."""
        self._uncertain.keep_only(messages)

        def removed(failure: Exception | None) -> None:
            if failure is None:
                self._uncertain.keep_only(())

        if messages:
            logger.warning("%s: removing %d messages that were reported as not stored", self, len(messages))
            self.store.writer.submit((self._share(partition, [RemoveMessages(messages)]),), removed)

    def _share(self, partition: P, effects: Sequence[DurableEffect]) -> Share:
        """What this partition adds to a commit."""
        assert self._key is not None and self._epoch is not None, "what is loaded has been claimed"
        self.journal.note(effects)
        return Share(self._key, self._epoch, partition.next_sequence_number, effects)

    # -- losing -------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Only the store knows what is true now. Load the partition again later."""
        if self.state is PartitionState.GONE:
            return
        self._change(PartitionEvent.LOST)
        self._refuse_waiting(self._unavailable(error))
        self._reload_at = asyncio.get_running_loop().time() + self._reload_after_s
        self.store.reload_later(self._reload_after_s)

    def withdraw(self) -> Mailbox:
        """The store is away: take no commands. Returns the waiting commands, which are to be refused."""
        self._change(PartitionEvent.LOST)
        self._reload_at = 0.0
        mailbox, self._mailbox = self._mailbox, []
        return mailbox

    def refuse(self, mailbox: Mailbox, cause: Exception) -> None:
        """Refuse these commands, and notify those who wait for this partition."""
        self._tell_refused(mailbox, self._unavailable(cause))

    def close(self) -> None:
        """The entity is deleted: submit nothing more to the store, and refuse commands."""
        self.store.remove_resident(self)
        self._change(PartitionEvent.CLOSE)
        self._refuse_waiting(EntityNotFound(self._entity.path))

    def __repr__(self) -> str:
        return f"{self._entity.path}[{self.number}]"
