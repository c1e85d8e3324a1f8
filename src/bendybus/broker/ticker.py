"""The ticker: what time brings to the partitions, stores and entities of a namespace.

Partitions that hold something with an end are ticked five times a second, all
others cost nothing. Each tick also looks whether the stores get on (health.py) and
which entities nobody uses any more (idle.py). What time it is: clock.py.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from bendybus.broker.host import Host
from bendybus.broker.idle import is_idle
from bendybus.broker.topic import Target
from bendybus.errors import BrokerError
from bendybus.names import Instant

if TYPE_CHECKING:
    from bendybus.broker.broker import Broker

__all__ = ["TICK_S", "Ticker"]

logger = logging.getLogger(__name__)

# Locks and lifetimes are given in seconds; a fifth of one is as exact as anybody asks.
TICK_S: Final = 0.2


class Ticker:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # In the order in which they came, so that what happens can happen again: see tests/faults/simulation.
        self._timed: dict[Host[Any], None] = {}
        self._started_at = Instant(0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on, a tick at a time."""
        self._started_at = self._broker.clock.now()
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(TICK_S, self.tick)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def keep_time(self, host: Host[Any]) -> None:
        """Tick this partition from now on."""
        self._timed[host] = None

    def tick(self) -> None:
        assert self._loop is not None
        self._next = self._loop.call_later(TICK_S, self.tick)
        # First: what a stalled store keeps waiting must not wait for others' timers. By the machine's time.
        for store in self._broker.stores():
            store.check(self._loop.time())
        at = self._broker.clock.now()
        self._end_what_is_due(at)
        for entity in self._idle(at):
            self._loop.create_task(self._delete_idle(entity))

    def _end_what_is_due(self, at: Instant) -> None:
        for host in tuple(self._timed):
            if not host.tick(at):
                self._timed.pop(host, None)

    async def advance(self, by_ms: int) -> None:
        """Move the clock on; return when all that fell due has been done and is on disk.

        It is one leap, as if the machine had slept: what fell due on the way is done on arrival, once.
        """
        broker = self._broker
        for entity in broker.entities():
            await entity.loaded()
        broker.clock.move_on(by_ms)
        # A thousand messages may be due at once, and a partition takes only so many in one go.
        while any(host.due(broker.clock.now()) for host in self._timed):
            self._end_what_is_due(broker.clock.now())
            for topic in tuple(broker.topics):
                for host in topic.hosts:
                    await host.activated()
            await broker.drain()
            for forwarder in tuple(broker.registry.forwarders.values()):
                await forwarder.settled()
        for entity in self._idle(broker.clock.now()):
            await self._delete_idle(entity)

    # -- what nobody uses ---------------------------------------------------------

    def _idle(self, at: Instant) -> list[Target]:
        return [entity for entity in self._broker.entities() if is_idle(entity, at, since=self._started_at)]

    async def _delete_idle(self, entity: Target) -> None:
        if entity.deleted or not is_idle(entity, self._broker.clock.now(), since=self._started_at):
            return
        try:
            await self._broker.delete(entity)
            logger.info("'%s' was idle for too long and has been deleted", entity.path)
        except BrokerError as reason:
            logger.warning("'%s' is idle and cannot be deleted now: %s", entity.path, reason)
