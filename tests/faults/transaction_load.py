"""A load of transactions: consume from one queue and produce into another, together or not at all (P-23).

Workers take from `work-…`, send through it to `done-…` (its outbox carries that over) and back to
`work-…` itself, complete what they took, and commit; some roll back. A commit that was not answered has
happened or not, which the messages at the end tell: never is one half of it there.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

from bendybus.amqp.message import decode_message
from bendybus.amqp.performatives import Accepted, TransactionalState
from bendybus.amqp.types import Symbol
from bendybus.engine.deliveries import Delivery
from faults.history import Settlement
from faults.load import LOCK, Choices, Load, Outlet, encode, numbered
from fix_client import ConnectionLost, Coordinator, LinkRefused, Receiver, Sender

__all__ = ["TransactionLoad"]

VIA: Final = Symbol("com.microsoft:transfer-destination-address")

ROUTES: Final = {"work-parts": "done-plain", "work-plain": "done-parts"}
# Each waits for five answers in turn, one transaction after the other.
WORKERS: Final = 6
ROLLED_BACK: Final = 0.15
# Messages that a transaction sends back to where it took one from: fewer than it takes, or there is no end.
SENT_BACK: Final = 0.3

CHOICES: Final[Choices] = {Settlement.COMPLETE: 95, None: 5}


class TransactionLoad(Load):
    name = "transactions"
    queues: Final = {
        queue: {**LOCK, "EnablePartitioning": queue.endswith("parts")}
        for queue in (*ROUTES.values(), *ROUTES)
    }
    outlets: Final = [Outlet(queue) for queue in queues]
    window = 4
    backlog_max = 100

    def clients(self) -> list[Coroutine[None, None, None]]:
        numbers = count()
        clients: list[Coroutine[None, None, None]] = []
        for work, done in ROUTES.items():
            number = next(numbers)
            ids = numbered(work)
            clients.append(self.keep_sending(number, work, partial(self._send, work, ids)))
            clients += [self._keep_working(next(numbers), work, done) for _ in range(WORKERS)]
            clients.append(self.keep_receiving(next(numbers), Outlet(done), CHOICES))
        return clients

    def _send(self, work: str, ids: Iterator[str], sender: Sender, choice: random.Random) -> None:
        message_id, key = next(ids), f"{work}-{choice.randrange(20)}"
        self.history.attempt([message_id], key, [message_id.encode()])
        self.post(sender, [message_id], encode(message_id, message_id.encode(), key=key))

    async def _keep_working(self, number: int, work: str, done: str) -> None:
        choice = self.choice(number)
        names = numbered(f"{work}-{number}-txn")
        while True:
            client, generation = await self.life.connect()
            with suppress(ConnectionLost, LinkRefused):
                receiver = await client.receiver(work, name=f"{self.name}-{number}", credit=2)
                back = await client.sender(work)
                via = await client.sender(work, properties={VIA: done})
                coordinator = await client.coordinator()
                while True:
                    for delivery in await receiver.receive_some():
                        message_id = self.saw(delivery.payload, generation, receiver, Outlet(work))
                        assert message_id is not None, "a stranger in a transaction's queue"
                        transaction = _Transaction(self, next(names), generation, choice)
                        await transaction.run(message_id, delivery, receiver, coordinator, back, via)
                    receiver.link.top_up(2)
                    client.flush()
            client.cut()


class _Transaction:
    def __init__(self, load: Load, name: str, generation: int, choice: random.Random) -> None:
        self._load = load
        self._history = load.history
        self._name = name
        self._generation = generation
        self._choice = choice

    async def run(
        self,
        message_id: str,
        delivery: Delivery,
        receiver: Receiver,
        coordinator: Coordinator,
        back: Sender,
        via: Sender,
    ) -> None:
        """Take this message, and put others in its place."""
        key = decode_message(delivery.payload).message_annotations["x-opt-partition-key"]
        assert isinstance(key, str)
        txn = await coordinator.declare()
        state = TransactionalState(txn)
        sent = [f"{self._name}-{index}" for index in range(self._choice.randrange(1, 4))]
        returned = [f"{self._name}-back"] if self._choice.random() < SENT_BACK else []
        ids = [*sent, *returned]
        # At the end of the way they have a key of their own; several workers share that on it.
        streams = [*([self._name] * len(sent)), *returned]
        self._history.attempt(ids, streams, [each.encode() for each in ids], group=self._name)
        payloads = [encode(each, each.encode(), key=self._name, via=key) for each in sent]
        outcomes = await via.send(*payloads, state=state)
        if returned:
            outcomes += await back.send(encode(returned[0], returned[0].encode(), key=key), state=state)
        outcomes += await receiver.settled_as([delivery], TransactionalState(txn, Accepted()))
        for outcome in outcomes:
            if not isinstance(outcome, TransactionalState) or not isinstance(outcome.outcome, Accepted):
                self._history.refuse(f"a part of {self._name} was answered with {outcome}")
        if self._choice.random() < ROLLED_BACK:
            await self._roll_back(ids, txn, coordinator)
        else:
            await self._commit(message_id, txn, coordinator)

    async def _commit(self, message_id: str, txn: bytes, coordinator: Coordinator) -> None:
        self._history.committing(self._name, message_id, self._generation)
        answer = await coordinator.commit(txn)
        if isinstance(answer, Accepted):
            self._history.committed(self._name, message_id, self._generation)
        else:
            self._history.refuse(f"the commit of {self._name} was answered with {answer}")

    async def _roll_back(self, ids: list[str], txn: bytes, coordinator: Coordinator) -> None:
        """What it took stays locked, and comes again after the next kill."""
        self._history.roll_back(ids)
        answer = await coordinator.roll_back(txn)
        if not isinstance(answer, Accepted):
            self._history.refuse(f"the rollback of {self._name} was answered with {answer}")
