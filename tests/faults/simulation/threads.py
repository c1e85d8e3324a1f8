"""Threads that take turns: what `threading` offers, as far as the broker uses it.

A virtual thread is a greenlet, so the broker's own thread functions run as they
are. It gives up its turn where a real one may block (a condition, a queue, a
store) and, if the dice say so, before it takes a lock. Its loop never blocks; it
only ever holds a lock for a moment, and so no lock is ever found taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from faults.simulation.world import World

if TYPE_CHECKING:
    from faults.simulation.loop import Loop

__all__ = ["Thread", "Threading", "sleep_here"]

# How often a thread is overtaken just before it takes a lock.
OVERTAKEN = 0.3
# How often a thread that joins another looks whether that one has ended.
JOIN_AGAIN_S = 0.01

T = TypeVar("T")


class Thread:
    """`threading.Thread`, and `Runnable` of the world."""

    def __init__(
        self,
        world: World,
        target: Callable[[], None],
        name: str = "",
        daemon: bool = True,
        *,
        owner: Loop,
    ) -> None:
        self.world = world
        self.name = name
        self._target = target
        self._owner = owner
        self._greenlet: greenlet | None = None
        self._ready = False
        self._wakes_at: float | None = None
        self._alarmed = False

    def start(self) -> None:
        assert self._greenlet is None, "a thread is started once"
        self._greenlet = greenlet(self._run)
        self._ready = True
        self._owner.threads[self] = None
        self.world.runnables[self] = None

    def _run(self) -> None:
        try:
            self._target()
        except Exception as failure:
            self._owner.call_exception_handler({"message": f"thread {self.name} died", "exception": failure})
        finally:
            self._gone()

    def _gone(self) -> None:
        self.world.runnables.pop(self, None)
        self._owner.threads.pop(self, None)

    def is_alive(self) -> bool:
        return self in self._owner.threads

    def join(self, timeout: float | None = None) -> None:
        """From the loop, which blocks: nobody but this thread goes on, and time with it."""
        ends_at = None if timeout is None else self.world.now + timeout
        joining = current(self._owner)
        while joining is not None and self.is_alive() and (ends_at is None or self.world.now < ends_at):
            # Another thread waits, and all others go on.
            joining.wait(JOIN_AGAIN_S)
        while joining is None and self.is_alive():
            if not self.is_ready():
                due = self._wakes_at
                assert due is not None or ends_at is not None, f"{self.name} will never end"
                if due is None or (ends_at is not None and due > ends_at):
                    self.world.now = max(self.world.now, ends_at or 0.0)
                    return
                self.world.now = max(self.world.now, due)
            self.take_turn()

    def kill(self) -> None:
        """In the middle of whatever it does, as with its process."""
        self._gone()
        if self._greenlet is not None and not self._greenlet.dead and self._greenlet:
            self._greenlet.throw(GreenletExit)

    # -- turns ----------------------------------------------------------------------

    def is_ready(self) -> bool:
        return self._ready or (self._wakes_at is not None and self._wakes_at <= self.world.now)

    def next_due(self) -> float | None:
        return self._wakes_at

    def take_turn(self) -> None:
        assert self._greenlet is not None
        self._alarmed = not self._ready
        self._ready, self._wakes_at = False, None
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def wait(self, timeout: float | None = None) -> bool:
        """Let others go on until woken or until the time is over; whether it was woken."""
        self._wakes_at = None if timeout is None else self.world.now + timeout
        assert self._greenlet is not None and getcurrent() is self._greenlet
        self._greenlet.parent.switch()
        return not self._alarmed

    def wake(self) -> None:
        self._ready = True

    def let_others(self) -> None:
        self._ready = True
        self.wait()


def current(loop: Loop) -> Thread | None:
    """The virtual thread that this is; None in the loop's own."""
    here = getcurrent()
    return next((thread for thread in loop.threads if thread._greenlet is here), None)


def sleep_here(loop: Loop | None, seconds: float) -> None:
    """What a thread does while a disk is busy; the loop itself, when it starts, is not made to wait."""
    thread = None if loop is None else current(loop)
    if thread is not None:
        thread.wait(seconds)


class Condition:
    """`threading.Condition`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[Thread] = deque()

    def __enter__(self) -> Condition:
        thread = current(self._loop)
        if thread is not None and self._loop.world.chance(OVERTAKEN):
            thread.let_others()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        thread = current(self._loop)
        assert thread is not None, "the loop never waits"
        self._waiting.append(thread)
        woken = thread.wait(timeout)
        if not woken:
            self._waiting.remove(thread)
        return woken

    def notify(self, count: int = 1) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._waiting.popleft().wake()

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimpleQueue(Generic[T]):
    """`queue.SimpleQueue`."""

    def __init__(self, loop: Loop) -> None:
        self._items: deque[T] = deque()
        self._filled = Condition(loop)

    def put(self, item: T) -> None:
        self._items.append(item)
        self._filled.notify()

    def get(self, block: bool = True) -> T:
        while not self._items:
            if not block:
                raise Empty
            self._filled.wait()
        return self._items.popleft()


class Executor:
    """`ThreadPoolExecutor` with one thread."""

    def __init__(self, loop: Loop, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue(loop)
        self._thread = Thread(loop.world, self._run, name, owner=loop)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            for entry in self._calls._items:
                if entry is not None:
                    entry[0].cancel()
        self._calls.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            future, call = entry
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except Exception as failure:
                future.set_exception(failure)
            else:
                future.set_result(result)


class Threading:
    """The module `threading`, and its relatives, for the process of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def Thread(self, target: Callable[[], None], name: str = "", daemon: bool = True) -> Thread:  # noqa: N802
        return Thread(self._loop.world, target, name, daemon, owner=self._loop)

    def Condition(self) -> Condition:  # noqa: N802
        return Condition(self._loop)

    def Executor(self, workers: int, thread_name_prefix: str = "") -> Executor:  # noqa: N802
        assert workers == 1, "more than one thread would need more than this"
        return Executor(self._loop, thread_name_prefix)

    def SimpleQueue(self) -> SimpleQueue[Any]:  # noqa: N802
        return SimpleQueue(self._loop)
