"""Temporary entities: they exist as long as a link holds them.

The temporary queues and topics of JMS, and its subscriptions that are not durable. A link that creates or
consumes one is one of its `holders`. When the last holder leaves, the entity is deleted, at once if its
stores and the catalog answer. The ticker looks for those that are left: after a failure, and after a crash,
when nobody holds what the catalog still lists. With several brokers, each knows the links of its own clients;
the one that has the catalog asks the others. Messages that were sent through a temporary entity to other
entities leave first, as with every deletion (departure.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from dataclasses import replace
from typing import Final, TypeVar
from uuid import uuid4

from bendybus import audit
from bendybus.broker.background import Background
from bendybus.broker.entities import Entities
from bendybus.broker.queue import Queue
from bendybus.broker.queues import Queues
from bendybus.broker.topic import SendTarget, Topic
from bendybus.broker.topics import Topics
from bendybus.domain.entities import QueueDescription
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import BrokerError
from bendybus.names import EntityPath

__all__ = ["QUEUE_PREFIX", "TOPIC_PREFIX", "TemporaryEntities", "held_elsewhere"]

logger = logging.getLogger(__name__)

QUEUE_PREFIX: Final = "temporary-queue-"
TOPIC_PREFIX: Final = "temporary-topic-"

# A deletion that failed is tried again after this time.
RETRY_AFTER_S: Final = 5.0

T = TypeVar("T", Queue, Topic)


async def held_elsewhere(entities: Entities, path: EntityPath) -> bool:
    """Whether a link of another broker holds the entity."""
    elsewhere = entities.elsewhere
    return elsewhere.has_others and await elsewhere.linked_entities.is_held(path)


class TemporaryEntities:
    def __init__(self, entities: Entities, queues: Queues, topics: Topics, background: Background) -> None:
        self._background = background
        self._entities = entities
        self._queues = queues
        self._topics = topics
        self._deletions: dict[SendTarget, asyncio.Task[BrokerError | None]] = {}
        self._failed_at: dict[SendTarget, float] = {}

    # -- making -------------------------------------------------------------------

    async def create_queue(self, path: EntityPath, holder: Hashable) -> Queue:
        self._entities.tier.require_premium("temporary queues")
        if not self._entities.elsewhere.has_catalog:
            await self._entities.elsewhere.linked_entities.create_temporary(path, is_topic=False)
            return self._held(self._queues.get(path), holder)
        return await self._queues.create(QueueDescription(path, temporary=True), holder)

    async def create_topic(self, path: EntityPath, holder: Hashable) -> Topic:
        self._entities.tier.require_premium("temporary topics")
        if not self._entities.elsewhere.has_catalog:
            await self._entities.elsewhere.linked_entities.create_temporary(path, is_topic=True)
            return self._held(self._topics.get(path), holder)
        return await self._topics.create(TopicDescription(path, temporary=True), holder)

    @staticmethod
    def _held(entity: T, holder: Hashable) -> T:
        entity.holders.add(holder)
        return entity

    @staticmethod
    def new_path(prefix: str) -> EntityPath:
        """A path that no other entity has."""
        return EntityPath(prefix + uuid4().hex)

    # -- ending -------------------------------------------------------------------

    def release(self, entity: SendTarget, holder: Hashable) -> asyncio.Task[BrokerError | None] | None:
        """A link no longer holds this entity. Returns the deletion, if it was the last that did."""
        entity.holders.discard(holder)
        return self._delete(entity) if entity.abandoned else None

    async def delete_unheld(self, entity: SendTarget) -> None:
        """Delete a temporary entity if no link of any broker holds it. Raises if that fails."""
        async with self._entities.changing:
            if entity.abandoned and not await held_elsewhere(self._entities, entity.path):
                with audit.acting(replace(audit.current_actor(), by="temporary")):
                    await self._entities.remove(entity)

    def sweep(self, at: float) -> None:
        """Delete everything that nobody holds. `at` is the event loop's time."""
        if not self._entities.elsewhere.has_catalog:
            # The broker that has the catalog decides for all.
            return
        for entity in [entity for entity in self._failed_at if entity.deleted]:
            del self._failed_at[entity]
        for entity in tuple(self._entities.temporary):
            if entity.abandoned and at - self._failed_at.get(entity, -RETRY_AFTER_S) >= RETRY_AFTER_S:
                self._delete(entity)

    def _delete(self, entity: SendTarget) -> asyncio.Task[BrokerError | None]:
        task = self._deletions.get(entity)
        if task is None:
            task = self._deletions[entity] = self._background.start(self._try_to_delete(entity))
            task.add_done_callback(lambda _: self._deletions.pop(entity, None))
        return task

    async def _try_to_delete(self, entity: SendTarget) -> BrokerError | None:
        """None if the entity is gone, or if somebody holds it."""
        elsewhere = self._entities.elsewhere
        try:
            if elsewhere.has_catalog:
                await self.delete_unheld(entity)
            else:
                await elsewhere.linked_entities.release(entity.path)
        except BrokerError as reason:
            self._failed_at[entity] = asyncio.get_running_loop().time()
            logger.warning(
                "the temporary entity '%s' cannot be deleted now and is tried again: %s", entity.path, reason
            )
            return reason
        if entity.deleted or not elsewhere.has_catalog:
            self._failed_at.pop(entity, None)
        else:
            # A link holds it. If that is another broker's, the broker says so when the link is gone.
            self._failed_at[entity] = asyncio.get_running_loop().time()
        return None
