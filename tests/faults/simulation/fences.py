"""Who may write to a messaging store: at most one broker at any time, the one that has taken it last.

This watches every write at the moment at which it happens, and knows nothing of terms and epochs, which are
what makes it come true. A broker that has been displaced may commit until the new owner has claimed the
partition; the new owner loads it after that. It may never change which partitions there are, nor claim any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bendybus.store.protocol import PartitionKey

if TYPE_CHECKING:
    from faults.simulation.databases import StoreAccess

__all__ = ["Fence"]


class Fence:
    def __init__(self, violate: Callable[[str], None], changed: Callable[[], None]) -> None:
        """`changed` is called when a store has another owner, and when a former owner has noticed."""
        self._violate = violate
        self._changed = changed
        self._owners: dict[str, StoreAccess] = {}
        self._claims: dict[tuple[str, PartitionKey], StoreAccess] = {}
        self._in_use: dict[StoreAccess, None] = {}
        """Those that were taken once, and are not closed."""
        self.moves = 0

    def owns(self, access: StoreAccess) -> bool:
        return self._owners.get(access.name) is access

    @property
    def unaware(self) -> bool:
        """Whether a broker is at work that has lost a store and does not know it yet."""
        return any(access.is_alive and not self.owns(access) for access in self._in_use)

    # -- what happens ---------------------------------------------------------------------

    def taken(self, access: StoreAccess) -> None:
        self._in_use[access] = None
        if not self.owns(access):
            self.moves += 1
            self._owners[access.name] = access
            self._changed()

    def closed(self, access: StoreAccess) -> None:
        """The broker does not use it any more."""
        if access in self._in_use:
            del self._in_use[access]
            self._changed()

    def changes(self, access: StoreAccess, what: str) -> None:
        if not self.owns(access):
            self._violate(f"{access.name}: a broker {what}, and another one owns the store")

    def created(self, access: StoreAccess, keys: Sequence[PartitionKey]) -> None:
        self.changes(access, "creates partitions")
        self._claims |= {(access.name, key): access for key in keys}

    def claimed(self, access: StoreAccess, keys: Sequence[PartitionKey]) -> None:
        self.changes(access, "claims partitions")
        self._claims |= {(access.name, key): access for key in keys}

    def committed(self, access: StoreAccess, keys: Sequence[PartitionKey]) -> None:
        for key in keys:
            claimant = self._claims.get((access.name, key))
            if claimant is not access:
                self._violate(
                    f"{access.name}: a commit in partition {key} by a broker that has not claimed it"
                )
