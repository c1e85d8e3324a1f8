"""The peers: clients that send, receive, settle, look and leave, as their dice say.

Each tells the ledger what it is about to ask and what was answered. A peer whose
connection or link goes begins anew, with what it does not know left open. They
speak AMQP with the broker's own engine, as fix_client.py does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from bendybus.amqp.message import (
    BATCH_FORMAT,
    DecodedMessage,
    Header,
    Properties,
    decode_message,
    encode_message,
)
from bendybus.amqp.performatives import (
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    TransactionalState,
)
from bendybus.amqp.types import Array, Symbol, Timestamp
from bendybus.domain.entities import split_subqueue
from bendybus.domain.messages import MessageState, SubQueue
from bendybus.engine.deliveries import Delivery
from bendybus.errors import BrokerError, ProtocolError
from faults.simulation.ledger import Arrival, Batch, Invariant, Letter, body_of
from faults.simulation.plan import COLOURS
from faults.simulation.server import ENDPOINT, ServerGone
from fix_client import Client, ConnectionLost, LinkRefused, Receiver, Requester

if TYPE_CHECKING:
    from faults.simulation.simulation import Simulation

__all__ = ["PEERS", "Peer", "arrival_of"]

# Whatever comes of these is left open.
GONE = (ConnectionLost, LinkRefused, ProtocolError, TimeoutError, OSError, ServerGone)

COMPLETE = Accepted()
ABANDON = Modified(delivery_failed=True)
DEFER = Modified(undeliverable_here=True)
DEAD_LETTER = Rejected(Error("com.microsoft:dead-letter", None, {"DeadLetterReason": "chosen"}))
SESSION_FILTER = "com.microsoft:session-filter"

KEYS = 4
SESSIONS = 5


def arrival_of(
    message: DecodedMessage,
    address: str,
    link: object,
    state: MessageState = MessageState.ACTIVE,
    *,
    in_order: bool = False,
) -> Arrival:
    annotations = message.message_annotations
    entity, subqueue = split_subqueue(address)
    locked_until = annotations.get("x-opt-locked-until")
    return Arrival(
        id=str(message.properties.message_id),
        body=b"".join(message.data),
        entity=entity,
        subqueue=subqueue,
        state=state,
        sequence_number=annotations["x-opt-sequence-number"],
        delivery_count=message.header.delivery_count or 0,
        locked_until_ms=None if locked_until is None else int(locked_until),
        link=link,
        in_order=in_order,
    )


class Peer:
    """One client, which comes back as often as it is sent away."""

    def __init__(self, simulation: Simulation, name: str, entity: str) -> None:
        self.simulation = simulation
        self.name = name
        self.entity = entity
        self.ledger = simulation.ledger
        self.random = random.Random(f"{simulation.world.seed}-{name}")
        self._numbers = count()
        self._links: list[Receiver] = []
        """On which messages may have been lent to it."""

    async def live(self) -> None:
        while not self.simulation.over:
            client: Client | None = None
            try:
                client = await Client.connect(ENDPOINT)
                self._heed_the_end(client)
                await self.work(client)
            except GONE:
                pass
            finally:
                if client is not None:
                    client.cut()
            await self.pause(0.5)

    async def work(self, client: Client) -> None:
        raise NotImplementedError

    def _heed_the_end(self, client: Client) -> None:
        """What this client held may be another's as soon as its connection is gone."""
        lost = client.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            lost(exc)
            for link in self._links:
                self.ledger.given_up(link)
            self._links.clear()

        client.connection_lost = connection_lost

    async def pause(self, around_s: float) -> None:
        await asyncio.sleep(self.random.expovariate(1 / around_s))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    # -- sending ---------------------------------------------------------------------

    def new_ids(self, how_many: int = 1, group: str | None = None) -> list[str]:
        return [f"{group or self.entity}:{self.name}-{next(self._numbers)}" for _ in range(how_many)]

    def encode(
        self,
        message_id: str,
        colour: str,
        *,
        key: str | None = None,
        session: str | None = None,
        due_in_s: float | None = None,
        ttl_s: float | None = None,
    ) -> bytes:
        annotations: dict[str, object] = {}
        if key is not None:
            annotations["x-opt-partition-key"] = key
        if due_in_s is not None:
            due = self.simulation.world.wall_ms + int(due_in_s * 1000)
            annotations["x-opt-scheduled-enqueue-time"] = Timestamp(due)
        return encode_message(
            header=None if ttl_s is None else Header(ttl=int(ttl_s * 1000)),
            message_annotations=annotations or None,
            properties=Properties(message_id=message_id, group_id=session),
            application_properties={"colour": colour},
            data=body_of(message_id),
        )

    # -- receiving -------------------------------------------------------------------

    def watch(
        self,
        receiver: Receiver,
        address: str,
        inbox: list[tuple[Letter, Delivery]],
        *,
        in_order: bool = False,
    ) -> None:
        """Tell the ledger of everything at the moment it arrives."""
        take = receiver.arrived
        self._links.append(receiver)

        def arrived(deliveries: Sequence[Delivery]) -> None:
            for delivery in deliveries:
                message = decode_message(delivery.payload)
                letter = self.ledger.arrive(arrival_of(message, address, receiver, in_order=in_order))
                if letter is not None:
                    inbox.append((letter, delivery))
            take(deliveries)

        receiver.arrived = arrived

    def settle(
        self, receiver: Receiver, letter: Letter, delivery: Delivery, outcome: DeliveryState, entity: str
    ) -> asyncio.Future[DeliveryState | None]:
        if outcome is COMPLETE:
            self.ledger.ask_removal(letter, delivery)
        letter.settled_as = None
        # From now on another may get it, though we have not heard so yet.
        letter.held_by = None
        (answer,) = receiver.settle([delivery], outcome)
        answer.add_done_callback(partial(self._settled, letter, outcome, entity))
        return answer

    def _settled(
        self, letter: Letter, asked: DeliveryState, entity: str, answer: asyncio.Future[DeliveryState | None]
    ) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        outcome = answer.result()
        if type(outcome) is not type(asked) or getattr(outcome, "error", None) is not None:
            self._refused(outcome)
        elif asked is COMPLETE:
            self.ledger.remove(letter)
        elif asked is ABANDON:
            self.ledger.settle(letter, None, entity)
        elif asked is DEFER:
            self.ledger.settle(letter, MessageState.DEFERRED, entity)
        elif asked is DEAD_LETTER:
            self.ledger.settle(letter, SubQueue.DEAD_LETTER, entity)

    def _refused(self, outcome: DeliveryState | None) -> None:
        error = getattr(outcome, "error", None)
        condition = None if error is None else str(error.condition)
        self.simulation.refused(condition, f"{self.name}: {outcome}")


