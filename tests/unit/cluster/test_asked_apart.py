"""What a client sends in one read is one command for a partition. The owner takes it apart if it is refused.

A refusal that the sending broker learns of is too late: what the client has sent since is stored already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, Rejected
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Enqueue, Given, Peek
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message
from bendybus.domain.routing import partition_of
from bendybus.engine.deliveries import Delivery
from bendybus.envelope import BATCH_FORMAT, Stored
from bendybus.gateway.holdings import Holdings
from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.gateway.sender import Sender
from bendybus.gateway.transactions import Transactions
from bendybus.names import EntityPath, RoutingKey, SequenceNumber
from fix_cluster import Members, members
from fix_holdings import holdings_in

PARTITIONS = 16
PARTITION_BYTES = 1024 * 1024 * 1024
LARGE = 1_000
QUOTA, SESSION = "amqp:resource-limit-exceeded", "amqp:not-allowed"


class Client:
    """A link on which a client sends, and its connection, as far as a sender uses them."""

    def __init__(self, queue: Queue) -> None:
        self.outcomes: dict[int, str] = {}
        self.transactions = Transactions()
        self.holdings: Holdings = holdings_in(MemoryBudget())
        self.observer = None
        self._sender = Sender(cast(Any, self), cast(Any, self), queue)
        self._sent = 0
        self._answered = asyncio.Event()

    def top_up(self, limit: int) -> None: ...

    def flush_soon(self) -> None: ...

    def settle(self, deliveries: Sequence[Delivery], state: Accepted | Rejected) -> None:
        error = state.error if isinstance(state, Rejected) else None
        said = "accepted" if error is None else error.condition
        assert self.outcomes.keys().isdisjoint(each.delivery_id for each in deliveries), "answered once"
        self.outcomes |= {each.delivery_id: said for each in deliveries}
        if len(self.outcomes) == self._sent:
            self._answered.set()

    def sends(self, deliveries: list[Delivery]) -> None:
        """In one read."""
        self._sent += len(deliveries)
        self._sender.deliveries(deliveries)

    async def all_answered(self) -> dict[int, str]:
        await self._answered.wait()
        return self.outcomes


def delivery(
    number: int,
    key: str,
    *bodies: bytes,
    session: str | None = None,
    id: str | None = None,  # noqa: A002
) -> Delivery:
    """A message, or a batch if there are several bodies."""
    properties = Properties(message_id=id or f"id-{number}", group_id=session)
    payloads = [message(key, body, properties) for body in bodies or (b"%d" % number,)]
    batch = len(payloads) > 1
    payload = encode_message(data=payloads) if batch else payloads[0]
    return Delivery(number, b"%d" % number, BATCH_FORMAT if batch else 0, False, None, payload)


def message(key: str, body: bytes, properties: Properties) -> bytes:
    return encode_message(properties=properties, message_annotations={"x-opt-partition-key": key}, data=body)


async def queue_at(cluster: Members, **properties: object) -> Queue:
    path = EntityPath("orders")
    description = QueueDescription(path, enable_partitioning=True, max_size_mb=1024, **properties)
    await cluster["a"].broker.queues.create(description)
    await cluster.whole()
    return cluster["a"].broker.queues.get(path)


def partition_for(queue: Queue, owner: str) -> tuple[PartitionPort, str]:
    """A partition that this broker owns, or another one does, and a key that leads to it."""
    hosts = [host for host in queue.hosts if (host.number in queue.own) == (owner == "this broker")]
    keys = (f"key-{number}" for number in range(1000))
    return hosts[0], next(key for key in keys if partition_of(RoutingKey(key), PARTITIONS) == hosts[0].number)


async def fill(partition: PartitionPort, left_bytes: int) -> None:
    filling = Message(b"", PARTITION_BYTES - left_bytes)
    await partition.ask(Enqueue([filling]))


async def bodies_in(partition: PartitionPort) -> list[bytes]:
    given = await partition.ask(Peek(SequenceNumber(0), 100))
    assert isinstance(given, Given)
    payloads = [b"" if each.payload is None else each.payload for each in given.messages]
    return [bytes(decode_message(Stored.of(each).bare).data[0]) for each in payloads if each]


@pytest.fixture(params=["this broker", "another broker"])
def owner(request: pytest.FixtureRequest) -> str:
    return cast(str, request.param)


async def test_what_was_sent_later_does_not_overtake_what_fits(owner: str) -> None:
    async with members() as cluster:
        queue = await queue_at(cluster)
        partition, key = partition_for(queue, owner)
        await fill(partition, LARGE)
        client = Client(queue)
        client.sends([delivery(1, key), delivery(2, key, b"x" * LARGE), delivery(3, key)])
        client.sends([delivery(4, key)])
        client.sends([delivery(5, key), delivery(6, key)])
        outcomes = await client.all_answered()
        assert outcomes == {1: "accepted", 2: QUOTA, **dict.fromkeys((3, 4, 5, 6), "accepted")}
        assert await bodies_in(partition) == [b"1", b"3", b"4", b"5", b"6"]
        assert client.holdings._unanswered_bytes == 0


async def test_a_batch_is_taken_as_a_whole_or_not_at_all(owner: str) -> None:
    async with members() as cluster:
        queue = await queue_at(cluster)
        partition, key = partition_for(queue, owner)
        await fill(partition, LARGE)
        client = Client(queue)
        too_large = delivery(2, key, b"2a", b"x" * LARGE)
        client.sends([delivery(1, key, b"1a", b"1b"), too_large, delivery(3, key, b"3a", b"3b")])
        client.sends([delivery(4, key)])
        assert await client.all_answered() == {1: "accepted", 2: QUOTA, 3: "accepted", 4: "accepted"}
        assert await bodies_in(partition) == [b"1a", b"1b", b"3a", b"3b", b"4"]


async def test_one_message_without_a_session_is_refused_alone(owner: str) -> None:
    async with members() as cluster:
        queue = await queue_at(cluster, requires_session=True)
        partition, key = partition_for(queue, owner)
        client = Client(queue)
        client.sends([delivery(1, key, session=key), delivery(2, key), delivery(3, key, session=key)])
        client.sends([delivery(4, key, session=key)])
        assert await client.all_answered() == {1: "accepted", 2: SESSION, 3: "accepted", 4: "accepted"}
        assert await bodies_in(partition) == [b"1", b"3", b"4"]


async def test_duplicates_are_found_when_messages_are_taken_apart(owner: str) -> None:
    async with members() as cluster:
        queue = await queue_at(cluster, requires_duplicate_detection=True)
        partition, key = partition_for(queue, owner)
        await fill(partition, LARGE)
        client = Client(queue)
        client.sends([delivery(1, key, id="a"), delivery(2, key, b"x" * LARGE), delivery(3, key, id="a")])
        client.sends([delivery(4, key, id="b")])
        assert await client.all_answered() == {1: "accepted", 2: QUOTA, 3: "accepted", 4: "accepted"}
        assert await bodies_in(partition) == [b"1", b"4"]
