"""Peers that receive, hold sessions, and look without taking."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bendybus.amqp.message import (
    decode_message,
)
from bendybus.amqp.performatives import (
    DeliveryState,
)
from bendybus.amqp.types import Array, Symbol
from bendybus.domain.messages import MessageState
from bendybus.engine.deliveries import Delivery
from faults.simulation.ledger import Invariant, Letter
from faults.simulation.peer import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    SESSION_FILTER,
    SESSIONS,
    Peer,
    arrival_of,
)
from fix_client import Client, Receiver, Requester

if TYPE_CHECKING:
    pass


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

    async def _peek(self, requester: Requester) -> dict[int, Letter | None]:
        """What is deferred, by its number."""
        found = await requester.ask(
            "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 100}
        )
        if found.application_properties["statusCode"] != 200:
            return {}
        deferred: dict[int, Letter | None] = {}
        last = 0
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
                deferred[number] = letter
        return deferred

    async def _take(self, requester: Requester, deferred: dict[int, Letter | None]) -> None:
        chosen = self.random.sample(list(deferred), min(len(deferred), 3))
        for number in chosen:
            # Locked from now on, though we may never hear so: the lock's end counts as a failed delivery.
            if (letter := deferred[number]) is not None:
                letter.settled_as, letter.asked_by = None, requester
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
                self.ledger.ask_removal(letter, entry["lock-token"], self.entity)
            letter.held_by = letter.settled_as = None
            token, life = entry["lock-token"], letter.life
            done = await requester.ask(
                "com.microsoft:update-disposition",
                {
                    "disposition-status": "completed" if completes else "abandoned",
                    "lock-tokens": Array(type(token), [token]),
                },
            )
            if done.application_properties["statusCode"] == 200:
                if completes:
                    self.ledger.remove(letter, token)
                elif letter.life == life:
                    self.ledger.settle(letter, None, self.entity, requester)
