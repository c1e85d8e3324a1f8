"""Peers that send: alone, and in transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bendybus.amqp.message import (
    BATCH_FORMAT,
    encode_message,
)
from bendybus.amqp.performatives import (
    Accepted,
    DeliveryState,
    TransactionalState,
)
from bendybus.engine.deliveries import Delivery
from faults.simulation.ledger import Batch, Letter
from faults.simulation.peer import (
    COMPLETE,
    KEYS,
    SESSIONS,
    Peer,
)
from faults.simulation.plan import COLOURS
from fix_client import Client, ConnectionLost, Receiver, Requester

if TYPE_CHECKING:
    from faults.simulation.play import Play


class SenderPeer(Peer):
    """Sends: one by one or many at once, with keys or sessions or without, for now or for later."""

    def __init__(self, simulation: Play, name: str, entity: str) -> None:
        super().__init__(simulation, name, entity)
        self._repeatable: list[tuple[bytes, list[Letter]]] = []
        """What was sent where duplicates are dropped."""

    async def work(self, client: Client) -> None:
        sender = await client.sender(self.entity)
        requester: Requester | None = None
        for _ in range(self.random.randint(3, 30)):
            if self.simulation.over:
                return
            if self.chance(0.08):
                requester = requester or await client.requester(f"{self.entity}/$management")
                await self._schedule(requester)
            else:
                await sender.credit()
                answers = [self._post(sender.post) for _ in range(self.random.choice((1, 1, 1, 3)))]
                if self._repeatable and self.chance(0.4):
                    answers.append(self._repeat(sender.post))
                client.flush()
                if self.chance(0.7):
                    await asyncio.wait(answers)
            await self.pause(0.6)
            if client.lost:
                return

    def _post(
        self, post: Callable[..., asyncio.Future[DeliveryState | None]]
    ) -> asyncio.Future[DeliveryState | None]:
        colour = self.random.choice(COLOURS)
        how, stream = self._how()
        # Where duplicates are looked for, a batch needs a key.
        batch = self.chance(0.15) and (
            stream is not None or not (how or self.simulation.detects(self.entity))
        )
        ids = self.new_ids(self.random.randint(2, 5) if batch else 1)
        letters = self.ledger.attempt(
            ids, colour, stream=stream, ttl_s=how.get("ttl_s"), scheduled="due_in_s" in how
        )
        payloads = [self.encode(message_id, colour, **how) for message_id in ids]
        if len(ids) > 1:
            answer = post(encode_message(data=payloads), message_format=BATCH_FORMAT)
        else:
            answer = post(payloads[0])
        answer.add_done_callback(partial(self._answered, letters))
        if self.simulation.detects(self.entity) and len(ids) == 1:
            self._repeatable.append((payloads[0], letters))
        return answer

    def _repeat(
        self, post: Callable[..., asyncio.Future[DeliveryState | None]]
    ) -> asyncio.Future[DeliveryState | None]:
        """The same message once more, perhaps long after it was settled, or in another life of the server."""
        payload, letters = self.random.choice(self._repeatable)
        answer = post(payload)
        answer.add_done_callback(partial(self._answered, letters))
        return answer

    def _how(self) -> tuple[dict[str, Any], str | None]:
        """What a message has, and the stream in which it keeps its place."""
        if self.entity == "sess":
            session = f"s{self.random.randrange(SESSIONS)}"
            return {"session": session}, f"{self.name}/{session}"
        chosen = self.random.random()
        if chosen < 0.5:
            key = f"k{self.random.randrange(KEYS)}"
            return {"key": key}, f"{self.name}/{key}"
        if chosen < 0.6:
            return {"due_in_s": self.random.uniform(0.5, 20)}, None
        if chosen < 0.7 and self.entity in ("parts", "plain"):
            return {"ttl_s": self.random.randint(1, 15)}, None
        return {}, None

    def _answered(self, letters: Sequence[Letter], answer: asyncio.Future[DeliveryState | None]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        if isinstance(answer.result(), Accepted):
            self.ledger.accept(letters)
        else:
            self._refused(answer.result())

    async def _schedule(self, requester: Requester) -> None:
        colour, ids = self.random.choice(COLOURS), self.new_ids()
        session = f"s{self.random.randrange(SESSIONS)}" if self.entity == "sess" else None
        letters = self.ledger.attempt(ids, colour, scheduled=True)
        payload = self.encode(ids[0], colour, session=session, due_in_s=self.random.uniform(2, 30))
        answer = await requester.ask(
            "com.microsoft:schedule-message", {"messages": [{"message-id": ids[0], "message": payload}]}
        )
        status = answer.application_properties["statusCode"]
        if status != 200:
            self.simulation.refused(
                str(answer.application_properties.get("errorCondition")), f"schedule: {answer}"
            )
            return
        self.ledger.accept(letters)
        assert isinstance(answer.value, dict)
        if self.chance(0.4):
            for letter in letters:
                self.ledger.ask_removal(letter, requester)
            numbers = answer.value["sequence-numbers"]
            cancelled = await requester.ask(
                "com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers}
            )
            if cancelled.application_properties["statusCode"] == 200:
                for letter in letters:
                    self.ledger.remove(letter, requester)


class TransactorPeer(Peer):
    """Receives, sends and completes in transactions; commits, rolls back or just goes."""

    async def work(self, client: Client) -> None:
        session = await client.begin()
        coordinator = await client.coordinator(session)
        sender = await client.sender(self.entity, session)
        onward = await client.sender("landing", session)
        receiver = await client.receiver(self.entity, session)
        inbox: list[tuple[Letter, Delivery]] = []
        self.watch(receiver, self.entity, inbox)
        try:
            receiver.grant(4)
            for _ in range(self.random.randint(2, 6)):
                await self.pause(1)
                if self.simulation.over or client.lost or receiver.is_gone:
                    return
                receiver.waiting.clear()
                taken, inbox[:] = list(inbox), []
                await self._transact(coordinator, sender, onward, receiver, taken)
                receiver.link.top_up(4)
                client.flush()
        finally:
            self.ledger.given_up(receiver)

    async def _transact(
        self,
        coordinator: Any,
        sender: Any,
        onward: Any,
        receiver: Receiver,
        taken: list[tuple[Letter, Delivery]],
    ) -> None:
        txn_id = await coordinator.declare()
        batch = Batch(f"transaction {self.name}/{next(self._numbers)}")
        self.ledger.begin(batch)
        # All of it in one partition: what was received says which, else one key for all.
        number = taken[0][1].tag[:2] if taken else None
        chosen = [each for each in taken if each[1].tag[:2] == number][: self.random.randint(0, 2)]
        rest = [each for each in taken if each not in chosen]
        key = (
            self.simulation.key_for(self.entity, int.from_bytes(number, "big")) if chosen and number else "k0"
        )
        answers = []
        for link, group in ((sender, self.entity), (onward, "via")):
            for _ in range(self.random.randint(0, 2)):
                ids = self.new_ids(group=group)
                self.ledger.attempt(ids, "red", batch=batch)
                payload = self.encode(ids[0], "red", key=key)
                await link.credit()
                answers.append(link.post(payload, state=TransactionalState(txn_id)))
        for letter, delivery in chosen:
            batch.removed.append(letter)
            answers += receiver.settle([delivery], TransactionalState(txn_id, Accepted()))
        for letter, delivery in rest:
            self.settle(receiver, letter, delivery, COMPLETE, self.entity)
        receiver.client.flush()
        if answers:
            await asyncio.wait(answers)
        await self._discharge(coordinator, txn_id, batch, answers)

    async def _discharge(self, coordinator: Any, txn_id: bytes, batch: Batch, answers: list[Any]) -> None:
        chosen = self.random.random()
        if chosen < 0.15:
            raise ConnectionLost
        if chosen < 0.35:
            await coordinator.roll_back(txn_id)
            return
        batch.allowed = True
        for letter in batch.removed:
            self.ledger.ask_removal(letter, batch, self.entity)
        outcome = await coordinator.commit(txn_id)
        if isinstance(outcome, Accepted):
            self.ledger.accept(batch.sent)
            for letter in batch.removed:
                self.ledger.remove(letter, batch)
        else:
            self._refused(outcome)
