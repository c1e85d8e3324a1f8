"""Removes partitions that belong to no entity.

They are left behind if a broker dies while an entity is created or deleted. The next owner of the store keeps
them, because the leader may be creating their entity at this moment. So the leader removes them:

1. Every owner lists the partitions in its stores that belong to no entity, as far as it knows.
2. The leader makes sure that it leads, and then reads the catalog. It makes no change meanwhile. Earlier
   leaders cannot make any, and a later one had created none of these partitions when they were listed. So if
   the catalog does not list a partition now, it never will.
3. The owners remove those partitions by their keys. A store never uses a key again, so this is right however
   late it happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from bendybus.broker.entities import Entities
from bendybus.broker.placing import placed_in, unplaced
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.link import PeerLink
from bendybus.cluster.serving import Calls
from bendybus.domain.entities import normalise_path
from bendybus.errors import BrokerError, StoreUnavailable
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.catalog import SharedCatalog
from bendybus.store.protocol import PartitionKey

__all__ = ["Leftover", "Leftovers", "Sweep"]

logger = logging.getLogger(__name__)

# After a store has another owner, or the cluster another leader: the next change may follow at once.
SETTLED_AFTER_S: Final = 5.0
# If something could not be reached.
AGAIN_AFTER_S: Final = 30.0
# A removal may fail without a change of owners, for example while a database restarts.
EVERY_S: Final = 600.0
# Of one store, in one sweep: an answer of half a megabyte. The next sweep finds the others.
LISTED_MAX: Final = 5_000


class Leftover(NamedTuple):
    """A partition that seems to belong to no entity."""

    key: PartitionKey
    path: EntityPath
    number: PartitionNumber


class Leftovers:
    """Of the stores that this broker owns."""

    def __init__(self, entities: Entities, removed: Callable[[str, Container[PartitionKey]], None]) -> None:
        """`removed`: called with a store, and the partitions that it does not have any more."""
        self.entities = entities
        self._removed = removed

    def calls(self) -> Calls:
        """What the leader asks."""
        return {"list-leftovers": self._list, "remove-leftovers": self._remove}

    async def _list(self, link: PeerLink, frame: Frame, call: Call) -> object:
        return await self.listed()

    async def _remove(self, link: PeerLink, frame: Frame, call: Call) -> None:
        await self.remove(frame.decoded(dict[str, list[PartitionKey]], call.body))

    async def listed(self) -> dict[str, list[Leftover]]:
        """By store. Each store is in it, even if it has none."""
        listed: dict[str, list[Leftover]] = {}
        for store in self.entities.stores:
            records = await store.query(store.store.partitions)
            placed = placed_in(self.entities.records()).get(store.name, set())
            found = unplaced(records, placed)[:LISTED_MAX]
            listed[store.name] = [Leftover(each.key, each.entity, each.number) for each in found]
        return listed

    async def remove(self, keys: Mapping[str, Sequence[PartitionKey]]) -> None:
        for name, unlisted in keys.items():
            store = self.entities.stores[name]
            # Each store has keys of its own.
            open_here = {resident.key for resident in store.residents}
            if open_here & {*unlisted}:
                # Its entity was deleted, and this broker has not heard of it. It will soon.
                raise StoreUnavailable(f"The messaging store '{name}' has a partition that is open.")
            await store.run(partial(store.store.discard, unlisted))
            self._removed(name, {*unlisted})


class Sweep:
    """What the leader does now and then."""

    def __init__(self, cluster: Cluster, leftovers: Leftovers, catalog: SharedCatalog) -> None:
        self._cluster = cluster
        self._leftovers = leftovers
        self._catalog = catalog
        self._seen: tuple[int, dict[str, str | None]] | None = None
        """The term of the leader, and the owners of all stores, when they were last checked."""
        self._due_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def consider(self) -> None:
        """Called in every round. Begin if it is time, unless another broker leads."""
        cluster, loop = self._cluster, asyncio.get_running_loop()
        seen = cluster.term, {name: cluster.owner_of(name) for name in cluster.all_stores}
        if seen != self._seen:
            self._seen = seen
            self._due_at = loop.time() + SETTLED_AFTER_S
        if self._leftovers.entities.in_doubt:
            self._due_at = min(self._due_at, loop.time() + SETTLED_AFTER_S)
        is_idle = self._task is None or self._task.done()
        if cluster.has_catalog and is_idle and loop.time() >= self._due_at:
            self._due_at = loop.time() + EVERY_S
            self._task = loop.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self.run()
        except BrokerError as reason:
            self._due_at = min(self._due_at, asyncio.get_running_loop().time() + AGAIN_AFTER_S)
            logger.info("partitions that belong to no entity may remain for now: %s", reason)
        except Exception:
            logger.exception("partitions that belong to no entity may remain")

    async def run(self) -> None:
        """Remove what belongs to no entity. `StoreUnavailable` if a store has no owner or cannot be asked."""
        peers, me = self._cluster.peers.by_name, self._cluster.me.broker
        owners = dict.fromkeys(self._cluster.owner_of(name) for name in self._cluster.all_stores)
        unlisted: dict[str, dict[str, list[Leftover]]] = {}
        for owner in owners:
            if owner == me:
                unlisted[owner] = await self._leftovers.listed()
            elif owner is None or owner not in peers:
                raise StoreUnavailable("A messaging store has no owner now.")
            else:
                unlisted[owner] = await peers[owner].call("list-leftovers", None, dict[str, list[Leftover]])
        is_clean = not any(found for stores in unlisted.values() for found in stores.values())
        if is_clean and not self._leftovers.entities.in_doubt:
            return
        placed = await self._placed()
        for owner, stores in unlisted.items():
            keys: dict[str, list[PartitionKey]] = {}
            for name, found in stores.items():
                gone = [each for each in found if (each.path, each.number) not in placed.get(name, ())]
                for path in dict.fromkeys(each.path for each in gone):
                    logger.warning(
                        "store %s: removing partitions of '%s', which the catalog does not list", name, path
                    )
                if gone:
                    keys[name] = [each.key for each in gone]
            if keys and owner == me:
                await self._leftovers.remove(keys)
            elif keys:
                await peers[owner].call("remove-leftovers", keys, type(None))

    async def _placed(self) -> Mapping[str, set[tuple[EntityPath, PartitionNumber]]]:
        """What the catalog lists, while no entity is being created.

        A deletion whose answer was lost may have happened. The others read the catalog, and have closed the
        entity. The leader does so now: it must not look for partitions that are removed. A creation whose
        answer was lost may have happened too. The leader takes it back.
        """
        entities = self._leftovers.entities
        async with entities.changing:
            await asyncio.to_thread(self._catalog.confirm_lead)
            _, records = await asyncio.to_thread(self._catalog.read)
            listed = {normalise_path(record.path) for record in records}
            gone = [entity for entity in entities if normalise_path(entity.path) not in listed]
            if gone:
                logger.warning("the catalog does not list %s", ", ".join(f"'{each.path}'" for each in gone))
                await entities.forget(gone)
            # Others serve them, and this broker has told a client that they were not created.
            half_made = [record.path for record in records if entities.look_up(record.path) is None]
            if half_made:
                logger.warning(
                    "the creation of %s failed: the catalog must not list it", ", ".join(half_made)
                )
                await asyncio.to_thread(self._catalog.remove, *half_made)
            entities.in_doubt = False
            return placed_in(record for record in records if record.path not in half_made)
