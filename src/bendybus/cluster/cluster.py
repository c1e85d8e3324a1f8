"""The other brokers, as this one's entities see them (broker/elsewhere.py).

Each messaging store belongs to one broker. One broker has the catalog: it makes all changes of entities and
tells the others, which follow (following.py). A change returns when every broker that can be reached knows
it; one that cannot be reached gets the whole catalog when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Final

from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.cluster.link import Identity
from bendybus.cluster.peers import Peer, Peers
from bendybus.cluster.remote import RemotePartition, RemoteQueuePartition, RemoteStore
from bendybus.domain.filters import RuleDescription, rule_to_record
from bendybus.errors import BrokerError, NotSupported, Unavailable
from bendybus.names import EntityPath, Instant, PartitionNumber
from bendybus.store.catalog import EntityRecord

__all__ = ["Cluster"]

logger = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 0.02


class Cluster:
    """`Elsewhere` of one broker."""

    def __init__(self, me: Identity, owners: Mapping[str, str], members: Iterable[str], catalog: str) -> None:
        """`owners`: the broker of each messaging store. `catalog`: the broker that has the catalog."""
        self.me = me
        self.peers = Peers(me, members)
        self.has_catalog = me.broker == catalog
        self._owners = owners
        self._catalog = catalog
        self._stores = {store: RemoteStore(store) for store, owner in owners.items() if owner != me.broker}
        self.store_names: Set[str] = self._stores.keys()
        self.namespace: Callable[[], Mapping[str, object]] = dict
        """The settings of the namespace, where the catalog is."""

    def refuse(self, what: str) -> None:
        raise NotSupported(
            f"This server has several brokers, and {what} cannot be used with several yet. Use a server with "
            "one broker for it."
        )

    def refuse_following(self) -> None:
        if not self.has_catalog:
            self.refuse("a change of entities by a client of this broker")

    @property
    def own_stores(self) -> set[str]:
        """The names of the stores that belong to this broker."""
        return {store for store, owner in self._owners.items() if owner == self.me.broker}

    @property
    def leader(self) -> Peer:
        """The broker that has the catalog, for the others."""
        return self.peers.by_name[self._catalog]

    # -- partitions ---------------------------------------------------------------

    def stores(self) -> Sequence[RemoteStore]:
        return list(self._stores.values())

    def queue_partition(
        self, queue: Queue, generation: str, number: PartitionNumber, store: str
    ) -> RemoteQueuePartition:
        return self._owner(store).queue_partition(queue, generation, number, self._stores[store])

    def topic_partition(
        self, topic: Topic, generation: str, number: PartitionNumber, store: str
    ) -> RemotePartition[Topic]:
        return self._owner(store).topic_partition(topic, generation, number, self._stores[store])

    def _owner(self, store: str) -> Peer:
        return self.peers.by_name[self._owners[store]]

    def forgotten(self, paths: Iterable[EntityPath]) -> None:
        for path in paths:
            for peer in self.peers.by_name.values():
                peer.forget(path)

    # -- changes, where the catalog is --------------------------------------------

    async def assembled(self) -> None:
        """Return once every other broker can be asked."""
        for peer in self.peers.by_name.values():
            while True:
                try:
                    await peer.call("ready", None, type(None))
                    break
                except Unavailable:
                    await asyncio.sleep(LOOK_AGAIN_S)

    async def make_partitions(self, record: EntityRecord) -> None:
        for peer in self._owners_of(record):
            await peer.call("make-partitions", asdict(record), type(None))

    async def drop_partitions(self, record: EntityRecord) -> None:
        for peer in self._owners_of(record):
            try:
                await peer.call("drop-partitions", asdict(record), type(None))
            except BrokerError as failure:
                logger.warning("'%s' keeps partitions of '%s' for now: %s", peer.name, record.path, failure)

    def _owners_of(self, record: EntityRecord) -> list[Peer]:
        owners = dict.fromkeys(self._owners[store] for store in record.placement)
        return [self.peers.by_name[owner] for owner in owners if owner != self.me.broker]

    async def changed(self, records: Sequence[EntityRecord]) -> None:
        await self._tell("changed", [asdict(record) for record in records])

    async def removed(self, paths: Sequence[EntityPath]) -> None:
        await self._tell("removed", list(paths))

    async def stay(self, paths: Sequence[EntityPath]) -> None:
        await self._tell("stay", list(paths))

    async def send_off(self, paths: Sequence[EntityPath], *, force: bool) -> None:
        try:
            for peer in self.peers.by_name.values():
                try:
                    await peer.call("send-off", (list(paths), force), type(None))
                except Unavailable:
                    # By force, what cannot be asked is given up. Otherwise its messages might be lost.
                    if not force:
                        raise
        except BrokerError:
            await self.stay(paths)
            raise

    async def namespace_changed(self) -> None:
        await self._tell("namespace", dict(self.namespace()))

    async def _tell(self, name: str, body: object) -> None:
        """Tell all that can be reached. The others get the whole catalog when they are back."""
        for peer in self.peers.by_name.values():
            try:
                await peer.call(name, body, type(None))
            except Unavailable as absence:
                logger.warning("the broker '%s' was not told '%s': %s", peer.name, name, absence)

    async def last_use(self, path: EntityPath) -> Instant | None:
        last = Instant(0)
        for peer in self.peers.by_name.values():
            try:
                last = max(last, Instant(await peer.call("last-use", path, int)))
            except BrokerError:
                return None
        return last

    # -- changes, elsewhere -------------------------------------------------------

    async def change_rules(
        self, topic_path: str, name: str, *, add: RuleDescription | None = None, remove: str | None = None
    ) -> None:
        rule = None if add is None else rule_to_record(add)
        await self.leader.call("change-rules", (topic_path, name, rule, remove), type(None))
