"""A messaging store at work: its writer, its reader, its health, and the payloads kept in memory.

`AttachedStore` is what a broker holds for each store it was given. Reads and
loads have a thread of their own, so a long one never holds up a commit. When
the store fails or stalls, everybody who waits for it is told at once and its
partitions are unavailable; then it is probed, once a second for all of them
together, and they are loaded anew as soon as it can be written to. How long is
too long: health.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bendybus.broker.clock import now
from bendybus.broker.health import LOAD_PATIENCE_S, SLOW_AFTER_S, STALL_AFTER_S, Patience, StoreState
from bendybus.broker.reader import StoreReader
from bendybus.broker.writer import Share, StoreWriter
from bendybus.domain.messages import Message
from bendybus.errors import StoreError, StoreUnavailable
from bendybus.names import EntityPath, Epoch, PartitionNumber, SessionId
from bendybus.store.protocol import MessagingStore, PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.host import Host

__all__ = ["PAYLOAD_CACHE_BYTES", "AttachedStore", "PayloadCache"]

# Enough for a few thousand messages in flight. A longer backlog stays on disk and is
# read back in pages, which costs little; memory spent here is spent whether used or not.
PAYLOAD_CACHE_BYTES: Final = 16 * 1024 * 1024

# How long to leave a failed store, or partition, alone. One that fails again soon after it came back
# (a full disk takes small things and refuses large ones) is left alone for twice as long each time.
RECOVER_AFTER_S: Final = 1.0
RECOVER_AFTER_MAX_S: Final = 30.0
SOUND_AFTER_S: Final = 60.0

# How often somebody looks who waits for a store to be back.
LOOK_AGAIN_S: Final = 0.01

T = TypeVar("T")

logger = logging.getLogger(__name__)


class PayloadCache:
    """Which stored payloads stay in memory: the oldest, as long as there is room.

    A queue is read from its front, so what is already here is worth more than
    what has just arrived: a newcomer that does not fit is dropped at once.
    """

    def __init__(self, limit_bytes: int = PAYLOAD_CACHE_BYTES) -> None:
        self._limit = limit_bytes
        self._used = 0

    @property
    def used_bytes(self) -> int:
        return self._used

    def admit(self, messages: Iterable[Message]) -> None:
        """The store has these now: keep their payloads if there is room, else let go of them."""
        used, limit = self._used, self._limit
        for message in messages:
            if used + message.size <= limit:
                used += message.size
            else:
                message.payload = None
        self._used = used

    def forget(self, messages: Iterable[Message]) -> None:
        """These messages are no more."""
        self._used -= sum([message.size for message in messages if message.payload is not None])


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
        """Why it is away, for people."""
        self.state_since = now()
        self.waiting_s = 0.0
        """How long the call that is under way has taken."""
        self.failures = 0
        """How often it went away."""
        self.hosts: dict[Host[Any], None] = {}
        """The partitions that live here."""
        self._loop = loop
        self._patience = Patience(stall_after_s)
        self._away_since = 0.0
        self._recovered_at: float | None = None
        self._recover_after_s = RECOVER_AFTER_S
        self._recovery: asyncio.TimerHandle | None = None
        self._probing = False
        self._opened = True
        self._stopped = False
        self.writer = StoreWriter(store, loop, self.fail)
        self.reader = StoreReader(store.name, loop, self.fail)

    def start(self) -> None:
        self.writer.start()
        self.reader.start()

    def stop(self) -> None:
        """End the threads; one that is stuck in the store is left behind."""
        self._stopped = True
        if self._recovery is not None:
            self._recovery.cancel()
        self.writer.stop()
        self.reader.stop()

    # -- work ---------------------------------------------------------------------

    def load(
        self,
        key: PartitionKey,
        epoch: Epoch | None,
        build: Callable[[Snapshot, Epoch], T],
        loaded: Callable[[T | Exception], None],
        late: Callable[[], None],
    ) -> None:
        """Read a partition, once everything submitted for it has been written, and build what it is for.

        Whoever does not hold an epoch of it claims it first. Both in the reader's thread: a million
        messages take half a second to put in their places, and the loop serves others meanwhile. `late`
        is called when it takes so long that nobody should wait for it; it goes on all the same.
        """

        def read(claimed: Epoch) -> T:
            return build(self.store.load(key), claimed)

        def claim() -> None:
            try:
                claimed = self.store.claim([key])[0] if epoch is None else epoch
            except Exception as failure:
                self._tell(self._not_claimed, loaded, failure)
            else:
                self._tell(self._ask, partial(read, claimed), loaded, late)

        self.writer.when_written(claim)

    def read_session_state(
        self, key: PartitionKey, session_id: SessionId, done: Callable[[bytes | Exception | None], None]
    ) -> None:
        """The state of a session, once everything submitted for it has been written."""
        read = partial(self.store.read_session_state, key, session_id)
        self.writer.when_written(partial(self._tell, self._ask, read, done), done)

    def read(self, places: Sequence[int], done: Callable[[list[bytes | None] | Exception], None]) -> None:
        self._ask(partial(self.store.read, places), done)

    async def run(self, call: Callable[[], T]) -> T:
        """Run something else that writes to the store, between two commits; refused while it is away."""
        self.refuse_away()
        return await self.writer.run(call)

    async def query(self, call: Callable[[], T]) -> T:
        """Run something that only reads, however long it takes; refused while the store is away."""
        self.refuse_away()
        answer: asyncio.Future[T | Exception] = self._loop.create_future()
        self._ask(call, lambda result: None if answer.done() else answer.set_result(result), _not_in_a_hurry)
        result = await answer
        if isinstance(result, Exception):
            raise result
        return result

    async def commit(self, shares: Sequence[Share]) -> None:
        """`StoreWriter.submit` for those who have time to wait; refused while the store is away."""
        self.refuse_away()
        answer: asyncio.Future[Exception | None] = self._loop.create_future()
        self.writer.submit(shares, lambda failure: None if answer.done() else answer.set_result(failure))
        failure = await answer
        if failure is not None:
            raise failure

    def refuse_incomplete(self) -> None:
        """`StoreUnavailable` while it is not known what it keeps: then it may be swept of what is unknown."""
        if any(host.key is None for host in self.hosts):
            raise StoreUnavailable(f"The messaging store '{self.name}' has not said yet what it keeps.")

    def refuse_away(self) -> None:
        if self.state is StoreState.AWAY:
            raise StoreUnavailable(f"The messaging store '{self.name}' is away: {self.reason}")

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
        loaded(failure)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        # Once the loop is closed nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    # -- health -------------------------------------------------------------------

    def check(self, at: float) -> None:
        """Look whether the threads get on; to be called a few times a second with the loop's time."""
        patience = self._patience
        patience.turn(at, self.writer.take_slowest_s())
        self.waiting_s = waited_s = max(
            patience.waited_s("writer", self.writer.step), patience.waited_s("reader", self.reader.step)
        )
        clock_s, stall_after_s = patience.clock_s, patience.stall_after_s
        self.reader.expire(clock_s - stall_after_s, clock_s - max(LOAD_PATIENCE_S, stall_after_s))
        if self.state is StoreState.AWAY:
            return
        if waited_s >= stall_after_s:
            self.fail(StoreUnavailable(f"it has not answered for {waited_s:.1f} s"))
        elif waited_s >= SLOW_AFTER_S and self.state is StoreState.AVAILABLE:
            logger.warning("store %s is slow: messages without a key go elsewhere", self.name)
            self._set_state(StoreState.SLOW)
        elif waited_s < SLOW_AFTER_S and self.state is StoreState.SLOW:
            logger.info("store %s is slow no more", self.name)
            self._set_state(StoreState.AVAILABLE)

    def fail(self, error: StoreUnavailable) -> None:
        """The store is away: tell all who wait for it, and try again later."""
        if self.state is StoreState.AWAY or self._stopped:
            return
        self.failures += 1
        self.reason = str(error)
        self._set_state(StoreState.AWAY)
        self._away_since = self._loop.time()
        logger.error(
            "store %s is away, and %d partitions with it: %s", self.name, len(self.hosts), self.reason
        )
        # All of them first: whoever is told may at once look for another partition.
        withdrawn = [(host, host.withdraw()) for host in self.hosts]
        self.writer.abandon(error)
        self.reader.abandon(error)
        for host, mailbox in withdrawn:
            host.refuse(mailbox, error)
        self._recover_later(self._next_delay_s())

    def begin_away(self, reason: Exception, *, opened: bool) -> None:
        """The store was away or damaged when the broker started, and perhaps could not even be opened."""
        self._opened = opened
        self.fail(StoreUnavailable(str(reason)))

    def _set_state(self, state: StoreState) -> None:
        self.state = state
        self.state_since = now()
        self.writer.may_tidy = state is not StoreState.AWAY

    def _next_delay_s(self) -> float:
        back = self._recovered_at
        if back is None or self._loop.time() - back > SOUND_AFTER_S:
            self._recover_after_s = RECOVER_AFTER_S
            return RECOVER_AFTER_S
        return self._longer_s()

    def _longer_s(self) -> float:
        """Twice as long as before: what is wrong will hardly go away by itself."""
        self._recover_after_s = min(self._recover_after_s * 2, RECOVER_AFTER_MAX_S)
        return self._recover_after_s

    # -- recovery -----------------------------------------------------------------

    def reload_later(self, delay_s: float = RECOVER_AFTER_S) -> None:
        """A partition here has to be loaded anew, though the store may be sound."""
        if self.state is not StoreState.AWAY:
            self._recover_later(delay_s)

    def _recover_later(self, delay_s: float) -> None:
        if self._stopped or self._probing:
            return
        if self._recovery is not None:
            if self._recovery.when() <= self._loop.time() + delay_s:
                return
            self._recovery.cancel()
        self._recovery = self._loop.call_later(delay_s, self.recover)

    async def recovered(self) -> None:
        """Return when the store answers; one that is away is tried again at once."""
        while self.state is StoreState.AWAY or any(host.wants_load(inf) for host in self.hosts):
            self.recover()
            await asyncio.sleep(LOOK_AGAIN_S)

    def recover(self) -> None:
        """Claim at once all partitions to be loaded: that shows whether the store can be written to."""
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        if self._probing:
            return
        at = self._loop.time()
        hosts = [host for host in self.hosts if host.wants_load(at)]
        if self.writer.stuck or self.reader.stuck:
            # What it is stuck in may yet be written; only then is there something to be read.
            self._recover_later(RECOVER_AFTER_S)
        elif hosts or self.state is StoreState.AWAY:
            self._probing = True
            # The thread must not look at what the loop may change.
            unknown = {(host.path, host.number): host for host in hosts if host.key is None}
            known = {host: host.key for host in hosts if host.key is not None}
            residents = {(host.path, host.number) for host in self.hosts}
            probe = partial(self._probe, residents, unknown, known)
            self.writer.when_written(partial(self._run_probe, probe), self._not_yet)

    def _run_probe(self, probe: Callable[[], dict[Host[Any], tuple[PartitionKey, Epoch]]]) -> None:
        try:
            claims = probe()
        except Exception as failure:
            self._tell(self._not_yet, failure)
        else:
            self._tell(self._recovered, claims)

    def _probe(
        self,
        residents: set[tuple[EntityPath, PartitionNumber]],
        unknown: dict[tuple[EntityPath, PartitionNumber], Host[Any]],
        known: dict[Host[Any], PartitionKey],
    ) -> dict[Host[Any], tuple[PartitionKey, Epoch]]:
        """In the writer's thread: open the store if it never was, and claim what is to be loaded."""
        if not self._opened:
            self.store.open()
            self._opened = True
        if unknown:
            # The reader has nothing to do here yet, so its calls may be made from this thread.
            records = self.store.partitions()
            # Left behind by a create, delete or move that was cut short before the last start.
            litter = [each.key for each in records if (each.entity, each.number) not in residents]
            if litter:
                self.store.discard(litter)
            for record in records:
                host = unknown.get((record.entity, record.number))
                if host is not None:
                    known[host] = record.key
        epochs = self.store.claim(list(known.values()))
        return {host: (key, epoch) for (host, key), epoch in zip(known.items(), epochs, strict=True)}

    def _recovered(self, claims: dict[Host[Any], tuple[PartitionKey, Epoch]]) -> None:
        self._probing = False
        if self._stopped:
            return
        if self.state is StoreState.AWAY:
            away_s = self._loop.time() - self._away_since
            logger.warning(
                "store %s is back after %.1f s; %d partitions are loaded", self.name, away_s, len(claims)
            )
            self._set_state(StoreState.AVAILABLE)
            self.reason = ""
            self._recovered_at = self._loop.time()
        for host, (key, epoch) in claims.items():
            host.load_claimed(key, epoch)
        missing = [host for host in self.hosts if host.key is None]
        if missing:
            logger.error("store %s does not have %s: was another file put in its place?", self.name, missing)
            self._recover_later(RECOVER_AFTER_MAX_S)

    def _not_yet(self, failure: Exception) -> None:
        self._probing = False
        if self.state is not StoreState.AWAY:
            if isinstance(failure, StoreUnavailable):
                self.fail(failure)
                return
            logger.error("store %s: partitions cannot be claimed: %s", self.name, failure)
        elif str(failure) != self.reason:
            logger.error("store %s is still away: %s", self.name, failure)
            self.reason = str(failure)
        self._recover_later(self._longer_s() if isinstance(failure, StoreError) else RECOVER_AFTER_S)


def _not_in_a_hurry() -> None:
    """Who asked knows that it may take long."""
