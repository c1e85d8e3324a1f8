"""Reads from one messaging store, in a separate thread, each answered in bounded time.

Requests and answers belong to the event loop; only the calls run in the
thread, one after the other. Short calls go before long ones, and a long one lets them
in between its steps (`make_short_calls`): a payload must not wait until all partitions are loaded.
A call that takes too long is answered with an error, and its result is dropped if it
still comes. The thread stays in the call, and is abandoned when the process ends.
Commits have a thread of their own: writer.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar, cast

from bendybus.broker.loop_calls import call_in_loop
from bendybus.broker.writer import OnDamage, OnFailed
from bendybus.errors import StoreCorrupted, StoreUnavailable

__all__ = ["StoreReader"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

# How long the end of the process waits for a read that is under way.
STOP_TIMEOUT_S: Final = 5.0


@dataclass(eq=False, slots=True)
class _Call(Generic[T]):
    run: Callable[[], T]
    done: Callable[[T | Exception], None]
    late: Callable[[], None] | None
    """For a long call whose result is still wanted when it is late."""
    asked_at: float
    """By the clock of the caller of `expire`."""
    given_up: bool = False
    """Nobody waits for it any more, so it is not worth starting."""


class StoreReader:
    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        store_failed: OnFailed,
        damage_met: OnDamage | None = None,
    ) -> None:
        self._name = name
        self._loop = loop
        self._store_failed = store_failed
        """Called when a call found the store away, before its `done`. It calls `abandon`."""
        self._damage_met = damage_met
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        """In the order of the requests; None ends the thread."""
        self._long_calls: deque[_Call[object]] = deque()
        """Long calls that were taken from there and wait until there is no short one. Used by the thread."""
        self._ended = False
        """Whether the thread has taken the last of them."""
        self._pending: dict[_Call[object], None] = {}
        """In the order of the requests."""
        self._running: _Call[object] | None = None
        self._steps = 0
        self._thread = threading.Thread(target=self._run, name=f"reader-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(
        self,
        call: Callable[[], T],
        done: Callable[[T | Exception], None],
        at: float,
        late: Callable[[], None] | None = None,
    ) -> None:
        """Run the call in the thread. `done` gets its result, or the error.

        `late` is called when the time is over; the result is then still awaited.
        """
        # The result of a call goes only to its own `done`, so its type does not matter here.
        asked = cast("_Call[object]", _Call(call, done, late, at))
        self._pending[asked] = None
        self._calls.put(asked)

    @property
    def step(self) -> int | None:
        """The number of the call that is under way, unless it may take long; None for none."""
        running = self._running
        return None if running is None or running.late is not None else self._steps

    @property
    def stuck(self) -> bool:
        """Whether the thread is still in a call that was given up."""
        running = self._running
        return running is not None and running.given_up

    def expire(self, asked_before: float, long_asked_before: float) -> None:
        """Answer requests made before this time; calls that may take long have another limit."""
        overdue = []
        for call in self._pending:
            if call.asked_at >= asked_before:
                break
            if call.late is None or call.asked_at < long_asked_before:
                overdue.append(call)
        for call in overdue:
            if call.late is not None:
                late, call.late = call.late, _nothing
                late()
            else:
                self._give_up(call, StoreUnavailable(f"The messaging store '{self._name}' is slow to read."))

    def abandon(self, error: StoreUnavailable) -> None:
        """The store is given up: answer everyone who waits for it."""
        for call in list(self._pending):
            self._give_up(call, error)

    def stop(self) -> None:
        """End the thread after the current read. A thread that is stuck is abandoned."""
        # Check this first: below, a read that is merely under way is given up too.
        stuck = self.stuck
        for call in self._pending:
            call.given_up = True
        self._calls.put(None)
        if self._thread.is_alive():
            self._thread.join(0 if stuck else STOP_TIMEOUT_S)

    def _give_up(self, call: _Call[object], error: StoreUnavailable) -> None:
        self._answer(call, error)
        call.given_up = True

    def _finished(self, call: _Call[object], result: object) -> None:
        if isinstance(result, StoreUnavailable) and not call.given_up:
            self._store_failed(result)
        elif isinstance(result, StoreCorrupted) and self._damage_met is not None:
            self._damage_met(result)
        self._answer(call, result)

    def _answer(self, call: _Call[object], result: object) -> None:
        if call not in self._pending:
            return
        del self._pending[call]
        try:
            call.done(result)
        except Exception:
            # A bug in one callback must not keep the others from their answers.
            logger.exception("store %s: a callback failed", self._name)

    def make_short_calls(self) -> None:
        """Make the short calls that were asked for meanwhile. Called in the thread, by a long call."""
        while (call := self._next_short(wait=False)) is not None:
            self._make(call)

    def _run(self) -> None:
        while not self._ended:
            call = self._next_short(wait=not self._long_calls)
            if call is None and self._long_calls:
                call = self._long_calls.popleft()
            if call is not None:
                self._make(call)

    def _next_short(self, *, wait: bool) -> _Call[object] | None:
        """The next short call. Long ones that were asked for before it are put aside."""
        while not self._ended:
            try:
                call = self._calls.get(block=wait)
            except Empty:
                return None
            if call is None:
                self._ended = True
            elif call.late is None:
                return call
            else:
                self._long_calls.append(call)
                wait = False
        return None

    def _make(self, call: _Call[object]) -> None:
        if call.given_up:
            return
        self._steps += 1
        around, self._running = self._running, call
        try:
            result: object = call.run()
        except Exception as failure:
            result = failure
        self._running = around
        call_in_loop(self._loop, self._finished, call, result)


def _nothing() -> None:
    """The caller already knows that it is late."""
