"""What a messaging store knows about a partition in it. The whole: partition_lifecycle.py."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from bendybus.broker.mailbox import Mailbox
from bendybus.names import EntityPath, Epoch, PartitionNumber
from bendybus.store.protocol import PartitionKey

__all__ = ["Claimed", "Resident"]


class Resident(Protocol):
    @property
    def path(self) -> EntityPath: ...

    number: PartitionNumber

    @property
    def key(self) -> PartitionKey | None:
        """The store's key for the partition; None if the store was never open."""

    @property
    def size_bytes(self) -> int:
        """The size of its messages; 0 while it is unknown."""

    last_count: int | None
    """How many messages it had when it was last in memory; None if it never was."""

    @property
    def reload_at(self) -> float | None:
        """When to try to load it again, by the loop's time; None if the partition is not away."""

    def load_claimed(self, key: PartitionKey, epoch: Epoch) -> None:
        """Start reading the partition under this claim."""

    def withdraw(self) -> Mailbox:
        """The store is away: take no commands. Returns the waiting commands, which are to be refused."""

    def refuse(self, mailbox: Mailbox, cause: Exception) -> None:
        """Refuse these commands, and notify those who wait for this partition."""


Claimed: TypeAlias = dict[Resident, tuple[PartitionKey, Epoch]]
"""Partitions, the store's key for each, and the epoch of our new claim."""
