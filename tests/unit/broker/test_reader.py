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
