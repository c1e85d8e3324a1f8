"""Browsing and receiving by request, while what is looked at changes."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.amqp.message import decode_message, encode_message
from bendybus.domain.commands import Enqueue, Post
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.envelope import admit
from bendybus.errors import StoreUnavailable
from bendybus.gateway.management.messages import OPERATIONS
from bendybus.gateway.management.operation import Managed
from bendybus.names import EntityPath, Instant
from fix_broker import gated_queue


async def test_a_peek_shows_messages_as_they_were_when_it_looked():
    # Found by a simulation: while the payload was read, the message left for another queue, and was
    # shown under the number that it had in the outbox.
    async with gated_queue() as gated:
        sent, _ = admit(encode_message(data=b"x"), Instant(0), gated.queue.description)
        await gated.host.ask(Enqueue([sent]))
        sent.payload = None
        managed = Managed(gated.queue, SubQueue.MAIN, None, {})
        body = {"from-sequence-number": 0, "message-count": 10}
        operation = OPERATIONS["com.microsoft:peek-message"]
        peek = asyncio.ensure_future(operation.run(managed, body))
        await asyncio.sleep(0)
        await gated.host.ask(Post(10, EntityPath("elsewhere"), SubQueue.MAIN))
        assert sent.sequence_number == 2
        found = await peek
        assert found is not None
        (entry,) = found["messages"]
        assert decode_message(entry["message"]).message_annotations["x-opt-sequence-number"] == 1


async def test_nothing_is_removed_for_an_answer_that_cannot_be_given():
    """The deferred messages of one partition were removed before those of the next one were read."""
    async with gated_queue(partitions=2) as gated:
        numbers = []
        for host in gated.queue.hosts:
            sent, _ = admit(encode_message(data=b"x"), Instant(0), gated.queue.description)
            sent.state = MessageState.DEFERRED
            await host.ask(Enqueue([sent], shelved=True))
            numbers.append(sent.sequence_number)

        async def unreadable(messages: list[Message]) -> list[bytes | None]:
            raise StoreUnavailable("away")

        gated.queue.hosts[1].payloads = unreadable
        managed = Managed(gated.queue, SubQueue.MAIN, None, {})
        body = {"sequence-numbers": numbers, "receiver-settle-mode": 0}
        with pytest.raises(StoreUnavailable):
            await OPERATIONS["com.microsoft:receive-by-sequence-number"].run(managed, body)
        await gated.settled()
        assert [host.partition.counts().deferred for host in gated.queue.hosts] == [1, 1]
