"""Group commit: one writer for one messaging store.

Whatever arrives while a commit runs goes into the next one, so the batch grows
with the load and an idle store answers at once. Submitting and the callbacks
belong to the event loop; only `MessagingStore.commit` runs in the thread. The
callbacks of a commit run in the order of submission, all in one turn of the
loop, so that the connections they wake up write once.

After a failed commit nothing more is written until the loop has heard of it,
and what was submitted meanwhile fails too: it was made from memory that is no
longer true (host.py throws it away and reads the store again).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar

from bendybus.domain.effects import (
    DurableEffect,
    ForgetIdentities,
    MarkTransferred,
    RememberIdentities,
    RemoveMessages,
    SaveSessionState,
    StoreMessages,
)
from bendybus.errors import StoreUnavailable
from bendybus.names import Epoch, SequenceNumber
from bendybus.store.protocol import MessagingStore, PartitionChanges, PartitionKey, SessionState

__all__ = ["OnCommitted", "Share", "StoreWriter"]

OnCommitted: TypeAlias = Callable[[Exception | None], None]

T = TypeVar("T")

logger = logging.getLogger(__name__)

# A store that has been idle this long has time to put things in order.
TIDY_AFTER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one partition adds to a commit."""

    key: PartitionKey
    epoch: Epoch
    next_sequence_number: SequenceNumber
    effects: Sequence[DurableEffect]


@dataclass(slots=True)
class _Group:
    """What one commit will hold."""

    changes: dict[PartitionKey, PartitionChanges] = field(default_factory=dict)
    callbacks: list[OnCommitted] = field(default_factory=list)


class StoreWriter:
    def __init__(self, store: MessagingStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._turn = threading.Condition()
        """Guards the four below; whoever adds work notifies the thread."""
        self._gathering = _Group()
        self._errands: list[Callable[[], None]] = []
        self._failed = False
        self._stopping = False
        self._unanswered = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name=f"writer-{store.name}", daemon=True)
        self.commits = 0
        self.messages_stored = 0

    def start(self) -> None:
        self._thread.start()

    # -- the loop's side ----------------------------------------------------------

    def submit(self, shares: Sequence[Share], committed: OnCommitted) -> None:
        """Put all of this into the next commit, and call back when that is durable or has failed.

        The shares of one call are never split over two commits: together or not at all.
        """
        with self._turn:
            group = self._gathering
            if not group.changes:
                self._turn.notify()
            for share in shares:
                changes = group.changes.get(share.key)
                if changes is None:
                    changes = PartitionChanges(share.key, share.next_sequence_number, epoch=share.epoch)
                    group.changes[share.key] = changes
                changes.next_sequence_number = share.next_sequence_number
                for effect in share.effects:
                    _add(changes, effect)
            group.callbacks.append(committed)
        self._unanswered += 1
        self._idle.clear()

    def when_written(self, errand: Callable[[], None]) -> None:
        """Call this in the writer's thread, after everything submitted so far and before all that follows."""
        with self._turn:
            self._errands.append(errand)
            self._turn.notify()

    async def run(self, call: Callable[[], T]) -> T:
        """Run something else that writes to the store, between two commits."""
        done: asyncio.Future[T] = self._loop.create_future()
        self.when_written(partial(self._run_errand, call, done))
        return await done

    async def drain(self) -> None:
        """Return once everything submitted has been answered."""
        await self._idle.wait()

    def stop(self) -> None:
        """End the thread after what was submitted is committed."""
        with self._turn:
            self._stopping = True
            self._turn.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _committed(self, group: _Group) -> None:
        self.commits += 1
        self.messages_stored += sum(len(changes.stored) for changes in group.changes.values())
        self._answer(group, None)

    def _commit_failed(self, group: _Group, cause: Exception) -> None:
        with self._turn:
            made_meanwhile, self._gathering = self._gathering, _Group()
            self._failed = False
        error = StoreUnavailable(f"The messaging store '{self._store.name}' failed to commit: {cause}")
        error.__cause__ = cause
        self._answer(group, error)
        self._answer(made_meanwhile, error)

    def _answer(self, group: _Group, error: Exception | None) -> None:
        for callback in group.callbacks:
            try:
                callback(error)
            except Exception:
                # A fault of ours in one partition's answer must not cost the others theirs.
                logger.exception("store %s: a callback failed", self._store.name)
        self._unanswered -= len(group.callbacks)
        if not self._unanswered:
            self._idle.set()

    # -- the thread's side --------------------------------------------------------

    def _run(self) -> None:
        while (work := self._next_work()) is not None:
            group, errands = work
            if group.changes:
                self._commit(group)
            for errand in errands:
                errand()

    def _commit(self, group: _Group) -> None:
        try:
            self._store.commit(list(group.changes.values()))
        except Exception as failure:
            with self._turn:
                self._failed = True
            self._tell(self._commit_failed, group, failure)
        else:
            self._tell(self._committed, group)

    def _next_work(self) -> tuple[_Group, list[Callable[[], None]]] | None:
        """Wait for something to do; None when the writer is to stop."""
        with self._turn:
            while self._failed or not (self._gathering.changes or self._errands):
                if self._stopping:
                    return None
                if not self._turn.wait(TIDY_AFTER_S):
                    self._errands.append(self._tidy)
            group, self._gathering = self._gathering, _Group()
            errands, self._errands = self._errands, []
            return group, errands

    def _tidy(self) -> None:
        """Nobody wants anything: let the store put a little in order, then look whether somebody does."""
        try:
            self._store.tidy()
        except Exception:
            logger.exception("store %s: tidying failed", self._store.name)

    def _run_errand(self, call: Callable[[], T], done: asyncio.Future[T]) -> None:
        try:
            self._tell(done.set_result, call())
        except Exception as failure:
            self._tell(done.set_exception, failure)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        # Once the loop is closed nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _add(changes: PartitionChanges, effect: DurableEffect) -> None:
    if isinstance(effect, StoreMessages):
        changes.stored += effect.messages
    elif isinstance(effect, RemoveMessages):
        changes.removed += effect.messages
    elif isinstance(effect, RememberIdentities):
        changes.remembered.append((effect.accepted_at, effect.digests))
    elif isinstance(effect, ForgetIdentities):
        changes.forgotten_through = effect.accepted_through
    elif isinstance(effect, SaveSessionState):
        changes.session_states.append(SessionState(effect.session_id, effect.state, effect.at))
    elif isinstance(effect, MarkTransferred):
        changes.transferred[effect.source] = effect.number
    else:
        # The partition may change these again before the thread reads them: copy what holds now.
        changes.updated += map(copy.copy, effect.messages)
