"""What a messaging store knows of a partition that lives in it; partition_lifecycle.py has the whole."""

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
        """The store's number for it; None while the store has never been open."""

    @property
    def size_bytes(self) -> int:
        """What its messages take; 0 while that is not known."""

    last_count: int | None
    """How many messages it had when it was last in memory; None when it never was."""

    def wants_load(self, at: float) -> bool:
        """Whether it is away, and it is time to try again."""

    def load_claimed(self, key: PartitionKey, epoch: Epoch) -> None:
        """Begin to read it under this claim."""

    def withdraw(self) -> Mailbox:
        """The store is away: take no commands, and return those that wait, to be refused."""

    def refuse(self, mailbox: Mailbox, cause: Exception) -> None:
        """Answer these commands, and tell those who wait for this partition."""


Claimed: TypeAlias = dict[Resident, tuple[PartitionKey, Epoch]]
"""Partitions, the store's key for each, and the epoch under which it is ours now."""
