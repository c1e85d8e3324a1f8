"""Takes messaging stores over from other brokers and gives them up, with the partitions in them.

The owner of a store is recorded in the store itself, with a term that each new owner raises
(`SharedStore` in store/protocol.py). A new owner claims all partitions of the store, so from then on the
commits of the former owner fail, whatever it believes. Brokers announce what they own; the highest term wins.

To take over a store, this broker opens and claims it, and then gives each partition in it a host. When it
gives up the store, or learns that it was displaced, it replaces the hosts by remote partitions (exchange.py).
Waiting commands pass to the new owner. In a planned move, locks and sessions pass to it as well
(handing_over.py). Otherwise they end, as they do at a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from bendybus.broker.broker import Broker
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.placing import PartitionClaims, placed_in
from bendybus.broker.stores import AttachedStore
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.exchange import Exchange
from bendybus.cluster.following import Following
from bendybus.cluster.handing_over import HandingOver
from bendybus.cluster.reaching import Reach
from bendybus.cluster.serving import Calls, Service
from bendybus.errors import BrokerError, StoreError
from bendybus.store.protocol import SharedStore

__all__ = ["Ownership"]

logger = logging.getLogger(__name__)

TAKE_PATIENCE_S: Final = 1.0
# A broker that was given a store keeps it for some heartbeats: the giver may know more of the others.
GIVEN_FOR_S: Final = 2.0
# A broker that was displaced, and neither writes nor hears of the new owner, learns of it within this time.
CHECK_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Owned:
    """A store that this broker owns."""

    store: SharedStore
    attached: AttachedStore
    term: int


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A store that this broker has given up."""

    owned: _Owned
    to: str | None
    """The next owner."""
    kept: bool
    """Whether the next owner has the state that was only in memory."""


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
        self._exchange = Exchange(broker.entities, cluster)
        self.service: Service | None = None
        self._own: dict[str, _Owned] = {}
        self._heard: dict[str, tuple[int, str]] = {}
        """For each store, the highest term that was announced, and the broker that announced it."""
        self._alive: Container[str] = ()
        """The instances of the brokers that are alive."""
        self._stopping = False
        self._candidates: dict[str, SharedStore] = {}
        """Stores that this broker is to own but does not own yet."""
        self._taking: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, _Leaving] = {}
        """Stores that were given up but still name this broker as their owner."""
        self._taken_at: dict[str, float] = {}
        """When this broker took each of its stores, by the loop's clock."""
        self._reach = Reach()
        self._handing_over = HandingOver(cluster, self._take_soon)
        self._unsure: dict[str, None] = {}
        """Stores that may name this broker as their owner although it is not: a take-over has failed."""
        self._check_at = asyncio.get_running_loop().time() + CHECK_EVERY_S
        self._checking: asyncio.Task[None] | None = None
        self._complaints: dict[str, str] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        cluster.peers.owns = self.heard
        for name, peer in cluster.peers.by_name.items():
            self.heard(name, peer.owned)

    def calls(self) -> Calls:
        """What the other brokers may ask."""
        return self._handing_over.calls()

    def terms(self) -> dict[str, int]:
        """The stores that this broker owns, and the term of each."""
        return {name: owned.term for name, owned in self._own.items()}

    def has_given_away(self, names: Iterable[str]) -> bool:
        """Whether others own these stores, as far as is known here."""
        owners = {self._cluster.owner_of(name) for name in names}
        return not owners & {None, self._cluster.me.broker} and not self._leaving

    def unreached(self) -> list[str]:
        """The stores that this broker has not reached for a while, although it tries to."""
        for name, owned in self._own.items():
            is_away = owned.attached.state is StoreState.AWAY
            (self._reach.tries if is_away else self._reach.reached)(name)
        return self._reach.unreached({*self._own, *self._leaving, *self._taking})

    # -- the owners that are wanted -----------------------------------------------

    async def settle(self, wanted: Mapping[str, str], alive: Container[str]) -> None:
        """Give up what others are to own, and take over what this broker is to own.

        `wanted`: the owner that each store is to have. `alive`: the instances of the brokers that are alive.
        A store whose owner is alive is not taken: that owner gives it up, if it is to, and if it has a
        connection to the next one.
        """
        me, self._alive = self._cluster.me.broker, alive
        for name in list(self._leaving):
            await self._leave(name)
        for name in [name for name in self._own if wanted.get(name, me) != me]:
            if not self._is_new(name) and self._cluster.peers.reaches(wanted[name]):
                await self.release(name, wanted[name])
        mine = [name for name, owner in wanted.items() if owner == me and name not in self._own]
        for name in [name for name in self._candidates if name not in mine]:
            # Asked for each one: while one is closed, the next may begin to be taken over.
            if name in self._candidates and name not in self._taking:
                await asyncio.to_thread(self._candidates.pop(name).close)
        for name in mine:
            self._take_soon(name)
        for name in [name for name in self._unsure if name not in (*mine, *self._taking)]:
            self._taking[name] = asyncio.get_running_loop().create_task(self._give_back(name))
        self._check_now_and_then()
        if self._taking:
            # A database that does not answer must not delay what concerns others.
            await asyncio.wait(self._taking.values(), timeout=TAKE_PATIENCE_S)

    def _is_new(self, name: str) -> bool:
        """Whether this broker was given the store just now. What it knows of the others may be older."""
        taken_at = self._taken_at.get(name)
        return taken_at is not None and asyncio.get_running_loop().time() - taken_at < GIVEN_FOR_S

    def _take_soon(self, name: str) -> None:
        if self._stopping:
            return
        if name not in self._taking and name not in self._own and name not in self._leaving:
            self._taking[name] = asyncio.get_running_loop().create_task(self._take(name))

    async def _take(self, name: str) -> None:
        self._reach.tries(name)
        try:
            store, is_open = self._candidates.get(name), True
            if store is None:
                store = self._candidates[name] = self._store_named(name)
                is_open = False
            self._unsure[name] = None
            taken = await asyncio.to_thread(self._claim, store, is_open)
            self._reach.reached(name)
            if taken is not None:
                await self._install(name, store, *taken)
            del self._unsure[name]
            self._complaints.pop(name, None)
        except BrokerError as reason:
            # A database that is away, or one that was put in the place of another. Tried again soon.
            self._complain(name, f"the messaging store '{name}' cannot be taken over: {reason}")
            if name in self._candidates:
                await asyncio.to_thread(self._candidates.pop(name).close)
        except Exception:
            logger.exception("the messaging store '%s' cannot be taken over", name)
        finally:
            del self._taking[name]

    def _complain(self, name: str, complaint: str) -> None:
        """Log what is wrong with a store, once."""
        if self._complaints.get(name) != complaint:
            self._complaints[name] = complaint
            logger.error(complaint)

    def _claim(self, store: SharedStore, is_open: bool) -> tuple[int, PartitionClaims] | None:
        """In a thread: become the owner, and claim all partitions. None if the owner is alive."""
        if not is_open:
            store.open()
        owner, me = store.owner(), self._cluster.me
        is_owned = owner.instance in self._alive and owner.instance != me.instance
        if is_owned and not self._handing_over.is_offered(store.name, owner.term):
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
        """In a thread: if the store names this broker as its owner, clear that."""
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
            remembered = self._handing_over.taken(name, term)
            if remembered is not None:
                self._taken_at[name] = asyncio.get_running_loop().time()
            self._cluster.set_owner(name, self._cluster.me.broker)
            self._following.keep_claims(
                {key: claim for key, claim in claims.items() if key[1:] not in placed}
            )
            self._exchange.with_own(attached, claims, remembered, self.service)
            logger.info("owns the messaging store '%s' with %d partitions, term %d", name, len(placed), term)
            if self.service is not None:
                self.service.watch(attached)
            self._announce({} if remembered is None else {name: remembered.term})

    def _announce(self, resumed: Mapping[str, int] | None = None) -> None:
        if self.service is not None:
            self.service.ownership_changed(resumed)

    # -- giving up -----------------------------------------------------------------

    async def release(self, name: str, to: str | None = None) -> None:
        """Give up a store in order: what was submitted is written first. `to`: its next owner."""
        async with self._entities.changing:
            owned = self._own.get(name)
            if owned is None:
                return
            hosts = self._exchange.hosts_in(owned.attached)
            for host in hosts:
                host.begin_handing_over()
            try:
                await owned.attached.writer.drain()
                with suppress(BrokerError):
                    # What receivers are waiting for has been read after that, and given to them.
                    await owned.attached.query(_nothing)
                kept = to is not None and await self._handing_over.send(name, owned.term, hosts, to)
            except BaseException:
                for host in hosts:
                    host.keep()
                raise
            self._leaving[name] = _Leaving(owned, to, kept)
            self._uninstall(name, kept=kept)
        logger.info("gives up the messaging store '%s'", name)
        await self._leave(name)

    async def _leave(self, name: str) -> None:
        """Let the next owner take a store that was given up, and record in the store that it has no owner."""
        leaving = self._leaving.get(name)
        if leaving is None:
            # While another store was told, this one said that it has a new owner, and was closed (`_let_go`).
            return
        owned = leaving.owned
        if leaving.to is not None:
            await self._handing_over.told()
            await self._handing_over.offer(name, owned.term, leaving.to, kept=leaving.kept)
        try:
            await owned.attached.run(owned.store.release)
        except BrokerError as reason:
            # Only the broker that was asked to can take it: the store still names us. Tried again.
            self._complain(name, f"the messaging store '{name}' does not hear that it is given up: {reason}")
            return
        if name in self._leaving:
            await self._left(name)

    async def _left(self, name: str) -> None:
        """The store has been given up: close it."""
        leaving = self._leaving.pop(name)
        self._complaints.pop(name, None)
        self._reach.reached(name)
        await self._close(leaving.owned)

    def heard(self, broker: str, stores: Mapping[str, int], resumed: Mapping[str, int] | None = None) -> None:
        """Another broker says what it owns. `resumed`: see `Owns`."""
        cluster = self._cluster
        cluster.know_stores(stores)
        for name, term in stores.items():
            heard = self._heard.get(name, (0, ""))[0]
            kept = heard > 0 and (resumed or {}).get(name) == heard
            # A broker that was presumed dead may still be the owner.
            if term < heard or (term == heard and cluster.owner_of(name)):
                continue
            self._heard[name] = term, broker
            owned = self._own.get(name)
            if owned is None:
                self._follow_owner(name, broker, kept=kept)
            elif owned.term < term:
                self._displaced(name)
        for name in cluster.all_stores:
            if cluster.owner_of(name) == broker and name not in stores:
                # The next owner says what becomes of the sessions.
                self._follow_owner(name, None, kept=True)

    def _follow_owner(self, name: str, broker: str | None, *, kept: bool) -> None:
        """A store passes from one other broker to another, or to nobody."""
        self._cluster.set_owner(name, broker)
        self._exchange.with_others(name, kept=kept)

    def _displaced(self, name: str) -> None:
        """Another broker has the store, as that broker or the store itself says."""
        self._spawn(self._let_go(name))

    async def _let_go(self, name: str) -> None:
        async with self._entities.changing:
            owned = self._own.get(name)
            if owned is not None:
                logger.warning("the messaging store '%s' is given up: another broker has taken it over", name)
                self._uninstall(name, kept=False)
                await self._close(owned)
            elif name in self._leaving:
                # It is reached again, and says so: it does not have to be told any more.
                await self._left(name)

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

    def _uninstall(self, name: str, *, kept: bool) -> None:
        """The partitions in the store are not here any more. `kept`: their next owner has their locks."""
        owned = self._own.pop(name)
        owned.attached.recovery.may_sweep = False
        self._taken_at.pop(name, None)
        term, broker = self._heard.get(name, (0, ""))
        self._heard[name] = max((term, broker), (owned.term, self._cluster.me.broker))
        # The broker that was heard of may be gone, or may have given the store up again.
        peer = self._cluster.peers.by_name.get(broker)
        is_owned = peer is not None and peer.owned.get(name, 0) > owned.term
        self._cluster.set_owner(name, broker if is_owned else None)
        # The others know before their commands come back.
        self._exchange.with_others(name, kept=kept, before_passing_on=self._announce)

    async def _close(self, owned: _Owned) -> None:
        await self._broker.remove_store(owned.attached)
        await asyncio.to_thread(owned.store.close)

    # -- life ---------------------------------------------------------------------

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def stop(self, wanted: Mapping[str, str] | None = None) -> None:
        """Give everything up in order. `wanted`: the owner that each store is to have."""
        self._stopping = True
        tasks = [*self._tasks, *self._taking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in list(self._leaving):
            await self._leave(name)
        for name in list(self._own):
            await self.release(name, (wanted or {}).get(name))
        while self._leaving:
            # One at a time: while one is closed, another may be let go of.
            _, leaving = self._leaving.popitem()
            await self._close(leaving.owned)
        for store in self._candidates.values():
            await asyncio.to_thread(store.close)


def _nothing() -> None:
    """Does nothing: it is awaited because it runs after everything asked for before."""
