"""Reads in a thread of their own: what the end of the broker does with them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bendybus.broker.reader import StoreReader


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody waits for a thread to end, and not merely looks."""
    waited = threading.Event()
    join = threading.Thread.join

    def noted(self: threading.Thread, timeout: float | None = None) -> None:
        if timeout != 0:
            waited.set()
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", noted)
    return waited


async def test_the_end_waits_for_the_read_that_is_under_way(joined: threading.Event) -> None:
    """Its store is closed next, and SQLite does not survive a connection that is closed under a query."""
    begun, ended = threading.Event(), threading.Event()

    def read() -> None:
        begun.set()
        if joined.wait(10):
            ended.set()

    loop = asyncio.get_running_loop()
    reader = StoreReader("a", loop, lambda _: None)
    reader.start()
    reader.ask(read, lambda _: None, loop.time())
    assert begun.wait(10)
    reader.stop()
    assert ended.is_set()


async def test_what_was_asked_behind_it_is_not_begun(joined: threading.Event) -> None:
    begun = threading.Event()
    read: list[str] = []

    def first() -> None:
        begun.set()
        joined.wait(10)
        read.append("first")

    loop = asyncio.get_running_loop()
    reader = StoreReader("a", loop, lambda _: None)
    reader.start()
    reader.ask(first, lambda _: None, loop.time())
    reader.ask(lambda: read.append("second"), lambda _: None, loop.time())
    assert begun.wait(10)
    reader.stop()
    assert read == ["first"]


async def test_one_that_was_given_up_is_left_behind(joined: threading.Event) -> None:
    begun, released = threading.Event(), threading.Event()

    def read() -> None:
        begun.set()
        released.wait(10)

    loop = asyncio.get_running_loop()
    reader = StoreReader("a", loop, lambda _: None)
    reader.start()
    reader.ask(read, lambda _: None, loop.time())
    assert begun.wait(10)
    reader.expire(loop.time() + 1, loop.time() + 1)
    assert reader.stuck
    reader.stop()
    assert not joined.is_set()
    released.set()


async def test_a_short_call_does_not_wait_for_long_ones_that_were_asked_before() -> None:
    """After a start, a payload of a loaded partition does not wait until all others are loaded."""
    made: list[str] = []
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        released.wait(10)
        made.append("load 1")

    def last() -> None:
        made.append("load 2")
        ended.set()

    loop = asyncio.get_running_loop()
    reader = StoreReader("a", loop, lambda _: None)
    reader.start()
    reader.ask(first, lambda _: None, loop.time(), late=lambda: None)
    assert begun.wait(10)
    reader.ask(last, lambda _: None, loop.time(), late=lambda: None)
    reader.ask(lambda: made.append("payloads"), lambda _: None, loop.time())
    released.set()
    assert ended.wait(10)
    reader.stop()
    assert made == ["load 1", "payloads", "load 2"]


async def test_a_long_call_lets_short_ones_in() -> None:
    """One that does not end is noticed, although the long call may take any time."""
    made: list[str] = []
    begun, released, steps = threading.Event(), threading.Event(), list[int | None]()

    def load() -> None:
        begun.set()
        released.wait(10)
        steps.append(reader.step)
        reader.make_short_calls()
        steps.append(reader.step)
        made.append("load")

    def read() -> None:
        made.append("payloads")
        steps.append(reader.step)

    loop = asyncio.get_running_loop()
    reader = StoreReader("a", loop, lambda _: None)
    reader.start()
    loaded: asyncio.Future[None] = loop.create_future()
    reader.ask(load, lambda _: loaded.set_result(None), loop.time(), late=lambda: None)
    assert begun.wait(10)
    reader.ask(read, lambda _: None, loop.time())
    released.set()
    await asyncio.wait_for(loaded, 10)
    reader.stop()
    assert made == ["payloads", "load"]
    assert steps == [None, 2, None]


async def test_a_long_call_that_is_under_way_at_the_end_lets_nothing_in(joined: threading.Event) -> None:
    begun = threading.Event()
    made: list[str] = []

    def load() -> None:
        begun.set()
        joined.wait(10)
        reader.make_short_calls()
        made.append("load")

    loop = asyncio.get_running_loop()
    reader = StoreReader("a", loop, lambda _: None)
    reader.start()
    reader.ask(load, lambda _: None, loop.time(), late=lambda: None)
    assert begun.wait(10)
    reader.ask(lambda: made.append("payloads"), lambda _: None, loop.time())
    reader.stop()
    assert made == ["load"]
