"""What the tests of moving partitions share: a broker at work, messages in and out, stores that empty."""

from __future__ import annotations

from os import urandom

from bendybus.broker.broker import Broker
from bendybus.broker.queue import Queue
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Enqueue,
    Given,
    Lock,
    Peek,
)
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.names import EntityPath, LockToken, SequenceNumber, SessionId
from bendybus.store.protocol import MessagingStore

Stores = list[MessagingStore]

PLAIN = QueueDescription(EntityPath("plain"))
ORDERS = QueueDescription(EntityPath("orders"), enable_partitioning=True)


async def drained(broker: Broker, name: str) -> None:
    """The store has been emptied, and what was in it dropped."""
    await broker.drains.begin(name)
    await emptied(broker, name)


async def emptied(broker: Broker, name: str) -> None:
    await broker.drains.finished()
    assert not broker.stores[name].residents


def new(text: str, session: str | None = None) -> Message:
    session_id = None if session is None else SessionId(session)
    return Message(text.encode(), size=len(text), session_id=session_id)


async def send(queue: Queue, *texts: str, session: str | None = None) -> None:
    for text in texts:
        await queue.host_for(session).ask(Enqueue([new(text, session)]))


async def lock(queue: Queue, count: int = 1) -> list[Message]:
    reply = await queue.hosts[0].ask(Lock(count, urandom(ENTROPY_PER_LOCK * count)))
    assert isinstance(reply, Given)
    return reply.messages


def token(message: Message) -> LockToken:
    assert message.lock_token is not None
    return message.lock_token


async def texts(queue: Queue, subqueue: SubQueue = SubQueue.MAIN) -> list[str]:
    """What is in the queue, in order within each partition."""
    found: list[str] = []
    for host in queue.hosts:
        reply = await host.ask(Peek(SequenceNumber(0), 10_000, subqueue))
        assert isinstance(reply, Given)
        for payload in await host.payloads(reply.messages):
            assert payload is not None
            found.append(payload.decode())
    return found


def held_by(store: MessagingStore) -> list[tuple[str, int, int]]:
    """The partitions that a store keeps, each with how many messages it has."""
    return [
        (record.entity, record.number, len(store.load(record.key).messages)) for record in store.partitions()
    ]
