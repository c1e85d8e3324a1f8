"""Runs one partition: command in, apply, commit, reply out.

This is what partitions of every kind have in common. Those of queues and subscriptions: partition_host.py;
those of topics: topic_host.py. How a partition comes into memory and leaves it: partition_lifecycle.py.

The output-commit rule lives here. The partition's memory changes at once; a reply with durable effects is
sent only when the commit that contains them (and so all before it) is on disk. Locking is the exception: its
durable effects concern other messages (partition_host.py). A message can be locked only once it is durable. A
failed commit discards the partition's memory. While the partition is away, commands fail with a retryable
error; while it is loading, they wait for a limited time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence

from bendybus.broker.commit_group import OnCommitted, Share
from bendybus.broker.holders import SessionHolder
from bendybus.broker.lifecycle import Availability, PartitionEvent, PartitionState, StoreState
from bendybus.broker.mailbox import Leftovers, OnReply
from bendybus.broker.partition_lifecycle import P, PartitionLifecycle
from bendybus.broker.partition_port import OnEnded, PartitionPort
from bendybus.broker.stores import AttachedStore
from bendybus.broker.transactions import commit_here, commit_here_at_once
from bendybus.broker.uncertain import UncertainSends
from bendybus.domain.commands import Command, Enqueue, Enqueued, Peek, Reply, Tick
from bendybus.domain.effects import DurableEffect
from bendybus.domain.session_commands import SessionLock
from bendybus.errors import BrokerError, EntityNotFound
from bendybus.names import Epoch, Instant, SequenceNumber
from bendybus.store.protocol import PartitionKey

__all__ = ["Host", "ignore"]

logger = logging.getLogger(__name__)


class Host(PartitionLifecycle[P]):
    """A partition of some entity, and the operations on it."""

    # -- commands -----------------------------------------------------------------

    @abstractmethod
    def submit(self, command: Command, done: OnReply) -> None:
        """Apply a command. `done` is called, perhaps before this returns, with the reply or the error."""

    def _submit_later(self, command: Command, done: OnReply) -> None:
        """`submit` while the partition takes no commands. If it is being loaded, they wait."""
        if self.availability is Availability.LOADING:
            self._mailbox.append((command, done))
        elif self.state is PartitionState.OWNED_ELSEWHERE:
            self._pass_on(command, done)
        elif self.availability is Availability.GONE:
            done(EntityNotFound(self._entity.path))
        else:
            done(self._unavailable())

    def _serve_waiting(self) -> None:
        self._deliver_mailbox()
        self._entity.keep_time(self)
        self._entity.availability_changed(self)

    def _deliver_mailbox(self) -> None:
        mailbox, self._mailbox = self._mailbox, []
        for command, done in mailbox:
            self.submit(command, done)

    def must_look_ahead(self, command: Command) -> bool:
        """Whether `look_ahead` has something to do."""
        return False

    async def look_ahead(self, command: Command) -> None:
        """Do slow work that changes nothing, before a command of a transaction is applied."""

    @abstractmethod
    def check(self, commands: Sequence[Command], at: Instant) -> None:
        """Raise if these commands of a transaction cannot be applied."""

    @abstractmethod
    def prepare(
        self, command: Command, at: Instant, *, retractable: bool = False
    ) -> list[tuple[Share, OnCommitted]]:
        """Apply a command as a part of a commit that the caller makes. The caller puts the shares into the
        commit and calls back with its result. The partition must be in memory.

        `retractable`: the commit contains only messages. If they are stored after the commit was reported
        as failed, they are removed (uncertain.py).
        """

    def _committed(
        self,
        partition: P,
        command: Command,
        reply: Reply,
        retractable: Sequence[DurableEffect] | None,
        done: OnReply,
        failure: Exception | None,
    ) -> None:
        """The commit that contains a command's effects is durable, or has failed: reply.

        `retractable`: the effects; None in a transaction, no part of which may be removed alone.
        """
        if failure is not None:
            if retractable is not None:
                self._uncertain.note(command, reply, retractable)
            if partition is self._held:
                logger.error("%s: %s", self, failure)
                self.fail(failure)
            done(self._unavailable(failure))
            return
        self._count(command, reply)
        done(reply)
        if isinstance(reply, Enqueued) and partition is self._held:
            self._stored(partition, command, reply)

    def _count(self, command: Command, reply: Reply) -> None:
        """Count accepted messages. Those that leave for another entity are counted there."""
        if isinstance(command, Enqueue) and isinstance(reply, Enqueued) and command.destination is None:
            self.tally.incoming += reply.count

    @abstractmethod
    def _stored(self, partition: P, command: Command, reply: Enqueued) -> None:
        """Called when these messages are durable."""

    async def ask(self, command: Command) -> Reply:
        """`submit` for callers that can wait. Raises the error."""
        answer: asyncio.Future[Reply | BrokerError] = asyncio.get_running_loop().create_future()
        self.submit(command, lambda reply: None if answer.done() else answer.set_result(reply))
        reply = await answer
        if isinstance(reply, BrokerError):
            raise reply
        return reply

    def describe(self, description: object) -> None:
        """Called when the entity is updated."""
        if self._held is not None:
            self._held.description = description

    def tick(self, at: Instant) -> bool:
        """Process everything that is due. Returns False if nothing here depends on time any more."""
        if self._partition is None:
            return False
        deadline = self._partition.next_deadline()
        if deadline is not None and deadline <= at:
            self.submit(Tick(), ignore)
        return deadline is not None

    def due(self, at: Instant) -> bool:
        """Whether something here is due."""
        deadline = None if self._partition is None else self._partition.next_deadline()
        return deadline is not None and deadline <= at

    async def refresh(self) -> None:
        """Nothing to do: the figures are those of the partition itself."""

    async def commit(
        self, work: Sequence[tuple[PartitionPort, Command]], *, only_checks: bool = False
    ) -> None:
        """Apply commands as one commit. Their partitions are in the store of this one."""
        if only_checks:
            for port, command in work:
                port.check([command], port.now())
        else:
            await commit_here(work)

    def commit_at_once(self, work: Sequence[tuple[PartitionPort, Command]], ended: OnEnded) -> bool:
        return commit_here_at_once(work, ended)

    async def loaded(self) -> None:
        """Return once the partition is not being loaded."""
        if self.availability is Availability.LOADING:
            with contextlib.suppress(BrokerError):
                await self.ask(Peek(SequenceNumber(0), 0))

    # -- emptying (emptying.py) ---------------------------------------------------

    def begin_emptying(self) -> None:
        """All messages are about to be discarded. Commands wait until `load_emptied`."""
        self._change(PartitionEvent.EMPTY)
        self._entity.availability_changed(self)

    def load_emptied(self, key: PartitionKey) -> None:
        """The store has created an empty partition in place of the old one."""
        self._key, self._epoch = key, None
        if self.store.state is StoreState.AWAY:
            # The partition is loaded when its store is back.
            self._change(PartitionEvent.LOST)
            self._refuse_waiting(self._unavailable())
        else:
            self.load()

    def look_again(self, cause: Exception) -> None:
        """The store failed to create the empty partition. Load what it has now."""
        self._key = None
        self.fail(cause)
        self._reload_at = 0.0
        self.store.recover()

    # -- moving to another store (moving.py) --------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether memory holds every message whose row id it has read from the store."""
        return True

    def freeze(self) -> None:
        """Make commands wait, as during a load, although the partition is in memory."""
        self._change(PartitionEvent.FREEZE)
        self._entity.availability_changed(self)

    def thaw(self) -> None:
        """Take commands again. Does nothing if the partition was lost meanwhile."""
        if self.state is PartitionState.FROZEN:
            self._change(PartitionEvent.THAW)
            self._serve_waiting()

    def relocate(self, store: AttachedStore, key: PartitionKey, epoch: Epoch) -> None:
        """The partition's messages are in this store from now on."""
        self.store.remove_resident(self)
        store.add_resident(self)
        self.store, self._key, self._epoch = store, key, epoch
        self._entity.arrange_turns()
        # Nothing is uncertain in a store whose commits have all been answered.
        self._uncertain = UncertainSends()

    # -- another owner (cluster/ownership.py) --------------------------------------

    def begin_handing_over(self) -> None:
        """Another broker is to have the partition. Commands wait; what was submitted is still written."""
        if self.state is PartitionState.SERVING:
            self._change(PartitionEvent.HAND_OVER)
            self._entity.availability_changed(self)

    def keep(self) -> None:
        """It was not handed over after all. Does nothing if the partition was lost meanwhile."""
        if self.state is PartitionState.HANDING_OVER:
            self._change(PartitionEvent.KEEP)
            self._serve_waiting()

    def give_up(self, pass_on: Callable[[Command, OnReply], None]) -> Leftovers:
        """This broker does not own the partition any more, and its memory is discarded.

        `pass_on` gets the commands of callers that have not noticed.
        """
        self.store.remove_resident(self)
        self._pass_on = pass_on
        left = Leftovers(self._mailbox, self._leave_sessions(), [])
        self._mailbox = []
        self._change(PartitionEvent.CLAIMED_ELSEWHERE)
        self._tell_refused([], self._unavailable())
        return left

    def _leave_sessions(self) -> list[tuple[SessionLock, SessionHolder]]:
        """The sessions that have a holder. Another object informs the holders from now on."""
        return []


def ignore(_: object) -> None:
    """For commands whose reply nobody waits for."""
