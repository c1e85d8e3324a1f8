"""A running messaging store: its writer, its reader, its partitions and its health.

`AttachedStore` is what a broker holds for each of its stores. Reads and loads have a thread of their
own, so a long one never delays a commit. When the store fails or stalls, everybody who waits for it is
told at once and its partitions become unavailable. It is then probed until it can be written to
(recovery.py). Its states are a table (lifecycle.py). How long is too long: health.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from bendybus.broker.clock import now
from bendybus.broker.commit_group import Share
from bendybus.broker.health import LOAD_PATIENCE_S, SLOW_AFTER_S, STALL_AFTER_S, Patience, writing_s
from bendybus.broker.lifecycle import STORE, StoreEvent, StoreState, after
from bendybus.broker.loop_calls import call_in_loop
from bendybus.broker.reader import StoreReader
from bendybus.broker.recovery import RECOVER_AFTER_S, Recovery
from bendybus.broker.resident import Resident
from bendybus.broker.state_changes import StateChanges
from bendybus.broker.writer import StoreWriter
from bendybus.errors import PartitionMoved, StoreCorrupted, StoreUnavailable
from bendybus.names import Epoch, SessionId
from bendybus.store.protocol import MessagingStore, PartitionKey, Snapshot

__all__ = ["AttachedStore"]

# How often to check while waiting for a store to come back.
LOOK_AGAIN_S: Final = 0.01

# A store whose partitions are all loaded counts as mended if no call has met damage for this long.
MENDED_AFTER_S: Final = 10.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


class AttachedStore:
    def __init__(
        self,
        store: MessagingStore,
        loop: asyncio.AbstractEventLoop,
        *,
        stall_after_s: float = STALL_AFTER_S,
    ) -> None:
        self.store = store
        self.name = store.name
        self.state = StoreState.AVAILABLE
        self.reason = ""
        """Why it is away or damaged, for people."""
        self.state_since = now()
        self.waiting_s = 0.0
        """How long the current call has taken."""
        self.failures = 0
        """How often the store went away."""
        self.damages = 0
        """How often a call met damage."""
        self._damaged_at = 0.0
        self.residents: dict[Resident, None] = {}
        """The partitions in this store."""
        self.displaced: Callable[[], None] = _nothing
        """Called when another broker turns out to own the store."""
        self.changes = StateChanges()
        """Changes of its state, of its recovery's and of its partitions'."""
        self._loop = loop
        self._patience = Patience(stall_after_s)
        self._away_since = 0.0
        self.writer = StoreWriter(store, loop, self.fail, self.meet_damage)
        self.reader = StoreReader(store.name, loop, self.fail, self.meet_damage)
        self.recovery = Recovery(self, loop)

    def start(self) -> None:
        self.writer.start()
        self.reader.start()

    def stop(self) -> None:
        """End the threads. A thread that is stuck in the store is abandoned."""
        self._change(StoreEvent.STOP)
        self.recovery.stop()
        self._end_threads()

    def _end_threads(self) -> None:
        self.writer.stop()
        self.reader.stop()

    async def let_go(self, reason: StoreUnavailable) -> None:
        """`stop` while the loop serves others. Everyone who waits for the store is answered."""
        self.writer.abandon(reason)
        self.reader.abandon(reason)
        self._change(StoreEvent.STOP)
        self.recovery.stop()
        await asyncio.to_thread(self._end_threads)

    def add_resident(self, resident: Resident) -> None:
        """Register a partition in this store."""
        self.residents[resident] = None

    def remove_resident(self, resident: Resident) -> None:
        self.residents.pop(resident, None)
        self.changes.notify()

    # -- work ---------------------------------------------------------------------

    def load(
        self,
        key: PartitionKey,
        epoch: Epoch | None,
        build: Callable[[Snapshot, Epoch], T],
        loaded: Callable[[T | Exception], None],
        late: Callable[[], None],
    ) -> None:
        """Read a partition, once everything submitted for it has been written, and build it in memory.

        A caller without an epoch claims it first. Reading and building happen in the reader's thread: sorting
        in a million messages takes half a second, during which the loop serves others. Payloads are read
        between two pages of the load. `late` is called when the load takes too long to wait for; the load
        continues.
        """

        def read(claimed: Epoch) -> T:
            return build(self.store.load(key, self.reader.make_short_calls), claimed)

        def claim() -> None:
            try:
                claimed = self.store.claim([key])[0] if epoch is None else epoch
            except Exception as failure:
                call_in_loop(self._loop, self._not_claimed, loaded, failure)
            else:
                call_in_loop(self._loop, self._ask, partial(read, claimed), loaded, late)

        self.writer.when_written(claim)

    def read_session_state(
        self, key: PartitionKey, session_id: SessionId, done: Callable[[bytes | Exception | None], None]
    ) -> None:
        """The state of a session, once everything submitted for it has been written."""
        read = partial(self.store.read_session_state, key, session_id)
        self.writer.when_written(partial(call_in_loop, self._loop, self._ask, read, done), done)

    def read(self, row_ids: Sequence[int], done: Callable[[list[bytes | None] | Exception], None]) -> None:
        self._ask(partial(self.store.read, row_ids), done)

    async def run(self, call: Callable[[], T]) -> T:
        """Run something else that writes, between two commits. Refused while the store is away."""
        self.refuse_away()
        return await self.writer.run(call)

    async def query(self, call: Callable[[], T]) -> T:
        """Run something that only reads, however long it takes. Refused while the store is away."""
        self.refuse_away()
        answer: asyncio.Future[T | Exception] = self._loop.create_future()
        self._ask(call, lambda result: None if answer.done() else answer.set_result(result), _not_in_a_hurry)
        result = await answer
        if isinstance(result, Exception):
            raise result
        return result

    async def commit(self, shares: Sequence[Share]) -> None:
        """`StoreWriter.submit` for callers that can wait. Refused while the store is away."""
        self.refuse_away()
        answer: asyncio.Future[Exception | None] = self._loop.create_future()
        self.writer.submit(shares, lambda failure: None if answer.done() else answer.set_result(failure))
        failure = await answer
        if failure is not None:
            raise failure

    def refuse_incomplete(self) -> None:
        """`StoreUnavailable` while its contents are unknown: recovery may sweep unknown partitions."""
        if any(resident.key is None for resident in self.residents):
            raise StoreUnavailable(f"The messaging store '{self.name}' has not said yet what it keeps.")

    def refuse_away(self) -> None:
        if self.state is StoreState.AWAY:
            raise StoreUnavailable(f"The messaging store '{self.name}' is away: {self.reason}")
        if self.state is StoreState.STOPPED:
            # Its threads have ended, so nobody would answer.
            raise StoreUnavailable(f"The messaging store '{self.name}' is not used by this broker any more.")

    def _ask(
        self,
        call: Callable[[], T],
        done: Callable[[T | Exception], None],
        late: Callable[[], None] | None = None,
    ) -> None:
        self.reader.ask(call, done, self._patience.clock_s, late)

    def _not_claimed(self, loaded: Callable[[Exception], None], failure: Exception) -> None:
        if isinstance(failure, StoreUnavailable):
            self.fail(failure)
        elif isinstance(failure, StoreCorrupted):
            self.meet_damage(failure)
        loaded(failure)

    # -- health -------------------------------------------------------------------

    def check(self, at: float) -> None:
        """Check the progress of the threads. To be called a few times a second with the loop's time."""
        patience = self._patience
        patience.turn(at, self.writer.take_slowest_s())
        writer_s = patience.waited_s("writer", self.writer.step)
        reader_s = patience.waited_s("reader", self.reader.step)
        self.waiting_s = waited_s = max(writer_s, reader_s)
        clock_s, stall_after_s = patience.clock_s, patience.stall_after_s
        self.reader.expire(clock_s - stall_after_s, clock_s - max(LOAD_PATIENCE_S, stall_after_s))
        if self.state in (StoreState.AWAY, StoreState.STOPPED):
            return
        if waited_s >= stall_after_s and (
            reader_s >= stall_after_s or writer_s >= stall_after_s + writing_s(self.writer.size_under_way)
        ):
            self.fail(StoreUnavailable(f"it has not answered for {waited_s:.1f} s"))
        elif waited_s >= SLOW_AFTER_S and self.state is StoreState.AVAILABLE:
            logger.warning("store %s is slow: messages without a key go elsewhere", self.name)
            self._change(StoreEvent.DELAYED)
        elif waited_s < SLOW_AFTER_S and self.state is StoreState.SLOW:
            logger.info("store %s is no longer slow", self.name)
            self._change(StoreEvent.CAUGHT_UP)
        elif self.state is StoreState.DAMAGED and self._is_mended():
            logger.warning("store %s: no call has met damage for %.0f s", self.name, MENDED_AFTER_S)
            self._change(StoreEvent.MENDED)
            self.reason = ""

    def _is_mended(self) -> bool:
        return self._patience.clock_s - self._damaged_at >= MENDED_AFTER_S and not any(
            resident.reload_at is not None for resident in self.residents
        )

    def meet_damage(self, error: StoreCorrupted) -> None:
        """A call has met damage. Its caller deals with it; the store's state shows it."""
        if self.state in (StoreState.AWAY, StoreState.STOPPED):
            return
        self.damages += 1
        self._damaged_at = self._patience.clock_s
        if str(error) != self.reason:
            logger.error("store %s is damaged: %s", self.name, error)
            self.reason = str(error)
        self._change(StoreEvent.DAMAGE_MET)

    def fail(self, error: StoreUnavailable) -> None:
        """The store is away: tell everyone who waits for it, and try again later."""
        if self.state in (StoreState.AWAY, StoreState.STOPPED):
            return
        self.failures += 1
        self.reason = str(error)
        self._change(StoreEvent.FAILED)
        self._away_since = self._loop.time()
        logger.error(
            "store %s is away, and %d partitions with it: %s", self.name, len(self.residents), self.reason
        )
        # Withdraw all of them first: a caller that is told may at once try another partition.
        withdrawn = [(resident, resident.withdraw()) for resident in self.residents]
        self.writer.abandon(error)
        self.reader.abandon(error)
        for resident, mailbox in withdrawn:
            resident.refuse(mailbox, error)
        self.recovery.plan_after_failure()

    def begin_away(self, reason: Exception, *, opened: bool) -> None:
        """The store was away or damaged when the broker started, and perhaps could not be opened."""
        self.recovery.opened = opened
        self.fail(StoreUnavailable(str(reason)))

    def _change(self, event: StoreEvent) -> None:
        """The one place that sets the state."""
        self.state = state = after(STORE, self.state, event)
        self.state_since = now()
        self.writer.may_tidy = state in (StoreState.AVAILABLE, StoreState.SLOW, StoreState.DAMAGED)
        self.changes.notify()

    def reload_later(self, delay_s: float = RECOVER_AFTER_S) -> None:
        """A partition in this store has to be loaded again, although the store may be healthy."""
        if self.state is not StoreState.AWAY:
            self.recovery.plan(delay_s)

    def recover(self) -> None:
        """Load what is away now instead of later."""
        self.recovery.probe()

    async def recovered(self) -> None:
        """Return once the store answers. A store that is away is tried again at once."""
        while self.state is StoreState.AWAY or any(each.reload_at is not None for each in self.residents):
            self.recover()
            await asyncio.sleep(LOOK_AGAIN_S)

    def probed(self, loading: int) -> None:
        """A probe has succeeded: the store can be written to, and this many partitions are being loaded."""
        if self.state is StoreState.AWAY:
            away_s = self._loop.time() - self._away_since
            logger.warning(
                "store %s is back after %.1f s; %d partitions are loaded", self.name, away_s, loading
            )
            self._change(StoreEvent.RECOVERED)
            self.reason = ""

    def probe_failed(self, failure: Exception) -> None:
        if self.state is not StoreState.AWAY:
            if isinstance(failure, StoreUnavailable):
                self.fail(failure)
            elif isinstance(failure, StoreCorrupted):
                self.meet_damage(failure)
            elif isinstance(failure, PartitionMoved):
                logger.warning("store %s: %s", self.name, failure)
                self.displaced()
            else:
                logger.error("store %s: partitions cannot be claimed: %s", self.name, failure)
        elif isinstance(failure, PartitionMoved):
            self.displaced()
        elif str(failure) != self.reason:
            logger.error("store %s is still away: %s", self.name, failure)
            self.reason = str(failure)


def _nothing() -> None:
    """No other broker can own the store."""


def _not_in_a_hurry() -> None:
    """The caller knows that it may take long."""