class SenderPeer(Peer):
    """Sends: one by one or many at once, with keys or sessions or without, for now or for later."""

    def __init__(self, simulation: Simulation, name: str, entity: str) -> None:
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
                    self.ledger.remove(letter)


class ReceiverPeer(Peer):
    """Receives from an entity or its dead letters, and settles in every way."""

    async def work(self, client: Client) -> None:
        dead = self.chance(0.2) and self.simulation.keeps_dead_letters(self.entity)
        address = f"{self.entity}/$DeadLetterQueue" if dead else self.entity
        receiver = await client.receiver(address)
        inbox: list[tuple[Letter, Delivery]] = []
        self.watch(receiver, address, inbox)
        try:
            receiver.grant(self.random.randint(1, 10))
            for _ in range(self.random.randint(3, 20)):
                await self.pause(0.8)
                if self.simulation.over or client.lost or receiver.is_gone:
                    return
                taken, inbox[:] = list(inbox), []
                receiver.waiting.clear()
                answers = [self._choose(receiver, *each, dead=dead) for each in taken]
                waited = [answer for answer in answers if answer is not None]
                if waited and self.chance(0.7):
                    await asyncio.wait(waited)
                receiver.link.top_up(self.random.randint(1, 10))
                client.flush()
        finally:
            self.ledger.given_up(receiver)

    def _choose(
        self, receiver: Receiver, letter: Letter, delivery: Delivery, *, dead: bool
    ) -> asyncio.Future[DeliveryState | None] | None:
        outcomes = (COMPLETE, COMPLETE, COMPLETE, ABANDON, None) + (() if dead else (DEFER, DEAD_LETTER))
        outcome = self.random.choice(outcomes)
        if outcome is None:
            return None
        return self.settle(receiver, letter, delivery, outcome, self.entity)


