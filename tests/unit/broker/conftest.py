"""A broker on stores of the test's choice: a file that needs others overrides `stores`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bendybus.broker.broker import Broker
from bendybus.envelope.contents import AmqpContents
from bendybus.store.memory import MemoryStore
from bendybus.store.protocol import MessagingStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from bendybus.store.sqlite.store import SqliteStore
from fix_broker import GatedStore

OpenBroker = Callable[..., AbstractAsyncContextManager[Broker]]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.open()
    yield catalog
    catalog.close()


@pytest.fixture
def stores() -> Sequence[MessagingStore]:
    return [GatedStore(name) for name in ("a", "b", "c")]


@pytest.fixture
def open_broker(catalog: SqliteCatalog, stores: Sequence[MessagingStore]) -> OpenBroker:
    """Start a broker on these stores; each call is another start. Options go to `Broker`."""

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Broker]:
        broker = Broker(catalog, **({"stores": stores, "contents": AmqpContents()} | options))
        broker.start()
        try:
            yield broker
        finally:
            for store in stores:
                if isinstance(store, GatedStore):
                    store.open_gate()
            await broker.stop()

    return opened


@pytest.fixture(params=["memory", "sqlite", "mixed"])
def two_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[MessagingStore]]:
    """`a` and `b`: two of a kind, or one of each."""
    kinds = {"memory": (0, 0), "sqlite": (1, 1), "mixed": (1, 0)}[request.param]
    made: list[MessagingStore] = [
        SqliteStore(tmp_path / f"{name}.db") if kind else MemoryStore(name)
        for name, kind in zip("ab", kinds, strict=True)
    ]
    for store in made:
        store.open()
    yield made
    for store in made:
        store.close()


@pytest.fixture
def memory_stores() -> list[MemoryStore]:
    return [MemoryStore("a"), MemoryStore("b")]
