"""Loads through the unmodified Azure SDK, that go on whatever fails, and tell a tally of all they do.

A load is one kind of traffic on entities of its own. Its clients run until they are cancelled; whatever the
SDK raises, they open another sender or receiver and go on. `empty` takes what is left when all is over.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Final

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from faults.tally import Received, Tally
from fix_server import Properties

__all__ = ["LOADS", "Outlet", "SdkLoad"]

LOCK_S: Final = 30
# A message may be handed out again with every fault; none is to be dead-lettered for it.
COMMON: Final[Properties] = {"LockDuration": f"PT{LOCK_S}S", "MaxDeliveryCount": 2000}
PARTS: Final[Properties] = {**COMMON, "EnablePartitioning": True}

BATCH: Final = 4
KEYS: Final = 6
TAKEN_AT_ONCE: Final = 20

# Past this many a sender waits for the receivers: all must be emptied in the end.
BACKLOG_MAX: Final = 3000
SEND_TIMEOUT_S: Final = 15
PAUSE_S: Final = 0.01
AFTER_AN_ERROR_S: Final = 0.1
CLOSING_MAX_S: Final = 5

# How long nothing may arrive before what is missing counts as lost. On a busy machine the SDK may need a
# minute to connect.
PATIENCE_S: Final = 180.0
QUIET_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where messages come out; `copy` tells those of one message apart that come out in several places."""

    entity: str
    subscription: str | None = None
    copy: str = ""


