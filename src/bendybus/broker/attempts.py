"""Which messages of an outbox may have been sent, and so may have arrived without an answer.

A message that was never sent can be reassigned to another partition. One that was sent
and not answered cannot: only the partition that it was sent to knows whether it
arrived. Attempts before a restart, or before the outbox's partition was loaded again, are not remembered:
every message that was there at the load counts as sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from bendybus.domain.partition import Partition
from bendybus.names import SequenceNumber

__all__ = ["Attempts"]


class Attempts:
    """The attempts of one partition's outbox."""

    __slots__ = ("_first_known", "_loaded", "_sent")

    def __init__(self) -> None:
        self._loaded: Partition | None = None
        self._first_known = SequenceNumber(0)
        """Messages with this number or a later one were posted after the partition was loaded."""
        self._sent: set[SequenceNumber] = set()

    def look(self, partition: Partition | None) -> None:
        """Start again if the partition was loaded since the last call."""
        if partition is not None and partition is not self._loaded:
            self._loaded, self._first_known = partition, partition.next_sequence_number
            self._sent.clear()

    def never_sent(self, number: SequenceNumber) -> bool:
        return self._loaded is not None and number >= self._first_known and number not in self._sent

    def send(self, numbers: Iterable[SequenceNumber]) -> None:
        """Note that these messages are about to be sent."""
        self._sent.update(numbers)

    def forget(self, numbers: Iterable[SequenceNumber]) -> None:
        """Forget messages that leave the outbox."""
        self._sent.difference_update(numbers)
