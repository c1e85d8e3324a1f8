"""Group commit: one writer for one messaging store.

Everything that arrives during a commit goes into the next one, so batches grow with the load. A small command
waits for the end of the loop's turn, because the messages of one socket read may be for many partitions. If
there are several small commands by then, the broker is busy and will have more in the next turns, so they
wait for those turns too. A large command begins a commit at once, and the thread works during the rest of the
turn. Submissions and callbacks belong to the loop; only `MessagingStore.commit` runs in the thread. The
callbacks of a commit run in the order of submission, all in one turn of the loop, so that the connections
they wake up write once.

After a failed commit nothing more is written until the loop knows about it, and everything submitted
meanwhile fails too: it was based on memory that is no longer true (host.py discards it and loads the
partition again). The same happens when a call does not return: `abandon` answers everyone who waits, and the
thread stays in the call. There is never a second thread, so nothing can overtake it: anything that the call
still writes is there before a partition is claimed and loaded again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from time import perf_counter
from typing import Final, TypeAlias, TypeVar

from bendybus.broker.commit_group import CommitGroup, OnCommitted, Share, is_large
from bendybus.broker.loop_calls import call_in_loop
from bendybus.errors import StoreCorrupted, StoreUnavailable
from bendybus.store.protocol import MessagingStore

__all__ = ["COMMIT_BOUNDS_S", "OnDamage", "OnFailed", "StoreWriter"]

OnFailed: TypeAlias = Callable[[StoreUnavailable], None]
OnDamage: TypeAlias = Callable[[StoreCorrupted], None]

T = TypeVar("T")

logger = logging.getLogger(__name__)

# A store that has been idle this long records what it has acknowledged. Not at once: the loop has just been
# told of a commit, and the two threads would wait for each other.
SETTLE_AFTER_S: Final = 0.01
# After this long it has time for maintenance.
TIDY_AFTER_S: Final = 1.0

# This many turns of the loop may pass before a commit of several small commands begins. Each commit costs two
# thread switches and a sync, however small it is. A turn that finds nothing to do takes microseconds, but it
# also lets other threads have the interpreter's lock. So there are no further turns during a commit, because
# what arrives then waits for its end anyway.
GATHERING_TURNS: Final = 3
# With fewer commands, the client probably waits for them, or each of them has many messages.
FEW_COMMANDS: Final = 4

# If a recent commit was this quick, the next one should be too. Only requests within a tenth
# of a second after a fault began can be delayed by it.
PROMPT_S: Final = 0.1

# For the histogram of commits: from a fast disk to a store that is nearly away.
COMMIT_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

# How long the end of the process waits for a call that the store has not finished.
STOP_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Errand:
    call: Callable[[], None]
    abandoned: OnFailed


@dataclass(slots=True)
class _Work:
    """The current work of the thread: a commit, then errands."""

    group: CommitGroup
    errands: list[_Errand]
    begun: bool = False
    """Whether the thread has taken it."""
    abandoned: bool = False
    """Everyone has been told that it failed. Both are guarded like the writer's own state."""