class SdkLoad:
    name: ClassVar[str]
    queues: ClassVar[Mapping[str, Properties]] = {}
    topics: ClassVar[Sequence[Properties]] = ()
    outlets: ClassVar[Sequence[Outlet]]
    senders: ClassVar[int] = 3
    """For each entity."""
    receivers: ClassVar[int] = 2
    """For each outlet."""
    retries: ClassVar[int] = 0
    """The SDK's own: what it sends again would be stored again."""
    keyless_batches: ClassVar[bool] = True
    until_accepted: ClassVar[bool] = False
    """Whether what failed is sent again: only where duplicates are detected."""

    def __init__(self, connection_string: str, seed: int) -> None:
        self.tally = Tally()
        self.errors: Counter[str] = Counter()
        """What clients were told, by kind."""
        self._connection_string = connection_string
        self._seed = seed
        self._numbers = count()

    def clients(self) -> list[Coroutine[None, None, None]]:
        entities = dict.fromkeys(outlet.entity for outlet in self.outlets)
        return [
            *(self._keep_sending(entity, number) for entity in entities for number in range(self.senders)),
            *(self._keep_receiving(outlet) for outlet in self.outlets for _ in range(self.receivers)),
        ]

    # -- sending -----------------------------------------------------------------------

    async def _keep_sending(self, entity: str, number: int) -> None:
        choice = random.Random(f"{self._seed}-{entity}-{number}")
        sends = self._sends(entity, number, choice)
        while True:
            async with self._client() as client:
                await self._send_on(self._sender(client, entity), sends)

    async def _send_on(
        self, sender: ServiceBusSender, sends: Iterator[tuple[list[str], list[ServiceBusMessage]]]
    ) -> None:
        """Until something fails."""
        while True:
            if self.tally.open > BACKLOG_MAX:
                await asyncio.sleep(PAUSE_S)
                continue
            ids, messages = next(sends)
            while True:
                try:
                    await sender.send_messages(messages, timeout=SEND_TIMEOUT_S)
                    break
                except Exception as error:
                    if not self.until_accepted:
                        raise
                    self.errors[f"sent again: {type(error).__name__}"] += 1
                    await asyncio.sleep(AFTER_AN_ERROR_S)
            for message_id in ids:
                self._acknowledge(message_id)
            await asyncio.sleep(PAUSE_S)

    def _sends(
        self, entity: str, number: int, choice: random.Random
    ) -> Iterator[tuple[list[str], list[ServiceBusMessage]]]:
        """Without end: the ids and the messages of one send each; attempted when they are taken."""
        while True:
            key = self._key(entity, number, choice)
            batched = choice.random() < 0.1 and (key is not None or self.keyless_batches)
            ids = [f"{entity}-{next(self._numbers)}" for _ in range(BATCH if batched else 1)]
            bodies = [f"{each}/{key}".encode() * choice.randrange(1, 40) for each in ids]
            for message_id, body in zip(ids, bodies, strict=True):
                self._attempt(message_id, body, None if key is None else f"{entity}, {key}")
            yield ids, [self._message(*each, key) for each in zip(ids, bodies, strict=True)]

    def _key(self, entity: str, number: int, choice: random.Random) -> str | None:
        """Every sender has keys of its own, so that their order is its own."""
        return f"{number}-{choice.randrange(KEYS)}" if choice.random() < 0.7 else None

    def _message(self, message_id: str, body: bytes, key: str | None) -> ServiceBusMessage:
        return ServiceBusMessage(body, message_id=message_id, partition_key=key)

    def _attempt(self, message_id: str, body: bytes, stream: str | None) -> None:
        self.tally.attempt(message_id, body, stream)

    def _acknowledge(self, message_id: str) -> None:
        self.tally.acknowledge(message_id)

    def _sender(self, client: ServiceBusClient, entity: str) -> ServiceBusSender:
        return client.get_queue_sender(entity)

    # -- receiving ---------------------------------------------------------------------

    async def _keep_receiving(self, outlet: Outlet) -> None:
        while True:
            async with self._client() as client:
                receiver = self._receiver(client, outlet)
                while True:
                    await self._take_some(receiver, outlet)

    def _receiver(self, client: ServiceBusClient, outlet: Outlet) -> ServiceBusReceiver:
        if outlet.subscription is None:
            return client.get_queue_receiver(outlet.entity)
        return client.get_subscription_receiver(outlet.entity, outlet.subscription)

    async def _take_some(self, receiver: ServiceBusReceiver, outlet: Outlet) -> int:
        messages = await receiver.receive_messages(TAKEN_AT_ONCE, max_wait_time=1)
        for message in messages:
            locked_until = message.locked_until_utc
            received = Received(
                message_id=f"{message.message_id}{outlet.copy}",
                body=b"".join(message.body),
                sequence_number=message.sequence_number or 0,
                # A session is locked as a whole, and not anew for each message.
                locked_at=0.0 if locked_until is None else locked_until.timestamp() - LOCK_S,
            )
            if self.tally.receive(received):
                await self._complete(receiver, message, received.message_id)
        return len(messages)

    async def _complete(self, receiver: ServiceBusReceiver, message: Any, message_id: str) -> None:
        try:
            await receiver.complete_message(message)
        except BaseException:
            self.tally.doubt(message_id)
            raise
        self.tally.complete(message_id, time.time())

    # -- the end -----------------------------------------------------------------------

    async def empty(self) -> None:
        """Nothing else runs; take all that is there."""
        await asyncio.gather(*(self._empty_outlet(outlet) for outlet in self.outlets))

    async def _empty_outlet(self, outlet: Outlet) -> None:
        last = time.monotonic()
        while time.monotonic() - last < (PATIENCE_S if self.tally.waiting else QUIET_S):
            async with self._client() as client:
                receiver = self._receiver(client, outlet)
                while await self._take_some(receiver, outlet):
                    last = time.monotonic()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[ServiceBusClient]:
        """One of the SDK's; what it raises is counted, and then it is closed for good."""
        client = ServiceBusClient.from_connection_string(
            self._connection_string, retry_total=self.retries, retry_backoff_factor=0.2
        )
        try:
            yield client
        except Exception as error:  # whatever it is, the application would go on
            self.errors[type(error).__name__] += 1
            await asyncio.sleep(AFTER_AN_ERROR_S)
        finally:
            try:
                await asyncio.wait_for(client.close(), CLOSING_MAX_S)
            except Exception as error:
                self.errors[f"closing: {type(error).__name__}"] += 1