class HolderPeer(Peer):
    """Holds sessions: receives in order, keeps a state, renews, and lets go."""

    async def work(self, client: Client) -> None:
        named = f"s{self.random.randrange(SESSIONS)}" if self.chance(0.3) else None
        session = await client.begin()
        receiver = client.attach_receiver(
            self.entity,
            session,
            filter={Symbol(SESSION_FILTER): named},
            properties={Symbol("com.microsoft:timeout"): 5000},
        )
        inbox: list[tuple[Letter, Delivery]] = []
        self.watch(receiver, self.entity, inbox, in_order=True)
        await receiver.attached()
        remote = receiver.link.remote
        assert remote is not None and remote.source is not None
        held = remote.source.filter[SESSION_FILTER]  # type: ignore[index,union-attr]
        requester = await client.requester(f"{self.entity}/$management")
        try:
            receiver.grant(self.random.randint(1, 10))
            for _ in range(self.random.randint(2, 8)):
                await self.pause(0.5)
                if self.simulation.over or client.lost or receiver.is_gone:
                    return
                taken, inbox[:] = list(inbox), []
                receiver.waiting.clear()
                for letter, delivery in taken:
                    outcome = self.random.choice((COMPLETE, COMPLETE, COMPLETE, ABANDON, DEFER, DEAD_LETTER))
                    self.settle(receiver, letter, delivery, outcome, self.entity)
                await self._state(requester, str(held))
                if self.chance(0.3):
                    await requester.ask("com.microsoft:renew-session-lock", {"session-id": held})
                receiver.link.top_up(self.random.randint(1, 10))
                client.flush()
        finally:
            self.ledger.given_up(receiver)

    async def _state(self, requester: Requester, session_id: str) -> None:
        states = self.simulation.states
        if self.chance(0.5):
            got = await requester.ask("com.microsoft:get-session-state", {"session-id": session_id})
            if got.application_properties["statusCode"] == 200:
                assert isinstance(got.value, dict)
                states.got(session_id, got.value.get("session-state"))
        else:
            state = None if self.chance(0.2) else f"{self.name}/{next(self._numbers)}".encode()
            states.ask(session_id, state)
            done = await requester.ask(
                "com.microsoft:set-session-state", {"session-id": session_id, "session-state": state}
            )
            if done.application_properties["statusCode"] == 200:
                states.answered(session_id, state)


