"""Queues for tests, as the SDKs see them: each of the two SDKs at each kind of queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

from fix_server import Kind, NewQueue, ServerProcess, Shape, StartServer
from interop.sdk import AsyncSdk, ConnectTo, LoopThread, Sdk, SdkQueue, SyncSdk, open_all

MakeSdkQueue: TypeAlias = Callable[..., SdkQueue]
MakeSdkQueues: TypeAlias = Callable[..., list[SdkQueue]]
Connect: TypeAlias = Callable[..., SdkQueue]
CloseLater: TypeAlias = Callable[[Callable[[], None]], None]


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


@pytest.fixture(scope="module")
def close_later(pool: ThreadPoolExecutor, _namespace_server: ServerProcess) -> Iterator[CloseLater]:
    """Closes something while the next tests run. Everything is closed when the tests of a file have ended.

    Closing a link of the SDK waits up to a second for one of its threads.
    """
    closing: list[Future[None]] = []
    yield lambda close: closing.append(pool.submit(close))
    for closed in closing:
        closed.result()


@pytest.fixture(params=["sync", "async"])
def sdk(request: pytest.FixtureRequest, loop_thread: LoopThread) -> Sdk:
    """Runs the test once with each of the two SDKs."""
    return SyncSdk() if request.param == "sync" else AsyncSdk(loop_thread)


@pytest.fixture(scope="session")
def _sdk_queues(pool: ThreadPoolExecutor) -> Iterator[dict[tuple[type, Kind], SdkQueue]]:
    """The queues, empty and with open links, that the next test may use."""
    sdk_queues: dict[tuple[type, Kind], SdkQueue] = {}
    yield sdk_queues
    for closed in [closed for sdk_queue in sdk_queues.values() for closed in sdk_queue.close_with(pool)]:
        closed.result()


@pytest.fixture
def sdk_queue(
    sdk: Sdk,
    kind: Kind,
    server: ServerProcess,
    new_queue: NewQueue,
    pool: ThreadPoolExecutor,
    _sdk_queues: dict[tuple[type, Kind], SdkQueue],
    request: pytest.FixtureRequest,
) -> Iterator[SdkQueue]:
    """A queue that is empty, with a sender and receivers."""
    place = (type(sdk), kind)
    sdk_queue = _sdk_queues.pop(place, None)
    if sdk_queue is None:
        sdk_queue = SdkQueue(sdk, sdk.client(server.connection_string), new_queue(kind))
        open_all(pool, sdk_queue)
    failed_before = request.session.testsfailed
    yield sdk_queue
    if request.session.testsfailed == failed_before and sdk_queue.is_empty():
        _sdk_queues[place] = sdk_queue
    else:
        sdk_queue.close_with(pool)


@pytest.fixture
def make_sdk_queue(
    sdk: Sdk, server: ServerProcess, new_queue: NewQueue, pool: ThreadPoolExecutor
) -> Iterator[MakeSdkQueue]:
    """A queue that nobody else uses, with open links: `make_sdk_queue(kind)`."""
    sdk_queues: list[SdkQueue] = []

    def make(kind: Kind) -> SdkQueue:
        sdk_queues.append(SdkQueue(sdk, sdk.client(server.connection_string), new_queue(kind)))
        open_all(pool, sdk_queues[-1])
        return sdk_queues[-1]

    yield make
    for sdk_queue in sdk_queues:
        sdk_queue.close_with(pool)


@pytest.fixture
def sdk_pairs(loop_thread: LoopThread) -> list[tuple[Sdk, Kind]]:
    """What `CROSSWISE` gives one by one, for tests that wait: once for both."""
    return [(SyncSdk(), Kind.UNPARTITIONED), (AsyncSdk(loop_thread), Kind.PARTITIONED)]


@pytest.fixture
def make_sdk_queues(
    sdk_pairs: list[tuple[Sdk, Kind]], server: ServerProcess, new_queue: NewQueue, pool: ThreadPoolExecutor
) -> Iterator[MakeSdkQueues]:
    """A queue that nobody else uses, for each of `sdk_pairs`: `make_sdk_queues(shape)`."""
    sdk_queues: list[SdkQueue] = []

    def make(shape: Shape = Shape.USUAL) -> list[SdkQueue]:
        for sdk, kind in sdk_pairs:
            sdk_queues.append(SdkQueue(sdk, sdk.client(server.connection_string), new_queue(kind, shape)))
        open_all(pool, *sdk_queues)
        return sdk_queues

    yield make
    for sdk_queue in sdk_queues:
        sdk_queue.close_with(pool)


@pytest.fixture
def connect(sdk: Sdk, pool: ThreadPoolExecutor) -> Iterator[Connect]:
    """A queue anywhere, with nothing opened yet: `connect(connection_string, queue, **options)`."""
    sdk_queues: list[SdkQueue] = []

    def make(connection_string: str, queue: str, **options: Any) -> SdkQueue:
        sdk_queues.append(SdkQueue(sdk, sdk.client(connection_string, **options), queue))
        return sdk_queues[-1]

    yield make
    for sdk_queue in sdk_queues:
        sdk_queue.close_with(pool)


@pytest.fixture
def connect_to(start_server: StartServer, sdk: Sdk, pool: ThreadPoolExecutor) -> Iterator[ConnectTo]:
    """The queue `q` of a server; its links are closed before the server goes."""
    sdk_queues: list[SdkQueue] = []

    def sit(server: ServerProcess) -> SdkQueue:
        sdk_queues.append(SdkQueue(sdk, sdk.client(server.connection_string), "q"))
        return sdk_queues[-1]

    yield sit
    for closed in [closed for sdk_queue in sdk_queues for closed in sdk_queue.close_with(pool)]:
        closed.result()
