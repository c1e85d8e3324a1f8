"""Attaching stores while the server runs: what holds up whom."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bendybus.broker.broker import Broker
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import StoreUnavailable
from bendybus.server import store_keeper
from bendybus.server.allowed_stores import AllowedStores
from bendybus.server.store_keeper import StoreKeeper
from bendybus.store.folder import DataFolder
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog


class Stuck(MemoryStore):
    """Opens when it is told to, as a disk that hangs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.go = threading.Event()
        self.closed = threading.Event()

    def examine(self) -> str:
        self.go.wait()
        return super().examine()

    def close(self) -> None:
        super().close()
        self.closed.set()


@pytest.fixture
def keeper_of(tmp_path):
    folder = DataFolder(tmp_path / "data")
    folder.open()
    allowed = AllowedStores.parse([str(tmp_path)], folder.path)
    yield lambda broker: StoreKeeper(broker, folder, allowed, None, lambda store: store.close())
    folder.close()


async def test_a_store_that_never_opens_holds_up_neither_the_others_nor_the_end(
    keeper_of, tmp_path, monkeypatch
):
    stuck = [Stuck(f"stuck-{number}") for number in range(store_keeper.LATE_MAX)]
    given = iter([*stuck, MemoryStore("more"), MemoryStore("third")])
    monkeypatch.setattr(store_keeper, "store_at", lambda *_: next(given))
    monkeypatch.setattr(store_keeper, "OPEN_TIMEOUT_S", 0.01)

    first = MemoryStore("first")
    first.open()
    broker = Broker(MemoryCatalog(), [first], contents=AmqpContents())
    broker.start()
    keeper = keeper_of(broker)
    for _ in stuck:
        with pytest.raises(StoreUnavailable, match="did not open in"):
            await keeper.attach(f"sqlite://{tmp_path}/b.db")
    with pytest.raises(StoreUnavailable, match="4 other stores are still being opened"):
        await keeper.attach(f"sqlite://{tmp_path}/b.db")
    for each in stuck:
        each.go.set()
        assert await asyncio.to_thread(each.closed.wait, 10)
    monkeypatch.setattr(store_keeper, "OPEN_TIMEOUT_S", 10)
    assert await keeper.attach(f"sqlite://{tmp_path}/b.db") == "third"
    await keeper.retire("third")
    await broker.stop()


async def test_the_end_does_not_wait_for_a_store_that_never_opens(keeper_of, tmp_path, monkeypatch):
    stuck = Stuck("stuck")
    monkeypatch.setattr(store_keeper, "store_at", lambda *_: stuck)

    # The loop's own threads are waited for here; this one is not among them.
    first = MemoryStore("first")
    first.open()
    broker = Broker(MemoryCatalog(), [first], contents=AmqpContents())
    broker.start()
    attaching = asyncio.create_task(keeper_of(broker).attach(f"sqlite://{tmp_path}/b.db"))
    await asyncio.sleep(0)
    attaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attaching
    await broker.stop()
    stuck.go.set()
    assert stuck.closed.wait(10)
