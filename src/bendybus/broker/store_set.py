"""The messaging stores of a namespace, by name, and which of them take new partitions."""

from __future__ import annotations

from collections.abc import Iterator

from bendybus.broker.stores import AttachedStore
from bendybus.errors import EntityExists, StoreNotFound

__all__ = ["StoreSet"]


class StoreSet:
    def __init__(self) -> None:
        self._by_name: dict[str, AttachedStore] = {}
        self.draining: dict[str, None] = {}
        """The names of the stores that are draining (draining.py), in the order of the requests."""

    def __iter__(self) -> Iterator[AttachedStore]:
        return iter(tuple(self._by_name.values()))

    def __getitem__(self, name: str) -> AttachedStore:
        """The store with this name, or `StoreNotFound`."""
        store = self._by_name.get(name)
        if store is None:
            known = ", ".join(self._by_name)
            raise StoreNotFound(f"There is no messaging store '{name}'; there are {known}.")
        return store

    def refuse_taken(self, name: str) -> None:
        if name in self._by_name:
            raise EntityExists(f"The messaging store '{name}' already exists.")

    def add(self, store: AttachedStore) -> None:
        self._by_name[store.name] = store

    def remove(self, store: AttachedStore) -> None:
        del self._by_name[store.name]

    def open_to_new(self) -> list[AttachedStore]:
        """The stores in which new partitions may be placed."""
        return [store for store in self if store.name not in self.draining]

    async def drain(self) -> None:
        """Return once everything submitted so far is on disk or has failed."""
        # Repeat while a store is busy: what one store refuses may go to another.
        while busy := [store for store in self if not store.writer.idle]:
            for store in busy:
                await store.writer.drain()
