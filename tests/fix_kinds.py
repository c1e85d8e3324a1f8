"""Entities of 16, of 2 and of 1 partition: the rows of the contract are tested on each of them.

A test marked `on_each_kind` is written for one `SdkBus` and runs against three at once, because it spends
most of its time sleeping inside the SDK: 16 partitions and one in Standard, two in Premium. The two servers
run for the whole session; each entity belongs to one test. A test with this decorator shows its rows on all
three kinds, one with `on_partitioned_kinds` on two (fix_rows.py).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.domain.routing import partition_of as partition_of_key
from fix_rows import on_kind, use_entity
from fix_server import ServerProcess, namespace

__all__ = [
    "KINDS",
    "SdkBus",
    "keys_for",
    "on_each_kind",
    "on_each_kind_alone",
    "on_partitioned_kinds",
    "partition_of",
]

KINDS: Final = (16, 2, 1)
PARTITION_SHIFT: Final = 48

# Long enough for a loaded machine. A test waits this long only for something that does not arrive.
PATIENCE_S: Final = 20

# The entities of this many earlier tests are kept before they are deleted.
USED_BUSES_MAX: Final = 45

_numbers = count()


def keys_for(partitions: int) -> list[str]:
    """A key for each partition, in their order."""
    keys = (f"key-{number}" for number in count())
    found: dict[int, str] = {}
    while len(found) < partitions:
        key = next(keys)
        found.setdefault(partition_of_key(key, partitions), key)
    return [found[partition] for partition in range(partitions)]


def partition_of(message: ServiceBusReceivedMessage) -> int:
    assert message.sequence_number is not None
    return message.sequence_number >> PARTITION_SHIFT


@dataclass
class SdkBus:
    """A client of one server, whose entities have this many partitions."""

    partitions: int
    server: ServerProcess
    admin: ServiceBusAdministrationClient
    client: ServiceBusClient
    handles: list[Any] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)

    @property
    def partitioned(self) -> bool:
        return self.partitions > 1

    def queue(self, **options: Any) -> str:
        """A new queue; in Premium, the namespace decides what is partitioned (P-09)."""
        name = f"rows-{next(_numbers)}"
        if self.partitions != 2:
            options["enable_partitioning"] = self.partitioned
        self.admin.create_queue(name, **options)
        self.queues.append(name)
        use_entity(self.server, name)
        return name

    def topic(self, *subscriptions: str, **options: Any) -> str:
        name = f"rows-{next(_numbers)}"
        if self.partitions != 2:
            options["enable_partitioning"] = self.partitioned
        self.admin.create_topic(name, **options)
        self.topics.append(name)
        use_entity(self.server, name)
        for subscription in subscriptions:
            self.admin.create_subscription(name, subscription)
        return name

    def sender(self, queue: str) -> ServiceBusSender:
        # Without the thread that would keep an idle link alive, and that closing would wait for.
        return self._kept(self.client.get_queue_sender(queue, keep_alive=0))

    def topic_sender(self, topic: str) -> ServiceBusSender:
        return self._kept(self.client.get_topic_sender(topic, keep_alive=0))

    def receiver(self, queue: str, subscription: str | None = None, **options: Any) -> ServiceBusReceiver:
        if subscription is not None:
            return self._kept(self.client.get_subscription_receiver(queue, subscription, **options))
        return self._kept(self.client.get_queue_receiver(queue, **options))

    def _kept(self, handle: Any) -> Any:
        self.handles.append(handle)
        return handle

    def receive(self, receiver: ServiceBusReceiver, number: int) -> list[ServiceBusReceivedMessage]:
        """This many messages, which must arrive."""
        messages: list[ServiceBusReceivedMessage] = []
        while len(messages) < number:
            more = receiver.receive_messages(number - len(messages), max_wait_time=PATIENCE_S)
            assert more, f"only {len(messages)} of {number} messages came in {PATIENCE_S} s"
            messages += more
        return messages

    def take(self, receiver: ServiceBusReceiver, number: int) -> list[ServiceBusReceivedMessage]:
        """The same, and completed."""
        messages = self.receive(receiver, number)
        for message in messages:
            receiver.complete_message(message)
        return messages

    def works(self, queue: str) -> None:
        """Send and receive a message: whatever was refused before did no harm."""
        self.sender(queue).send_messages(ServiceBusMessage("still here", session_id=None))
        (message,) = self.take(self.receiver(queue), 1)
        assert str(message) == "still here"


Body: TypeAlias = Callable[..., None]


def _run_at(kinds: Sequence[int], body: Body, fixture: str = "buses") -> Body:
    def run(bus: SdkBus, **fixtures: Any) -> None:
        """In a thread; a coroutine gets a loop there."""
        done = body(bus, **fixtures)
        if inspect.iscoroutine(done):
            asyncio.run(done)

    def test(**fixtures: Any) -> None:
        chosen = [bus for bus in fixtures.pop(fixture) if bus.partitions in kinds]
        with ThreadPoolExecutor(len(chosen)) as pool:
            runs = [(bus, pool.submit(run, bus, **fixtures)) for bus in chosen]
        for bus, attempt in runs:
            error = attempt.exception()
            if error is not None:
                error.add_note(f"at entities of {bus.partitions} partitions")
                raise error

    parameters = list(inspect.signature(body).parameters.values())
    buses = inspect.Parameter(fixture, inspect.Parameter.KEYWORD_ONLY)
    others = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters[1:]]
    test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
    test.__signature__ = inspect.Signature([buses, *others])
    test.pytestmark = [*getattr(body, "pytestmark", []), pytest.mark.kinds(*kinds).mark]
    return test


def on_each_kind(body: Body) -> Body:
    """For a test whose first argument is an `SdkBus`."""
    return _run_at(KINDS, body)


def on_partitioned_kinds(body: Body) -> Body:
    return _run_at((16, 2), body)


def on_each_kind_alone(body: Body) -> Body:
    """The same, on servers of the test's own: they may be killed, and their stores made slow."""
    return _run_at(KINDS, body, "own_buses")


