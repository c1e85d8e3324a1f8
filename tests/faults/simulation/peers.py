"""The peers: clients that send, receive, settle, look and leave, as their dice say.

Each tells the ledger what it is about to ask and what was answered. A peer whose
connection or link goes begins anew, with what it does not know left open. They
speak AMQP with the broker's own engine, as fix_client.py does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from bendybus.amqp.message import (
    decode_message,
)
from bendybus.amqp.performatives import (
    Accepted,
)
from bendybus.errors import BrokerError
from faults.simulation.ledger import Invariant
from faults.simulation.peer import (
    Peer,
    arrival_of,
)
from faults.simulation.plan import COLOURS
from faults.simulation.receiving_peers import HolderPeer, LookerPeer, ReceiverPeer
from faults.simulation.replaying_peer import ReplayerPeer
from faults.simulation.sending_peers import SenderPeer, TransactorPeer
from fix_client import Client, LinkRefused

__all__ = ["PEERS", "Peer", "arrival_of"]


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
                await self._delete()

    async def _delete(self) -> None:
        catalog, asked_at, answered = self.simulation.catalog, self.simulation.world.now, False
        was_there = catalog.holds(self.entity)
        try:
            await self.simulation.server.ask(lambda broker: broker.queues.delete(self.entity))
            answered = True
            if catalog.holds(self.entity):
                self.ledger.violate(Invariant.FAULTY, f"'{self.entity}' was deleted and is there")
        finally:
            if was_there and not catalog.holds(self.entity):
                self.simulation.deleted(self.entity, asked_at, answered=answered)

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
    "replayer": ReplayerPeer,
    "transactor": TransactorPeer,
    "manager": ManagerPeer,
    "changer": ChangerPeer,
}
