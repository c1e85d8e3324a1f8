"""Messaging stores that pass from one broker to another, and the partitions in them.

The owner of a store is recorded in the store itself, with a term that each new owner raises
(`SharedStore` in store/protocol.py). Whoever takes a store over claims all its partitions, so the commits of
the former owner fail from then on, whatever it believes. The brokers tell each other what they own; the
highest term counts.

A store that this broker takes over is opened and claimed first, and then each partition in it gets a host in
place of what stood for it. When the broker gives the store up, or learns that it was displaced, it is the
other way round. Commands that wait pass to the new owner. Locks and sessions end, as they do at a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bendybus.broker.broker import Broker
from bendybus.broker.entity import Entity
from bendybus.broker.host import Host
from bendybus.broker.mailbox import Mailbox
from bendybus.broker.openers import OPENERS
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.placing import PartitionClaims, placed_in
from bendybus.broker.queue import Queue
from bendybus.broker.stores import AttachedStore
from bendybus.broker.topic import SendTarget, Topic
from bendybus.broker.topic_host import TopicHost
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.following import Following
from bendybus.cluster.items import LOCAL_COMMANDS
from bendybus.cluster.remote import RemotePartition
from bendybus.cluster.serving import Service
from bendybus.errors import BrokerError, StoreError, StoreUnavailable
from bendybus.names import PartitionNumber
from bendybus.store.protocol import SharedStore

__all__ = ["Ownership"]

logger = logging.getLogger(__name__)

TAKE_PATIENCE_S: Final = 1.0
# A broker that was displaced, and neither writes nor hears of the new owner, learns of it within this time.
CHECK_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Owned:
    """A store that this broker owns."""

    store: SharedStore
    attached: AttachedStore
    term: int


class Ownership:
    def __init__(
        self,
        broker: Broker,
        cluster: Cluster,
        following: Following,
        store_named: Callable[[str], SharedStore],
        compare: Callable[[], Awaitable[None]],
    ) -> None:
        """`store_named`: a store by its name, not yet opened. `compare`: brings the entities up to date with
        the catalog, where it is not this broker that changes it; called with `Entities.changing` held."""
        self._broker = broker
        self._entities = broker.entities
        self._cluster = cluster
        self._following = following
        self._store_named = store_named
        self._compare = compare
        self.service: Service | None = None
        self._own: dict[str, _Owned] = {}
        self._heard: dict[str, tuple[int, str]] = {}
        """Of each store the highest term that was heard of, and the broker that said so."""
        self._alive: Container[str] = ()
        """The instances of the brokers that are alive."""
        self._candidates: dict[str, SharedStore] = {}
        """Stores that this broker is to own, and does not own yet."""
        self._taking: dict[str, asyncio.Task[None]] = {}
        self._unsure: dict[str, None] = {}
        """Stores that may name this broker as their owner although it is not: a take-over has failed."""
        self._check_at = asyncio.get_running_loop().time() + CHECK_EVERY_S
        self._checking: asyncio.Task[None] | None = None
        self._complaints: dict[str, str] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        cluster.peers.owns = self.heard
        for name, peer in cluster.peers.by_name.items():
            self.heard(name, peer.owned)

    def terms(self) -> dict[str, int]:
        """The stores that this broker owns, and the term of each."""
        return {name: owned.term for name, owned in self._own.items()}

    # -- what is to be ------------------------------------------------------------

    async def settle(self, wanted: Mapping[str, str], alive: Container[str]) -> None:
        """Give up what others are to own, and take over what this broker is to own.

        `wanted`: the owner that each store is to have. `alive`: the instances of the brokers that are alive.
        A store whose owner is alive is not taken: that owner gives it up, if it is to.
        """
        me, self._alive = self._cluster.me.broker, alive
        for name in [name for name in self._own if wanted.get(name, me) != me]:
            await self.release(name)
        mine = [name for name, owner in wanted.items() if owner == me and name not in self._own]
        for name in [name for name in self._candidates if name not in (*mine, *self._taking)]:
            await asyncio.to_thread(self._candidates.pop(name).close)
        for name in mine:
            if name not in self._taking:
                self._taking[name] = asyncio.get_running_loop().create_task(self._take(name))
        for name in [name for name in self._unsure if name not in (*mine, *self._taking)]:
            self._taking[name] = asyncio.get_running_loop().create_task(self._give_back(name))
        self._check_now_and_then()
        if self._taking:
            # A database that does not answer must not delay what concerns others.
            await asyncio.wait(self._taking.values(), timeout=TAKE_PATIENCE_S)

    async def _take(self, name: str) -> None:
        try:
            store, is_open = self._candidates.get(name), True
            if store is None:
                store = self._candidates[name] = self._store_named(name)
                is_open = False
            self._unsure[name] = None
            taken = await asyncio.to_thread(self._claim, store, is_open)
            if taken is not None:
                await self._install(name, store, *taken)
            del self._unsure[name]
            self._complaints.pop(name, None)
        except BrokerError as reason:
            # A database that is away, or one that was put in the place of another. Tried again soon.
            if self._complaints.get(name) != str(reason):
                self._complaints[name] = str(reason)
                logger.error("the messaging store '%s' cannot be taken over: %s", name, reason)
            if name in self._candidates:
                await asyncio.to_thread(self._candidates.pop(name).close)
        except Exception:
            logger.exception("the messaging store '%s' cannot be taken over", name)
        finally:
            del self._taking[name]

    def _claim(self, store: SharedStore, is_open: bool) -> tuple[int, PartitionClaims] | None:
        """In a thread: become the owner, and claim all partitions. None if the owner is alive."""
        if not is_open:
            store.open()
        owner, me = store.owner(), self._cluster.me
        if owner.instance in self._alive and owner.instance != me.instance:
            return None
        term = store.take(me.broker, me.instance, owner.term)
        if term is None:
            return None
        records = store.partitions()
        epochs = store.claim([record.key for record in records])
        claims: PartitionClaims = {
            (store.name, record.entity, record.number): (record.key, epoch)
            for record, epoch in zip(records, epochs, strict=True)
        }
        return term, claims

    async def _give_back(self, name: str) -> None:
        """A take-over has failed. The store must not name this broker if another one is to own it."""
        try:
            await asyncio.to_thread(self._disown, self._store_named(name))
            del self._unsure[name]
        except BrokerError as reason:
            logger.warning("the messaging store '%s' may name this broker as its owner: %s", name, reason)
        finally:
            del self._taking[name]

    def _disown(self, store: SharedStore) -> None:
        """In a thread: if the store names us, it names nobody afterwards."""
        try:
            store.open()
            owner, me = store.owner(), self._cluster.me
            if owner.instance == me.instance and store.take(me.broker, me.instance, owner.term) is not None:
                store.release()
        finally:
            store.close()

    async def _install(self, name: str, store: SharedStore, term: int, claims: PartitionClaims) -> None:
        async with self._entities.changing:
            if not self._cluster.has_catalog:
                # Nobody creates partitions in a store without an owner, so what is compared now stays true.
                await self._compare()
            placed = placed_in(self._entities.records()).get(name, set())
            missing = [place for place in sorted(placed) if (name, *place) not in claims]
            if missing:
                await asyncio.to_thread(store.release)
                path, number = missing[0]
                raise StoreError(
                    f"Partition {number} of '{path}' should be in the messaging store '{name}', which does "
                    "not have it. Was another database put in the store's place?"
                )
            del self._candidates[name]
            attached = self._broker.add_store(store)
            attached.displaced = lambda: self._displaced(name)
            self._own[name] = _Owned(store, attached, term)
            self._cluster.set_owner(name, self._cluster.me.broker)
            self._following.keep_claims(
                {key: claim for key, claim in claims.items() if key[1:] not in placed}
            )
            self._host_partitions(attached, claims)
            logger.info("owns the messaging store '%s' with %d partitions, term %d", name, len(placed), term)
        if self.service is not None:
            self.service.watch(attached)
        self._announce()

    def _announce(self) -> None:
        if self.service is not None:
            self.service.ownership_changed()

    # -- what is no longer ---------------------------------------------------------

    async def release(self, name: str) -> None:
        """Give up a store in order: what was submitted is written first."""
        async with self._entities.changing:
            owned = self._own.get(name)
            if owned is None:
                return
            hosts = self._hosts_in(owned.attached)
            for host in hosts:
                host.begin_handing_over()
            await owned.attached.writer.drain()
            try:
                await owned.attached.run(owned.store.release)
            except BrokerError as reason:
                # Nobody else could take it, because the store would still name us.
                logger.warning("the messaging store '%s' cannot be given up now: %s", name, reason)
                for host in hosts:
                    host.keep()
                return
            await self._uninstall(name)
            logger.info("gives up the messaging store '%s'", name)
        self._announce()

    def heard(self, broker: str, stores: Mapping[str, int]) -> None:
        """Another broker says what it owns."""
        cluster = self._cluster
        for name, term in stores.items():
            heard = self._heard.get(name, (0, ""))[0]
            # A broker that was presumed dead may still be the owner.
            if name not in cluster.all_stores or term < heard or (term == heard and cluster.owner_of(name)):
                continue
            self._heard[name] = term, broker
            owned = self._own.get(name)
            if owned is None:
                self._follow_owner(name, broker)
            elif owned.term < term:
                self._displaced(name)
        for name in cluster.all_stores:
            if cluster.owner_of(name) == broker and name not in stores:
                self._follow_owner(name, None)

    def _follow_owner(self, name: str, broker: str | None) -> None:
        """A store passes from one other broker to another, or to nobody."""
        self._cluster.set_owner(name, broker)
        self._exchange_all(name)

    def _displaced(self, name: str) -> None:
        """Another broker has the store, as that broker or the store itself says."""
        self._spawn(self._let_go(name))

    async def _let_go(self, name: str) -> None:
        async with self._entities.changing:
            if name in self._own:
                logger.warning("the messaging store '%s' is let go of: another broker has taken it", name)
                await self._uninstall(name)
        self._announce()

    def _check_now_and_then(self) -> None:
        """Another owner may have come and gone before we were connected to it."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._check_at and (self._checking is None or self._checking.done()):
            self._check_at = loop.time() + CHECK_EVERY_S
            self._checking = self._spawn(self.check())

    async def check(self) -> None:
        """Ask each store who owns it: this broker may have been replaced without hearing of it."""
        for name, owned in list(self._own.items()):
            try:
                owner = await owned.attached.query(owned.store.owner)
            except BrokerError as reason:
                logger.warning("the messaging store '%s' does not say who owns it: %s", name, reason)
            else:
                if owner.term != owned.term:
                    await self._let_go(name)

    async def _uninstall(self, name: str) -> None:
        owned = self._own.pop(name)
        # The broker that was heard of may be gone, or may have given the store up again.
        peer = self._cluster.peers.by_name.get(self._heard.get(name, (0, ""))[1])
        if peer is not None and peer.owned.get(name, 0) <= owned.term:
            peer = None
        self._cluster.set_owner(name, None if peer is None else peer.name)
        self._exchange_all(name)
        await self._broker.remove_store(owned.attached)
        await asyncio.to_thread(owned.store.close)

    # -- partitions ---------------------------------------------------------------

    def _placed(self, name: str) -> Iterator[tuple[SendTarget, PartitionNumber]]:
        """The partitions in a store, those of topics before those of their subscriptions."""
        for kind in OPENERS:
            for record in self._entities.records():
                if record.kind != kind or name not in record.placement:
                    continue
                entity = self._entities.look_up(record.path)
                assert entity is not None, "a record is kept with its entity"
                for number, store in enumerate(record.placement):
                    if store == name:
                        yield entity, PartitionNumber(number)

    def _hosts_in(self, store: AttachedStore) -> list[Host[Any]]:
        return [host for entity in self._entities for host in entity.own.values() if host.store is store]

    def _host_partitions(self, attached: AttachedStore, claims: PartitionClaims) -> None:
        """Each partition in the store gets a host. Then they are loaded."""
        cache = self._entities.cache
        exchanged: list[tuple[PartitionPort, Host[Any]]] = []
        for entity, number in self._placed(attached.name):
            key, epoch = claims[attached.name, entity.path, number]
            host: Host[Any]
            if isinstance(entity, Topic):
                host = topic_host = TopicHost(entity, number, key, attached, cache, epoch)
                former: PartitionPort = entity.exchange(topic_host, topic_host)
            else:
                host = queue_host = PartitionHost(entity, number, key, attached, cache, epoch)
                former = entity.exchange(queue_host, queue_host)
            exchanged.append((former, host))
        for former, host in exchanged:
            host.load()
            _pass_on(_given_up(former), host)
        for entity in dict.fromkeys(entity for entity, _ in self._placed(attached.name)):
            if isinstance(entity, Queue):
                self._entities.forwarder(entity).wake()

    def _exchange_all(self, name: str) -> None:
        """Other brokers own the partitions in the store, or nobody does."""
        exchanged: list[tuple[Entity[Any, Any, Any], PartitionPort, PartitionPort]] = []
        for entity, number in self._placed(name):
            if isinstance(entity, Topic):
                port: PartitionPort = self._cluster.topic_partition(entity, entity.generation, number, name)
            else:
                port = self._cluster.queue_partition(entity, entity.generation, number, name)
            whole: Entity[Any, Any, Any] = entity
            exchanged.append((whole, whole.exchange(port, None), port))
        for whole, former, port in exchanged:
            _pass_on(_given_up(former), port)
            whole.availability_changed(port)

    # -- life ---------------------------------------------------------------------

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def stop(self) -> None:
        """Give everything up in order."""
        tasks = [*self._tasks, *self._taking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in list(self._own):
            await self.release(name)
        for store in self._candidates.values():
            await asyncio.to_thread(store.close)


def _given_up(former: PartitionPort) -> Mailbox:
    assert isinstance(former, Host | RemotePartition), "there are no others"
    return former.give_up()


def _pass_on(mailbox: Mailbox, port: PartitionPort) -> None:
    """Commands that waited for the former owner wait for the next one."""
    for command, done in mailbox:
        if type(command) in LOCAL_COMMANDS and not isinstance(port, Host):
            done(StoreUnavailable(f"Partition {port.number} of '{port.path}' has another owner now."))
        else:
            port.submit(command, done)