class StoreWriter:
    def __init__(
        self,
        store: MessagingStore,
        loop: asyncio.AbstractEventLoop,
        store_failed: OnFailed | None = None,
        damage_met: OnDamage | None = None,
    ) -> None:
        self._store = store
        self._loop = loop
        self._store_failed = store_failed
        """Called when a commit found the store away, before its callbacks. It calls `abandon`."""
        self._damage_met = damage_met
        """Called when a commit or maintenance met damage."""
        self._turn = threading.Condition()
        """Guards the six below. Giving work to the thread notifies it."""
        self._gathering = CommitGroup()
        self._is_open = False
        """Whether the loop still adds to the group, so that the thread must not take it."""
        self._errands: list[_Errand] = []
        self._under_way: _Work | None = None
        self._failed = False
        self._stopping = False
        self._steps = 0
        """The number of calls begun. Only the thread changes it."""
        self._in_call = False
        self._settled = True
        """Whether the store has been told to settle since the last commit. Only the thread uses it."""
        self._slowest_s = 0.0
        self._answered_at = -inf
        """When a quick commit was last answered, by the loop's time."""
        self.may_tidy = True
        """Whether idle time may be used: not while the store is away or was never open."""
        self._unanswered = 0
        self._answering = False
        self._afterwards: list[OnCommitted] = []
        """Called after the callbacks of the commit that is being answered."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name=f"writer-{store.name}", daemon=True)
        self.commits = 0
        self.commit_counts = [0] * (len(COMMIT_BOUNDS_S) + 1)
        """The number of commits by their duration: up to each bound, and longer than the last."""
        self.commit_sum_s = 0.0
        self.messages_stored = 0

    def start(self) -> None:
        self._thread.start()

    # -- the loop's side ----------------------------------------------------------

    def submit(self, shares: Sequence[Share], committed: OnCommitted) -> None:
        """Put all of this into the next commit, and call back when that is durable or has failed.

        The small commands of one turn of the loop go into the same commit. If there are several, so do those
        of the next turns.
        """
        if self._is_open:
            self._gathering.add(shares, committed)
        elif is_large(shares):
            with self._turn:
                self._gathering.add(shares, committed)
                if self._has_work():
                    self._turn.notify()
        else:
            with self._turn:
                self._is_open = True
            self._loop.call_soon(self._end_turn, GATHERING_TURNS)
            self._gathering.add(shares, committed)
        self._unanswered += 1
        self._idle.clear()

    def _end_turn(self, turns_left: int) -> None:
        """Let the thread have the group, unless more should go into it."""
        is_idle = self._under_way is None
        if is_idle and turns_left > 1 and len(self._gathering.callbacks) >= FEW_COMMANDS:
            self._loop.call_soon(self._end_turn, turns_left - 1)
            return
        with self._turn:
            self._is_open = False
            if self._has_work():
                self._turn.notify()

    def _has_work(self) -> bool:
        """Whether there is work for the thread. Called by both sides, with the lock."""
        if self._under_way is None and not self._is_open and (self._gathering.changes or self._errands):
            self._under_way = _Work(self._gathering, self._errands)
            self._gathering, self._errands = CommitGroup(), []
        return self._under_way is not None

    def after_answers(self, call: OnCommitted) -> None:
        """Call this after the callbacks of the commit that is being answered; at once if there is none.

        One commit may make messages available in many partitions of a queue. Its receivers are woken once.
        """
        if self._answering:
            self._afterwards.append(call)
        else:
            call(None)

    def when_written(self, errand: Callable[[], None], abandoned: OnFailed | None = None) -> None:
        """Call this in the writer's thread, after everything submitted so far and before everything later.

        If the store is given up before the errand is done, `abandoned` is called, perhaps in addition.
        """
        with self._turn:
            self._errands.append(_Errand(errand, abandoned or _ignore))
            self._turn.notify()

    async def run(self, call: Callable[[], T]) -> T:
        """Run something else that writes to the store, between two commits."""
        done: asyncio.Future[T] = self._loop.create_future()
        self.when_written(partial(self._run_errand, call, done), partial(_refuse, done))
        return await done

    async def drain(self) -> None:
        """Return once everything submitted has been answered."""
        await self._idle.wait()

    def stop(self) -> None:
        """End the thread after everything submitted is committed. A thread that is stuck is abandoned."""
        with self._turn:
            self._is_open, self._stopping = False, True
            self._turn.notify()
        if self._thread.is_alive():
            self._thread.join(0 if self.stuck else STOP_TIMEOUT_S)

    @property
    def idle(self) -> bool:
        """Whether everything submitted has been answered."""
        return self._idle.is_set()

    @property
    def step(self) -> int | None:
        """The number of the store's call that is under way, to measure how long it takes; None for none."""
        return self._steps if self._in_call else None

    @property
    def size_under_way(self) -> int:
        """The bytes of the messages that the thread is storing now."""
        with self._turn:
            work = self._under_way
        if work is None:
            return 0
        return sum(message.size for changes in work.group.changes.values() for message in changes.stored)

    @property
    def stuck(self) -> bool:
        """Whether the thread is still in a call that was given up."""
        with self._turn:
            return self._under_way is not None and self._under_way.abandoned

    @property
    def prompt(self) -> bool:
        """Whether a commit was answered quickly just now, so that the next one should be quick too."""
        return self._loop.time() - self._answered_at < PROMPT_S

    def take_slowest_s(self) -> float:
        """How long the slowest commit took since this was last asked."""
        slowest, self._slowest_s = self._slowest_s, 0.0
        return slowest

    def abandon(self, error: StoreUnavailable) -> None:
        """The store is given up: answer everyone who waits for it, even if the thread is stuck in it."""
        with self._turn:
            work, gathering, errands = self._under_way, self._gathering, self._errands
            if self._failed or (work is not None and not work.begun):
                # The thread is not in a call. After a failure it waits until the loop knows about it.
                self._under_way = None
            self._gathering, self._errands, self._failed = CommitGroup(), [], False
            if work is not None:
                work.abandoned = True
            self._turn.notify()
        if work is not None:
            self._answer(work.group, error)
            errands = [*work.errands, *errands]
        self._answer(gathering, error)
        for errand in errands:
            errand.abandoned(error)

    def _committed(self, group: CommitGroup, took_s: float) -> None:
        self.commits += 1
        self.commit_counts[bisect_left(COMMIT_BOUNDS_S, took_s)] += 1
        self.commit_sum_s += took_s
        if took_s < PROMPT_S:
            self._answered_at = self._loop.time()
        self.messages_stored += sum(len(changes.stored) for changes in group.changes.values())
        self._answer(group, None)

    def _commit_failed(self, group: CommitGroup, cause: Exception) -> None:
        if group.answered:
            return
        error = StoreUnavailable(f"The messaging store '{self._store.name}' failed to commit: {cause}")
        error.__cause__ = cause
        if self._store_failed is not None and isinstance(cause, StoreUnavailable):
            self._store_failed(error)
        if self._damage_met is not None and isinstance(cause, StoreCorrupted):
            self._damage_met(cause)
        with self._turn:
            made_meanwhile, self._gathering = self._gathering, CommitGroup()
            self._failed, self._under_way = False, None
            self._turn.notify()
        self._answer(group, error)
        self._answer(made_meanwhile, error)

    def _answer(self, group: CommitGroup, error: Exception | None) -> None:
        if group.answered:
            # The call was given up and then ended after all. Its caller has already been answered.
            return
        group.answered = True
        self._answering = True
        self._call(group.callbacks, error)
        self._answering = False
        afterwards, self._afterwards = self._afterwards, []
        self._call(afterwards, error)
        self._unanswered -= len(group.callbacks)
        if not self._unanswered:
            self._idle.set()

    def _call(self, callbacks: Sequence[OnCommitted], error: Exception | None) -> None:
        for callback in callbacks:
            try:
                callback(error)
            except Exception:
                # A bug in one callback must not keep the others from their answers.
                logger.exception("store %s: a callback failed", self._store.name)

    # -- the thread's side --------------------------------------------------------

    def _run(self) -> None:
        while (work := self._next_work()) is not None:
            if work.group.changes:
                self._commit(work)
            for errand in work.errands:
                if work.abandoned:
                    break
                self._steps += 1
                self._in_call = True
                errand.call()
                self._in_call = False

    def _commit(self, work: _Work) -> None:
        group = work.group
        self._steps += 1
        self._in_call = True
        began_at = perf_counter()
        try:
            self._store.commit(list(group.changes.values()))
        except Exception as failure:
            self._in_call = False
            with self._turn:
                self._failed = not work.abandoned
            call_in_loop(self._loop, self._commit_failed, group, failure)
        else:
            self._in_call = False
            self._settled = False
            took_s = perf_counter() - began_at
            if not work.abandoned:
                self._slowest_s = max(self._slowest_s, took_s)
            call_in_loop(self._loop, self._committed, group, took_s)

    def _next_work(self) -> _Work | None:
        """Wait for work. Returns None when the writer has to stop."""
        with self._turn:
            if self._under_way is not None and self._under_way.begun and not self._failed:
                self._under_way = None
            while self._failed or not self._has_work():
                if self._stopping:
                    return None
                if self._turn.wait(TIDY_AFTER_S if self._settled else SETTLE_AFTER_S):
                    continue
                if not self._settled:
                    self._settled = True
                    self._errands.append(_Errand(self._store.settle, _ignore))
                elif self.may_tidy:
                    self._errands.append(_Errand(self._tidy, _ignore))
            assert self._under_way is not None
            self._under_way.begun = True
            return self._under_way

    def _tidy(self) -> None:
        """There is no work: let the store do a little maintenance, then check again."""
        try:
            self._store.tidy()
        except StoreUnavailable as failure:
            # The store turned out to be away although nobody has used it for a second.
            if self._store_failed is not None:
                call_in_loop(self._loop, self._store_failed, failure)
        except StoreCorrupted as failure:
            if self._damage_met is not None:
                call_in_loop(self._loop, self._damage_met, failure)
        except Exception:
            logger.exception("store %s: maintenance failed", self._store.name)

    def _run_errand(self, call: Callable[[], T], done: asyncio.Future[T]) -> None:
        try:
            call_in_loop(self._loop, _fulfil, done, call())
        except Exception as failure:
            call_in_loop(self._loop, _refuse, done, failure)


def _fulfil(done: asyncio.Future[T], result: T) -> None:
    # The caller may be gone, or may have been told that the store was given up.
    if not done.done():
        done.set_result(result)


def _refuse(done: asyncio.Future[T], failure: Exception) -> None:
    if not done.done():
        done.set_exception(failure)


def _ignore(_: object) -> None:
    """For errands whose result nobody waits for."""
