"""Duplicate detection: which messages a partition has accepted within the entity's window.

A message is identified by its MessageId and, in a partitioned entity, by its PartitionKey
too. Messages with the same identity go to the same partition (routing.py). The history keeps a
digest and the time of acceptance, so an id of any length takes the same space.
The sender of a duplicate gets a success reply; intake.py drops the message.
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

# With a million entries (see below), two collide by chance once in 10^26 histories.
DIGEST_BYTES: Final = 16

# About 150 MB at worst. The longest window at the highest rate would need more memory than a machine has,
# so beyond this many entries the oldest are forgotten early.
REMEMBERED_MAX: Final = 1_000_000

# Forgetting needs a separate commit, so many entries are forgotten at once.
FORGET_INTERVAL_MS: Final = 10_000


class Identities:
    """The identities of messages, collected in order while the messages are admitted."""

    __slots__ = ("_partitioned", "found")

    def __init__(self, *, partitioned: bool) -> None:
        self._partitioned = partitioned
        self.found: list[str | None] = []
        """None for a message without an id. Such a message is never a duplicate."""

    def add(self, message_id: str | None, partition_key: RoutingKey | None) -> None:
        """Add the identity of the next message. A session id, if there is one, is its `partition_key`."""
        if self._partitioned and message_id is None and partition_key is None:
            raise ArgumentError(
                "Message to a partitioned entity with duplicate detection enabled must have either "
                "PartitionKey or MessageId"
            )
        if message_id is not None and self._partitioned and partition_key is not None:
            # The length distinguishes ("ab", "c") from ("a", "bc").
            message_id = f"{len(partition_key)}:{partition_key}{message_id}"
        self.found.append(message_id)


class DuplicateHistory:
    __slots__ = ("_accepted", "_remembered_max", "_resting_until")

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        self._accepted: dict[bytes, Instant] = {}
        """Digest -> when the message was accepted, oldest first."""
        self._resting_until = Instant(0)

    def __len__(self) -> int:
        return len(self._accepted)

    def restore(self, entries: Iterable[tuple[Instant, bytes]]) -> None:
        """Start with the history from a store, oldest first."""
        for accepted_at, digest in entries:
            self.remember([digest], accepted_at)

    def sift(self, identities: Sequence[str | None], since: Instant) -> tuple[list[bytes], tuple[int, ...]]:
        """The digests of new messages, and the indexes of duplicates. Nothing is remembered yet.

        A message is a duplicate if its identity was accepted after `since` or occurs earlier in the list.
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
            # An entry outside the window may still be here. It moves to the end.
            accepted.pop(digest, None)
            accepted[digest] = at
        excess = len(accepted) - self._remembered_max
        for digest in list(islice(accepted, max(0, excess))):
            del accepted[digest]

    def next_sweep(self, window_ms: int) -> Instant:
        """When there will next be something to forget."""
        for accepted_at in self._accepted.values():
            return max(Instant(accepted_at + window_ms), self._resting_until)
        return NEVER

    def forget(self, at: Instant, since: Instant) -> bool:
        """Forget everything accepted up to `since`. Returns False if there was nothing to forget."""
        self._resting_until = Instant(at + FORGET_INTERVAL_MS)
        aged: list[bytes] = []
        for digest, accepted_at in self._accepted.items():
            if accepted_at > since:
                break
            aged.append(digest)
        for digest in aged:
            del self._accepted[digest]
        return bool(aged)