class LookerPeer(Peer):
    """Browses, and takes up what was deferred."""

    async def work(self, client: Client) -> None:
        requester = await client.requester(f"{self.entity}/$management")
        for _ in range(self.random.randint(2, 8)):
            await self.pause(2)
            if self.simulation.over or client.lost:
                return
            deferred = await self._peek(requester)
            if deferred and self.entity != "sess":
                await self._take(requester, deferred)

    async def _peek(self, requester: Requester) -> list[int]:
        found = await requester.ask(
            "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 100}
        )
        if found.application_properties["statusCode"] != 200:
            return []
        deferred, last = [], 0
        assert isinstance(found.value, dict)
        for entry in found.value["messages"]:
            message = decode_message(entry["message"])
            number = message.message_annotations["x-opt-sequence-number"]
            assert isinstance(number, int)
            letter = self.ledger.find(str(message.properties.message_id), self.entity)
            if letter is not None and not letter.scheduled:
                if number <= last:
                    self.ledger.violate(Invariant.DISORDERED, f"peek finds {number:#x} after {last:#x}")
                last = number
            if message.message_annotations.get("x-opt-message-state") == MessageState.DEFERRED:
                deferred.append(number)
        return deferred

    async def _take(self, requester: Requester, numbers: list[int]) -> None:
        chosen = self.random.sample(numbers, min(len(numbers), 3))
        given = await requester.ask(
            "com.microsoft:receive-by-sequence-number",
            {"sequence-numbers": Array(int, chosen), "receiver-settle-mode": 1},
        )
        if given.application_properties["statusCode"] != 200:
            return
        assert isinstance(given.value, dict)
        for entry in given.value["messages"]:
            message = decode_message(entry["message"])
            letter = self.ledger.arrive(arrival_of(message, self.entity, requester, MessageState.DEFERRED))
            if letter is None:
                continue
            completes = self.chance(0.6)
            if completes:
                self.ledger.ask_removal(letter, entry["lock-token"])
            letter.held_by = letter.settled_as = None
            token = entry["lock-token"]
            done = await requester.ask(
                "com.microsoft:update-disposition",
                {
                    "disposition-status": "completed" if completes else "abandoned",
                    "lock-tokens": Array(type(token), [token]),
                },
            )
            if done.application_properties["statusCode"] == 200:
                if completes:
                    self.ledger.remove(letter)
                else:
                    self.ledger.settle(letter, None, self.entity)


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
            self.ledger.ask_removal(letter, batch)
        outcome = await coordinator.commit(txn_id)
        if isinstance(outcome, Accepted):
            self.ledger.accept(batch.sent)
            for letter in batch.removed:
                self.ledger.remove(letter)
        else:
            self._refused(outcome)


class ManagerPeer(Peer):
    """Makes a queue, uses it, changes it and deletes it again."""

    async def work(self, client: Client) -> None:
        server = self.simulation.server
        with suppress(BrokerError):
            await server.ask(lambda broker: broker.queues.create(self.simulation.passing(10)))
        with suppress(LinkRefused):
            sender = await client.sender(self.entity)
            for _ in range(self.random.randint(1, 4)):
                ids = self.new_ids()
                letters = self.ledger.attempt(ids, "red")
                (outcome,) = await sender.send(self.encode(ids[0], "red"))
                if isinstance(outcome, Accepted):
                    self.ledger.accept(letters)
        with suppress(BrokerError):
            await server.ask(lambda broker: broker.queues.update(self.simulation.passing(20)))
        with suppress(LinkRefused):
            await self._take_and_forget(client)
        await self.pause(2)
        if self.chance(0.6):
            with suppress(BrokerError):
                await server.ask(lambda broker: broker.queues.delete(self.entity))
                if self.simulation.catalog.holds(self.entity):
                    self.ledger.violate(Invariant.FAULTY, f"'{self.entity}' was deleted and is there")

    async def _take_and_forget(self, client: Client) -> None:
        """Receive and delete: what is under way when the connection goes is nobody's."""
        receiver = await client.receiver(self.entity, deletes=True)
        for delivery in await receiver.drain(5):
            self.ledger.arrive(arrival_of(decode_message(delivery.payload), self.entity, receiver))


class ChangerPeer(Peer):
    """Adds and removes rules of a subscription."""

    async def work(self, client: Client) -> None:
        requester = await client.requester(f"{self.entity}/$management")
        for _ in range(self.random.randint(1, 5)):
            await self.pause(3)
            if self.simulation.over or client.lost:
                return
            name = f"rule-{self.random.randrange(2)}"
            colour = self.random.choice(COLOURS)
            if self.chance(0.5):
                rule = {"sql-filter": {"expression": f"colour = '{colour}'"}}
                await requester.ask("com.microsoft:add-rule", {"rule-name": name, "rule-description": rule})
            else:
                await requester.ask("com.microsoft:remove-rule", {"rule-name": name})


PEERS: dict[str, Callable[[Any, str, str], Peer]] = {
    "sender": SenderPeer,
    "receiver": ReceiverPeer,
    "holder": HolderPeer,
    "looker": LookerPeer,
    "transactor": TransactorPeer,
    "manager": ManagerPeer,
    "changer": ChangerPeer,
}
