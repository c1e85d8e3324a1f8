"""Which messages of an outbox may have been sent, and so may have arrived though nobody said so.

A message that was never sent can be given to another partition. One that was sent
and not answered cannot: only the partition it was sent to knows whether it
arrived. What an earlier life of the server, or of the outbox's partition, has
sent is not remembered: everything that was there at the load counts as sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from bendybus.domain.partition import Partition
from bendybus.names import SequenceNumber

__all__ = ["Attempts"]


class Attempts:
    """Of one partition's outbox."""

    __slots__ = ("_first_known", "_loaded", "_sent")

    def __init__(self) -> None:
        self._loaded: Partition | None = None
        self._first_known = SequenceNumber(0)
        """Messages with this number or a later one were posted since the partition was loaded."""
        self._sent: set[SequenceNumber] = set()

    def look(self, partition: Partition | None) -> None:
        """Begin anew if the partition was loaded since the last look."""
        if partition is not None and partition is not self._loaded:
            self._loaded, self._first_known = partition, partition.next_sequence_number
            self._sent.clear()

    def never_sent(self, number: SequenceNumber) -> bool:
        return self._loaded is not None and number >= self._first_known and number not in self._sent

    def send(self, numbers: Iterable[SequenceNumber]) -> None:
        """These are about to be sent."""
        self._sent.update(numbers)

    def forget(self, numbers: Iterable[SequenceNumber]) -> None:
        """These leave the outbox."""
        self._sent.difference_update(numbers)
