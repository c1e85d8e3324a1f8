"""A store that is lost for good: its partitions are created again, empty, in the other stores.

The order is that of a move (moving.py). Empty partitions are created in the other stores first; until
the catalog lists them there, they belong to no entity. One commit of the catalog then moves all of them. From
that moment on, whatever the lost store still has belongs to no entity: if the store comes back, it is swept.

The contents of the lost partitions are given up: messages, session states, the duplicate
history, and the record of what has been forwarded to them. A message that was on its way to such a
partition may therefore arrive a second time.

An entity keeps its generation, because its other partitions continue unchanged. So sequence numbers must
not start again: clients may hold old ones, and destinations have recorded the number up to which the outbox
has arrived, and would drop lower ones. A new partition counts from the present time in milliseconds,
which is more than any partition has ever given out: a counter that started at 1 in 1970 would reach it only
now, at a thousand messages per second without a pause.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bendybus.broker.commit_group import Share
from bendybus.broker.entities import Entities
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.placing import discard_partitions, make_alone, replace_records
from bendybus.broker.stores import AttachedStore
from bendybus.broker.topic import SendTarget, Topic
from bendybus.errors import InvalidOperation, StoreUnavailable
from bendybus.names import PARTITION_SHIFT, Instant, SequenceNumber
from bendybus.store.catalog import EntityRecord
from bendybus.store.protocol import NEVER_CLAIMED, PartitionKey

__all__ = ["Loss", "give_up", "loss_of", "refuse_present"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost with a store, as far as it is known."""

    partitions: int
    messages: int
    """Messages in the partitions that were loaded since the server started."""
    uncounted: int
    """Partitions that were not loaded, so that their contents are unknown."""


@dataclass(slots=True)
class _Recreated:
    """A partition that is created again."""

    host: Host[Any]
    target: AttachedStore
    key: PartitionKey | None = None


def loss_of(store: AttachedStore) -> Loss:
    counts = [resident.last_count for resident in store.residents]
    known = [count for count in counts if count is not None]
    return Loss(len(counts), sum(known), len(counts) - len(known))


def refuse_present(store: AttachedStore) -> None:
    if store.state is not StoreState.AWAY:
        raise InvalidOperation(
            f"The messaging store '{store.name}' is {store.state.value}, so it must not be given up: "
            "drain it and retire it."
        )


async def give_up(entities: Entities, lost: AttachedStore) -> Loss:
    """Create the partitions again in other stores. No entity may change meanwhile.

    After a failure the partitions are where they were, and come back if the store does.
    """
    refuse_present(lost)
    loss = loss_of(lost)
    wanted = list(_wanted(entities, lost))
    # They belong to no entity for a while. A probe that finds them must not sweep them.
    lost.recovery.given_up = {(each.host.path, each.host.number) for each in wanted}
    for each in wanted:
        # A probe that is under way may still answer. It must not load them.
        lost.remove_resident(each.host)
        each.host.begin_emptying()
    try:
        for each in wanted:
            each.key = await _make(each, entities.clock.now())
        records = list(_records(entities, wanted))
        if records:
            await replace_records(entities.catalog, records)
    except Exception as failure:
        for each in wanted:
            lost.add_resident(each.host)
        lost.recovery.given_up = set()
        for each in wanted:
            each.host.look_again(failure)
        for each in wanted:
            if each.key is not None:
                await discard_partitions(each.target, [each.key])
        raise StoreUnavailable(f"'{lost.name}' was not forgotten: {failure} Please retry.") from failure
    entities.moved(records)
    lost.recovery.given_up = set()
    for each in wanted:
        assert each.key is not None, "all of them have been made"
        each.host.relocate(each.target, each.key, NEVER_CLAIMED)
        each.host.load_emptied(each.key)
    logger.warning(
        "store %s was given up: %d partitions start again, empty, in other stores; %d messages are known to "
        "be lost, and those of %d partitions were not counted",
        lost.name,
        loss.partitions,
        loss.messages,
        loss.uncounted,
    )
    return loss


def _wanted(entities: Entities, lost: AttachedStore) -> Iterator[_Recreated]:
    """Every partition in the lost store, and its new store. A topic's goes with its subscriptions'."""
    ready = [
        store
        for store in entities.stores.open_to_new()
        if store is not lost and store.state is StoreState.AVAILABLE
    ]
    added = dict.fromkeys(ready, 0)
    everything: list[SendTarget] = [*entities.queues(), *entities.topics()]
    for entity in everything:
        own = [host.store for host in entity.own.values()]
        for host in entity.own.values():
            if host.store is not lost:
                continue
            if not ready:
                raise StoreUnavailable("No other store that could take its partitions answers.")
            target = min(ready, key=lambda store: (own.count(store), len(store.residents) + added[store]))
            own[host.number] = target
            for together in _family(entity):
                added[target] += 1
                yield _Recreated(together.own[host.number], target)


def _family(entity: SendTarget) -> Iterable[SendTarget]:
    return (entity, *entity.subscriptions) if isinstance(entity, Topic) else (entity,)


async def _make(each: _Recreated, at: Instant) -> PartitionKey:
    """Create an empty partition whose numbers are higher than all that were given out before."""
    each.target.refuse_incomplete()
    path, number = each.host.path, each.host.number
    key = await each.target.run(partial(make_alone, each.target.store, path, number))
    first = SequenceNumber((number << PARTITION_SHIFT) + at)
    await each.target.commit([Share(key, NEVER_CLAIMED, first, ())])
    return key


def _records(entities: Entities, wanted: Iterable[_Recreated]) -> Iterator[EntityRecord]:
    placements: dict[str, list[str]] = {}
    for each in wanted:
        before = entities.record(each.host.path).placement
        placements.setdefault(each.host.path, list(before))[each.host.number] = each.target.name
    for path, placement in placements.items():
        yield replace(entities.record(path), placement=tuple(placement))
