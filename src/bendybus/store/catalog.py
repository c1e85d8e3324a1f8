"""The catalog: what exists in the namespace, and where its partitions are kept.

Messaging stores hold messages; the catalog holds the list of entities that own them.
An entity exists if and only if it is listed here. Partitions in a store without an entity
(from an interrupted creation, for example) belong to nobody and may be dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from bendybus.names import EntityPath, Instant

__all__ = ["Catalog", "Description", "EntityKind", "EntityRecord", "SharedCatalog", "columns_of"]

EntityKind = Literal["queue", "topic", "subscription"]

Description: TypeAlias = dict[str, object]
"""Settings as JSON values. `domain/entities.py` defines their meaning."""


@dataclass(frozen=True, slots=True)
class EntityRecord:
    """One entity. `placement` names the messaging store of each partition, in the order of their numbers."""

    path: EntityPath
    kind: EntityKind
    description: Description
    partition_count: int
    placement: tuple[str, ...]
    created_at: Instant
    updated_at: Instant
    generation: str
    """Distinguishes an entity from one with the same path that was created after it was deleted."""


def columns_of(record: EntityRecord) -> tuple[object, ...]:
    """The values that a database keeps of an entity, as `add` and `replace` expect them, without the path."""
    return (
        record.kind,
        json.dumps(record.description),
        record.partition_count,
        json.dumps(record.placement),
        record.created_at,
        record.updated_at,
        record.generation,
    )


class Catalog(Protocol):
    """Every change is atomic and durable when the call returns. Paths differing only in case are the same."""

    def open(self) -> None:
        """Open the catalog. Raises `StoreError` (by name) if it is newer, torn or not ours."""

    def close(self) -> None: ...

    def namespace(self) -> Description:
        """The settings that were last given to `describe_namespace`; empty at first."""

    def describe_namespace(self, description: Description) -> None: ...

    def entities(self) -> list[EntityRecord]:
        """All entities, by path."""

    def add(self, record: EntityRecord) -> None:
        """Add an entity. `EntityExists` if the path is taken."""

    def replace(self, *records: EntityRecord) -> None:
        """Replace all of these at once. `EntityNotFound` if a path does not exist; then nothing changes."""

    def remove(self, *paths: EntityPath) -> None:
        """Remove all of these at once. `EntityNotFound` if a path does not exist; then nothing changes."""


class SharedCatalog(Catalog, Protocol):
    """A catalog that all brokers of a cluster read. One of them leads, and makes the changes."""

    term: int | None
    """The term in which this broker leads; None while another one does, and changes are refused."""

    def read(self) -> tuple[int, list[EntityRecord]]:
        """The whole catalog as of one moment: how often it was changed, and all entities."""

    def confirm_lead(self) -> None:
        """`StoreUnavailable` if another broker leads. Returns when all changes that this broker or an earlier
        leader has begun, even over a connection that was lost since, have happened or failed."""
