"""A topic under load and kill -9: a message is in all subscriptions that want it, or in none."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Final

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted
from fix_client import Client, ConnectionLost, Endpoint
from fix_server import ServerProcess, StartServer

KILLS: Final = 4
SENDERS: Final = 3
# Sends under way at once; the kill comes when so many of a life's sends have been accepted.
WINDOW: Final = 20
ACCEPTED_PER_LIFE: Final = 150

SQL: Final = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "n % 2 = 0"}}
SUBSCRIPTIONS: Final = [
    {"Name": "all"},
    {"Name": "too"},
    {"Name": "even", "Rules": [{"Name": "r", "Properties": SQL}]},
]


class Load:
    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.accepted: set[int] = set()
        self.sent = 0
        self._numbers = count()

    async def one_life(self) -> None:
        """Publish until the server is killed in the midst of it."""
        enough = len(self.accepted) + ACCEPTED_PER_LIFE
        endpoint = Endpoint.parse(self.server.connection_string)
        senders = [asyncio.create_task(self._publish(endpoint)) for _ in range(SENDERS)]
        while len(self.accepted) < enough:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(self.server.kill)
        await asyncio.gather(*senders)

    async def _publish(self, endpoint: Endpoint) -> None:
        with suppress(ConnectionLost):
            client = await Client.connect(endpoint)
            sender = await client.sender("news")
            while True:
                await sender.credit()
                numbers = [next(self._numbers) for _ in range(WINDOW)]
                self.sent = max(self.sent, numbers[-1] + 1)
                outcomes = [sender.post(_message(number)) for number in numbers]
                client.flush()
                for number, outcome in zip(numbers, outcomes, strict=True):
                    if isinstance(await client.wait(outcome), Accepted):
                        self.accepted.add(number)

    async def received(self, name: str) -> Counter[int]:
        """Everything in a subscription, each as often as it is there."""
        client = await Client.connect(Endpoint.parse(self.server.connection_string))
        receiver = await client.receiver(f"news/subscriptions/{name}", deletes=True)
        deliveries = await receiver.drain(100_000)
        client.cut()
        return Counter(int(decode_message(delivery.payload).data[0]) for delivery in deliveries)


def _message(number: int) -> bytes:
    return encode_message(
        properties=Properties(message_id=str(number)),
        application_properties={"n": number},
        data=str(number).encode(),
    )


@pytest.mark.parametrize("partitioned", [True, False])
async def test_copies_are_stored_together_or_not_at_all(start_server: StartServer, partitioned: bool) -> None:
    properties = {"EnablePartitioning": partitioned}
    topic = {"Name": "news", "Properties": properties, "Subscriptions": SUBSCRIPTIONS}
    server = start_server({}, None, topics=[topic])
    load = Load(server)
    for _ in range(KILLS):
        await load.one_life()
        server.start()

    everything, too, even = [await load.received(name) for name in ("all", "too", "even")]
    assert set(everything.values()) == {1}
    assert everything == too
    assert load.accepted <= set(everything) <= set(range(load.sent))
    assert even == Counter(number for number in everything if number % 2 == 0)
