"""Duplicate detection: which messages a partition has accepted within the entity's window.

A message is known by its MessageId, in a partitioned entity by its PartitionKey
too, and equal ones meet in one partition (routing.py). What is kept of it is a
digest and the time of its acceptance, so an id of any length costs the same.
Whoever sends a duplicate is told of success: intake.py drops it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final

from bendybus.domain.expiry import NEVER
from bendybus.errors import ArgumentError
from bendybus.names import Instant, RoutingKey

__all__ = ["DuplicateHistory", "Identities"]

# By chance two of the million below are taken for one another once in 10^26 histories.
DIGEST_BYTES: Final = 16

# Some 150 MB at worst. The longest window, at the fastest pace, would take more memory than there is:
# beyond this the oldest are forgotten before their time.
REMEMBERED_MAX: Final = 1_000_000

# Forgetting is a commit of its own, so it is done for many at once.
FORGET_INTERVAL_MS: Final = 10_000


class Identities:
    """What messages are known by, gathered in their order while they are admitted."""

    __slots__ = ("_partitioned", "found")

    def __init__(self, *, partitioned: bool) -> None:
        self._partitioned = partitioned
        self.found: list[str | None] = []
        """None for a message without an id, which is nobody's duplicate."""

    def add(self, message_id: str | None, partition_key: RoutingKey | None) -> None:
        """The next message's; `partition_key` is that of the session id, where there is one."""
        if self._partitioned and message_id is None and partition_key is None:
            raise ArgumentError(
                "Message to a partitioned entity with duplicate detection enabled must have either "
                "PartitionKey or MessageId"
            )
        if message_id is not None and self._partitioned and partition_key is not None:
            # The length keeps ("ab", "c") and ("a", "bc") apart.
            message_id = f"{len(partition_key)}:{partition_key}{message_id}"
        self.found.append(message_id)


class DuplicateHistory:
    __slots__ = ("_accepted", "_resting_until")

    def __init__(self) -> None:
        self._accepted: dict[bytes, Instant] = {}
        """Digest -> when the message was accepted, the oldest first."""
        self._resting_until = Instant(0)

    def __len__(self) -> int:
        return len(self._accepted)

    def restore(self, entries: Iterable[tuple[Instant, bytes]]) -> None:
        """Begin with what a store remembers, the oldest first."""
        for accepted_at, digest in entries:
            self.remember([digest], accepted_at)

    def sift(self, identities: Sequence[str | None], since: Instant) -> tuple[list[bytes], tuple[int, ...]]:
        """The digests of new messages, and the indexes of duplicates; nothing is remembered yet.

        A duplicate is what was accepted after `since`, or stands before in the same list.
        """
        new: dict[bytes, None] = {}
        duplicates: list[int] = []
        for index, identity in enumerate(identities):
            if identity is None:
                continue
            text = identity.encode("utf-8", "surrogatepass")
            digest = blake2b(text, digest_size=DIGEST_BYTES).digest()
            accepted_at = self._accepted.get(digest)
            if digest in new or (accepted_at is not None and accepted_at > since):
                duplicates.append(index)
            else:
                new[digest] = None
        return list(new), tuple(duplicates)

    def remember(self, digests: Iterable[bytes], at: Instant) -> None:
        accepted = self._accepted
        for digest in digests:
            # One that has aged may still be here, and belongs at the end now.
            accepted.pop(digest, None)
            accepted[digest] = at
        excess = len(accepted) - REMEMBERED_MAX
        for digest in list(islice(accepted, max(0, excess))):
            del accepted[digest]

    def next_sweep(self, window_ms: int) -> Instant:
        """When there is next something to forget."""
        for accepted_at in self._accepted.values():
            return max(Instant(accepted_at + window_ms), self._resting_until)
        return NEVER

    def forget(self, at: Instant, since: Instant) -> bool:
        """Let go of what was accepted up to `since`; False if there was nothing."""
        self._resting_until = Instant(at + FORGET_INTERVAL_MS)
        aged: list[bytes] = []
        for digest, accepted_at in self._accepted.items():
            if accepted_at > since:
                break
            aged.append(digest)
        for digest in aged:
            del self._accepted[digest]
        return bool(aged)
