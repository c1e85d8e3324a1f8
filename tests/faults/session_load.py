"""A load on sessions: order within each, one holder at a time, and its state as last set (P-13)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

from bendybus.amqp.types import Symbol, UInt
from faults.history import Place, Seen, Settlement
from faults.load import LOCK, Choices, Client, Load, Outlet, encode, numbered
from fix_client import ConnectionLost, LinkRefused, Receiver, Requester, Sender

__all__ = ["SessionLoad"]

FILTER: Final = Symbol("com.microsoft:session-filter")
TIMEOUT: Final = Symbol("com.microsoft:timeout")
# How long to wait for a session that has messages; on this machine all that are free are found at once.
WAIT_MS: Final = UInt(300)

SESSIONS_PER_SENDER: Final = 4
TAKEN_AT_ONCE: Final = 30

# Nothing is abandoned or deferred, so that on one link numbers rise without an exception.
CHOICES: Final[Choices] = {Settlement.COMPLETE: 85, Settlement.DEAD_LETTER: 10, None: 5}


class SessionLoad(Load):
    name = "sessions"
    queues: Final = {
        "talk-parts": {**LOCK, "RequiresSession": True, "EnablePartitioning": True},
        "talk-plain": {**LOCK, "RequiresSession": True, "EnablePartitioning": False},
    }
    outlets: Final = [Outlet(f"{queue}/$DeadLetterQueue", Place.DEAD_LETTER) for queue in queues]

    def clients(self) -> list[Coroutine[None, None, None]]:
        numbers = count()
        clients: list[Coroutine[None, None, None]] = []
        for queue in self.queues:
            for _ in range(2):
                number = next(numbers)
                ids = numbered(f"{queue}-{number}")
                clients.append(self.keep_sending(number, queue, partial(self._send, queue, number, ids)))
                clients.append(self._keep_holding(next(numbers), queue))
        return clients

    def _send(
        self, queue: str, number: int, ids: Iterator[str], sender: Sender, choice: random.Random
    ) -> None:
        message_id = next(ids)
        session = f"{queue}-{number}-{choice.randrange(SESSIONS_PER_SENDER)}"
        body = message_id.encode()
        self.history.attempt([message_id], session, [body])
        self.post(sender, [message_id], encode(message_id, body, session=session))

    def deliver(self, seen: Seen) -> bool:
        if seen.place is Place.MAIN:
            return self.history.deliver_in_session(seen)
        return self.history.deliver(seen)

    async def _keep_holding(self, number: int, queue: str) -> None:
        choice = self.choice(number)
        while True:
            client, generation = await self.life.connect()
            with suppress(ConnectionLost):
                requester = await client.requester(f"{queue}/$management")
                for turn in count():
                    name = f"{self.name}-{number}-{turn}"
                    receiver = await self._next_session(client, queue, name)
                    if receiver is None:
                        continue
                    # Left, with what it was given and did not settle, while others wait for it.
                    with suppress(LinkRefused):
                        await self._work(receiver, requester, queue, generation, choice)
            client.cut()

    @staticmethod
    async def _next_session(client: Client, queue: str, name: str) -> Receiver | None:
        try:
            return await client.receiver(
                queue, name=name, filter={FILTER: None}, properties={TIMEOUT: WAIT_MS}
            )
        except LinkRefused:
            return None

    async def _work(
        self, receiver: Receiver, requester: Requester, queue: str, generation: int, choice: random.Random
    ) -> None:
        session_id = _session_of(receiver)
        found = await requester.ask("com.microsoft:get-session-state", {"session-id": session_id})
        assert found.application_properties["statusCode"] == 200, found.application_properties
        assert isinstance(found.value, dict)
        self.history.state_found(session_id, found.value["session-state"])
        deliveries = await receiver.drain(TAKEN_AT_ONCE)
        answers = self.deal_with(deliveries, receiver, Outlet(queue), generation, choice, CHOICES)
        if choice.random() < 0.5:
            state = f"{receiver.link.name} of {generation}".encode()
            self.history.setting_state(session_id, state)
            body = {"session-id": session_id, "session-state": state}
            reply = await requester.ask("com.microsoft:set-session-state", body)
            if reply.application_properties["statusCode"] == 200:
                self.history.state_set(session_id, state)
            else:
                self.history.refuse(f"the state of {session_id}: {reply.application_properties}")
        if answers:
            await asyncio.wait(answers)
        receiver.detach()
        await receiver.detached()

    async def empty(self, client: Client, generation: int) -> None:
        for queue in self.queues:
            requester = await client.requester(f"{queue}/$management")
            for turn in count():
                receiver = await self._next_session(client, queue, f"last-{queue}-{turn}")
                if receiver is None:
                    break
                session_id = _session_of(receiver)
                found = await requester.ask("com.microsoft:get-session-state", {"session-id": session_id})
                assert isinstance(found.value, dict)
                self.history.state_found(session_id, found.value["session-state"])
                await self._take_all(receiver, Outlet(queue), generation)
                receiver.detach()
                await receiver.detached()
        await super().empty(client, generation)


def _session_of(receiver: Receiver) -> str:
    """The server says in its attach which session it has locked."""
    remote = receiver.link.remote
    assert remote is not None and remote.source is not None and remote.source.filter is not None
    session_id = remote.source.filter[FILTER]
    assert isinstance(session_id, str)
    return session_id
