"""Emptying a namespace: every entity gets new partitions in place of its old ones (B-08).

This is cheaper than removing messages, however many there are, and leaves nothing of the old
partitions: numbers, duplicate histories, session states. A topic and its subscriptions
leave the catalog and come back together.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bendybus.broker.entities import Entities
from bendybus.broker.entity import Entity
from bendybus.broker.placing import PartitionClaims, make_partitions
from bendybus.broker.topic import SendTarget
from bendybus.errors import StoreUnavailable
from bendybus.store.catalog import EntityRecord

__all__ = ["empty"]


async def empty(entities: Entities) -> None:
    """Empty all entities. No entity may change meanwhile. `StoreUnavailable` if not all could be emptied."""
    everything = list(entities)
    for entity in everything:
        await entity.loaded()
        entity.refuse_unhealthy()
    for forwarder in entities.forwarders():
        forwarder.drop()
    for entity in everything:
        for host in entity.own.values():
            host.begin_emptying()
    families: list[list[SendTarget]] = [[queue] for queue in entities.queues()]
    families += [[topic, *topic.subscriptions] for topic in entities.topics()]
    failures = [failure for family in families if (failure := await _make_anew(entities, family)) is not None]
    for entity in everything:
        await entity.loaded()
    if failures:
        raise StoreUnavailable(f"Not everything was emptied: {failures[0]} Please retry the operation.")


async def _make_anew(entities: Entities, family: Sequence[SendTarget]) -> Exception | None:
    """Make new partitions for these entities. If a store fails, what it holds is loaded again."""
    # A new generation: its numbers start again, and must not be taken for the old ones.
    records = [replace(entities.record(entity.path), generation=uuid.uuid4().hex) for entity in family]
    claims: PartitionClaims = {}
    failed: Exception | None = None
    try:
        await asyncio.to_thread(entities.catalog.remove, *[record.path for record in records])
        for record in records:
            try:
                await make_partitions(record, entities.stores, claims)
            except Exception as failure:
                failed = failed or failure
        if failed is None:
            records = [_with_new_keys(entity, record) for entity, record in zip(family, records, strict=True)]
        for record in records:
            await asyncio.to_thread(entities.catalog.add, record)
    except Exception as failure:
        await entities.forget(family)
        return failure
    entities.moved(records)
    for entity, record in zip(family, records, strict=True):
        entity.generation = record.generation
        for host in entity.own.values():
            claim = claims.get((host.store.name, entity.path, host.number))
            if claim is not None:
                host.load_emptied(claim[0])
            else:
                assert failed is not None, "a partition was made, or why not is known"
                host.look_again(failed)
    return failed


def _with_new_keys(entity: Entity[Any, Any, Any], record: EntityRecord) -> EntityRecord:
    """Use today's rule for keys: nothing that was stored under an earlier rule is left."""
    entity.description = replace(entity.description, exact_keys=False)
    return replace(record, description=entity.description.to_record())
