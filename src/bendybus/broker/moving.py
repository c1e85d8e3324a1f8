"""One partition moves to another store while traffic flows: nothing is lost, and nothing is there twice.

1. A copy is made beside (copying.py): what the store has, and then what changes
   meanwhile, until little is left.
2. The partition takes no commands for a moment; they wait. What was submitted is
   written, the rest of the journal is brought after, and copy and memory are compared.
3. The catalog is told, in one commit. That is the move. Until then the copy is litter,
   from then on the original is: a partition exists where the catalog has it, so after
   a crash the start sweeps the other one away (placing.py).
4. Memory stays as it is, locks, sessions and all; only the row ids of messages
   change. Whoever has waited is served, and the original is dropped.

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

# A topic that is just publishing what was scheduled is left to it.
REST_AFTER_S: Final = 0.05


class Move:
    """Of partition `number` of everything that shares a store with it; `run` may be called once."""

    def __init__(
        self,
        entities: Entities,
        hosts: Callable[[], Sequence[AnyHost]],
        source: AttachedStore,
        target: AttachedStore,
    ) -> None:
        """`hosts`: those that are to move, the entity's own first; there may be more or fewer later."""
        self._entities = entities
        self._hosts = hosts
        self._source = source
        self._target = target
        self._copies = Copies(source, target)

    @property
    def copied(self) -> int:
        """Messages so far, for people."""
        return self._copies.copied

    async def run(self) -> None:
        """Return when all of it is in its new store; raise why it has stayed where it was."""
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

    # -- who moves ----------------------------------------------------------------

    def _newcomers(self) -> list[AnyHost]:
        """Subscriptions may be made while their topic moves."""
        return [host for host in self._hosts() if host not in self._copies.by_host]

    async def _leave_out_deleted(self) -> None:
        """Subscriptions may be deleted meanwhile; when the entity itself is, there is nothing to move."""
        staying = set(self._hosts())
        left = [host for host in self._copies.by_host if host not in staying]
        for host in left:
            await discard_partitions(self._target, [self._copies.by_host.pop(host).key])
        self._copies.refuse_interrupted()

    # -- the switch ---------------------------------------------------------------

    async def _switch(self) -> None:
        """While commands wait: the last changes, a comparison, and the catalog."""
        copies = list(self._copies.by_host.values())
        for each in copies:
            each.host.freeze()
        try:
            await self._copies.complete()
            # In a thread, since nobody changes a partition that is frozen, and others have work to do.
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
        """The catalog has it in the destination: so has memory, in one turn of the loop."""
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
        """Drop the original; whoever was reading from it is answered first."""
        with suppress(StoreUnavailable):
            await self._source.run(_nothing)
            await self._source.query(_nothing)
        await discard_partitions(self._source, [each.source_key for each in self._copies.by_host.values()])


def _nothing() -> None:
    """Does nothing: it is awaited because it runs after everything submitted before."""
