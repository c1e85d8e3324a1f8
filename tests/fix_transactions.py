"""Transactions with a raw AMQP client: a connection with a coordinator, and short methods for tests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, DeliveryState, Modified, Rejected, TransactionalState
from bendybus.amqp.types import Array, Symbol, Timestamp
from bendybus.engine.deliveries import Delivery
from fix_client import Client, Coordinator, Endpoint, Receiver, Requester, Sender
from fix_server import ServerProcess

NOT_ALLOWED = "amqp:not-allowed"


def message(
    text: str,
    *,
    key: str | None = None,
    session: str | None = None,
    id: str | None = None,  # noqa: A002 - the property's own name
    via: str | None = None,
    due: int | None = None,
) -> bytes:
    annotations: dict[str, object] = {}
    if key is not None:
        annotations["x-opt-partition-key"] = key
    if via is not None:
        annotations["x-opt-via-partition-key"] = via
    if due is not None:
        annotations["x-opt-scheduled-enqueue-time"] = Timestamp(due)
    return encode_message(
        message_annotations={Symbol(name): value for name, value in annotations.items()} or None,
        properties=Properties(message_id=id, group_id=session),
        data=text.encode(),
    )


def text_of(delivery: Delivery) -> str:
    (data,) = decode_message(delivery.payload).data
    return bytes(data).decode()


def condition(outcome: DeliveryState | None) -> str | None:
    """Why something was rejected, inside or outside a transaction."""
    if isinstance(outcome, TransactionalState):
        outcome = outcome.outcome
    return None if not isinstance(outcome, Rejected) or outcome.error is None else outcome.error.condition


@dataclass
class OwnEntities:
    """A server, and the number of the entities that are this test's own; none if all of it is."""

    server: ServerProcess
    number: int | None = None

    def address(self, name: str) -> str:
        """Of what the test calls `q`, `other` or `plain`, or of something below it."""
        entity, slash, below = name.partition("/")
        return name if self.number is None else f"{entity}-{self.number}{slash}{below}"


@dataclass
class TransactionClient:
    """One connection with a coordinator, and short methods for what the tests do."""

    entities: OwnEntities
    client: Client
    coordinator: Coordinator
    senders: dict[str, Sender] = field(default_factory=dict)

    async def sender(self, queue: str = "q") -> Sender:
        if queue not in self.senders:
            self.senders[queue] = await self.client.sender(self.entities.address(queue))
        return self.senders[queue]

    async def requester(self, queue: str = "q") -> Requester:
        return await self.client.requester(self.entities.address(f"{queue}/$management"))

    async def send(self, *messages: bytes, txn: bytes | None = None, queue: str = "q") -> list[str | None]:
        """Send each. Returns for each None, or why it was refused."""
        sender = await self.sender(queue)
        state = None if txn is None else TransactionalState(txn)
        outcomes = await sender.send(*messages, state=state)
        if txn is not None:
            for outcome in outcomes:
                wrapped = isinstance(outcome, TransactionalState) and outcome.txn_id == txn
                assert wrapped or isinstance(outcome, Rejected), outcome
        return [condition(outcome) for outcome in outcomes]

    async def receive(self, number: int, queue: str = "q") -> tuple[Receiver, list[Delivery]]:
        receiver = await self.client.receiver(self.entities.address(queue), credit=number)
        return receiver, await receiver.receive(number)

    async def settle(
        self, receiver: Receiver, deliveries: list[Delivery], txn: bytes, outcome: DeliveryState | None = None
    ) -> str | None:
        """Settle in the transaction. Returns None, or why it was refused."""
        answers = await receiver.settled_as(deliveries, TransactionalState(txn, outcome or Accepted()))
        return condition(answers[0])

    async def contents(self, queue: str = "q") -> list[str]:
        """The messages that can be received now. They are returned to the entity."""
        receiver = await self.client.receiver(self.entities.address(queue))
        found = await receiver.drain(1000)
        if found:
            await receiver.settled_as(found, Modified(delivery_failed=False))
        receiver.detach()
        await receiver.detached()
        return sorted(map(text_of, found))

    async def arrived(self, number: int, queue: str) -> list[str]:
        """The texts of this many messages, which may still be on their way there."""
        receiver, found = await self.receive(number, queue)
        await receiver.settled_as(found)
        return sorted(map(text_of, found))


@asynccontextmanager
async def transaction_client(
    entities: OwnEntities, *, spans_entities: bool = False
) -> AsyncIterator[TransactionClient]:
    async with await Client.connect(Endpoint.parse(entities.server.connection_string)) as client:
        if not spans_entities:
            # Whatever comes first, so that the coordinator is not the first link of its session.
            yield TransactionClient(entities, client, await client.coordinator())
            return
        session = await client.begin()
        begin = client.begin

        async def same() -> Any:
            return session

        client.begin = same  # type: ignore[method-assign]  # all links on one session, as SDKs do for this
        try:
            yield TransactionClient(entities, client, await client.coordinator(session))
        finally:
            client.begin = begin


def lock_tokens(*deliveries: Delivery) -> Any:
    return Array(uuid.UUID, [uuid.UUID(bytes_le=delivery.tag) for delivery in deliveries])


async def request_all(
    requester: Requester, txn: bytes | None, *changes: tuple[str, dict[str, object]]
) -> list[str | None]:
    """None for each that was accepted, or why it was not."""
    told: list[str | None] = []
    for operation, body in changes:
        request = requester.encode(body, {"operation": f"com.microsoft:{operation}"})
        await requester.sender.send(request, state=None if txn is None else TransactionalState(txn))
        (reply,) = await requester.replies.receive()
        condition_given = decode_message(reply.payload).application_properties.get("errorCondition")
        told.append(None if condition_given is None else str(condition_given))
    return told
