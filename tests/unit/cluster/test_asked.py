"""Messages that one frame of another broker has for a partition are enqueued together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bendybus.broker.commit_group import OnCommitted, Share
from bendybus.broker.queue import Queue
from bendybus.broker.writer import StoreWriter
from bendybus.cluster import link
from bendybus.cluster.frames import FrameReader
from bendybus.cluster.items import Answer, Ask, NewMessages, Stored
from bendybus.cluster.link_protocol import LinkProtocol
from bendybus.cluster.remote import RemotePartition
from bendybus.domain.commands import Complete, Enqueue, Enqueued, Peek
from bendybus.domain.effects import StoreMessages
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import InvalidOperation, QuotaExceeded
from bendybus.names import EntityPath, SequenceNumber
from fix_cluster import Members, members

MEBIBYTE = 1024 * 1024


async def queues(cluster: Members, **properties: object) -> tuple[Queue, Queue, RemotePartition]:
    """The queue at both brokers, and a partition that the second one owns, as the first one sees it."""
    path = EntityPath("orders")
    await cluster["a"].broker.queues.create(QueueDescription(path, enable_partitioning=True, **properties))
    await cluster.whole()
    here, there = (cluster[name].broker.queues.get(path) for name in "ab")
    remote = next(host for host in here.hosts if isinstance(host, RemotePartition))
    return here, there, remote


def made(*texts: str, session: str | None = None, size: int = 1) -> list[Message]:
    return [Message(text.encode(), size, session_id=session) for text in texts]


async def texts_in(partition: RemotePartition) -> list[str]:
    given = await partition.ask(Peek(SequenceNumber(0), 100))
    return [message.payload.decode() for message in given.messages]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each command had that a partition was given, as its store's writer sees it."""
    counts: list[int] = []
    submit = StoreWriter.submit

    def counting(self: StoreWriter, shares: Sequence[Share], committed: OnCommitted) -> None:
        effects = [effect for share in shares for effect in share.effects]
        counts.extend(len(effect.messages) for effect in effects if isinstance(effect, StoreMessages))
        submit(self, shares, committed)

    monkeypatch.setattr(StoreWriter, "submit", counting)
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


@pytest.fixture
def items(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The kinds of items that brokers say to each other, read where a connection brings them.

    Compiled code makes the calls behind that directly.
    """
    said: list[type] = []
    readers: dict[LinkProtocol, FrameReader] = {}
    updated = LinkProtocol.buffer_updated

    def reading(self: LinkProtocol, nbytes: int) -> None:
        reader = readers.setdefault(self, FrameReader())
        reader.room()[:nbytes] = self.get_buffer(-1)[:nbytes]
        said.extend(type(item) for frame in reader.arrived(nbytes) for item in frame.items)
        updated(self, nbytes)

    monkeypatch.setattr(LinkProtocol, "buffer_updated", reading)
    return said


async def test_what_clients_send_in_one_turn_is_one_request_for_an_owner(items: list[type]) -> None:
    async with members() as cluster:
        here, *_ = await queues(cluster)
        elsewhere = [host for host in here.hosts if isinstance(host, RemotePartition)]
        items.clear()

        replies = await asyncio.gather(*(host.ask(Enqueue(made("a", "b"))) for host in elsewhere))

        assert [reply.count for reply in replies] == [2] * len(elsewhere)
        assert (items.count(NewMessages), items.count(Ask), items.count(Stored)) == (1, 0, 1)
        for host in elsewhere:
            assert await texts_in(host) == ["a", "b"]


async def test_a_broker_of_the_first_version_is_asked_as_it_expects(
    items: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "VERSIONS", (1, 1))
    async with members() as cluster:
        _, _, partition = await queues(cluster)
        items.clear()

        replies = await asyncio.gather(*(partition.ask(Enqueue(made(text))) for text in "abc"))

        assert [reply.count for reply in replies] == [1, 1, 1]
        assert (items.count(Ask), items.count(Answer)) == (3, 3)
        assert NewMessages not in items and Stored not in items
        assert await texts_in(partition) == ["a", "b", "c"]


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