@pytest.fixture(scope="session")
def _kinds_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    def start(folder: Path, *options: str) -> ServerProcess:
        server = ServerProcess(folder, namespace({}), options)
        server.start()
        return server

    with ThreadPoolExecutor(2) as pool:
        standard = pool.submit(start, tmp_path_factory.mktemp("standard"))
        premium = pool.submit(start, tmp_path_factory.mktemp("premium"), "--tier", "premium")
    servers = standard.result(), premium.result()
    yield servers
    for server in servers:
        server.stop()
        server.refuse_trouble()


@pytest.fixture(scope="session")
def _closing() -> Iterator[ThreadPoolExecutor]:
    """Closes links while others work: each waits for a thread of the SDK that wakes once a second."""
    with ThreadPoolExecutor(16, "closing") as pool:
        yield pool


@pytest.fixture(scope="session")
def _used_buses() -> list[tuple[SdkBus, list[Future[None]]]]:
    """Stands of earlier tests, whose entities are still there, and the links that are being closed."""
    return []


@pytest.fixture
def buses(
    _kinds_servers: tuple[ServerProcess, ServerProcess],
    _closing: ThreadPoolExecutor,
    _used_buses: list[tuple[SdkBus, list[Future[None]]]],
) -> Iterator[list[SdkBus]]:
    standard, premium = _kinds_servers
    buses = [make_bus(kind, premium if kind == 2 else standard) for kind in KINDS]
    if len(_used_buses) > USED_BUSES_MAX:
        delete_entities(buses[0], _used_buses)
    yield buses
    _used_buses += [(bus, close_bus(bus, _closing)) for bus in buses]
    for server in _kinds_servers:
        server.refuse_trouble()


@pytest.fixture(params=[on_kind(kind, kind, id=f"{kind} partitions") for kind in KINDS])
def one_bus(request: pytest.FixtureRequest, buses: list[SdkBus]) -> SdkBus:
    """For tests that run on one kind after the other."""
    return next(bus for bus in buses if bus.partitions == request.param)


@pytest.fixture
def own_buses(tmp_path: Path, _closing: ThreadPoolExecutor) -> Iterator[list[SdkBus]]:
    """Each with a server for development, which has two messaging stores."""
    servers = []
    for kind in KINDS:
        folder = tmp_path / f"of-{kind}"
        folder.mkdir()
        tier = "premium" if kind == 2 else "standard"
        options = ("--development", "--stores", "2", "--tier", tier)
        servers.append(ServerProcess(folder, namespace({}), options))
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(ServerProcess.start, servers))
    buses = [make_bus(kind, server) for kind, server in zip(KINDS, servers, strict=True)]
    yield buses
    wait([closed for bus in buses for closed in close_bus(bus, _closing)])
    for server in servers:
        server.kill()
        server.refuse_trouble()


def delete_entities(present: SdkBus, used: list[tuple[SdkBus, list[Future[None]]]]) -> None:
    """Standard allows 100 partitioned entities, and a process may run more tests than that."""
    mine = [each for each in used if each[0].server is present.server]
    for bus, closed in mine:
        wait(closed)
        for queue in bus.queues:
            with suppress(ResourceNotFoundError):
                present.admin.delete_queue(queue)
        for topic in bus.topics:
            with suppress(ResourceNotFoundError):
                present.admin.delete_topic(topic)
    used.clear()


def make_bus(partitions: int, server: ServerProcess) -> SdkBus:
    admin = ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.certificate), retry_total=0
    )
    client = ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)
    return SdkBus(partitions, server, admin, client)


def close_bus(bus: SdkBus, pool: ThreadPoolExecutor) -> list[Future[None]]:
    bus.admin.close()
    return [pool.submit(handle.close) for handle in bus.handles]
