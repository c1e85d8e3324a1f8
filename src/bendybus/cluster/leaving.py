"""Entities that are about to be deleted: they take no more messages that are sent through them.

The broker that has the catalog says so before it deletes an entity, and again if the entity stays after all.
How messages leave: broker/departure.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from bendybus.broker.departure import send_off
from bendybus.broker.entities import Entities
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget
from bendybus.cluster.frames import Frame

__all__ = ["Leaving"]


class Leaving:
    def __init__(self, entities: Entities) -> None:
        self._entities = entities

    async def send_off(self, frame: Frame, body: Raw) -> None:
        paths, force = frame.decoded(tuple[list[str], bool], body)
        for queue in self._queues(paths):
            queue.leaving = True
        for queue in self._queues(paths):
            await send_off(queue, self._entities.forwarder(queue), force=force)

    async def stay(self, frame: Frame, body: Raw) -> None:
        for queue in self._queues(frame.decoded(list[str], body)):
            queue.leaving = False

    def all_stay(self) -> None:
        """The broker that was deleting entities has ended, and cannot say that they stay."""
        for entity in self._entities:
            if isinstance(entity, Queue):
                entity.leaving = False

    def _queues(self, paths: Sequence[str]) -> list[Queue]:
        found: list[SendTarget | None] = [self._entities.look_up(path) for path in paths]
        return [entity for entity in found if isinstance(entity, Queue)]
