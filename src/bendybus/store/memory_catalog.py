"""A catalog in memory, for tests. Its contents end with the process. The durable one: sqlite/catalog.py.

Like the memory store, it survives `close` and `open`.
"""

from __future__ import annotations

from dataclasses import replace

from bendybus.errors import EntityExists, EntityNotFound
from bendybus.names import EntityPath
from bendybus.store.catalog import Description, EntityRecord

__all__ = ["MemoryCatalog"]


class MemoryCatalog:
    """The methods are described in `Catalog`."""

    def __init__(self) -> None:
        self._namespace: Description = {}
        self._entities: dict[str, EntityRecord] = {}

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def namespace(self) -> Description:
        return dict(self._namespace)

    def describe_namespace(self, description: Description) -> None:
        self._namespace = dict(description)

    def entities(self) -> list[EntityRecord]:
        return [self._entities[key] for key in sorted(self._entities)]

    def add(self, record: EntityRecord) -> None:
        if record.path.lower() in self._entities:
            raise EntityExists(f"The entity '{record.path}' exists already.")
        self._entities[record.path.lower()] = record

    def replace(self, *records: EntityRecord) -> None:
        kept = [self._found(record.path) for record in records]
        for record, known in zip(records, kept, strict=True):
            self._entities[record.path.lower()] = replace(record, path=known.path)

    def remove(self, *paths: EntityPath) -> None:
        for path in paths:
            self._found(path)
        for path in paths:
            del self._entities[path.lower()]

    def _found(self, path: EntityPath) -> EntityRecord:
        record = self._entities.get(path.lower())
        if record is None:
            raise EntityNotFound(path)
        return record
