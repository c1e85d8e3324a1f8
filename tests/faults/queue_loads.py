"""Loads on queues: plain traffic, forwarding, duplicates, and messages for later; partitioned and not."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, islice
from typing import Final

from bendybus.amqp.message import BATCH_FORMAT, decode_message, encode_message
from bendybus.amqp.types import Array
from faults.history import Place, Settlement
from faults.load import LOCK, Choices, Load, Outlet, encode, numbered
from fix_client import Client, ConnectionLost, LinkRefused, Requester, Sender

__all__ = ["ForwardingLoad", "OnceLoad", "QueueLoad", "ScheduleLoad"]

PARTS: Final = {**LOCK, "EnablePartitioning": True}
PLAIN: Final = {**LOCK, "EnablePartitioning": False}

KEYS_PER_SENDER: Final = 6
BATCH_SIZE: Final = 4

PEEK: Final = "com.microsoft:peek-message"
RECEIVE_DEFERRED: Final = "com.microsoft:receive-by-sequence-number"
UPDATE_DISPOSITION: Final = "com.microsoft:update-disposition"
SCHEDULE: Final = "com.microsoft:schedule-message"
CANCEL: Final = "com.microsoft:cancel-scheduled-message"

MOSTLY_COMPLETED: Final[Choices] = {Settlement.COMPLETE: 90, Settlement.ABANDON: 5, None: 5}


class QueueLoad(Load):
    """Messages with a key and without one, batches, and every settlement there is."""

    name = "queues"
    queues: Final = {"parts": PARTS, "plain": PLAIN}
    outlets: Final = [Outlet("parts"), Outlet("plain")]
    window = 40
    backlog_max = 2000

    choices: Final[Choices] = {
        Settlement.COMPLETE: 80,
        Settlement.ABANDON: 7,
        Settlement.DEFER: 4,
        Settlement.DEAD_LETTER: 4,
        None: 5,
    }

    def clients(self) -> list[Coroutine[None, None, None]]:
        numbers = count()
        clients: list[Coroutine[None, None, None]] = []
        for queue in self.queues:
            for _ in range(3):
                number = next(numbers)
                ids = numbered(f"{queue}-{number}")
                clients.append(self.keep_sending(number, queue, partial(self._send, queue, number, ids)))
                clients.append(self.keep_receiving(next(numbers), Outlet(queue), self.choices))
        return clients

    def _send(
        self, queue: str, number: int, ids: Iterator[str], sender: Sender, choice: random.Random
    ) -> None:
        """A message with a key or without one, or a batch; written down before it leaves."""
        key = f"{number}-{choice.randrange(KEYS_PER_SENDER)}" if choice.random() < 0.7 else None
        batch = BATCH_SIZE if choice.random() < 0.1 else 1
        chosen = list(islice(ids, batch))
        bodies = [f"{message_id}/{key}".encode() * choice.randrange(1, 40) for message_id in chosen]
        messages = [encode(each, body, key=key) for each, body in zip(chosen, bodies, strict=True)]
        self.history.attempt(chosen, self._stream(queue, number, key, chosen[0]), bodies)
        if batch == 1:
            self.post(sender, chosen, messages[0])
        else:
            self.post(sender, chosen, encode_message(data=messages), BATCH_FORMAT)

    @staticmethod
    def _stream(queue: str, number: int, key: str | None, message_id: str) -> str:
        """What keeps its order: a key, and in the unpartitioned queue all that one sender sends."""
        if queue == "plain":
            return f"{queue}, sender {number}"
        return f"{queue}, no key, {message_id}" if key is None else f"{queue}, key {key}"

    async def empty(self, client: Client, generation: int) -> None:
        await super().empty(client, generation)
        for queue in self.queues:
            receiver = await client.receiver(f"{queue}/$DeadLetterQueue")
            await self._take_all(receiver, Outlet("", Place.DEAD_LETTER), generation)
            requester = await client.requester(f"{queue}/$management")
            await self._empty_deferred(requester, generation)
            left = await requester.ask(PEEK, {"from-sequence-number": 0, "message-count": 1})
            if left.application_properties["statusCode"] != 204:
                self.history.refuse(f"'{queue}' does not get empty: {left.value}")

    async def _empty_deferred(self, requester: Requester, generation: int) -> None:
        while True:
            found = await requester.ask(PEEK, {"from-sequence-number": 0, "message-count": 200})
            if found.application_properties["statusCode"] == 204:
                return
            assert isinstance(found.value, dict)
            numbers = [
                decode_message(entry["message"]).message_annotations["x-opt-sequence-number"]
                for entry in found.value["messages"]
            ]
            given = await requester.ask(
                RECEIVE_DEFERRED, {"sequence-numbers": Array(int, numbers), "receiver-settle-mode": 1}
            )
            if given.application_properties["statusCode"] != 200:
                self.history.refuse(f"deferred messages: {given.application_properties}")
                return
            assert isinstance(given.value, dict)
            entries = given.value["messages"]
            outlet = Outlet("", Place.DEFERRED)
            ids = [self.saw(entry["message"], generation, "deferred", outlet) for entry in entries]
            for message_id in filter(None, ids):
                self.history.settling(message_id, Settlement.COMPLETE, generation)
            tokens = Array(type(entries[0]["lock-token"]), [entry["lock-token"] for entry in entries])
            done = await requester.ask(
                UPDATE_DISPOSITION, {"disposition-status": "completed", "lock-tokens": tokens}
            )
            if done.application_properties["statusCode"] != 200:
                self.history.refuse(f"completing deferred messages: {done.application_properties}")
                return
            for message_id in filter(None, ids):
                self.history.settled(message_id, Settlement.COMPLETE, generation)


class ForwardingLoad(Load):
    """From partitioned to unpartitioned and back, and dead letters on a way of their own (P-34)."""

    name = "forwarding"
    # The key is the key on both sides, and so is the order.
    queues: Final = {
        "out-plain": PLAIN,
        "out-parts": PARTS,
        "letters-out": PARTS,
        "in-parts": {**PARTS, "ForwardTo": "out-plain"},
        "in-plain": {**PLAIN, "ForwardTo": "out-parts"},
        "letters-in": {**PARTS, "ForwardDeadLetteredMessagesTo": "letters-out"},
    }
    outlets: Final = [
        Outlet("out-plain"),
        Outlet("out-parts"),
        Outlet("letters-in"),
        Outlet("letters-out", Place.FORWARDED),
    ]
    choices: Final[Choices] = {Settlement.COMPLETE: 40, Settlement.DEAD_LETTER: 55, None: 5}

    def clients(self) -> list[Coroutine[None, None, None]]:
        clients = []
        for number, queue in enumerate(("in-parts", "in-plain", "letters-in")):
            ids = numbered(queue)
            clients.append(self.keep_sending(number, queue, partial(self._send, queue, ids)))
        for number, outlet in enumerate(self.outlets, 10):
            choices = self.choices if outlet.address == "letters-in" else MOSTLY_COMPLETED
            clients.append(self.keep_receiving(number, outlet, choices))
        return clients

    def _send(self, queue: str, ids: Iterator[str], sender: Sender, choice: random.Random) -> None:
        message_id = next(ids)
        key = f"{queue}-{choice.randrange(KEYS_PER_SENDER)}" if choice.random() < 0.7 else None
        body = message_id.encode()
        self.history.attempt([message_id], key or f"no key, {message_id}", [body])
        self.post(sender, [message_id], encode(message_id, body, key=key))


class OnceLoad(Load):
    """Every message is sent again, for good reason or none, and comes once (P-15)."""

    name = "duplicates"
    queues: Final = {
        queue: {**kind, "RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT1H"}
        for queue, kind in (("once-parts", PARTS), ("once-plain", PLAIN))
    }
    outlets: Final = [Outlet(queue) for queue in queues]

    def clients(self) -> list[Coroutine[None, None, None]]:
        clients = []
        for number, queue in enumerate(self.queues):
            ids = numbered(queue)
            recent: deque[str] = deque(maxlen=40)
            clients.append(self.keep_sending(number, queue, partial(self._send, ids, recent)))
            clients.append(self.keep_receiving(number + 10, Outlet(queue), MOSTLY_COMPLETED))
        return clients

    def _send(self, ids: Iterator[str], recent: deque[str], sender: Sender, choice: random.Random) -> None:
        if recent and choice.random() < 0.5:
            message_id = choice.choice(recent)
        else:
            message_id = next(ids)
            recent.append(message_id)
            self.history.attempt([message_id], message_id, [message_id.encode()])
        self.post(sender, [message_id], encode(message_id, message_id.encode()))


class ScheduleLoad(Load):
    """Messages for the next seconds, sent or asked for, and some of these cancelled."""

    name = "scheduled"
    queues: Final = {"timed-parts": PARTS, "timed-plain": PLAIN}
    outlets: Final = [Outlet(queue) for queue in queues]
    # Longer than a server is away: some are due while nobody is there to see it.
    ahead_s: Final = 2.0
    cancelled: Final = 0.3

    def clients(self) -> list[Coroutine[None, None, None]]:
        clients = []
        for number, queue in enumerate(self.queues):
            ids = numbered(queue)
            clients.append(self.keep_sending(number, queue, partial(self._send, ids)))
            clients.append(self._keep_asking(number + 20, queue))
            clients.append(self.keep_receiving(number + 10, Outlet(queue), MOSTLY_COMPLETED))
        return clients

    def _send(self, ids: Iterator[str], sender: Sender, choice: random.Random) -> None:
        message_id = next(ids)
        self.post(sender, [message_id], self._attempt(message_id, choice))

    def _attempt(self, message_id: str, choice: random.Random) -> bytes:
        due = int((time.time() + choice.uniform(0.05, self.ahead_s)) * 1000) / 1000
        body = message_id.encode()
        self.history.attempt([message_id], message_id, [body], due=due)
        return encode(message_id, body, due=due)

    async def _keep_asking(self, number: int, queue: str) -> None:
        """Schedule through the management node, which gives a number to cancel by."""
        choice = self.choice(number)
        ids = numbered(f"{queue}-asked")
        while True:
            client, generation = await self.life.connect()
            with suppress(ConnectionLost, LinkRefused):
                requester = await client.requester(f"{queue}/$management")
                while True:
                    if self.crowded:
                        await asyncio.sleep(0.01)
                        continue
                    message_id = next(ids)
                    message = {"message-id": message_id, "message": self._attempt(message_id, choice)}
                    reply = await requester.ask(SCHEDULE, {"messages": [message]})
                    assert reply.application_properties["statusCode"] == 200, reply.application_properties
                    assert isinstance(reply.value, dict)
                    self.history.acknowledge([message_id])
                    if choice.random() < self.cancelled:
                        (sequence_number,) = reply.value["sequence-numbers"].values
                        await self._cancel(requester, message_id, sequence_number, generation)
            client.cut()

    async def _cancel(self, requester: Requester, message_id: str, number: int, generation: int) -> None:
        self.history.cancelling(message_id)
        reply = await requester.ask(CANCEL, {"sequence-numbers": Array(int, [number])})
        self.history.cancelled(message_id, generation, reply.application_properties["statusCode"] == 200)
