"""The gateway: all AMQP connections of this server, over TCP, TLS and WebSockets."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

from bendybus.broker.entity import Entity
from bendybus.engine.config import ConnectionConfig
from bendybus.gateway.connection import AmqpConnection
from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.gateway.observer import Observer
from bendybus.gateway.turns import Turns
from bendybus.namespaces import Namespace, Namespaces

__all__ = ["Gateway"]

# What Azure asks of its clients; those that send a heartbeat do so every 30 or 60 seconds anyway.
IDLE_TIMEOUT_S: Final = 240.0

# On Azure "a token must be put within ~20 s of connecting". A handshake may take as long here.
HANDSHAKE_TIMEOUT_S: Final = 20.0

TICK_S: Final = 1.0

# JMS clients set a delivery delay only if this is offered. A message carries it as an annotation.
DELAYED_DELIVERY: Final = "DELAYED_DELIVERY"


class Gateway:
    def __init__(
        self,
        namespaces: Namespaces,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.namespaces = namespaces
        self.budget = budget or MemoryBudget()
        self.handshake_timeout_s = handshake_timeout_s
        self.engine_config = ConnectionConfig(
            container_id=f"bendybus-{uuid.uuid4().hex[:12]}",
            idle_timeout_s=IDLE_TIMEOUT_S,
            offered_capabilities=(DELAYED_DELIVERY,),
            # js with a signature in its connection string uses no SASL: all its rights come through `$cbs`.
            require_sasl=False,
        )
        self.turns = Turns()
        self.observer: Observer | None = None
        """Sees the batches of messages that pass; None, as usual, if nobody wants to."""
        self._connections: dict[AmqpConnection, None] = {}
        self._joined = 0
        self._ticker: asyncio.TimerHandle | None = None

    def protocol(self) -> AmqpConnection:
        """A protocol for the listener: a client speaks AMQP."""
        return AmqpConnection(self)

    def start(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def admit(self, namespace: Namespace) -> None:
        """Serve clients of this namespace."""
        namespace.broker.entities.watch(self._entity_changed)

    def dismiss(self, namespace: Namespace) -> None:
        """The namespace is deleted: close the connections of its clients."""
        for connection in tuple(self._connections):
            if connection.client.namespace is namespace:
                connection.shut_down("The namespace has been deleted.")

    def stop(self) -> None:
        """Close all connections, with the reason."""
        if self._ticker is not None:
            self._ticker.cancel()
        for connection in tuple(self._connections):
            connection.shut_down("The server is shutting down.")

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def connections(self) -> tuple[AmqpConnection, ...]:
        """All of them, oldest first."""
        return tuple(self._connections)

    def joined(self, connection: AmqpConnection) -> None:
        self._connections[connection] = None
        self._joined += 1
        connection.number = str(self._joined)

    def left(self, connection: AmqpConnection) -> None:
        self._connections.pop(connection, None)

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        for connection in tuple(self._connections):
            connection.tick()
        self.budget.tick()

    def _entity_changed(self, entity: Entity[Any, Any, Any]) -> None:
        for connection in tuple(self._connections):
            connection.links.entity_changed(entity)
