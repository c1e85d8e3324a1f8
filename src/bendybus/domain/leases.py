"""Consumer leases: which consumer may remove an entity's messages by ranges, and until when.

Each sub-queue has one holder. The holder renews the lease by acquiring it again. If it
stops doing so, another consumer may take over, and the first is refused from then on.
Leases are not durable: after a restart, the first consumer that asks gets the lease. Removing
messages is idempotent, so two successive holders do no harm.

The owner of an entity's first partition keeps its leases (`Queue.lease` in broker/queue.py). In a planned
move they pass to the next owner (volatile.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bendybus.domain.messages import SubQueue
from bendybus.errors import ConsumerLeaseHeld
from bendybus.names import Instant

__all__ = ["ConsumerLeases", "HeldLease", "LeaseRequest"]


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    consumer: str
    subqueue: SubQueue
    duration_ms: int | None
    """How long the consumer takes the lease for. 0: it gives the lease up. None: it must already have it."""


class HeldLease(NamedTuple):
    """A lease, for the next owner of the first partition."""

    subqueue: SubQueue
    consumer: str
    left_ms: int
    """Negative if the lease has expired: the consumer was still the last one that had it."""


@dataclass(slots=True)
class _Lease:
    consumer: str
    until: Instant


class ConsumerLeases:
    __slots__ = ("_leases",)

    def __init__(self) -> None:
        self._leases: dict[SubQueue, _Lease] = {}

    def serve(self, request: LeaseRequest, at: Instant) -> None:
        """Do what a consumer asks for. `ConsumerLeaseHeld` if another one has the lease."""
        subqueue, consumer, duration_ms = request.subqueue, request.consumer, request.duration_ms
        if duration_ms is None:
            self.require(subqueue, consumer)
        elif duration_ms == 0:
            self.release(subqueue, consumer)
        else:
            self.acquire(subqueue, consumer, Instant(at + duration_ms), at)

    def acquire(self, subqueue: SubQueue, consumer: str, until: Instant, at: Instant) -> None:
        """Take the lease, or extend it."""
        lease = self._leases.get(subqueue)
        if lease is not None and lease.consumer != consumer and lease.until > at:
            seconds = (lease.until - at + 999) // 1000
            raise ConsumerLeaseHeld(
                f"The consumer '{lease.consumer}' has the lease for {seconds} seconds yet."
            )
        self._leases[subqueue] = _Lease(consumer, until)

    def move_ends(self, by_ms: int) -> None:
        """The clock was set back by this much: every lease keeps the time that it has left."""
        for lease in self._leases.values():
            lease.until = Instant(lease.until - by_ms)

    def release(self, subqueue: SubQueue, consumer: str) -> None:
        """Give up the lease. No error if the consumer does not have it."""
        lease = self._leases.get(subqueue)
        if lease is not None and lease.consumer == consumer:
            del self._leases[subqueue]

    def require(self, subqueue: SubQueue, consumer: str) -> None:
        """Raise unless this consumer was the last to acquire the lease, even if the lease has expired."""
        lease = self._leases.get(subqueue)
        if lease is None or lease.consumer != consumer:
            holder = "nobody" if lease is None else f"'{lease.consumer}'"
            raise ConsumerLeaseHeld(f"The consumer '{consumer}' does not have the lease: {holder} has.")

    # -- another owner ------------------------------------------------------------

    def remember(self, at: Instant) -> list[HeldLease]:
        return [
            HeldLease(subqueue, lease.consumer, lease.until - at) for subqueue, lease in self._leases.items()
        ]

    def recall(self, leases: Iterable[HeldLease], at: Instant) -> None:
        """Continue with what the last owner remembered: `at` is when it arrived."""
        for held in leases:
            self._leases[held.subqueue] = _Lease(held.consumer, Instant(at + held.left_ms))
