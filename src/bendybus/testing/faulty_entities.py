"""Faults of entities that a test can cause: those that an application has to handle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from bendybus.broker.broker import Broker
from bendybus.broker.entity_faults import EntityFaults, detach_links, lose_locks, switch
from bendybus.namespaces import Namespace as ServedNamespace

__all__ = ["FaultyEntities"]


class FaultyEntities(ABC):
    """A part of `Namespace`. A subscription is TOPIC/Subscriptions/NAME."""

    _call: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs this on the server's loop."""

    @property
    @abstractmethod
    def _open(self) -> ServedNamespace:
        """The namespace, which is not closed."""

    def make_faulty(
        self, path: str, *, busy_share: float = 0.0, latency_s: float = 0.0, throttled: Iterable[int] = ()
    ) -> None:
        """Make an entity busy or slow for its clients, or throttle partitions of it, until `heal`."""
        self._call(
            _switch(self._open.broker, path, EntityFaults(busy_share, latency_s, frozenset(throttled)))
        )

    def heal(self, path: str) -> None:
        self.make_faulty(path)

    def detach_links(self, path: str) -> None:
        """Detach all links of clients to an entity. They may attach again at once."""
        self._call(_detach(self._open.broker, path))

    def lose_locks(self, path: str) -> None:
        """End all locks of messages and sessions of a queue or subscription, as if they had expired."""
        self._call(lose_locks(self._open.broker.find(path)))


async def _switch(broker: Broker, path: str, faults: EntityFaults) -> None:
    switch(broker.find_target(path), faults)


async def _detach(broker: Broker, path: str) -> None:
    detach_links(broker.entities, broker.find_target(path))
