"""What the loads of the crash check share: clients that come back after each kill and write down all they do.

A load is one kind of traffic with entities and a history of its own. Its clients run until they are
cancelled; whatever they await when the server dies raises `ConnectionLost`, and they begin again. When the
killing is over, `empty` takes what is left. The loads themselves: queue_loads.py, topic_load.py,
session_load.py, transaction_load.py.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import ClassVar, Final, TypeAlias

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, DeliveryState, Error, Modified, Rejected
from bendybus.amqp.types import Symbol, Timestamp
from bendybus.engine.deliveries import Delivery
from faults.history import History, Place, Seen, Settlement
from fix_client import Client, ConnectionLost, Endpoint, LinkRefused, Receiver, Sender
from fix_server import Properties as EntityProperties

__all__ = ["Answer", "Choices", "Client", "Life", "Load", "Outlet", "encode", "numbered"]

Answer: TypeAlias = asyncio.Future[DeliveryState | None]
Choices: TypeAlias = Mapping[Settlement | None, int]
"""What becomes of a delivery, in parts of a hundred; None: it stays locked until the next kill."""

OUTCOMES: Final[dict[Settlement, DeliveryState]] = {
    Settlement.COMPLETE: Accepted(),
    Settlement.ABANDON: Modified(delivery_failed=True),
    Settlement.DEFER: Modified(undeliverable_here=True),
    Settlement.DEAD_LETTER: Rejected(
        Error("com.microsoft:dead-letter", None, {"DeadLetterReason": "chosen"})
    ),
}

# A lock outlives every run, so that none ends but by settlement or by the process's end.
LOCK: Final[EntityProperties] = {"LockDuration": "PT5M", "MaxDeliveryCount": 10}

# Deliveries that a receiver asks for.
CREDIT: Final = 80

# Whatever is on its way between entities arrives in less, unless it is lost.
PATIENCE_S: Final = 5.0
# What nobody waits for, since its sender was never answered, may still be on its way.
QUIET_S: Final = 0.3


def numbered(prefix: str) -> Iterator[str]:
    return (f"{prefix}-{number}" for number in count())


def encode(
    message_id: str,
    body: bytes,
    *,
    key: str | None = None,
    due: float | None = None,
    session: str | None = None,
    via: str | None = None,
    subject: str | None = None,
    user: dict[str, object] | None = None,
) -> bytes:
    annotations: dict[Symbol, object] = {}
    if key is not None:
        annotations[Symbol("x-opt-partition-key")] = key
    if via is not None:
        annotations[Symbol("x-opt-via-partition-key")] = via
    if due is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(int(due * 1000))
    return encode_message(
        message_annotations=annotations or None,
        properties=Properties(message_id=message_id, group_id=session, subject=subject),
        application_properties=user,
        data=body,
    )


@dataclass(slots=True)
class Life:
    """The server's present life: clients wait here for the next one."""

    generation: int = 0
    up: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: Endpoint | None = None

    async def connect(self) -> tuple[Client, int]:
        """To the server as soon as it is up, and the generation it is."""
        while True:
            await self.up.wait()
            assert self.endpoint is not None
            generation = self.generation
            try:
                client = await Client.connect(self.endpoint)
            except ConnectionLost:
                await asyncio.sleep(0.01)
                continue
            if generation == self.generation:
                return client, generation
            client.cut()


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where messages come out; `copy` tells those of one message apart that come out in several places."""

    address: str
    place: Place = Place.MAIN
    copy: str = ""


class Load:
    name: ClassVar[str]
    queues: ClassVar[Mapping[str, EntityProperties]] = {}
    topics: ClassVar[Sequence[EntityProperties]] = ()
    outlets: ClassVar[Sequence[Outlet]] = ()
    """All of them, for `empty`."""

    window: ClassVar[int] = 12
    """Sends that a sender has under way at once."""
    backlog_max: ClassVar[int] = 400
    """Senders wait for the receivers past this many: everything must be emptied in the end."""

    def __init__(self, life: Life, seed: int) -> None:
        self.life = life
        self.history = History()
        self._seed = seed

    def clients(self) -> list[Coroutine[None, None, None]]:
        raise NotImplementedError

    async def empty(self, client: Client, generation: int) -> None:
        """Nothing else runs; take all that is there and all that is still on its way."""
        await asyncio.sleep(max(0.0, self.history.last_due - time.time()))
        receivers = [(outlet, await client.receiver(outlet.address)) for outlet in self.outlets]
        last = time.monotonic()
        while time.monotonic() - last < (PATIENCE_S if self.history.waiting else QUIET_S):
            found = [await self._take_all(receiver, outlet, generation) for outlet, receiver in receivers]
            if any(found):
                last = time.monotonic()
            else:
                await asyncio.sleep(0.05)
        for _, receiver in receivers:
            receiver.detach()
            await receiver.detached()

    async def _take_all(self, receiver: Receiver, outlet: Outlet, generation: int) -> int:
        taken = 0
        while deliveries := await receiver.drain(500):
            taken += len(deliveries)
            seen = [(self.saw(each.payload, generation, receiver, outlet), each) for each in deliveries]
            expected = [(message_id, delivery) for message_id, delivery in seen if message_id is not None]
            if expected:
                await asyncio.wait(self.settle(receiver, expected, Settlement.COMPLETE, generation))
            if len(expected) < len(deliveries):
                return 0  # a stranger stays, and is a violation already
        return taken

    def choice(self, number: int) -> random.Random:
        return random.Random(f"{self._seed}-{self.name}-{number}")

    # -- sending -----------------------------------------------------------------------

    async def keep_sending(
        self, number: int, address: str, send: Callable[[Sender, random.Random], None]
    ) -> None:
        """Call `send` as often as the server and the backlog allow, in each of the server's lives."""
        choice = self.choice(number)
        while True:
            client, _ = await self.life.connect()
            with suppress(ConnectionLost, LinkRefused):
                sender = await client.sender(address)
                while not client.lost:
                    await sender.credit()
                    while sender.unanswered < min(self.window, sender.link.credit) and not self.crowded:
                        send(sender, choice)
                    client.flush()
                    await asyncio.sleep(0.002)
            client.cut()

    @property
    def crowded(self) -> bool:
        return self.history.open > self.backlog_max

    def post(self, sender: Sender, ids: Sequence[str], payload: bytes, message_format: int = 0) -> None:
        """Send; these ids are acknowledged by its answer."""
        outcome = sender.post(payload, message_format=message_format)
        outcome.add_done_callback(partial(self._answered, ids))

    def _answered(self, ids: Sequence[str], answer: Answer) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return  # nobody knows
        if isinstance(answer.result(), Accepted):
            self.history.acknowledge(ids)
        else:
            self.history.refuse(f"{ids[0]} was answered with {answer.result()}")

    # -- receiving ---------------------------------------------------------------------

    async def keep_receiving(self, number: int, outlet: Outlet, choices: Choices) -> None:
        choice = self.choice(number)
        while True:
            client, generation = await self.life.connect()
            with suppress(ConnectionLost, LinkRefused):
                name = f"{self.name}-{number}"
                receiver = await client.receiver(outlet.address, credit=CREDIT, name=name)
                while True:
                    deliveries = await receiver.receive_some()
                    self.deal_with(deliveries, receiver, outlet, generation, choice, choices)
                    receiver.link.top_up(CREDIT)
                    client.flush()
            client.cut()

    def deal_with(
        self,
        deliveries: Sequence[Delivery],
        receiver: Receiver,
        outlet: Outlet,
        generation: int,
        choice: random.Random,
        choices: Choices,
    ) -> list[Answer]:
        """Write down what came, and settle it as chance has it; the answers to come."""
        groups: dict[Settlement | None, list[tuple[str, Delivery]]] = {}
        for delivery in deliveries:
            message_id = self.saw(delivery.payload, generation, receiver, outlet)
            if message_id is not None:
                how = choice.choices(list(choices), list(choices.values()))[0]
                groups.setdefault(how, []).append((message_id, delivery))
        answers: list[Answer] = []
        for how, group in groups.items():
            if how is not None:
                answers += self.settle(receiver, group, how, generation)
        return answers

    def saw(self, payload: bytes, generation: int, receiver: Receiver | str, outlet: Outlet) -> str | None:
        """Write the delivery down; the message's id, unless nobody sent it."""
        message = decode_message(payload)
        number = message.message_annotations["x-opt-sequence-number"]
        assert isinstance(number, int)
        seen = Seen(
            message_id=f"{message.properties.message_id}{outlet.copy}",
            body=b"".join(message.data),
            sequence_number=number,
            delivery_count=message.header.delivery_count or 0,
            generation=generation,
            link=receiver if isinstance(receiver, str) else receiver.link.name,
            place=outlet.place,
            at=time.time(),
        )
        return seen.message_id if self.deliver(seen) else None

    def deliver(self, seen: Seen) -> bool:
        return self.history.deliver(seen)

    def settle(
        self, receiver: Receiver, group: Sequence[tuple[str, Delivery]], how: Settlement, generation: int
    ) -> list[Answer]:
        for message_id, _ in group:
            self.history.settling(message_id, how, generation)
        answers = receiver.settle([delivery for _, delivery in group], OUTCOMES[how])
        for (message_id, _), answer in zip(group, answers, strict=True):
            answer.add_done_callback(partial(self._settled, message_id, how, generation))
        return answers

    def _settled(self, message_id: str, how: Settlement, generation: int, answer: Answer) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        outcome = answer.result()
        if type(outcome) is type(OUTCOMES[how]) and getattr(outcome, "error", None) is None:
            self.history.settled(message_id, how, generation)
        else:
            self.history.refuse(f"to {how.value} {message_id} was answered with {outcome}")
