"""A broker under a test's control; a store that a test can delay and break, and a queue on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from bendybus.broker.broker import Broker
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.queue import Queue
from bendybus.broker.stores import AttachedStore
from bendybus.broker.ticker import TICK_S
from bendybus.domain.commands import Peek, Reply
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import BrokerError, StoreUnavailable
from bendybus.names import EntityPath, PartitionNumber, SequenceNumber
from bendybus.store.catalog import Catalog
from bendybus.store.faults import StoreFaults
from bendybus.store.memory import MemoryStore
from bendybus.store.protocol import MessagingStore, PartitionChanges
from fix_async import until


@asynccontextmanager
async def at_work(
    catalog: Catalog, stores: Sequence[MessagingStore], **options: Any
) -> AsyncIterator[Broker]:
    """A broker that is started here and stopped at the end. Options go to `Broker`."""
    broker = Broker(catalog, stores, **({"contents": AmqpContents()} | options))
    broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def at_work_on_faults(catalog: Catalog, faults: StoreFaults) -> AsyncIterator[Broker]:
    """The same on stores that may fail; at the end they are healthy again."""
    async with at_work(catalog, faults.stores) as broker:
        try:
            yield broker
        finally:
            faults.heal_all()


class GatedStore(MemoryStore):
    """Commits wait at a gate while it is shut. The groups that came through are kept for inspection."""

    def __init__(self, name: str = "gated") -> None:
        super().__init__(name)
        self._shut = False
        self._passes = threading.Semaphore(0)
        self.reached = threading.Event()
        """Set when a commit has arrived at the gate."""
        self.fails_once: Exception | None = None
        self.groups: list[list[PartitionChanges]] = []

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        self.reached.set()
        if self._shut:
            assert self._passes.acquire(timeout=10), "the test never opened the gate"
        failure, self.fails_once = self.fails_once, None
        if failure is not None:
            raise failure
        super().commit(changes)
        self.groups.append(list(changes))

    def shut(self) -> None:
        self._shut = True
        self.reached.clear()

    def let_one_through(self) -> None:
        self.reached.clear()
        self._passes.release()

    def open_gate(self) -> None:
        self._shut = False
        self._passes.release()


@dataclass
class GatedQueue:
    """A queue whose partitions are in gated stores: all in one, unless the test asks for more stores."""

    store: GatedStore
    attached: AttachedStore
    queue: Queue
    cache: PayloadCache
    replies: list[Reply | BrokerError] = field(default_factory=list)
    others: list[AttachedStore] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def host(self) -> PartitionHost:
        return self.queue.hosts[0]

    async def settled(self) -> None:
        """Wait until everything submitted has been answered, in the order in which a send proceeds."""
        for attached in (self.attached, *self.others):
            await attached.writer.drain()

    async def loaded(self) -> None:
        """Wait until the partition has been read from its store; a command waits for that."""
        await self.host.ask(Peek(SequenceNumber(0), 0))

    async def read_back(self) -> None:
        """Wait until all requests to the store's reader so far have been answered."""
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.attached.read([], done.set_result)
        await done

    async def returned(self) -> None:
        """Wait until the threads of the store have returned from the calls in which they were stuck."""
        await self.attached.writer.run(lambda: None)
        await self.read_back()

    async def at_the_gate(self) -> None:
        """Wait until one commit is stuck and all other stores are idle, so that only that store is slow."""
        await asyncio.to_thread(self.store.reached.wait, 10)
        await until(lambda: not any(other.writer.step or other.reader.step for other in self.others))

    def pass_time(self, seconds: float) -> None:
        """Let this much time pass, as the broker's ticker would tell the stores."""
        for _ in range(round(seconds / TICK_S)):
            self.seconds += TICK_S
            for attached in (self.attached, *self.others):
                attached.check(self.seconds)

    async def recovered(self) -> None:
        """Probe the store now instead of in a second, and wait until its partitions are loaded."""
        await self.returned()
        self.attached.recover()
        hosts = [host for host in self.queue.hosts if host.store is self.attached]
        await self.attached.changes.until(
            lambda: all(host.availability is Availability.AVAILABLE for host in hosts)
        )


async def make_gated_queue(partitions: int = 1, stores: int = 1, **properties: object) -> GatedQueue:
    gated = [GatedStore("gated" if not number else f"gated-{number}") for number in range(stores)]
    description = QueueDescription(EntityPath("orders"), **properties)
    attached = [AttachedStore(store, asyncio.get_running_loop()) for store in gated]
    for each in attached:
        each.start()
    cache = PayloadCache()
    queue = Queue(description, partitions, lambda host: None)
    for number in range(partitions):
        place = number % stores
        (record,) = gated[place].create_partitions(description.path, [PartitionNumber(number)])
        host = PartitionHost(queue, record.number, record.key, attached[place], cache)
        queue.add_partition(host, host)
    for host in queue.hosts:
        host.load()
        await host.ask(Peek(SequenceNumber(0), 0))
    return GatedQueue(gated[0], attached[0], queue, cache, others=attached[1:])


def message(text: str = "x") -> Message:
    return Message(text.encode(), size=len(text))


@asynccontextmanager
async def gated_queue(
    partitions: int = 1, stores: int = 1, **properties: object
) -> AsyncIterator[GatedQueue]:
    gated = await make_gated_queue(partitions, stores, **properties)
    try:
        yield gated
    finally:
        gated.store.open_gate()
        for attached in (gated.attached, *gated.others):
            attached.stop()


async def until_answered(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the broker's answers say so. A store that failed comes back in a second."""
    async with asyncio.timeout(10):
        while True:
            with suppress(StoreUnavailable):
                if await holds():
                    return
            await asyncio.sleep(0.002)
