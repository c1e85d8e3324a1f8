"""Desks for tests: each of the two SDKs at each kind of queue."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

from fix_server import Kind, NewQueue, ServerProcess, Shape, StartServer
from interop.sdk import AsyncSdk, Desk, LoopThread, Sdk, SitDown, SyncSdk, open_all

MakeDesk: TypeAlias = Callable[..., Desk]
MakeDesks: TypeAlias = Callable[..., list[Desk]]
Connect: TypeAlias = Callable[..., Desk]


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


@pytest.fixture(scope="session")
def pool(loop_thread: LoopThread) -> Iterator[ThreadPoolExecutor]:
    """Opens and closes links beside the tests; all are closed before the loop stops."""
    with ThreadPoolExecutor(16, "links") as pool:
        yield pool


@pytest.fixture(params=["sync", "async"])
def sdk(request: pytest.FixtureRequest, loop_thread: LoopThread) -> Sdk:
    """Runs the test once with each of the two SDKs."""
    return SyncSdk() if request.param == "sync" else AsyncSdk(loop_thread)


@pytest.fixture(scope="session")
def _desks(pool: ThreadPoolExecutor) -> Iterator[dict[tuple[type, Kind], Desk]]:
    """The desks that the next test may sit down at."""
    desks: dict[tuple[type, Kind], Desk] = {}
    yield desks
    for closed in [closed for desk in desks.values() for closed in desk.close_with(pool)]:
        closed.result()


@pytest.fixture
def desk(
    sdk: Sdk,
    kind: Kind,
    server: ServerProcess,
    new_queue: NewQueue,
    pool: ThreadPoolExecutor,
    _desks: dict[tuple[type, Kind], Desk],
    request: pytest.FixtureRequest,
) -> Iterator[Desk]:
    """A queue that is empty, with a sender and receivers."""
    place = (type(sdk), kind)
    desk = _desks.pop(place, None)
    if desk is None:
        desk = Desk(sdk, sdk.client(server.connection_string), new_queue(kind))
        open_all(pool, desk)
    failed_before = request.session.testsfailed
    yield desk
    if request.session.testsfailed == failed_before and desk.is_empty():
        _desks[place] = desk
    else:
        desk.close_with(pool)


@pytest.fixture
def make_desk(
    sdk: Sdk, server: ServerProcess, new_queue: NewQueue, pool: ThreadPoolExecutor
) -> Iterator[MakeDesk]:
    """A desk at a queue that nobody else uses: `make_desk(kind)`."""
    desks: list[Desk] = []

    def make(kind: Kind) -> Desk:
        desks.append(Desk(sdk, sdk.client(server.connection_string), new_queue(kind)))
        open_all(pool, desks[-1])
        return desks[-1]

    yield make
    for desk in desks:
        desk.close_with(pool)


@pytest.fixture
def sdk_pairs(loop_thread: LoopThread) -> list[tuple[Sdk, Kind]]:
    """What `CROSSWISE` gives one by one, for tests that wait: once for both."""
    return [(SyncSdk(), Kind.UNPARTITIONED), (AsyncSdk(loop_thread), Kind.PARTITIONED)]


@pytest.fixture
def make_desks(
    sdk_pairs: list[tuple[Sdk, Kind]], server: ServerProcess, new_queue: NewQueue, pool: ThreadPoolExecutor
) -> Iterator[MakeDesks]:
    """A desk for each of `sdk_pairs`, at a queue that nobody else uses: `make_desks(shape)`."""
    desks: list[Desk] = []

    def make(shape: Shape = Shape.USUAL) -> list[Desk]:
        for sdk, kind in sdk_pairs:
            desks.append(Desk(sdk, sdk.client(server.connection_string), new_queue(kind, shape)))
        open_all(pool, *desks)
        return desks

    yield make
    for desk in desks:
        desk.close_with(pool)


@pytest.fixture
def connect(sdk: Sdk, pool: ThreadPoolExecutor) -> Iterator[Connect]:
    """A desk anywhere, with nothing opened yet: `connect(connection_string, queue, **options)`."""
    desks: list[Desk] = []

    def make(connection_string: str, queue: str, **options: Any) -> Desk:
        desks.append(Desk(sdk, sdk.client(connection_string, **options), queue))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close_with(pool)


@pytest.fixture
def broken_connections() -> Iterator[None]:
    """For tests that break connections: the SDK leaves a broken one's socket to the garbage collector.

    Collected here, inside the test that knows of it: `pytest.mark.filterwarnings` holds until then.
    """
    yield
    gc.collect()


@pytest.fixture
def sit_down(start_server: StartServer, sdk: Sdk, pool: ThreadPoolExecutor) -> Iterator[SitDown]:
    """A desk at queue `q`; left before the server goes, and so before the garbage is collected."""
    desks: list[Desk] = []

    def sit(server: ServerProcess) -> Desk:
        desks.append(Desk(sdk, sdk.client(server.connection_string), "q"))
        return desks[-1]

    yield sit
    for closed in [closed for desk in desks for closed in desk.close_with(pool)]:
        closed.result()
