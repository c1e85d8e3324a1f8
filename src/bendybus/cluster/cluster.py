"""The other brokers, as the entities of this one see them (broker/elsewhere.py).

Each messaging store belongs to one broker, and may move to another (ownership.py). One broker has the
catalog. It makes all changes to entities and informs the others, which apply them (following.py). A change is
complete when every broker that can be reached knows it. A broker that cannot be reached gets the whole
catalog when it is connected again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Final

from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.cluster.identity import Identity
from bendybus.cluster.linked_entities import LinkedEntitiesElsewhere
from bendybus.cluster.peers import Peer, Peers
from bendybus.cluster.remote import RemotePartition, RemoteQueuePartition, RemoteStore
from bendybus.domain.filters import RuleDescription, rule_to_record
from bendybus.errors import BrokerError, NotSupported, StoreUnavailable, Unavailable
from bendybus.names import EntityPath, Instant, PartitionNumber
from bendybus.store.catalog import EntityRecord

__all__ = ["Cluster", "stores_of"]

logger = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 0.02


class Cluster:
    """`Elsewhere` of one broker."""

    has_others = True

    def __init__(
        self,
        me: Identity,
        owners: Mapping[str, str | None],
        members: Iterable[str],
        catalog: str,
        *,
        owners_change: bool = False,
    ) -> None:
        """`owners`: the broker of each messaging store, None if no broker owns it yet. `catalog`: the broker
        that has the catalog. `owners_change`: whether stores may pass from one broker to another."""
        self.me = me
        self._owners_change = owners_change
        self.peers = Peers(me, members)
        self.has_catalog = me.broker == catalog
        self.linked_entities = LinkedEntitiesElsewhere(self)
        self.term = 0
        """The term of the broker that has the catalog. Messages of earlier ones are ignored."""
        self._owners = dict(owners)
        self._catalog = catalog
        self._stores = {store: RemoteStore(store) for store in owners}
        self.common: Container[str] | None = None
        """The stores that all brokers were given, and that new partitions may be placed in."""
        self._nobody: dict[str, Peer] = {}
        """Stands for the owner of a store that has none."""
        self.namespace: Callable[[], Mapping[str, object]] = dict
        """The settings of the namespace, where the catalog is."""
        self.leader_changed: Callable[[], None] = _nothing
        """Called when another broker has the catalog, or this one has it again."""

    def refuse(self, what: str, in_cluster: str = "") -> None:
        advice = in_cluster if self._owners_change and in_cluster else "Use a server with one broker for it."
        raise NotSupported(
            f"This server has several brokers, and {what} cannot be used with several yet. {advice}"
        )

    def refuse_following(self) -> None:
        if not self.has_catalog:
            self.refuse("a change of entities by a client of this broker")

    @property
    def store_names(self) -> Set[str]:
        return {store for store, owner in self._owners.items() if owner != self.me.broker}

    @property
    def leader(self) -> Peer:
        """The broker that has the catalog, for the others."""
        peer = self.peers.by_name.get(self._catalog)
        if peer is None:
            raise StoreUnavailable("No other broker has the catalog now. Please retry the operation.")
        return peer

    def follow(self, broker: str, term: int) -> None:
        """This broker has the catalog from now on."""
        is_new = term > self.term
        self._catalog, self.term = broker, term
        self.has_catalog = broker == self.me.broker
        if is_new:
            self.leader_changed()

    def know_stores(self, names: Iterable[str]) -> None:
        """Some broker has these stores. New ones have no owner, as far as is known here."""
        for name in names:
            if name not in self._owners:
                self._owners[name] = None
                self._stores[name] = RemoteStore(name)

    @property
    def all_stores(self) -> Set[str]:
        return self._owners.keys()

    def owner_of(self, store: str) -> str | None:
        """The broker that owns a store, as far as is known here."""
        return self._owners[store]

    def set_owner(self, store: str, broker: str | None) -> None:
        """The owner of a store has changed. The partitions in it are exchanged next (ownership.py)."""
        self._owners[store] = broker
        if broker is None:
            self._unowned(store).await_owner()

    # -- partitions ---------------------------------------------------------------

    def stores(self) -> Sequence[RemoteStore]:
        return [self._stores[name] for name in sorted(self.store_names)]

    def queue_partition(
        self, queue: Queue, generation: str, number: PartitionNumber, store: str
    ) -> RemoteQueuePartition:
        return self._owner(store).queue_partition(queue, generation, number, self._stores[store])

    def topic_partition(
        self, topic: Topic, generation: str, number: PartitionNumber, store: str
    ) -> RemotePartition:
        return self._owner(store).topic_partition(topic, generation, number, self._stores[store])

    def _owner(self, store: str) -> Peer:
        self.know_stores((store,))
        owner = self._owners[store]
        assert owner != self.me.broker, "a partition of this broker has a host"
        return self._unowned(store) if owner is None else self.peers.by_name[owner]

    def _unowned(self, store: str) -> Peer:
        nobody = self._nobody.get(store)
        if nobody is None:
            nobody = self._nobody[store] = Peer("nobody", f"no broker owns its messaging store '{store}' now")
            nobody.await_owner()
        return nobody

    def forgotten(self, paths: Iterable[EntityPath]) -> None:
        for path in paths:
            for peer in (*self.peers.by_name.values(), *self._nobody.values()):
                peer.forget(path)

    async def stop(self) -> None:
        await self.peers.stop()
        for nobody in self._nobody.values():
            nobody.close()

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
        for owner, stores in self._by_owner(record).items():
            if owner is None:
                raise StoreUnavailable(f"No broker owns the messaging store '{stores[0]}' now.")
        for owner, stores in self._by_owner(record).items():
            if owner is not None:
                await self._command(self.peers.by_name[owner], "make-partitions", (asdict(record), stores))

    async def drop_partitions(self, record: EntityRecord) -> None:
        for owner in self._by_owner(record):
            try:
                if owner is not None:
                    await self._command(self.peers.by_name[owner], "drop-partitions", asdict(record))
            except BrokerError as failure:
                logger.warning("'%s' keeps partitions of '%s' for now: %s", owner, record.path, failure)

    def _by_owner(self, record: EntityRecord) -> dict[str | None, list[str]]:
        """The stores of an entity that are not here, by their owner; None for those without one."""
        stores: dict[str | None, list[str]] = {}
        for store in dict.fromkeys(record.placement):
            owner = self._owners[store]
            if owner != self.me.broker:
                stores.setdefault(owner, []).append(store)
        return stores

    async def _command(self, peer: Peer, name: str, body: object) -> None:
        """What the broker that has the catalog says to the others. `Following` checks the term."""
        await peer.call(name, (self.term, body), type(None))

    async def changed(self, records: Sequence[EntityRecord]) -> None:
        await self._tell("changed", [asdict(record) for record in records])

    async def removed(self, paths: Sequence[EntityPath]) -> None:
        await self._tell("removed", list(paths))

    async def stay(self, paths: Sequence[EntityPath]) -> None:
        await self._tell("stay", list(paths))

    async def send_off(self, paths: Sequence[EntityPath], *, force: bool) -> None:
        if not force and None in self._owners.values():
            raise StoreUnavailable("A messaging store has no owner now. Please retry the operation.")
        try:
            for peer in list(self.peers.by_name.values()):
                try:
                    await self._command(peer, "send-off", (list(paths), force))
                except Unavailable:
                    # With force, unreachable brokers are ignored. Otherwise their messages might be lost.
                    if not force:
                        raise
        except BrokerError:
            await self.stay(paths)
            raise

    async def namespace_changed(self) -> None:
        await self._tell("namespace", dict(self.namespace()))

    async def _tell(self, name: str, body: object) -> None:
        """Tell all that can be reached. The others get the whole catalog when they are back."""
        for peer in list(self.peers.by_name.values()):
            try:
                await self._command(peer, name, body)
            except Unavailable as absence:
                logger.warning("the broker '%s' could not be informed of '%s': %s", peer.name, name, absence)

    async def last_use(self, path: EntityPath) -> Instant | None:
        last = Instant(0)
        for peer in list(self.peers.by_name.values()):
            try:
                last = max(last, Instant(await peer.call("last-use", path, int)))
            except BrokerError:
                return None
        return last

    # -- changes, elsewhere -------------------------------------------------------

    async def change_rules(
        self, topic_path: str, name: str, changes: Sequence[RuleDescription | str]
    ) -> None:
        shown = [each if isinstance(each, str) else rule_to_record(each) for each in changes]
        if len(shown) != 1:
            await self.leader.call("change-rules-together", (topic_path, name, shown), type(None))
            return
        (change,) = shown
        added, removed = (None, change) if isinstance(change, str) else (change, None)
        await self.leader.call("change-rules", (topic_path, name, added, removed), type(None))


def _nothing() -> None:
    """Nobody needs to know."""


def stores_of(cluster: Cluster, broker: str) -> list[str]:
    """The stores that a broker owns, as far as is known here."""
    return sorted(store for store in cluster.all_stores if cluster.owner_of(store) == broker)
