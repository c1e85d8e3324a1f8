"""Moving a partition to another store while traffic continues, without loss or duplicates.

1. A copy is made (copying.py): first what the store has, then the changes
   made meanwhile, until few are left.
2. The partition takes no commands for a moment; they wait. What was submitted is
   written, the rest of the journal is applied, and copy and memory are compared.
3. The catalog is updated in one commit. That is the move. Before it, the copy belongs to no
   entity; after it, the original does not. A partition exists where the catalog lists it, so after
   a crash the next start sweeps the other one (placing.py).
4. Memory stays as it is, including locks and sessions; only the row ids of messages
   change. The waiting commands are served, and the original is dropped.

A topic's partition and those of its subscriptions share a store and many bodies,
so they move together. Which partitions move, and where to: draining.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bendybus.broker.copying import AnyHost, Copies, Copy
from bendybus.broker.entities import Entities
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.placing import discard_partitions, replace_records
from bendybus.broker.stores import AttachedStore
from bendybus.domain.messages import Message
from bendybus.errors import StoreUnavailable
from bendybus.store.catalog import EntityRecord
from bendybus.store.protocol import NEVER_CLAIMED

__all__ = ["Move"]

# How long to wait if a topic is just publishing scheduled messages.
REST_AFTER_S: Final = 0.05


class Move:
    """The move of partition `number` and everything that shares a store with it. `run` may be called once."""

    def __init__(
        self,
        entities: Entities,
        hosts: Callable[[], Sequence[AnyHost]],
        source: AttachedStore,
        target: AttachedStore,
    ) -> None:
        """`hosts`: the partitions to move, the entity's own first. Subscriptions may come and go later."""
        self._entities = entities
        self._hosts = hosts
        self._source = source
        self._target = target
        self._copies = Copies(source, target)

    @property
    def copied(self) -> int:
        """The number of messages copied so far, for people."""
        return self._copies.copied

    async def run(self) -> None:
        """Return once all partitions are in the new store. Raises the reason if they stay where they were."""
        try:
            while True:
                for host in self._newcomers():
                    await self._copies.make(host)
                await self._copies.catch_up()
                async with self._entities.changing:
                    await self._leave_out_deleted()
                    if not self._newcomers() and all(host.at_rest for host in self._copies.by_host):
                        await self._switch()
                        break
                await asyncio.sleep(REST_AFTER_S)
        except BaseException:
            await discard_partitions(self._target, [each.key for each in self._copies.by_host.values()])
            raise
        finally:
            for host in self._copies.by_host:
                host.journal.end()
        await self._clear_source()

    # -- which partitions move ----------------------------------------------------

    def _newcomers(self) -> list[AnyHost]:
        """The partitions of subscriptions that were created during the move."""
        return [host for host in self._hosts() if host not in self._copies.by_host]

    async def _leave_out_deleted(self) -> None:
        """Leave out subscriptions deleted during the move. If the entity itself is deleted, nothing moves."""
        staying = set(self._hosts())
        left = [host for host in self._copies.by_host if host not in staying]
        for host in left:
            await discard_partitions(self._target, [self._copies.by_host.pop(host).key])
        self._copies.refuse_interrupted()

    # -- the switch ---------------------------------------------------------------

    async def _switch(self) -> None:
        """While commands wait: copy the last changes, compare, and update the catalog."""
        copies = list(self._copies.by_host.values())
        for each in copies:
            each.host.freeze()
        try:
            await self._copies.complete()
            # In a thread: nothing changes a frozen partition, and the loop can serve others.
            moved = {each: await asyncio.to_thread(self._copies.compared, each) for each in copies}
            self._copies.refuse_interrupted()
            self._target.refuse_incomplete()
            records = list(self._records())
            await replace_records(self._entities.catalog, records)
        except BaseException:
            for each in copies:
                each.host.thaw()
            raise
        self._entities.moved(records)
        self._settle(moved)

    def _records(self) -> Iterator[EntityRecord]:
        for host in self._copies.by_host:
            record = self._entities.record(host.path)
            placement = list(record.placement)
            placement[host.number] = self._target.name
            yield replace(record, placement=tuple(placement))

    def _settle(self, moved: Mapping[Copy, Sequence[Message]]) -> None:
        """The catalog lists the destination. Update memory accordingly, in one turn of the loop."""
        self._copies.adopt(moved)
        for each in moved:
            each.host.relocate(self._target, each.key, NEVER_CLAIMED)
        for each in moved:
            if self._target.state is StoreState.AWAY:
                each.host.refuse(each.host.withdraw(), StoreUnavailable(self._target.reason))
            elif each.interrupted:
                each.host.load_claimed(each.key, NEVER_CLAIMED)
            else:
                each.host.thaw()

    async def _clear_source(self) -> None:
        """Drop the original, after the reads from it have been answered."""
        with suppress(StoreUnavailable):
            await self._source.run(_nothing)
            await self._source.query(_nothing)
        await discard_partitions(self._source, [each.source_key for each in self._copies.by_host.values()])


def _nothing() -> None:
    """Does nothing: it is awaited because it runs after everything submitted before."""
