"""An event loop of asyncio whose time, executor and connections are the world's.

One for the server's process and one for all clients, so that a process can be
killed: its loop never gets another turn. Callbacks run in the order in which
asyncio promises it. What a coroutine leaves behind is kept until the simulation
is over, so that no garbage collector decides when a `finally` runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import events
from collections.abc import Callable, Coroutine
from heapq import heappop
from typing import TYPE_CHECKING, Any

from faults.simulation.threads import Thread
from faults.simulation.world import World

if TYPE_CHECKING:
    from faults.simulation.network import Network

__all__ = ["Loop"]


class Loop(asyncio.BaseEventLoop):
    # What BaseEventLoop has and its stubs keep to themselves.
    _ready: Any
    _scheduled: Any

    def __init__(self, world: World, name: str, complain: Callable[[str], None]) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.machine = name
        """Where the process is, for the network."""
        self.network: Network | None = None
        """Where `create_connection` leads."""
        self._complain = complain
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.threads: dict[Thread, None] = {}
        """Of the process that this loop is the middle of."""
        self.alive = True
        self.set_task_factory(self._make_task)
        world.runnables[self] = None

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **how: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **how)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    # -- the world's side ------------------------------------------------------------

    def is_ready(self) -> bool:
        scheduled, now = self._scheduled, self.world.now
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= now):
            handle = heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)
        return bool(self._ready)

    def next_due(self) -> float | None:
        return self._scheduled[0]._when if self._scheduled else None

    def take_turn(self) -> None:
        handle = self._ready.popleft()
        if not handle._cancelled:
            events._set_running_loop(self)
            try:
                handle._run()
            finally:
                events._set_running_loop(None)

    def pause(self) -> None:
        """SIGSTOP: nothing of the process goes on, and what arrives waits."""
        for each in (self, *self.threads):
            self.world.runnables.pop(each, None)

    def resume(self) -> None:
        """SIGCONT."""
        for each in (self, *self.threads):
            self.world.runnables[each] = None

    def kill(self) -> None:
        """The process is gone, threads and all, wherever they were."""
        self.alive = False
        self.world.runnables.pop(self, None)
        for thread in tuple(self.threads):
            thread.kill()

    def bury(self) -> None:
        """When all is over: close what still waits, so that nothing is said when it is collected."""
        self.alive = False
        self._ready.clear()
        self._scheduled.clear()
        # Whoever cleans up asks for the loop; without one it would fail, and somebody would log that.
        events._set_running_loop(self)
        # What is closed may start more, to clean up.
        while tasks := tuple(self._tasks):
            self._tasks.clear()
            for task in tasks:
                task._log_destroy_pending = False
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
        events._set_running_loop(None)
        self._tasks.clear()
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    # -- asyncio's side --------------------------------------------------------------

    def time(self) -> float:
        return self.world.now

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector here."""

    def _process_events(self, event_list: object) -> None:
        """Nor are there any sockets."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            failure = context.get("exception")
            self._complain(f"{self.name}: {context.get('message')}: {failure!r}")

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> Any:
        """A thread of its own for each call, as good as any from a pool."""
        done: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as failure:
                self.call_soon_threadsafe(_refuse, done, failure)
            else:
                self.call_soon_threadsafe(_fulfil, done, result)

        Thread(self.world, target=run, name="executor", owner=self).start()
        return done

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        assert self.network is not None, "this process has no network"
        return await self.network.connect(self, protocol_factory, host)


def _fulfil(done: asyncio.Future[Any], result: object) -> None:
    if not done.done():
        done.set_result(result)


def _refuse(done: asyncio.Future[Any], failure: Exception) -> None:
    if not done.done():
        done.set_exception(failure)
