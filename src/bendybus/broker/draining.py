"""Emptying stores: which stores are draining, and the task that moves their partitions to the others.

A store that is draining gets no new partitions, and its partitions move away one after
the other. The catalog records which stores are draining, so a server that was stopped
or killed continues later. A partition that cannot move now (because a store is away, for example)
is tried again. How a partition moves: moving.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from bendybus import audit
from bendybus.broker.entities import Entities
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.moving import Move
from bendybus.broker.placing import placed_in, unplaced
from bendybus.broker.state_changes import StateChanges
from bendybus.broker.store_set import StoreSet
from bendybus.broker.stores import AttachedStore
from bendybus.broker.topic import SendTarget, Topic
from bendybus.errors import EntityNotFound, InvalidOperation, StoreUnavailable
from bendybus.names import PartitionNumber

__all__ = ["Drains"]

logger = logging.getLogger(__name__)

# How long to wait before trying again to move a partition that could not be moved.
RETRY_AFTER_S: Final = 1.0


class Drains:
    def __init__(self, stores: StoreSet, entities: Entities) -> None:
        self._stores = stores
        self._entities = entities
        self._task: asyncio.Task[None] | None = None
        self._halt = asyncio.Event()
        """Set when the moving task has to check again whether there is work."""
        self._stopped = False
        self._moving: tuple[AttachedStore, str, Move] | None = None
        """The source, the partition, and the move that is under way."""
        self._problem = ""
        self._began_with: dict[str, int] = {}
        """Store -> the partitions that it had when it began to drain, or when somebody first asked."""
        self.changes = StateChanges()
        """A move has begun, ended or failed."""

    # -- requests -----------------------------------------------------------------

    def start(self, names: object) -> None:
        """Continue with the draining stores of the catalog."""
        self._stores.draining = {str(name): None for name in names} if isinstance(names, list) else {}
        self._work()

    async def stop(self) -> None:
        """Finish the move that is under way. The other partitions stay where they are."""
        # Never cancelled: the catalog could contain a move that memory does not know of.
        self._stopped = True
        self._halt.set()
        await self.finished()

    async def finished(self) -> None:
        """Return once no draining store holds a partition, or the drains are stopped."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def __contains__(self, name: object) -> bool:
        return name in self._stores.draining

    def refuse_last(self, name: str) -> None:
        """`InvalidOperation` if no other store takes new partitions."""
        if not any(store.name != name for store in self._stores.open_to_new()):
            raise InvalidOperation(
                f"'{name}' is the last messaging store that takes partitions; attach another one first."
            )

    async def begin(self, name: str) -> None:
        """Start emptying this store. The request is durable on return; the store is empty later."""
        self._entities.elsewhere.refuse("draining a messaging store")
        async with self._entities.changing:
            self._stores[name]
            self.refuse_last(name)
            if name not in self._stores.draining:
                await self._keep({**self._stores.draining, name: None})
                self._began_with[name] = len(self._stores[name].residents)
                audit.record("store-drain-begun", store=name)
        self._work()

    async def end(self, name: str) -> None:
        """Use this store like any other again. Partitions that have moved stay where they are."""
        async with self._entities.changing:
            self._stores[name]
            if name in self._stores.draining:
                await self.forget(name)
                audit.record("store-drain-ended", store=name)

    async def forget(self, name: str) -> None:
        """`end`, for a caller that holds `Entities.changing`."""
        if name in self._stores.draining:
            await self._keep({each: None for each in self._stores.draining if each != name})
            self._halt.set()

    async def _keep(self, draining: dict[str, None]) -> None:
        catalog = self._entities.catalog
        description = {**catalog.namespace(), "draining": list(draining)}
        await asyncio.to_thread(catalog.describe_namespace, description)
        self._stores.draining = draining

    def progress(self, name: str) -> dict[str, object]:
        """The progress of emptying a store, for people."""
        if name not in self._stores.draining:
            return {}
        left = len(self._stores[name].residents)
        began_with = self._began_with.setdefault(name, left)
        shown: dict[str, object] = {"moved": max(0, began_with - left)}
        if self._moving is not None and self._moving[0].name == name:
            _, shown["moving"], move = self._moving
            shown["copied"] = move.copied
        if self._problem and self._stores[name].residents:
            shown["problem"] = self._problem
        return shown

    # -- the work -----------------------------------------------------------------

    def _work(self) -> None:
        if self._stores.draining and not self._stopped and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Run until no draining store holds a partition."""
        while not self._stopped and (waiting := self._waiting()):
            self._halt.clear()
            moved = False
            for source, entity, number in waiting:
                if self._stopped or source.name not in self._stores.draining:
                    break
                moved |= await self._move(source, entity, number)
            if not moved:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._halt.wait(), RETRY_AFTER_S)

    def _waiting(self) -> list[tuple[AttachedStore, SendTarget, int]]:
        """Every partition that has to move. Those of subscriptions move with their topics'."""
        entities: list[SendTarget] = [*self._entities.queues(), *self._entities.topics()]
        return [
            (host.store, entity, host.number)
            for entity in entities
            for host in entity.own.values()
            if host.store.name in self._stores.draining
        ]

    async def _move(self, source: AttachedStore, entity: SendTarget, number: int) -> bool:
        """Move a partition. Returns whether it has moved, or no longer has to."""
        if entity.deleted:
            return True
        try:
            target = self._destination(source, entity)
            move = Move(self._entities, partial(_together, entity, number), source, target)
            self._moving = source, f"{entity.path}[{number}]", move
            self.changes.notify()
            await move.run()
        except EntityNotFound:
            # Deleted meanwhile, so there is nothing to move.
            return True
        except Exception as failure:
            if str(failure) != self._problem:
                logger.warning(
                    "%s[%d] cannot be moved out of store %s yet: %s",
                    entity.path,
                    number,
                    source.name,
                    failure,
                )
            self._problem = str(failure)
            return False
        finally:
            self._moving = None
            self.changes.notify()
        self._problem = ""
        logger.info("%s[%d] moved from store %s to %s", entity.path, number, source.name, target.name)
        if not source.residents:
            await self._sweep(source)
        return True

    def _destination(self, source: AttachedStore, entity: SendTarget) -> AttachedStore:
        """Of the stores that answer, the one with the fewest partitions of this entity, then of all."""
        source.refuse_away()
        ready = [store for store in self._stores.open_to_new() if store.state is StoreState.AVAILABLE]
        if not ready:
            raise StoreUnavailable("No store that could take partitions answers.")
        own = [host.store for host in entity.own.values()]
        chosen = min(ready, key=lambda store: (own.count(store), len(store.residents)))
        chosen.refuse_incomplete()
        return chosen

    async def _sweep(self, source: AttachedStore) -> None:
        """Remove what is left in an empty store, including what earlier moves could not drop."""
        placed = placed_in(self._entities.records()).get(source.name, set())
        try:
            left = unplaced(await source.query(source.store.partitions), placed)
            await source.run(partial(source.store.discard, [record.key for record in left]))
        except Exception as failure:
            logger.warning("store %s: leftovers cannot be removed yet: %s", source.name, failure)
        else:
            logger.info("store %s is empty", source.name)


def _together(entity: SendTarget, number: int) -> Sequence[Host[Any]]:
    """The entity's partition, and those that share its store: for a topic, its subscriptions'."""
    number = PartitionNumber(number)
    if isinstance(entity, Topic):
        return [entity.own[number], *(each.own[number] for each in entity.subscriptions)]
    return [entity.own[number]]
