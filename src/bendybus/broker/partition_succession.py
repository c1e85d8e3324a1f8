"""What outlives an owner of a partition: the holders of its sessions, and state that is only in memory.

In a planned move, locks, sessions, rests and leases pass to the next owner (domain/volatile.py). The next
owner restores them when it loads the partition, and the holders of sessions continue. The owner of each
partition: cluster/ownership.py. What a partition does with commands: partition_host.py.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bendybus.broker.detached_sessions import DetachedSession
from bendybus.broker.holders import SessionHolder, SessionHolders
from bendybus.broker.host import ignore
from bendybus.broker.lifecycle import PartitionState
from bendybus.broker.mailbox import Leftovers, Mailbox, OnReply
from bendybus.broker.partition_reads import PartitionReads
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.stores import AttachedStore
from bendybus.domain.commands import Command
from bendybus.domain.leases import LeaseRequest
from bendybus.domain.messages import Message
from bendybus.domain.partition import Partition
from bendybus.domain.session_commands import FindSessionState, ReleaseSession, SessionLock
from bendybus.domain.volatile import VolatileState
from bendybus.errors import BrokerError, EntityNotFound, SessionLockLost
from bendybus.names import Epoch, Instant, PartitionNumber
from bendybus.store.protocol import PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.queue import Queue

__all__ = ["PartitionSuccession"]

logger = logging.getLogger(__name__)


class PartitionSuccession(PartitionReads):
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
        self.queue = queue
        self.holders = SessionHolders()
        self._remembered: list[tuple[VolatileState, Instant]] = []
        """What the last owner has sent, and when it arrived. The first load uses it."""
        self._settled: asyncio.Event | None = None
        """While the partition is handed over: set once it is known who owns it."""

    def _built(self, snapshot: Snapshot) -> Partition:
        partition = self._restored(snapshot)
        try:
            for state, at in self._remembered:
                partition.recall(state, at)
        except Exception:
            logger.exception("%s: what the last owner remembered cannot be used: its locks are lost", self)
            return self._restored(snapshot)
        return partition

    @abstractmethod
    def _restored(self, snapshot: Snapshot) -> Partition:
        """The partition as the store has it. Runs in the reader's thread."""

    def begin_emptying(self) -> None:
        super().begin_emptying()
        self.holders.lose_all()

    def _tell_refused(self, mailbox: Mailbox, reason: BrokerError) -> None:
        super()._tell_refused(mailbox, reason)
        if self.state is not PartitionState.LATE:
            self._remembered = []
        self.holders.lose_all()

    # -- holders ------------------------------------------------------------------

    def hold_session(self, lock: SessionLock, holder: SessionHolder) -> None:
        """Tell this holder about messages in the session, and when the session is lost."""
        self.holders.hold(lock, holder)
        # So that the lock expires on time even if nothing else happens in this partition.
        self._entity.keep_time(self)

    def let_go_session(self, lock: SessionLock) -> None:
        """Tell the holder of this session nothing more."""
        holder = self.holders.let_go(lock)
        if isinstance(holder, DetachedSession):
            holder.lost()

    async def detach_session(self, lock: SessionLock) -> None:
        self.hold_session(lock, DetachedSession())

    async def receive_in_session(self, lock: SessionLock, timeout_s: float) -> Message | None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            await self.ask(FindSessionState(lock))
            left_s = deadline - asyncio.get_running_loop().time()
            if self.state is PartitionState.OWNED_ELSEWHERE:
                elsewhere: Message | None = await self.current.receive_in_session(lock, left_s)
                return elsewhere
            for message in self.lock_in_session(lock, 1, 1):
                return message
            holder = self.holders.of(lock)
            if left_s <= 0:
                return None
            if not isinstance(holder, DetachedSession):
                raise SessionLockLost(f"A receiver has the session '{lock.session_id}'.")
            await holder.news(left_s)

    @abstractmethod
    def lock_in_session(self, lock: SessionLock, count: int, size_max: int) -> list[Message]:
        """Lock messages for the holder of a session."""

    # -- the leases of the queue's consumers --------------------------------------

    async def lease(self, request: LeaseRequest) -> None:
        """For `Queue.lease`. Leases need neither the partition's memory nor its store."""
        while self._settled is not None:
            await self._settled.wait()
        if self.state is PartitionState.OWNED_ELSEWHERE:
            await self.current.lease(request)
        elif self.queue.deleted:
            raise EntityNotFound(self.path)
        else:
            self.queue.consumer_leases.serve(request, self.now())

    # -- another owner ------------------------------------------------------------

    def begin_handing_over(self) -> None:
        super().begin_handing_over()
        self._settled = asyncio.Event()

    def keep(self) -> None:
        super().keep()
        self._settle()

    def give_up(self, pass_on: Callable[[Command, OnReply], None]) -> Leftovers:
        left = super().give_up(pass_on)
        self._settle()
        return left

    def _settle(self) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.set()

    def remember(self) -> VolatileState:
        """What the store does not know, for the next owner. Locks only if the partition is in memory."""
        state = VolatileState() if self._held is None else self._held.remember(self.now())
        if self.number == 0:
            return replace(state, leases=self.queue.consumer_leases.remember(self.now()))
        return state

    def expect(self, remembered: list[tuple[VolatileState, Instant]]) -> None:
        """Continue with what the last owner remembered: with locks and sessions at the first load."""
        self._remembered = remembered
        for state, at in remembered:
            self.queue.consumer_leases.recall(state.leases, at)

    def _leave_sessions(self) -> list[tuple[SessionLock, SessionHolder]]:
        return self.holders.take_all()

    def _serve_waiting(self) -> None:
        remembered, self._remembered = self._remembered, []
        super()._serve_waiting()
        if remembered and self._held is not None:
            self._meet_holders(remembered)

    def _meet_holders(self, remembered: list[tuple[VolatileState, Instant]]) -> None:
        """Sessions that were locked at the last owner continue with their holders, or are free."""
        partition = self._held
        assert partition is not None
        for lock in list(self.holders):
            if not partition.has_session(lock):
                self.holders.lose([lock])
            else:
                self.holders.wake([lock])
        for state, _ in remembered:
            for held in state.sessions:
                if self.holders.of(held.lock) is None:
                    self.submit(ReleaseSession(held.lock), ignore)