class Orders(SdkLoad):
    """With a key and without one, single and in batches, over all stores."""

    name = "partitioned"
    queues: Final = {"orders": PARTS}
    outlets: Final = [Outlet("orders")]


class Plain(SdkLoad):
    """Queues of one partition, each in some store."""

    name = "plain"
    queues: Final = {f"plain-{number}": COMMON for number in range(5)}
    outlets: Final = [Outlet(queue) for queue in queues]
    senders = 1
    receivers = 1

    def _key(self, entity: str, number: int, choice: random.Random) -> str | None:
        return None


class Once(SdkLoad):
    """Sent again by the SDK and by us until it is accepted, and there once all the same."""

    name = "duplicates"
    queues: Final = {
        "once": {
            **PARTS,
            "RequiresDuplicateDetection": True,
            "DuplicateDetectionHistoryTimeWindow": "PT1H",
        }
    }
    outlets: Final = [Outlet("once")]
    retries = 3
    # The id is the key of those that have none, and a batch has one key (P-18).
    keyless_batches = False
    until_accepted = True


class Talks(SdkLoad):
    """Sessions, each taken by whoever comes next."""

    name = "sessions"
    queues: Final = {"talks": {**PARTS, "RequiresSession": True}}
    outlets: Final = [Outlet("talks")]

    def _key(self, entity: str, number: int, choice: random.Random) -> str | None:
        return f"{number}-{choice.randrange(KEYS)}"

    def _message(self, message_id: str, body: bytes, key: str | None) -> ServiceBusMessage:
        return ServiceBusMessage(body, message_id=message_id, session_id=key)

    def _receiver(self, client: ServiceBusClient, outlet: Outlet) -> ServiceBusReceiver:
        return client.get_queue_receiver(outlet.entity, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)

    async def _keep_receiving(self, outlet: Outlet) -> None:
        while True:
            await self._take_session(outlet)

    async def _take_session(self, outlet: Outlet) -> int:
        """All that some session has; how many that were."""
        taken = 0
        async with self._client() as client:
            try:
                async with self._receiver(client, outlet) as receiver:
                    while some := await self._take_some(receiver, outlet):
                        taken += some
            except OperationTimeoutError:
                pass  # no session has anything
        return taken

    async def _empty_outlet(self, outlet: Outlet) -> None:
        last = time.monotonic()
        while time.monotonic() - last < (PATIENCE_S if self.tally.waiting else QUIET_S):
            if await self._take_session(outlet):
                last = time.monotonic()


class News(SdkLoad):
    """A topic with two subscriptions: both get a message, or none."""

    name = "topic"
    subscriptions: Final = ("first", "second")
    topics: Final = [
        {
            "Name": "news",
            "Properties": {"EnablePartitioning": True},
            "Subscriptions": [{"Name": name, "Properties": COMMON} for name in subscriptions],
        }
    ]
    outlets: Final = [Outlet("news", name, f" for {name}") for name in subscriptions]
    receivers = 1

    def _attempt(self, message_id: str, body: bytes, stream: str | None) -> None:
        for outlet in self.outlets:
            of = None if stream is None else f"{stream}{outlet.copy}"
            self.tally.attempt(f"{message_id}{outlet.copy}", body, of)

    def _acknowledge(self, message_id: str) -> None:
        for outlet in self.outlets:
            self.tally.acknowledge(f"{message_id}{outlet.copy}")

    def _sender(self, client: ServiceBusClient, entity: str) -> ServiceBusSender:
        return client.get_topic_sender(entity)


LOADS: Final[Sequence[type[SdkLoad]]] = (Orders, Plain, Once, Talks, News)
