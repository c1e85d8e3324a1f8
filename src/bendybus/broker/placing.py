"""Where the partitions of entities are: created, found, claimed and removed in the stores.

The catalog is the source of truth: a partition exists if and only if the catalog lists it. Others are
removed when a store is opened, or when a partition of the same name is created. Entities: entities.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from bendybus.broker.lifecycle import StoreState
from bendybus.broker.partition_port import StoreView
from bendybus.broker.store_set import StoreSet
from bendybus.broker.stores import AttachedStore
from bendybus.errors import StoreError
from bendybus.names import EntityPath, Epoch, PartitionNumber
from bendybus.store.catalog import Catalog, EntityRecord
from bendybus.store.protocol import NEVER_CLAIMED, MessagingStore, PartitionKey, PartitionRecord

__all__ = [
    "PartitionClaims",
    "Located",
    "choose",
    "discard_partitions",
    "drop_partitions",
    "make_alone",
    "make_partitions",
    "placed_in",
    "locate",
    "replace_records",
    "sweep",
    "take_up",
    "unplaced",
]

logger = logging.getLogger(__name__)

# How long to wait before asking an unresponsive catalog again.
ASK_AGAIN_S: Final = 1.0

PartitionClaims: TypeAlias = dict[tuple[str, EntityPath, PartitionNumber], tuple[PartitionKey, Epoch]]
"""Store, entity and partition -> the store's key for it, and the epoch of our claim."""

Located: TypeAlias = tuple[PartitionNumber, PartitionKey | None, AttachedStore | str, Epoch | None]
"""A partition, its store, and our claim to it. There is no key and claim while its store is away.

A store of another broker is given by its name.
"""


def placed_in(records: Iterable[EntityRecord]) -> dict[str, set[tuple[EntityPath, PartitionNumber]]]:
    """Store -> the partitions that the catalog lists there."""
    placed: dict[str, set[tuple[EntityPath, PartitionNumber]]] = {}
    for record in records:
        for number, name in enumerate(record.placement):
            placed.setdefault(name, set()).add((record.path, PartitionNumber(number)))
    return placed


def take_up(store: AttachedStore, placed: Container[tuple[EntityPath, PartitionNumber]]) -> PartitionClaims:
    """Claim every partition that belongs in the store, and remove the others.

    The others were left by an interrupted create, delete or move. All claims are made at once, because
    each one alone would need a sync.
    """
    sweep(store, placed)
    records = store.store.partitions()
    epochs = store.store.claim([record.key for record in records])
    return {
        (store.name, record.entity, record.number): (record.key, epoch)
        for record, epoch in zip(records, epochs, strict=True)
    }


def unplaced(
    records: Iterable[PartitionRecord], placed: Container[tuple[EntityPath, PartitionNumber]]
) -> list[PartitionRecord]:
    """The partitions that a store holds although the catalog does not list them there."""
    return [record for record in records if (record.entity, record.number) not in placed]


def sweep(store: AttachedStore, placed: Container[tuple[EntityPath, PartitionNumber]]) -> None:
    """Remove the partitions that the catalog does not list in this store."""
    leftovers = unplaced(store.store.partitions(), placed)
    for path in dict.fromkeys(record.entity for record in leftovers):
        logger.warning(
            "store %s: removing partitions of '%s', which the catalog does not list there", store.name, path
        )
    if leftovers:
        store.store.discard([record.key for record in leftovers])


def locate(
    record: EntityRecord,
    claims: PartitionClaims,
    stores: StoreSet,
    away: Container[str],
    elsewhere: Container[str] = frozenset(),
) -> Iterator[Located]:
    """The locations of an entity's partitions. A store that is away may not have been asked.

    `elsewhere`: the stores of other brokers.
    """
    for number, name in enumerate(record.placement):
        if name in elsewhere:
            yield PartitionNumber(number), None, name, None
            continue
        claim = claims.get((name, record.path, PartitionNumber(number)))
        if claim is None and name not in away:
            raise StoreError(
                f"Partition {number} of '{record.path}' should be in the messaging store '{name}', "
                "which does not have it. Was another file or database put in the store's place?"
            )
        key, epoch = claim or (None, None)
        yield PartitionNumber(number), key, stores[name], epoch


def choose(stores: Collection[StoreView], count: int, first: int) -> list[str]:
    """The stores for this many new partitions. Each `first` begins with a different store."""
    names = [store.name for store in stores]
    if count == 1:
        # Several partitions use all stores; a single one goes to a store that is not away (P-04).
        names = [store.name for store in stores if store.state is not StoreState.AWAY] or names
    return [names[(first + number) % len(names)] for number in range(count)]


async def make_partitions(
    record: EntityRecord,
    stores: StoreSet,
    claims: PartitionClaims,
    elsewhere: Container[str] = frozenset(),
) -> None:
    """Create all partitions of an entity, empty. `claims` gets those created, also after a failure.

    `elsewhere`: the stores of other brokers, which create their own.
    """
    chosen = [stores[name] for name in dict.fromkeys(record.placement) if name not in elsewhere]
    for attached in chosen:
        attached.refuse_away()
    for attached in chosen:
        numbers = [
            PartitionNumber(number) for number, name in enumerate(record.placement) if name == attached.name
        ]
        for made in await attached.run(partial(_make_anew, attached.store, record.path, numbers)):
            claims[attached.name, record.path, made.number] = made.key, NEVER_CLAIMED


async def drop_partitions(stores: Iterable[AttachedStore], path: EntityPath) -> None:
    """Remove partitions that are no longer needed. Those that remain are swept at the next start."""
    for attached in dict.fromkeys(stores):
        try:
            await attached.run(partial(attached.store.drop_partitions, path))
        except Exception as failure:
            attached.recovery.has_leftovers = True
            logger.warning(
                "store %s: partitions of '%s' cannot be removed yet: %s", attached.name, path, failure
            )


async def discard_partitions(store: AttachedStore, keys: Sequence[PartitionKey]) -> None:
    """The same for single partitions, such as a copy that is not needed any more."""
    if not keys:
        return
    try:
        await store.run(partial(store.store.discard, keys))
    except Exception as failure:
        logger.warning("store %s: %d partitions cannot be removed yet: %s", store.name, len(keys), failure)


def make_alone(store: MessagingStore, path: EntityPath, number: PartitionNumber) -> PartitionKey:
    """Create an empty partition. What an earlier move may have left behind must not reappear."""
    store.discard([record.key for record in store.create_partitions(path, [number])])
    (made,) = store.create_partitions(path, [number])
    return made.key


async def replace_records(catalog: Catalog, records: Sequence[EntityRecord]) -> None:
    """The one moment that decides where partitions are. A catalog that fails may have stored the records
    anyway, so it is asked.

    Commands wait until it answers: continuing with either copy could be continuing with the wrong one.
    """
    try:
        await asyncio.to_thread(catalog.replace, *records)
    except Exception as failure:
        while True:
            try:
                known = {record.path: record for record in await asyncio.to_thread(catalog.entities)}
                break
            except Exception as silence:
                logger.warning("the catalog does not answer where partitions are: %s", silence)
                await asyncio.sleep(ASK_AGAIN_S)
        if any(known.get(record.path) != record for record in records):
            raise
        logger.warning("the catalog stored a change that it reported as failed: %s", failure)


def _make_anew(
    store: MessagingStore, path: EntityPath, numbers: Sequence[PartitionNumber]
) -> list[PartitionRecord]:
    """Create empty partitions. What a deleted entity of the same name left behind must not reappear."""
    store.drop_partitions(path)
    return store.create_partitions(path, numbers)
