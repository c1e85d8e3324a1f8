"""The queues of a namespace: find, create, update, delete.

Changes are made one after the other. Each is atomic, and durable when the call returns. What
all entities have in common: entities.py. Topics and subscriptions: topics.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from bendybus.broker.entities import Entities
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Subscription
from bendybus.domain.entities import QueueDescription
from bendybus.domain.topic_entities import rebased
from bendybus.errors import EntityNotFound
from bendybus.names import Instant

__all__ = ["Queues"]


class Queues:
    """The queues alone. `Entities.sources` has everything that can be received from."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities

    # -- finding ------------------------------------------------------------------

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._entities.queues())

    def find(self, path: str) -> Queue | None:
        entity = self._entities.look_up(path)
        return entity if isinstance(entity, Queue) and not isinstance(entity, Subscription) else None

    def get(self, path: str) -> Queue:
        """The queue at this path, or `EntityNotFound`."""
        queue = self.find(path)
        if queue is None:
            raise EntityNotFound(path)
        return queue

    # -- changing -----------------------------------------------------------------

    async def create(self, description: QueueDescription, holder: Hashable | None = None) -> Queue:
        """Create the queue on all its partitions, or not at all (P-32). `holder` keeps a temporary one."""
        entities = self._entities
        async with entities.changing:
            entities.refuse_taken(description.path)
            description = entities.settled(description)
            entities.tier.check(description)
            entities.check_forwarding(description)
            record = entities.admit("queue", description)
            queue = await entities.create(record, description.label, holder)
            assert isinstance(queue, Queue)
            return queue

    async def update(
        self,
        description: QueueDescription,
        *,
        based_on: QueueDescription | None = None,
        unchanged_since: Instant | None = None,
    ) -> Queue:
        """Change what may be changed. A change to an immutable property is refused with its name (P-07).

        What is as in `based_on` is not changed, even if others have changed it since that was read.
        `PreconditionFailed` if the queue was last updated at a time other than `unchanged_since`.
        """
        entities = self._entities
        async with entities.changing:
            queue = self.get(description.path)
            queue.refuse_updated_since(unchanged_since)
            before = queue.description
            if based_on is not None:
                description = rebased(description, based_on, before)
            # Keep the creator's spelling, by which the stores know the partitions, and the rule for keys.
            description = replace(
                description, path=queue.path, exact_keys=before.exact_keys, temporary=before.temporary
            )
            description = entities.settled(description, queue)
            before.refuse_immutable_changes(description)
            entities.tier.check(description, before)
            entities.check_forwarding(description)
            queue.refuse_unhealthy()
            await entities.describe(queue, description)
            return queue

    async def delete(self, path: str, *, force: bool = False) -> None:
        async with self._entities.changing:
            await self._entities.remove(self.get(path), force=force)

    async def ensure(self, description: QueueDescription) -> Queue:
        """Create the queue, or update the existing one to this description. Its authorization rules stay."""
        existing = self.find(description.path)
        if existing is None:
            return await self.create(description)
        description = replace(
            self._entities.settled(description, existing),
            authorization_rules=existing.description.authorization_rules,
            exact_keys=existing.description.exact_keys,
        )
        if existing.description != description:
            await self.update(description)
        return existing

    async def ensure_all(self, descriptions: Sequence[QueueDescription]) -> None:
        """Ensure all of these queues. They may forward to one another, in any order."""
        new = [each for each in descriptions if self.find(each.path) is None]
        for description in new:
            await self.create(replace(description, forward_to=None, forward_dead_lettered_to=None))
        for description in descriptions:
            await self.ensure(description)
