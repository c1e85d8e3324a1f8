"""The catalogue: what exists in the namespace, and where its partitions are kept.

Messaging stores hold messages; this holds the list of entities that own them.
An entity exists when it stands here: partitions in a store whose entity does
not (a creation that was cut short) belong to nobody and may be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from bendybus.names import EntityPath, Instant

__all__ = ["Catalog", "Description", "EntityKind", "EntityRecord"]

EntityKind = Literal["queue", "topic", "subscription"]

Description: TypeAlias = dict[str, object]
"""Settings as JSON knows them; `domain/entities.py` says what they mean."""


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
    """Differs between an entity and its namesake made after it was deleted."""


class Catalog(Protocol):
    """Every change is atomic and durable when the call returns. Paths differing only in case are the same."""

    def open(self) -> None:
        """Make ready; raises `StoreError` (by name) when the catalogue is newer, torn or not ours."""

    def close(self) -> None: ...

    def namespace(self) -> Description:
        """What was last given to `describe_namespace`; empty at first."""

    def describe_namespace(self, description: Description) -> None: ...

    def entities(self) -> list[EntityRecord]:
        """All of them, by path."""

    def add(self, record: EntityRecord) -> None:
        """`EntityExists` when the path is taken."""

    def replace(self, *records: EntityRecord) -> None:
        """All of them in one; `EntityNotFound` when there is none of such a path, and then all stay."""

    def remove(self, *paths: EntityPath) -> None:
        """All of them in one; `EntityNotFound` when there is none of such a path, and then all stay."""
