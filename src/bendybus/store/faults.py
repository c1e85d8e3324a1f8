"""Simulated store outages, for testing how an application handles them (B-09).

A server started for development wraps each of its stores in a `FaultyStore`,
and `StoreFaults` has a switch for each by name:

    pause   every call hangs, as if a disk or a network did
    slow    every call takes longer by a given time
    fail    every call fails, as if the disk were full or the database down
    heal    everything works again, and calls that hang continue

The store itself does not change, so its contents survive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bendybus.errors import ArgumentError, StoreUnavailable
from bendybus.names import EntityPath, Epoch, PartitionNumber, SessionId
from bendybus.store.protocol import (
    MessagingStore,
    PartitionChanges,
    PartitionKey,
    PartitionRecord,
    Snapshot,
    StoreImage,
    no_pause,
)

__all__ = ["DELAY_MAX_S", "Fault", "FaultKind", "FaultyStore", "StoreFaults"]

# Longer than any client waits. For more, use `pause`.
DELAY_MAX_S: Final = 600.0

REASON_DEFAULT: Final = "it was made to fail"


class FaultKind(StrEnum):
    HEAL = "heal"
    PAUSE = "pause"
    SLOW = "slow"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a store: `delay_s` of a slow one, `reason` of one that fails."""

    kind: FaultKind = FaultKind.HEAL
    delay_s: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind is FaultKind.SLOW and not 0 < self.delay_s <= DELAY_MAX_S:
            raise ArgumentError(
                f"A store can be slower by up to {DELAY_MAX_S:g} s, and more than 0; not by {self.delay_s:g}."
            )


class FaultyStore:
    """A store with a switch. The methods are described in `MessagingStore`."""

    def __init__(self, store: MessagingStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._fault = Fault()

    @property
    def fault(self) -> Fault:
        return self._fault

    def switch(self, fault: Fault) -> None:
        """Set the fault, also for calls that hang already. May be called from any thread."""
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    def _pass(self) -> None:
        """Before a call: hang, delay or fail, according to the switch."""
        if self._fault.kind is FaultKind.HEAL:
            return
        with self._changed:
            fault = self._fault
            if fault.kind is FaultKind.SLOW:
                self._changed.wait_for(lambda: self._fault is not fault, fault.delay_s)
            self._changed.wait_for(lambda: self._fault.kind is not FaultKind.PAUSE)
            if self._fault.kind is FaultKind.FAIL:
                raise StoreUnavailable(f"{self.name}: {self._fault.reason or REASON_DEFAULT}")

    # -- the store ----------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def kind(self) -> str:
        return self._store.kind

    @property
    def namespace(self) -> str | None:
        return self._store.namespace

    @namespace.setter
    def namespace(self, namespace: str | None) -> None:
        self._store.namespace = namespace

    def examine(self) -> str:
        self._pass()
        return self._store.examine()

    def open(self) -> None:
        self._pass()
        self._store.open()

    def close(self) -> None:
        self._store.close()

    def image(self) -> StoreImage:
        self._pass()
        return self._store.image()

    def partitions(self) -> list[PartitionRecord]:
        self._pass()
        return self._store.partitions()

    def create_partitions(
        self, entity: EntityPath, numbers: Sequence[PartitionNumber]
    ) -> list[PartitionRecord]:
        self._pass()
        return self._store.create_partitions(entity, numbers)

    def drop_partitions(self, entity: EntityPath) -> None:
        self._pass()
        self._store.drop_partitions(entity)

    def discard(self, keys: Sequence[PartitionKey]) -> None:
        self._pass()
        self._store.discard(keys)

    def claim(self, keys: Sequence[PartitionKey]) -> list[Epoch]:
        self._pass()
        return self._store.claim(keys)

    def tidy(self) -> bool:
        self._pass()
        return self._store.tidy()

    def settle(self) -> None:
        self._store.settle()

    def write_out(self) -> None:
        self._pass()
        self._store.write_out()

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        self._pass()
        self._store.commit(changes)

    def load(self, key: PartitionKey, between_pages: Callable[[], None] = no_pause) -> Snapshot:
        self._pass()
        return self._store.load(key, between_pages)

    def read(self, row_ids: Sequence[int]) -> list[bytes | None]:
        self._pass()
        return self._store.read(row_ids)

    def at_hand(self, row_ids: Sequence[int]) -> list[bytes] | None:
        return self._store.at_hand(row_ids) if self._fault.kind is FaultKind.HEAL else None

    def read_session_state(self, key: PartitionKey, session_id: SessionId) -> bytes | None:
        self._pass()
        return self._store.read_session_state(key, session_id)


class StoreFaults:
    """The switches of all stores of a server, by name. May be used from any thread."""

    def __init__(self, stores: Iterable[MessagingStore]) -> None:
        self._stores = {store.name: FaultyStore(store) for store in stores}

    @property
    def stores(self) -> list[MessagingStore]:
        """The stores for the broker to use."""
        return list(self._stores.values())

    def add(self, store: MessagingStore) -> MessagingStore:
        """Wrap a store that is attached later. Returns the store for the broker to use."""
        self._stores[store.name] = FaultyStore(store)
        return self._stores[store.name]

    def remove(self, name: str) -> None:
        """Forget a store that was retired."""
        self._stores.pop(name, None)

    def current(self) -> Mapping[str, Fault]:
        """Store -> its fault."""
        return {name: store.fault for name, store in self._stores.items()}

    def pause(self, name: str) -> None:
        """Make every call to this store hang until it is healed."""
        self.switch(name, Fault(FaultKind.PAUSE))

    def slow(self, name: str, delay_s: float) -> None:
        """Make every call to this store take longer by this time."""
        self.switch(name, Fault(FaultKind.SLOW, delay_s=delay_s))

    def fail(self, name: str, reason: str = "") -> None:
        """Make every call to this store fail."""
        self.switch(name, Fault(FaultKind.FAIL, reason=reason))

    def heal(self, name: str) -> None:
        self.switch(name, Fault())

    def heal_all(self) -> None:
        for name in self._stores:
            self.heal(name)

    def switch(self, name: str, fault: Fault) -> None:
        store = self._stores.get(name)
        if store is None:
            known = ", ".join(self._stores)
            raise ArgumentError(f"There is no messaging store '{name[:60]}'; there are {known}.")
        store.switch(fault)
