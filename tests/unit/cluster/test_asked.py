"""Messages that one frame of another broker has for a partition are enqueued together."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.cluster.remote import RemotePartition
from bendybus.domain.commands import Complete, Enqueue, Enqueued, Peek
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import InvalidOperation, QuotaExceeded
from bendybus.names import EntityPath, SequenceNumber
from fix_cluster import Members, members

MEBIBYTE = 1024 * 1024


async def queues(cluster: Members, **properties: object) -> tuple[Queue, Queue, RemotePartition[Queue]]:
    """The queue at both brokers, and a partition that the second one owns, as the first one sees it."""
    path = EntityPath("orders")
    await cluster["a"].broker.queues.create(QueueDescription(path, enable_partitioning=True, **properties))
    await cluster.whole()
    here, there = (cluster[name].broker.queues.get(path) for name in "ab")
    remote = next(host for host in here.hosts if isinstance(host, RemotePartition))
    return here, there, remote


def made(*texts: str, session: str | None = None, size: int = 1) -> list[Message]:
    return [Message(text.encode(), size, session_id=session) for text in texts]


async def texts_in(partition: RemotePartition[Queue]) -> list[str]:
    given = await partition.ask(Peek(SequenceNumber(0), 100))
    return [message.payload.decode() for message in given.messages]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each command had that a partition was given."""
    counts: list[int] = []
    submit = PartitionHost.submit

    def counting(self: PartitionHost, command: object, done: object) -> None:
        if isinstance(command, Enqueue):
            counts.append(len(command.messages))
        submit(self, command, done)

    monkeypatch.setattr(PartitionHost, "submit", counting)
    return counts


async def test_what_clients_send_in_one_turn_is_one_command_for_the_owner(counted: list[int]) -> None:
    async with members() as cluster:
        _, _, partition = await queues(cluster)
        commands = [Enqueue(made("a", "b")), Enqueue(made("c")), Enqueue(made("d", "e", "f"))]

        replies = await asyncio.gather(*map(partition.ask, commands))

        assert counted == [6]
        assert await texts_in(partition) == ["a", "b", "c", "d", "e", "f"]
        # Each client is told about its own messages.
        first = replies[0].first
        assert replies == [Enqueued(first, 2), Enqueued(first + 2, 1), Enqueued(first + 3, 3)]


async def test_what_follows_other_commands_is_not_put_before_them(counted: list[int]) -> None:
    async with members() as cluster:
        _, _, partition = await queues(cluster)
        await asyncio.gather(
            partition.ask(Enqueue(made("a"))),
            partition.ask(Enqueue(made("b"))),
            partition.ask(Complete([b"\0" * 16])),
            partition.ask(Enqueue(made("c"))),
        )
        assert counted == [2, 1]
        assert await texts_in(partition) == ["a", "b", "c"]


async def test_one_client_without_a_session_does_not_disturb_the_others() -> None:
    async with members() as cluster:
        _, _, partition = await queues(cluster, requires_session=True)
        good, bad, other = await asyncio.gather(
            partition.ask(Enqueue(made("a", session="s"))),
            partition.ask(Enqueue(made("b"))),
            partition.ask(Enqueue(made("c", session="s"))),
            return_exceptions=True,
        )
        assert isinstance(bad, InvalidOperation)
        assert isinstance(good, Enqueued) and isinstance(other, Enqueued)
        assert await texts_in(partition) == ["a", "c"]


async def test_messages_that_fit_are_taken_beside_messages_that_do_not() -> None:
    async with members() as cluster:
        _, _, partition = await queues(cluster, max_size_mb=1024)
        small, large, last = await asyncio.gather(
            partition.ask(Enqueue(made("a"))),
            partition.ask(Enqueue(made("b", size=2 * 1024 * MEBIBYTE))),
            partition.ask(Enqueue(made("c"))),
            return_exceptions=True,
        )
        assert isinstance(large, QuotaExceeded)
        assert isinstance(small, Enqueued) and isinstance(last, Enqueued)
        assert await texts_in(partition) == ["a", "c"]


async def test_receivers_get_what_was_enqueued_together() -> None:
    async with members() as cluster:
        _, there, partition = await queues(cluster)
        await asyncio.gather(*(partition.ask(Enqueue(made(str(number)))) for number in range(20)))
        messages = there.own[partition.number].lock(20, MEBIBYTE, SubQueue.MAIN)
        assert [message.payload for message in messages] == [b"%d" % number for number in range(20)]
