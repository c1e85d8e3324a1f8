"""Faults of an entity that its clients notice, for the tests of applications (B-09).

They are switched on over HTTP, by `bendybus fault entity` or by `bendybus.testing`, and last until they are
switched off or the server stops. Faults of stores: store/faults.py.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bendybus.domain.commands import LoseLocks
from bendybus.errors import ArgumentError, DetachForced, ServerBusy
from bendybus.names import EntityPath

if TYPE_CHECKING:
    from bendybus.broker.entities import Entities
    from bendybus.broker.entity import Entity
    from bendybus.broker.queue import Queue

__all__ = ["EntityFaults", "detach_links", "lose_locks", "switch"]

LATENCY_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class EntityFaults:
    """The faults of an entity."""

    busy_share: float = 0.0
    """This share of sends, requests and calls over HTTP is answered with `server-busy`."""
    latency_s: float = 0.0
    """How much later each operation is handled."""
    throttled: frozenset[int] = frozenset()
    """Partitions that take no message: those with a key for them are answered with `server-busy`."""
    detaching: bool = False
    """Whether links are being detached at this moment."""

    def __post_init__(self) -> None:
        if not 0 <= self.busy_share <= 1:
            raise ArgumentError("The share of operations that find the server busy is between 0 and 1.")
        if not 0 <= self.latency_s <= LATENCY_MAX_S:
            raise ArgumentError(f"The latency is between 0 and {LATENCY_MAX_S:.0f} seconds.")

    def refuse_operation(self, path: EntityPath) -> None:
        if self.busy_share and random.random() < self.busy_share:
            raise ServerBusy(f"'{path}' is busy, because a test has asked for it. Please retry.")

    def refuse_partition(self, path: EntityPath, number: int) -> None:
        if number in self.throttled:
            raise ServerBusy(
                f"Partition {number} of '{path}' is throttled, because a test has asked for it. Please retry."
            )

    def refuse_link(self, path: EntityPath) -> None:
        if self.detaching:
            raise DetachForced(f"The link to '{path}' is detached, because a test has asked for it.")

    async def delay(self) -> None:
        if self.latency_s:
            await asyncio.sleep(self.latency_s)


def switch(entity: Entity[Any, Any, Any], faults: EntityFaults) -> None:
    """Replace the faults of the entity by these."""
    unknown = [number for number in faults.throttled if not 0 <= number < len(entity.hosts)]
    if unknown:
        raise ArgumentError(f"'{entity.path}' has no partition {unknown[0]}; it has {len(entity.hosts)}.")
    entity.faults = None if faults == EntityFaults() else faults


def detach_links(entities: Entities, entity: Entity[Any, Any, Any]) -> None:
    """Detach all links of clients to the entity. They may attach again at once."""
    before = entity.faults
    entity.faults = replace(before or EntityFaults(), detaching=True)
    try:
        entities.tell_of(entity)
    finally:
        entity.faults = before


async def lose_locks(queue: Queue) -> None:
    """End all locks of messages and sessions, as if they had expired."""
    for host in queue.own.values():
        await host.ask(LoseLocks())
