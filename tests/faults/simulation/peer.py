"""One peer: a connection that begins again when it is lost, and what it tells the ledger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from bendybus.amqp.message import (
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
)
from bendybus.amqp.types import Timestamp
from bendybus.domain.entities import split_subqueue
from bendybus.domain.messages import MessageState, SubQueue
from bendybus.engine.deliveries import Delivery
from bendybus.errors import ProtocolError
from faults.simulation.ledger import Arrival, Letter, body_of
from faults.simulation.server import ServerGone
from fix_client import Client, ConnectionLost, LinkRefused, Receiver

if TYPE_CHECKING:
    from faults.simulation.play import Play

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

    def __init__(self, simulation: Play, name: str, entity: str) -> None:
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
                client = await Client.connect(self.simulation.endpoint(self.random))
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
            self.ledger.ask_removal(letter, delivery, entity)
        world = self.simulation.world
        asked = letter.life, world.wall_ms, world.now
        letter.settled_as, letter.asked_by = None, delivery
        # From now on another may get it, though we have not heard so yet.
        letter.held_by = None
        (answer,) = receiver.settle([delivery], outcome)
        answer.add_done_callback(partial(self._settled, letter, delivery, outcome, entity, asked))
        return answer

    def _settled(
        self,
        letter: Letter,
        delivery: Delivery,
        asked: DeliveryState,
        entity: str,
        when: tuple[int, int, float],
        answer: asyncio.Future[DeliveryState | None],
    ) -> None:
        """`when`: the life of the message, the wall clock and the time, when it was asked for."""
        life, asked_ms, asked_at = when
        if answer.cancelled() or answer.exception() is not None:
            return
        outcome = answer.result()
        if type(outcome) is not type(asked) or getattr(outcome, "error", None) is not None:
            self._refused(outcome)
        elif asked is COMPLETE:
            self.ledger.remove(letter, delivery)
        elif letter.life != life:
            # It was completed, kept and put back before the answer came.
            return
        elif asked is ABANDON:
            is_last = letter.asked_by is delivery
            self.ledger.settle(letter, None, entity, delivery)
            if is_last:
                self.ledger.rest(letter, entity, asked_ms, asked_at)
        elif asked is DEFER:
            self.ledger.settle(letter, MessageState.DEFERRED, entity, delivery)
        elif asked is DEAD_LETTER:
            self.ledger.settle(letter, SubQueue.DEAD_LETTER, entity, delivery)

    def _refused(self, outcome: DeliveryState | None) -> None:
        error = getattr(outcome, "error", None)
        condition = None if error is None else str(error.condition)
        self.simulation.refused(condition, f"{self.name}: {outcome}")
