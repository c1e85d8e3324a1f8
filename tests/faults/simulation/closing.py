"""The end of a simulation: one client looks at everything, takes everything, and nothing may be left.

By then all disks are good, the server has just started, and nobody else is there.
What can be peeked is what the broker counts; what is peeked can be received.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bendybus.amqp.message import decode_message
from bendybus.amqp.performatives import Accepted
from bendybus.amqp.types import Array, Symbol
from bendybus.broker.queue import Queue
from bendybus.domain.messages import MessageState, SubQueue
from bendybus.engine.deliveries import Delivery
from faults.simulation.ledger import Invariant, Letter
from faults.simulation.peer import SESSION_FILTER, arrival_of
from fix_client import Client, LinkRefused, Receiver, Requester

if TYPE_CHECKING:
    from faults.simulation.play import Play

__all__ = ["empty_everything"]

# Scheduled messages come due meanwhile, and forwarded ones arrive.
ROUNDS = 8
ROUND_S = 10.0

# Kept messages are forgotten with the ticks of a partition, at most once a second; the clock may be set back.
FORGOTTEN_WITHIN_S = 10.0
# Whoever puts messages back can be late by so much.
REPLAY_MS = 2_000

# A count and a peek of the same moment say the same; it may take a few to have one.
ATTEMPTS = 5

SUFFIXES = {
    SubQueue.MAIN: "",
    SubQueue.DEAD_LETTER: "/$DeadLetterQueue",
    SubQueue.TRANSFER_DEAD_LETTER: "/$Transfer/$DeadLetterQueue",
}


async def empty_everything(simulation: Play) -> None:
    client = await Client.connect(simulation.endpoint(simulation.world.random))
    last = _Last(simulation, client)
    await last.count_everything()
    replayed = not any(each.keep_completed_s for each in simulation.plan.sources)
    for _ in range(ROUNDS):
        await last.take_everything()
        if not last.anything_to_take():
            if replayed:
                break
            replayed = True
            await last.replay_everything()
        await asyncio.sleep(ROUND_S)
    await _until_forgotten(simulation)
    simulation.ledger.close()
    client.cut()


async def _until_forgotten(simulation: Play) -> None:
    """Kept messages are gone when their time is over."""
    ledger, world = simulation.ledger, simulation.world
    left = ledger.keeping.left_over(ledger.letters)
    ends_ms = max((ledger.keeping.ends_ms(spot) for spot in left), default=world.wall_ms)
    await asyncio.sleep(max(0, ends_ms - world.wall_ms) / 1000 + (FORGOTTEN_WITHIN_S if left else 0.0))


def _count(queue: Queue, subqueue: SubQueue) -> int:
    counts = [host.partition.counts(subqueue) for host in queue.hosts if host.partition is not None]
    return sum(each.active + each.deferred + each.scheduled for each in counts)


class _Last:
    def __init__(self, simulation: Play, client: Client) -> None:
        self._simulation = simulation
        self._ledger = simulation.ledger
        self._client = client
        self._requesters: dict[str, Requester] = {}

    def _sources(self) -> list[tuple[str, bool]]:
        broker = self._simulation.server.broker
        assert broker is not None, "nothing goes wrong any more"
        return [(each.path, each.description.requires_session) for each in broker.entities.sources()]

    async def _requester(self, address: str) -> Requester:
        if address not in self._requesters:
            self._requesters[address] = await self._client.requester(f"{address}/$management")
        return self._requesters[address]

    async def count_everything(self) -> None:
        """What a client finds by browsing is what stands on disk, and what the broker says it has."""
        broker = self._simulation.server.broker
        assert broker is not None
        for source in tuple(broker.entities.sources()):
            for subqueue, suffix in (*SUFFIXES.items(), (SubQueue.COMPLETED, "/$completed")):
                await self._count(source, subqueue, f"{source.path}{suffix}")

    async def _count(self, source: Queue, subqueue: SubQueue, address: str) -> None:
        """More than once if need be: forwarding goes on, and what comes due is nowhere for a moment."""
        for _ in range(ATTEMPTS):
            told, found = _count(source, subqueue), len(await self._peek_all(address))
            if found in (told, _count(source, subqueue)):
                return
            await asyncio.sleep(1)
        self._ledger.violate(Invariant.MISCOUNTED, f"{address}: {told} counted, {found} peeked")

    async def _peek_all(self, address: str) -> list[tuple[int, int]]:
        """Sequence number and state of everything there."""
        requester = await self._requester(address)
        found: list[tuple[int, int]] = []
        start = 0
        while True:
            page = await requester.ask(
                "com.microsoft:peek-message", {"from-sequence-number": start, "message-count": 100}
            )
            if page.application_properties["statusCode"] != 200:
                return found
            assert isinstance(page.value, dict)
            for entry in page.value["messages"]:
                annotations = decode_message(entry["message"]).message_annotations
                number, state = (
                    annotations["x-opt-sequence-number"],
                    annotations.get("x-opt-message-state", 0),
                )
                assert isinstance(number, int) and isinstance(state, int)
                found.append((number, state))
            start = found[-1][0] + 1

    # -- putting back ------------------------------------------------------------------

    async def replay_everything(self) -> None:
        """All that is kept, and will be for a while, can be had again."""
        keeping, world = self._ledger.keeping, self._simulation.world
        for entity in [each.path for each in self._simulation.plan.sources if each.keep_completed_s]:
            kept = [each for each in keeping.left_over(self._ledger.letters) if each.entity == entity]
            requester = await self._requester(entity)
            replay = keeping.ask(entity, lambda letter: True)
            answer = await requester.ask("bendybus:replay", {})
            assert answer.application_properties["statusCode"] == 200, f"{entity}: {answer}"
            assert isinstance(answer.value, dict)
            count = answer.value["count"]
            assert isinstance(count, int)
            self._ledger.answer_replay(replay, count, unavailable=0)
            due = [each for each in kept if keeping.ends_ms(each) > world.wall_ms + REPLAY_MS]
            if count < len(due):
                self._ledger.violate(Invariant.STUCK, f"{entity}: {len(due)} kept, {count} put back")

    # -- taking ------------------------------------------------------------------------

    def anything_to_take(self) -> bool:
        ledger = self._ledger
        spots = (spot for letter in ledger.letters.values() for spot in letter.spots.values())
        return any(spot.subqueue is not SubQueue.COMPLETED for spot in spots)

    async def take_everything(self) -> None:
        for path, requires_session in self._sources():
            for suffix in SUFFIXES.values():
                if requires_session and not suffix:
                    await self._take_sessions(path)
                elif not self._forwards(path) or suffix:
                    await self._take(f"{path}{suffix}", await self._client.receiver(f"{path}{suffix}"))
                if not (requires_session and not suffix):
                    await self._take_deferred(f"{path}{suffix}")

    def _forwards(self, path: str) -> bool:
        broker = self._simulation.server.broker
        assert broker is not None
        return broker.find(path).description.forward_to is not None

    async def _take(self, address: str, receiver: Receiver) -> None:
        while deliveries := await receiver.drain(100):
            letters: list[tuple[Letter, Delivery]] = []
            for delivery in deliveries:
                message = decode_message(delivery.payload)
                letter = self._ledger.arrive(arrival_of(message, address, receiver, in_order=True))
                if letter is not None:
                    self._ledger.ask_removal(letter, delivery, address)
                    letters.append((letter, delivery))
            outcomes = await receiver.settled_as([delivery for _, delivery in letters])
            for (letter, delivery), outcome in zip(letters, outcomes, strict=True):
                if isinstance(outcome, Accepted):
                    self._ledger.remove(letter, delivery)
                else:
                    self._ledger.violate(Invariant.STUCK, f"{letter} cannot be completed: {outcome}")
        receiver.detach()
        self._ledger.given_up(receiver)

    async def _take_sessions(self, path: str) -> None:
        while True:
            session = await self._client.begin()
            receiver = self._client.attach_receiver(
                path,
                session,
                filter={Symbol(SESSION_FILTER): None},
                properties={Symbol("com.microsoft:timeout"): 1000},
            )
            try:
                await receiver.attached()
            except LinkRefused:
                break
            await self._take(path, receiver)
        await self._take_deferred_of_sessions(path)

    async def _take_deferred_of_sessions(self, path: str) -> None:
        for number in range(5):
            session = await self._client.begin()
            receiver = self._client.attach_receiver(
                path,
                session,
                filter={Symbol(SESSION_FILTER): f"s{number}"},
            )
            await receiver.attached()
            await self._take_deferred(path, f"s{number}")
            receiver.detach()

    async def _take_deferred(self, address: str, session_id: str | None = None) -> None:
        requester = await self._requester(address)
        deferred = [
            number for number, state in await self._peek_all(address) if state == MessageState.DEFERRED
        ]
        for number in deferred:
            named = {} if session_id is None else {"session-id": session_id}
            given = await requester.ask(
                "com.microsoft:receive-by-sequence-number",
                {"sequence-numbers": Array(int, [number]), "receiver-settle-mode": 1, **named},
            )
            if given.application_properties["statusCode"] != 200:
                continue
            assert isinstance(given.value, dict)
            (entry,) = given.value["messages"]
            message = decode_message(entry["message"])
            letter = self._ledger.arrive(arrival_of(message, address, requester, MessageState.DEFERRED))
            if letter is None:
                continue
            token = entry["lock-token"]
            self._ledger.ask_removal(letter, token, address)
            done = await requester.ask(
                "com.microsoft:update-disposition",
                {"disposition-status": "completed", "lock-tokens": Array(type(token), [token]), **named},
            )
            if done.application_properties["statusCode"] == 200:
                self._ledger.remove(letter, token)
