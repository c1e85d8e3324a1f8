"""The ticker: what becomes due in the partitions, stores and entities of a namespace.

Partitions that hold something with a deadline are ticked five times a second; the
others cost nothing. Each tick also checks the progress of the stores (health.py) and
finds unused entities (idle.py, temporary.py). What time it is: clock.py.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from bendybus import audit
from bendybus.broker.clock import Clock
from bendybus.broker.entities import Entities
from bendybus.broker.idle import is_idle
from bendybus.broker.store_set import StoreSet
from bendybus.broker.temporary import TemporaryEntities
from bendybus.broker.topic import SendTarget
from bendybus.domain.commands import MoveLockEnds
from bendybus.errors import BrokerError
from bendybus.names import Instant

__all__ = ["TICK_S", "Ticker"]

logger = logging.getLogger(__name__)

# Locks and lifetimes are given in seconds. A fifth of a second is accurate enough.
TICK_S: Final = 0.2


class Ticker:
    def __init__(
        self, clock: Clock, stores: StoreSet, entities: Entities, temporary: TemporaryEntities
    ) -> None:
        self._clock = clock
        self._stores = stores
        self._entities = entities
        self._temporary = temporary
        self._started_at = Instant(0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.TimerHandle | None = None
        clock.on_set_back = self._clock_set_back

    def start(self) -> None:
        """Start ticking."""
        self._started_at = self._clock.now()
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(TICK_S, self.tick)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def tick(self) -> None:
        assert self._loop is not None
        self._next = self._loop.call_later(TICK_S, self.tick)
        # First, so that commands of a stalled store do not wait for others' timers. Uses the machine's time.
        for store in self._stores:
            store.check(self._loop.time())
        at = self._clock.now()
        self._end_what_is_due(at)
        for entity in self._idle(at):
            self._loop.create_task(self._delete_idle(entity))
        self._temporary.sweep(self._loop.time())

    def _end_what_is_due(self, at: Instant) -> None:
        timed = self._entities.timed
        for host in tuple(timed):
            if not host.tick(at):
                timed.pop(host, None)

    def _clock_set_back(self, by_ms: int) -> None:
        """A lock of a minute that was granted before must not last an hour."""
        logger.warning("the clock was set back by %.1f s: locks keep their remaining time", by_ms / 1000)
        for queue in self._entities.sources():
            queue.consumer_leases.move_ends(by_ms)
            for host in queue.own.values():
                if host.partition is not None:
                    host.partition.apply(MoveLockEnds(by_ms), self._clock.now())

    async def advance(self, by_ms: int) -> None:
        """Move the clock forward. Returns once everything that became due is done and on disk.

        This is one leap, as if the machine had slept: everything due on the way is done on arrival, once.
        """
        entities, clock = self._entities, self._clock
        for entity in entities:
            await entity.loaded()
        clock.move_on(by_ms)
        # Thousands of messages may be due at once, and a partition activates only a limited number at a time.
        while any(host.due(clock.now()) for host in entities.timed):
            self._end_what_is_due(clock.now())
            for topic in entities.topics():
                for host in topic.own.values():
                    await host.activated()
            await self._stores.drain()
            for forwarder in entities.forwarders():
                await forwarder.settled()
        for entity in self._idle(clock.now()):
            await self._delete_idle(entity)

    # -- idle entities ------------------------------------------------------------

    def _idle(self, at: Instant) -> list[SendTarget]:
        if not self._entities.elsewhere.has_catalog:
            # The broker that has the catalog decides for all.
            return []
        return [entity for entity in self._entities if is_idle(entity, at, since=self._started_at)]

    async def _delete_idle(self, entity: SendTarget) -> None:
        if entity.deleted or not is_idle(entity, self._clock.now(), since=self._started_at):
            return
        # First: a message that is activated after this counts as a use.
        await entity.refresh()
        if any(host.figures is None or host.figures.scheduled_count for host in entity.hosts):
            return
        used_at = await self._entities.elsewhere.last_use(entity.path)
        if used_at is None:
            return
        entity.accessed_at = max(entity.accessed_at, used_at)
        if entity.deleted or not is_idle(entity, self._clock.now(), since=self._started_at):
            return
        try:
            with audit.acting(replace(audit.current_actor(), by="AutoDeleteOnIdle")):
                await self._entities.delete(entity)
            logger.info("'%s' was deleted because it was idle for too long", entity.path)
        except BrokerError as reason:
            logger.warning("'%s' is idle and cannot be deleted now: %s", entity.path, reason)
