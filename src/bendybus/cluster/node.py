"""The lifecycle of one broker in a cluster: heartbeats, and the reactions to them.

One task writes a heartbeat twice a second and reads which other brokers are alive. Another task acts on the
last reading: it connects to new brokers, takes over or gives up messaging stores (ownership.py), and leads if
no other broker does; otherwise it follows the catalog. A round may take long, for example when a store hangs;
heartbeats continue. While the catalog's database is away there are no new readings: no broker is presumed
dead, and no store changes its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from bendybus.cluster.cluster import Cluster
from bendybus.cluster.following import Following
from bendybus.cluster.membership import (
    BEAT_S,
    DEAD_AFTER_S,
    DRAINING,
    GONE,
    LEAVING,
    SERVING,
    common_stores,
    is_alive,
    known_stores,
    living,
    refuse_missing_stores,
    refuse_other_stores,
    wanted_owners,
    without_outage,
)
from bendybus.cluster.ownership import Ownership
from bendybus.cluster.sweeping import Sweep
from bendybus.errors import BrokerError, ConfigError, InvalidOperation, StoreError, StoreUnavailable
from bendybus.store.catalog import SharedCatalog
from bendybus.store.roster import BrokerRow, Roster, RosterView

__all__ = ["Node"]

logger = logging.getLogger(__name__)

# A broker that was killed and is started again at once finds its name taken for this long.
NAME_PATIENCE_S: Final = DEAD_AFTER_S + 2.0
# How long a broker that stops tries to hand over its stores. Then it stops with those that it still has.
LEAVE_PATIENCE_S: Final = 15.0
LOOK_AGAIN_S: Final = 0.02

T = TypeVar("T")


class Node:
    def __init__(
        self,
        row: BrokerRow,
        roster: Roster,
        catalog: SharedCatalog,
        cluster: Cluster,
        replaced: Callable[[], None],
    ) -> None:
        """`row`: how this broker is listed. `replaced`: called when another process has its name."""
        self._row = row
        self._roster = roster
        self._catalog = catalog
        self._cluster = cluster
        self._replaced = replaced
        self.addresses: dict[str, str] = {}
        """Where each broker is reached."""
        self.view: RosterView | None = None
        """What was read last."""
        self._news = asyncio.Event()
        self._was_silent = False
        self._outage_s = 0.0
        """For how long this broker wrote no heartbeat, until the others have had time to write theirs."""
        self._since_outage_s = 0.0
        self._unreached: list[str] = []
        """What the others were told."""
        self._revision = -1
        self._following: Following | None = None
        self._ownership: Ownership | None = None
        self.sweep: Sweep | None = None
        # A separate thread, because a heartbeat must not wait for the threads that everything else shares.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="heartbeat")
        self._tasks: list[asyncio.Task[None]] = []
        self._complaint = ""
        self._stopped = False

    # -- starting -----------------------------------------------------------------

    async def join(self) -> None:
        """Be listed. Returns once the namespace has been founded, by this broker or another."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + NAME_PATIENCE_S
        while not await self._ask(lambda: self._roster.join(self._row, DEAD_AFTER_S)):
            if loop.time() > patience:
                raise ConfigError(
                    f"a broker '{self._row.name}' of this cluster is running already; give this one another "
                    "name with --broker"
                )
            await asyncio.sleep(BEAT_S)
        while True:
            view = await self._beat()
            refuse_other_stores(view, self._row.name, self._row.stores)
            self._meet(view)
            refuse_missing_stores(view, await asyncio.to_thread(self._placed), self._row.stores)
            await self._lead(view)
            if self._cluster.has_catalog or "created_at" in self._catalog.namespace():
                return
            # Another broker is founding it.
            await asyncio.sleep(BEAT_S)
            await asyncio.to_thread(self._catalog.read)

    async def serve(self, following: Following, ownership: Ownership) -> None:
        """Take part from now on. Returns after the first round; `run` is called next."""
        self._following, self._ownership = following, ownership
        self.sweep = Sweep(self._cluster, following.leftovers, self._catalog)
        self._row = replace(self._row, state=SERVING)
        await self.round()

    async def round(self) -> None:
        """One heartbeat, and what follows from it."""
        self.view = await self._beat()
        self._meet(self.view)
        await self._act(self.view)

    def run(self) -> None:
        """Repeat that until the end."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_beating()), loop.create_task(self._keep_acting())]

    @property
    def state(self) -> str:
        return self._row.state

    async def drain(self, draining: bool) -> None:
        """Give all stores away and own none, or take part again. Returns when the others know."""
        if self.state not in (SERVING, DRAINING):
            raise InvalidOperation(f"The broker '{self._row.name}' is {self.state}.")
        if draining and self.view is not None:
            others = [each for each in self.view.brokers if each.name != self._row.name and is_alive(each)]
            if not any(each.state == SERVING for each in others):
                raise InvalidOperation(
                    f"No other broker is serving, so no broker could own the stores of '{self._row.name}'. "
                    "Start another one first."
                )
        before, self._row = self._row, replace(self._row, state=DRAINING if draining else SERVING)
        try:
            self.view = await self._beat()
        except BrokerError:
            self._row = before
            raise
        self._news.set()

    async def look(self) -> None:
        """Read what there is now instead of at the next heartbeat."""
        self.view = await self._beat()
        self._news.set()

    async def leave(self) -> None:
        """Give all stores away before the end, while clients are still served."""
        view = await self._say(LEAVING)
        if view is None or view.own_silence_s is None or self._ownership is None:
            # Nobody can be told, or another process has this broker's name.
            return
        self.view, owned = view, list(self._ownership.terms())
        self._news.set()
        try:
            async with asyncio.timeout(LEAVE_PATIENCE_S):
                while self._wanted(self.view) and not self._ownership.has_given_away(owned):
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            logger.warning(
                "messaging stores could not be given up in time: %s", ", ".join(self._ownership.terms())
            )

    async def stop(self) -> None:
        """Leave in order: others take over at once. May be called again."""
        if self._stopped:
            return
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.sweep is not None:
            await self.sweep.stop()
        view = await self._say(LEAVING)
        if self._ownership is not None:
            await self._ownership.stop({} if view is None else self._wanted(view))
        await self._say(GONE)
        await self._ask(self._roster.close)
        self._thread.shutdown(wait=False)

    async def _say(self, state: str) -> RosterView | None:
        self._row = replace(self._row, state=state)
        try:
            return await self._beat()
        except BrokerError as reason:
            logger.warning("the other brokers could not be informed that this one is %s: %s", state, reason)
            return None

    # -- heartbeats ---------------------------------------------------------------

    async def _ask(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _beat(self) -> RosterView:
        row = self._row
        view = await self._ask(lambda: self._roster.beat(row.name, row.instance, row.state))
        silence_s = view.own_silence_s
        if silence_s is not None and silence_s >= DEAD_AFTER_S:
            self._was_silent = True
            self._outage_s, self._since_outage_s = silence_s, 0.0
        elif self._outage_s:
            self._since_outage_s += silence_s or 0.0
            if self._since_outage_s >= DEAD_AFTER_S:
                self._outage_s = 0.0
        return without_outage(view, self._outage_s)

    async def _keep_beating(self) -> None:
        while True:
            try:
                self.view = await self._beat()
                # At once: what a round waits for may be the answer of a broker that is presumed dead.
                self._meet(self.view)
            except BrokerError as reason:
                if str(reason) != self._complaint:
                    self._complaint = str(reason)
                    logger.error("the cluster's catalog is away, so nothing moves: %s", reason)
            else:
                if self._complaint:
                    logger.warning("the cluster's catalog is back")
                self._complaint = ""
                self._news.set()
            await asyncio.sleep(BEAT_S)

    # -- acting -------------------------------------------------------------------

    async def _keep_acting(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            assert self.view is not None, "there are news"
            try:
                await self._act(self.view)
            except StoreUnavailable as reason:
                logger.warning("a round was not completed: %s", reason)
            except Exception:
                logger.exception("a round failed")

    async def _act(self, view: RosterView) -> None:
        if view.own_silence_s is None:
            logger.error("another process is the broker '%s' now: this one ends", self._row.name)
            self._replaced()
            return
        assert self._ownership is not None
        if self._was_silent:
            self._was_silent = False
            logger.warning(
                "this broker was silent for more than %g s: others may have replaced it", DEAD_AFTER_S
            )
            await self._ownership.check()
        try:
            await self._follow(view)
        except StoreError:
            # The catalog lists a partition that a store of ours does not have. If another broker has taken
            # the store and created the partition there, the store says so.
            await self._ownership.check()
            await self._follow(view)

    async def _follow(self, view: RosterView) -> None:
        assert self._ownership is not None
        await self._lead(view)
        await self._tell_unreached()
        await self._ownership.settle(self._wanted(view), living(view).keys())
        if not self._cluster.has_catalog and view.lead.revision != self._revision:
            async with self._following_entities():
                await self.compare()
        if self.sweep is not None:
            self.sweep.consider()

    async def _tell_unreached(self) -> None:
        """So that others own what this broker does not reach."""
        assert self._ownership is not None
        unreached = self._ownership.unreached()
        if unreached != self._unreached:
            name, instance = self._row.name, self._row.instance
            await self._ask(lambda: self._roster.reach(name, instance, unreached))
            logger.warning("this broker cannot reach the messaging stores %s", ", ".join(unreached) or "none")
            self._unreached = unreached

    def _placed(self) -> set[str]:
        """The stores that have partitions, as the catalog says."""
        return {store for record in self._catalog.entities() for store in record.placement}

    def _wanted(self, view: RosterView) -> dict[str, str]:
        return wanted_owners(view, self._row.stores)

    def _meet(self, view: RosterView) -> None:
        """Call brokers that are new, and forget those that are gone or presumed dead."""
        peers = self._cluster.peers
        others = {broker.name: broker for broker in view.brokers if broker.name != self._row.name}
        self.addresses = {name: broker.address for name, broker in others.items() if is_alive(broker)}
        self._cluster.know_stores(known_stores(view))
        self._cluster.common = common_stores(view)
        for name in self.addresses:
            peers.add(name)
        for name in [name for name in peers.by_name if name not in self.addresses]:
            logger.info("the broker '%s' is gone or presumed dead", name)
            if self._ownership is not None:
                self._ownership.heard(name, {})
            peers.remove(name, "it is presumed dead")

    # -- the catalog --------------------------------------------------------------

    async def _lead(self, view: RosterView) -> None:
        """Make changes if nobody else does."""
        lead, me = view.lead, self._cluster.me
        if lead.instance == me.instance:
            if self._catalog.term != lead.term:
                await self._become_leader(lead.term)
            return
        if lead.term >= self._cluster.term:
            if self._catalog.term is not None:
                logger.warning("the broker '%s' leads now", lead.broker)
            self._catalog.term = None
            self._cluster.follow(lead.broker, lead.term)
        if lead.instance not in living(view):
            term = await self._ask(lambda: self._roster.lead(me.broker, me.instance, lead.term))
            if term is not None:
                await self._become_leader(term)

    async def _become_leader(self, term: int) -> None:
        async with self._following_entities():
            # The last changes of an earlier leader may not have arrived here.
            await self.compare()
            self._catalog.term = term
            self._cluster.follow(self._cluster.me.broker, term)
        logger.info("leads the cluster, term %d", term)

    def _following_entities(self) -> asyncio.Lock:
        """Held while entities change. Before there are any, nothing is held."""
        return asyncio.Lock() if self._following is None else self._following.changing

    async def compare(self) -> None:
        """Make all entities match the catalog. The caller holds the lock for changes."""
        revision, records = await asyncio.to_thread(self._catalog.read)
        if self._following is not None:
            await self._following.compare(self._catalog.namespace(), records)
        self._revision = revision
