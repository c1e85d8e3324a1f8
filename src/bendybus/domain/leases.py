"""Consumer leases: which consumer may remove an entity's messages by ranges, and until when.

Each sub-queue has one holder. The holder renews the lease by acquiring it again. If it
stops doing so, another consumer may take over, and the first is refused from then on.
Leases are not durable: after a restart, the first consumer that asks gets the lease. Removing
messages is idempotent, so two successive holders do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

from bendybus.domain.messages import SubQueue
from bendybus.errors import ConsumerLeaseHeld
from bendybus.names import Instant

__all__ = ["ConsumerLeases"]


@dataclass(slots=True)
class _Lease:
    consumer: str
    until: Instant


class ConsumerLeases:
    __slots__ = ("_leases",)

    def __init__(self) -> None:
        self._leases: dict[SubQueue, _Lease] = {}

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
