"""A receiver with a selector gets what matches from the partitions of all brokers (N-01)."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.amqp.message import encode_message
from bendybus.broker.clock import now
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.scans import PartitionScan
from bendybus.broker.selection import Selection
from bendybus.cluster.items import SelectiveDemand
from bendybus.cluster.remote import RemotePartition
from bendybus.domain.commands import Complete, Enqueue, Given, Peek, Settled
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.envelope import admit
from bendybus.errors import ArgumentError
from bendybus.names import EntityPath, SequenceNumber
from fix_async import until
from fix_cluster import Members, members

MAIN = SubQueue.MAIN
RED = "colour = 'red'"


async def queue_at(cluster: Members, name: str) -> Queue:
    path = EntityPath("orders")
    if cluster["a"].broker.queues.find(path) is None:
        await cluster["a"].broker.queues.create(QueueDescription(path, enable_partitioning=True))
    await cluster.whole()
    return cluster[name].broker.queues.get(path)


async def put(queue: Queue, colour: str, hosts: list[ReceivingPort] | None = None) -> None:
    """One message for each of these partitions."""
    for host in hosts or queue.hosts:
        bare = encode_message(application_properties={"colour": colour}, data=b"x")
        message, _ = admit(bare, now(), queue.description)
        await host.ask(Enqueue([message]))


def remote(queue: Queue) -> list[ReceivingPort]:
    return [host for host in queue.hosts if isinstance(host, RemotePartition)]


async def available(queue: Queue) -> int:
    """How many messages could be locked, wherever they are."""
    await queue.refresh()
    counts = [host.figures.counts(MAIN) for host in queue.hosts if host.figures is not None]
    return sum(each.active - each.locked for each in counts)


class Picker:
    """A receiver: as gateway/selective_receiver.py, without a link."""

    def __init__(self, queue: Queue, credit: int, selector: str = RED) -> None:
        self.queue = queue
        self.credit = credit
        self.selection = Selection.parse(selector)
        self.scans: dict[ReceivingPort, PartitionScan] = {}
        self.taken: list[Message] = []
        self.changed = asyncio.Event()

    def wake(self) -> None:
        for host in self.queue.in_turn():
            if host not in self.scans:
                self.scans[host] = host.scan(MAIN, self.selection, self.wake)
            scan = self.scans[host]
            if self.credit > len(self.taken):
                while scan.is_behind:
                    scan.examine(lambda _: None)
                self.taken += scan.lock(self.credit - len(self.taken))
        if self.credit > len(self.taken):
            self.queue.wait_to_borrow(self, MAIN)
        else:
            self.rest(soon=True)
        self.changed.set()

    def rest(self, *, soon: bool) -> None:
        for scan in self.scans.values():
            scan.rest(soon=soon)

    @property
    def is_unknown(self) -> bool:
        return any(scan.is_unknown for scan in self.scans.values())

    async def has(self, count: int) -> list[Message]:
        self.wake()
        while len(self.taken) < count:
            self.changed.clear()
            await self.changed.wait()
        return self.taken

    def close(self) -> None:
        self.queue.stop_borrowing(self, MAIN)
        for scan in self.scans.values():
            scan.close()


async def test_what_matches_comes_from_all_brokers_and_the_rest_is_not_touched() -> None:
    async with members("abc") as cluster:
        here = await queue_at(cluster, "b")
        await put(here, "blue")
        await put(here, "red")

        taken = await Picker(here, 100).has(16)

        assert len({message.sequence_number for message in taken}) == 16
        assert all(message.delivery_count == 0 for message in taken)
        assert await available(here) == 16
        for message in taken:
            token = message.lock_token
            assert token is not None
            host = here.host_of_token(token)
            assert host is not None
            assert await host.ask(Complete([token])) == Settled([])


async def test_what_comes_later_is_found_too() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        picker = Picker(here, 100)
        picker.wake()
        await until(lambda: not picker.is_unknown)

        await put(here, "blue", remote(here))
        await put(here, "red", remote(here))

        assert len(await picker.has(len(remote(here)))) == len(remote(here))


async def test_the_receiver_is_told_when_the_owner_has_nothing_that_matches() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        await put(here, "blue")
        picker = Picker(here, 1)
        picker.wake()
        assert picker.is_unknown

        await until(lambda: not picker.is_unknown)

        assert not picker.taken
        assert await available(here) == 16


@pytest.mark.parametrize("end", ["without credit", "stops waiting", "closed"])
async def test_what_was_sent_and_is_not_wanted_goes_back(end: str) -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        picker = Picker(here, 16)
        picker.wake()
        await until(lambda: not picker.is_unknown)
        if end == "without credit":
            picker.credit = 0
            picker.rest(soon=True)
        elif end == "stops waiting":
            picker.rest(soon=False)
        else:
            picker.close()

        # Some of it may be on its way before the owner knows.
        await put(here, "red", remote(here))

        while await available(here) < len(remote(here)):
            await asyncio.sleep(0)
        for host in remote(here):
            given = await host.ask(Peek(SequenceNumber(0), 1))
            assert isinstance(given, Given)
            assert [message.delivery_count for message in given.messages] == [0]
        assert len(await Picker(here, 100).has(len(remote(here)))) == len(remote(here))


async def test_the_owner_is_asked_again_after_a_lost_connection() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        picker = Picker(here, 100)
        picker.wake()
        await until(lambda: not picker.is_unknown)
        cluster["b"].cut("a")
        await until(lambda: cluster["b"].cluster.peers.by_name["a"].link is None)
        await cluster.whole()

        await put(here, "red", remote(here))

        assert len(await picker.has(len(remote(here)))) == len(remote(here))


async def test_a_receiver_that_is_gone_is_forgotten_by_the_owner() -> None:
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        there = await queue_at(cluster, "a")
        picker = Picker(here, 100)
        picker.wake()
        await until(lambda: all(host.scans for host in there.own.values()))

        picker.close()

        await until(lambda: not any(host.scans for host in there.own.values()))


async def test_a_selector_that_cannot_be_read_ends_the_connection_and_not_the_broker() -> None:
    with pytest.raises(ArgumentError):
        Selection.parse("colour = ")
    async with members() as cluster:
        here = await queue_at(cluster, "b")
        link = cluster["b"].cluster.peers.by_name["a"].link
        assert link is not None

        link.send(SelectiveDemand(here.path, here.generation, MAIN, 1, "colour = ", 1))

        await until(lambda: not link.is_open)
        await cluster.whole()
        await put(here, "red")
        assert len(await Picker(here, 100).has(16)) == 16
