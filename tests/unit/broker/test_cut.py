"""One moment for all stores: their writers stand still together, or nobody is held up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bendybus.broker import cut as cut_module
from bendybus.broker.cut import StandStill, cut
from bendybus.broker.stores import AttachedStore
from bendybus.errors import StoreError
from bendybus.store.memory import MemoryStore


@asynccontextmanager
async def attached(count: int) -> AsyncIterator[list[AttachedStore]]:
    loop = asyncio.get_running_loop()
    stores = [AttachedStore(MemoryStore(f"s{number}"), loop) for number in range(count)]
    for store in stores:
        store.start()
    yield stores
    for store in stores:
        store.stop()


def noting(events: list[str], what: str) -> Callable[[], None]:
    return lambda: events.append(what)


async def test_no_writer_goes_on_before_all_are_fixed_and_the_catalog_is_last() -> None:
    events: list[str] = []
    async with attached(3) as stores:
        # Whatever a store is asked next waits behind the cut.
        fixing = asyncio.create_task(
            cut({store: noting(events, "fixed") for store in stores}, noting(events, "catalog"))
        )
        await asyncio.sleep(0)
        await asyncio.gather(*(store.run(noting(events, "next commit")) for store in stores))
        assert await fixing
    assert events == ["fixed"] * 3 + ["catalog"] + ["next commit"] * 3


async def test_a_store_that_does_not_come_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_module, "STAND_STILL_MAX_S", 0.01)
    events: list[str] = []
    busy, waiting = threading.Event(), threading.Event()
    async with attached(2) as (quick, late):
        working = asyncio.create_task(late.run(lambda: busy.wait(10)))
        await asyncio.sleep(0)
        fixing = asyncio.create_task(cut({quick: waiting.set, late: lambda: None}, noting(events, "catalog")))
        await asyncio.to_thread(waiting.wait, 10)
        # This one is through while the other is still busy.
        await quick.run(noting(events, "next commit"))
        busy.set()
        assert not await fixing
        await working
    assert events == ["next commit"]


async def test_why_an_image_cannot_be_fixed_is_told() -> None:
    def broken() -> None:
        raise StoreError("the disk is gone")

    async with attached(2) as (sound, torn):
        with pytest.raises(StoreError, match="the disk is gone"):
            await cut({sound: lambda: None, torn: broken}, lambda: None)
        with pytest.raises(StoreError, match="the disk is gone"):
            await cut({sound: lambda: None, torn: lambda: None}, broken)
        assert await cut({sound: lambda: None, torn: lambda: None}, lambda: None)


async def test_writers_stand_still_from_the_beginning_to_the_end() -> None:
    events: list[str] = []
    async with attached(3) as stores:
        standing = StandStill(stores)
        assert await standing.begin()
        later = [asyncio.create_task(store.run(noting(events, "next commit"))) for store in stores]
        await asyncio.sleep(0.01)
        events.append("fixed elsewhere")
        assert await standing.end()
        await asyncio.gather(*later)
    assert events == ["fixed elsewhere"] + ["next commit"] * 3


async def test_writers_do_not_stand_still_for_ever_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_module, "STAND_STILL_MAX_S", 0.01)
    async with attached(2) as stores:
        standing = StandStill(stores)
        assert await standing.begin()
        await asyncio.gather(*(store.run(lambda: None) for store in stores))
        assert not await standing.end()


async def test_a_store_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_module, "STAND_STILL_MAX_S", 0.01)
    busy = threading.Event()
    async with attached(2) as (quick, late):
        working = asyncio.create_task(late.run(lambda: busy.wait(10)))
        await asyncio.sleep(0)
        standing = StandStill([quick, late])
        assert not await standing.begin()
        busy.set()
        assert not await standing.end()
        await working
