"""Runs one partition of a queue or subscription: locking, settling and reading its messages.

What it has in common with a topic's partition, above all the output-commit rule: host.py.
Reads from its store: partition_reads.py. The holders of its sessions, and the state that passes to its next
owner: partition_succession.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bendybus.broker.commit_group import OnCommitted, Share
from bendybus.broker.host import ignore
from bendybus.broker.lifecycle import PartitionState
from bendybus.broker.mailbox import Mailbox, OnReply
from bendybus.broker.partition_succession import PartitionSuccession
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.scans import Scan
from bendybus.broker.selection import Selection
from bendybus.broker.stores import AttachedStore
from bendybus.broker.transactions import refuse_former_numbers
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Command,
    Confirm,
    Enqueue,
    Enqueued,
    Given,
    Lock,
    LockThese,
    Release,
    Reply,
)
from bendybus.domain.effects import (
    DurableEffect,
    Effect,
    MessagesAvailable,
    RemoveMessages,
    SessionsLost,
    SessionsReady,
    UpdateMessages,
)
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.session_commands import (
    AcceptSession,
    GivenInSessions,
    LockInSession,
    LockInSessions,
    SessionAccepted,
    SessionLock,
)
from bendybus.errors import BrokerError, EntityNotFound, SessionLockLost
from bendybus.names import Epoch, Instant, LockToken, PartitionNumber, SequenceNumber
from bendybus.store.protocol import PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.queue import Queue

__all__ = ["PartitionHost"]

logger = logging.getLogger(__name__)

# Effects that do not concern the store.
_FOR_RECEIVERS: Final = (MessagesAvailable, SessionsReady, SessionsLost)

_COMPLETED: Final = SubQueue.COMPLETED


class PartitionHost(PartitionSuccession):
    def __init__(
        self,
        queue: Queue,
        number: PartitionNumber,
        key: PartitionKey | None,
        store: AttachedStore,
        cache: PayloadCache,
        epoch: Epoch | None = None,
    ) -> None:
        super().__init__(queue, number, key, store, cache, epoch)
        self.scans: dict[Scan, None] = {}
        """The receivers with selectors, and their positions."""

    def _restored(self, snapshot: Snapshot) -> Partition:
        queue = self.queue
        partition = Partition(
            self.number,
            queue.description,
            snapshot.next_sequence_number,
            queue.partition_count,
            self.tally,
        )
        sessions = [(each.session_id, each.size, each.updated_at) for each in snapshot.sessions]
        partition.restore(snapshot.messages, snapshot.identities, snapshot.transferred, sessions)
        return partition

    def begin_emptying(self) -> None:
        super().begin_emptying()
        self._restart_scans()

    def _tell_refused(self, mailbox: Mailbox, reason: BrokerError) -> None:
        super()._tell_refused(mailbox, reason)
        self._restart_scans()

    def _restart_scans(self) -> None:
        """Messages that the scans have passed may be available again after the load."""
        for scan in self.scans:
            scan.restart()

    # -- commands -----------------------------------------------------------------

    def submit(self, command: Command, done: OnReply) -> None:
        partition = self._partition
        if partition is None:
            self._submit_later(command, done)
            return
        at = self.queue.now()
        try:
            reply, effects = partition.apply(command, at)
        except BrokerError as refusal:
            done(refusal)
            return
        if isinstance(reply, Enqueued):
            self.queue.sent_to(at)
        self._perform(partition, command, reply, effects, done)

    def check(self, commands: Sequence[Command], at: Instant) -> None:
        if self._partition is None:
            raise EntityNotFound(self.queue.path) if self.queue.deleted else self._unavailable()
        if self.queue.leaving and any(_is_sent_through(command) for command in commands):
            raise EntityNotFound(self.queue.path)
        refuse_former_numbers(self.queue, commands)
        self._partition.check(commands, at)

    def prepare(
        self, command: Command, at: Instant, *, retractable: bool = False
    ) -> list[tuple[Share, OnCommitted]]:
        partition = self._partition
        assert partition is not None, "only what is loaded can be changed"
        reply, effects = partition.apply(command, at)
        if isinstance(reply, Enqueued):
            self.queue.sent_to(at)
        durable = self._durable(effects)
        if len(durable) < len(effects):
            # Messages become available at once, as always, but not before all of the work is applied.
            asyncio.get_running_loop().call_soon(self._tell, effects)
        removable = durable if retractable else None
        committed = partial(self._committed, partition, command, reply, removable, ignore)
        return [(self._share(partition, durable), committed)]

    def available(self, subqueue: SubQueue) -> int:
        """How many messages, or how many sessions, could be locked now."""
        return 0 if self._partition is None else self._partition.available(subqueue)

    def lock(self, count: int, size_max: int, subqueue: SubQueue) -> list[Message]:
        """Peek-lock what is available at once; nothing while the partition is away.

        Up to `count` messages with at most `size_max` bytes in total, but one message however large it is.
        """
        partition = self._partition
        if partition is None:
            return []
        count = partition.fitting(count, size_max, subqueue)
        if not count:
            return []
        reply = self._apply_at_once(
            partition, Lock(count, self.queue.entropy.take(ENTROPY_PER_LOCK * count), subqueue)
        )
        assert isinstance(reply, Given)
        return reply.messages

    async def find_locked(self, token: LockToken) -> Message | None:
        """The message that is locked under this token."""
        if self.state is PartitionState.OWNED_ELSEWHERE:
            found: Message | None = await self.current.find_locked(token)
            return found
        return None if self._held is None else self._held.locked(token)

    def scan(self, subqueue: SubQueue, selection: Selection, wake: Callable[[], None]) -> Scan:
        """For a receiver with a selector. The queue wakes it."""
        return Scan(self, subqueue, selection.matches)

    def waiting(
        self, start: SequenceNumber, count: int, size_max: int, subqueue: SubQueue
    ) -> Sequence[Message]:
        """The messages that could be locked, from this number upwards; none while the partition is away."""
        partition = self._partition
        return () if partition is None else partition.waiting(start, count, size_max, subqueue)

    def find_waiting(self, numbers: Sequence[SequenceNumber], subqueue: SubQueue) -> Sequence[Message]:
        """Those of these messages that could be locked."""
        return () if self._partition is None else self._partition.find_waiting(numbers, subqueue)

    def lock_these(self, numbers: Sequence[SequenceNumber], subqueue: SubQueue) -> list[Message]:
        """Peek-lock those of these messages that are available at once."""
        partition = self._partition
        if partition is None:
            return []
        entropy = self.queue.entropy.take(ENTROPY_PER_LOCK * len(numbers))
        reply = self._apply_at_once(partition, LockThese(numbers, entropy, subqueue))
        assert isinstance(reply, Given)
        return reply.messages

    def _apply_at_once(self, partition: Partition, command: Command) -> Reply:
        """Apply a lock command without waiting for a commit."""
        self.queue.accessed_at = at = self.queue.now()
        reply, effects = partition.apply(command, at)
        if effects:
            # Other messages expired. The caller that locked these need not wait for that commit.
            self._perform(partition, command, reply, effects, ignore)
        self.queue.keep_time(self)
        return reply

    def held_among(self, tokens: Sequence[LockToken], at: Instant) -> set[LockToken]:
        """Those of these tokens under which a message is locked.

        For links that keep locked messages until they can send them. A lock ends with the memory that
        contains it: nothing that was locked before the partition was loaded again is locked any more.
        """
        if self.state is PartitionState.OWNED_ELSEWHERE:
            held: set[LockToken] = self.current.held_among(tokens, at)
            return held
        return set() if self._held is None else self._held.held_among(tokens, at)

    def holds(self, token: LockToken, at: Instant) -> bool:
        """Whether a message is locked under this token."""
        return token in self.held_among((token,), at)

    def release(self, tokens: Sequence[LockToken]) -> None:
        """Return messages that were locked and never sent."""
        self.submit(Release(tokens), ignore)

    # -- sessions -----------------------------------------------------------------

    def accept_next_session(self, *, exclusive: bool = True) -> SessionAccepted | None:
        """Lock the next free session with messages, if there is one at once."""
        partition = self._partition
        if partition is None or not partition.available():
            return None
        reply = self._apply_at_once(
            partition, AcceptSession(None, self.queue.entropy.take(ENTROPY_PER_LOCK), exclusive)
        )
        assert isinstance(reply, SessionAccepted)
        return reply if reply.lock is not None else None

    def lock_in_session(self, lock: SessionLock, count: int, size_max: int) -> list[Message]:
        """`lock` for the holder of a session; nothing if the session is lost."""
        partition = self._partition
        count = 0 if partition is None else partition.fitting_in_session(lock, count, size_max)
        if partition is None or not count:
            return []
        try:
            reply = self._apply_at_once(
                partition, LockInSession(lock, count, self.queue.entropy.take(ENTROPY_PER_LOCK * count))
            )
        except SessionLockLost:
            return []
        assert isinstance(reply, Given)
        return reply.messages

    def lock_in_sessions(
        self, wanted: Sequence[tuple[SessionLock, int]], size_max: int
    ) -> tuple[list[tuple[SessionLock, list[Message], bool]], int]:
        partition = self._partition
        if partition is None:
            return [], len(wanted)
        fitting, count, asked = partition.fitting_in_sessions(wanted, size_max)
        if not fitting:
            return [], asked
        reply = self._apply_at_once(
            partition, LockInSessions(fitting, self.queue.entropy.take(ENTROPY_PER_LOCK * count))
        )
        assert isinstance(reply, GivenInSessions)
        return reply.given, asked

    def waiting_in_session(self, lock: SessionLock) -> bool:
        """Whether there are more messages for the holder of a session."""
        return self._partition is not None and self._partition.fitting_in_session(lock, 1, 1) > 0

    def session_is_unknown(self, lock: SessionLock) -> bool:
        return False

    # -- effects ------------------------------------------------------------------

    def _perform(
        self, partition: Partition, command: Command, reply: Reply, effects: list[Effect], done: OnReply
    ) -> None:
        """Commit the durable effects, then reply. Without durable effects, reply at once."""
        durable = self._durable(effects)
        if durable:
            self.store.writer.submit(
                (self._share(partition, durable),),
                partial(self._committed, partition, command, reply, durable, done),
            )
        else:
            # A deferred message or a session may be locked now, in a partition that had no deadline before.
            self.queue.keep_time(self)
            done(reply)
        self._tell(effects)

    def _durable(self, effects: list[Effect]) -> list[DurableEffect]:
        durable: list[DurableEffect] = []
        for effect in effects:
            if not isinstance(effect, _FOR_RECEIVERS):
                durable.append(effect)
                if isinstance(effect, RemoveMessages):
                    self._cache.forget(effect.messages)
                    self._ahead.forget(effect.messages)
                elif isinstance(effect, UpdateMessages) and self.queue.description.keep_completed_s:
                    # What is kept after its completion is read from the store, if ever.
                    self._cache.drop(each for each in effect.messages if each.subqueue is _COMPLETED)
                    self.queue.keep_time(self)
        return durable

    def _tell(self, effects: list[Effect], wake: Callable[[SubQueue], None] | None = None) -> None:
        """Notify receivers. `wake`: how to wake those of a sub-queue, if not at once."""
        for effect in effects:
            if isinstance(effect, MessagesAvailable):
                for scan in self.scans:
                    scan.came_back(effect)
                self.queue.stock(self, effect.subqueue)
                (wake or self.queue.wake)(effect.subqueue)
            elif isinstance(effect, SessionsReady):
                self.holders.wake(effect.locks)
            elif isinstance(effect, SessionsLost):
                self.holders.lose(effect.locks)

    def _stored(self, partition: Partition, command: Command, reply: Enqueued) -> None:
        if isinstance(command, Enqueue):
            self._keep_payloads(command.messages, reply)
        self._confirm(partition, SequenceNumber(reply.first + reply.count - 1))

    def _keep_payloads(self, messages: list[Message], enqueued: Enqueued) -> None:
        """The store has these payloads now. Keep those in memory that will be needed soon."""
        if enqueued.duplicates:
            dropped = set(enqueued.duplicates)
            messages = [message for index, message in enumerate(messages) if index not in dropped]
        if enqueued.scheduled:
            for message in messages:
                if message.state is MessageState.SCHEDULED:
                    message.payload = None
            messages = [message for message in messages if message.payload is not None]
        self._cache.admit(messages)

    def _confirm(self, partition: Partition, number: SequenceNumber) -> None:
        """All messages up to this number are durable: waiting receivers may have them."""
        _, effects = partition.apply(Confirm(number), self.queue.now())
        self.queue.keep_time(self)
        self._tell(effects, partial(self.queue.wake_after, self.store.writer))


def _is_sent_through(command: Command) -> bool:
    """Whether the command puts messages for another entity into the outbox."""
    return isinstance(command, Enqueue) and command.destination is not None
