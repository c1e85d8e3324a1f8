"""A queue at work: its partitions, and the receivers that wait for them.

Nothing here knows a protocol. A sender chooses its partition through `place`;
a receiver takes what the partitions have and, when that is not enough, waits to
be woken. Receivers are served in the order in which they began to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from bendybus.broker.clock import Clock
from bendybus.broker.host import Availability, PartitionHost
from bendybus.domain.entities import QueueDescription, normalise_path
from bendybus.domain.messages import SubQueue
from bendybus.domain.routing import RoundRobin, partition_of
from bendybus.errors import EntityDisabled, InvalidOperation, StoreUnavailable
from bendybus.names import PARTITION_SHIFT, EntityPath, Instant, LockToken, SequenceNumber

__all__ = ["Queue", "Waiter"]

# Of messages without a key that are forwarded, so many neighbours stay together in one partition.
NUMBERED_TOGETHER: Final = 64

# Looked at for every send, and a member of an enum is slow to look up.
LOADING = Availability.LOADING
UNAVAILABLE = Availability.UNAVAILABLE


class Waiter(Protocol):
    """A receiver that wants more than there was."""

    def wake(self) -> None:
        """Something may be available; take it, and wait again if it is not enough."""


class Queue:
    def __init__(
        self,
        description: QueueDescription,
        partition_count: int,
        keep_time: Callable[[PartitionHost], None],
        clock: Clock | None = None,
    ) -> None:
        self.description = description
        self.now = (clock or Clock()).now
        """The time in the queue's namespace: what everything about its messages goes by."""
        self.hosts: list[PartitionHost] = []
        """By partition number; the broker fills it once, when it opens the queue."""
        self.keep_time = keep_time
        """Ask for `tick` to be called on a partition from now on."""
        self.deleted = False
        self.generation = ""
        """Differs between a queue and its namesake made after it was deleted."""
        self.created_at = Instant(0)
        self.updated_at = Instant(0)
        self.accessed_at = Instant(0)
        """When messages were last sent or asked for since the server started; 0 for never."""
        self._turn = RoundRobin(partition_count)
        self._waiting: dict[SubQueue, dict[Waiter, None]] = {subqueue: {} for subqueue in SubQueue}
        self._next_to_ask = 0

    @property
    def path(self) -> EntityPath:
        return self.description.path

    @property
    def top_level(self) -> str:
        """The entity that a transaction is about, by the key under which it is found."""
        return normalise_path(self.path)

    # -- life ---------------------------------------------------------------------

    async def loaded(self) -> None:
        """Return when no partition is being read from its store any more."""
        for host in self.hosts:
            await host.loaded()

    def refuse_sending(self, subqueue: SubQueue = SubQueue.MAIN) -> None:
        """Raise what stands against sending here, or scheduling."""
        if subqueue is not SubQueue.MAIN:
            raise InvalidOperation(
                f"Nobody can send to a sub-queue of '{self.path}'; send to the queue itself."
            )
        if not self.description.status.can_send:
            raise EntityDisabled(f"'{self.path}' is {self.description.status} and takes no messages.")

    def refuse_receiving(self, subqueue: SubQueue = SubQueue.MAIN) -> None:
        if subqueue is SubQueue.MAIN and self.description.forward_to is not None:
            raise InvalidOperation(
                f"'{self.path}' forwards its messages to '{self.description.forward_to}'; receive them there."
            )
        if not self.description.status.can_receive:
            raise EntityDisabled(f"'{self.path}' is {self.description.status} and gives no messages.")

    def refuse_unhealthy(self) -> None:
        """`StoreUnavailable` unless all partitions can be acted upon (P-32)."""
        away = [str(host.number) for host in self.hosts if host.availability is UNAVAILABLE]
        if away:
            raise StoreUnavailable(
                f"Nothing was changed: of '{self.path}', partition {', '.join(away)} is unavailable. "
                "Please retry the operation."
            )

    def close(self) -> None:
        """The queue is deleted; whoever still holds it finds it gone."""
        self.deleted = True
        for host in self.hosts:
            host.close()

    # -- finding the partition ----------------------------------------------------

    def place(self, key: str | None) -> PartitionHost:
        """The partition for a message with this key; without one, the next that is available (P-12, P-16)."""
        if len(self.hosts) == 1:
            return self.hosts[0]
        if key is not None:
            return self.hosts[partition_of(key, len(self.hosts))]
        number = self._turn.next({host.number for host in self.hosts if host.availability is not UNAVAILABLE})
        if number is None:
            raise StoreUnavailable(f"No partition of '{self.path}' is available. Please retry the operation.")
        return self.hosts[number]

    def place_numbered(self, key: str | None, number: SequenceNumber) -> PartitionHost:
        """The partition for a message out of an outbox: always the same, so that it arrives once (P-34)."""
        if key is not None or len(self.hosts) == 1:
            return self.place(key)
        return self.hosts[(number // NUMBERED_TOGETHER) % len(self.hosts)]

    def host_of_token(self, token: LockToken) -> PartitionHost | None:
        number = int.from_bytes(token[:2], "big")
        return self.hosts[number] if number < len(self.hosts) else None

    def host_of_sequence_number(self, sequence_number: SequenceNumber) -> PartitionHost | None:
        number = sequence_number >> PARTITION_SHIFT
        return self.hosts[number] if 0 <= number < len(self.hosts) else None

    # -- receiving ----------------------------------------------------------------

    def in_turn(self) -> Iterator[PartitionHost]:
        """All partitions, each time beginning with another one, so that none is favoured."""
        count = len(self.hosts)
        first = self._next_to_ask
        self._next_to_ask = (first + 1) % count
        for offset in range(count):
            yield self.hosts[(first + offset) % count]

    def wait(self, waiter: Waiter, subqueue: SubQueue) -> None:
        self._waiting[subqueue][waiter] = None

    def stop_waiting(self, waiter: Waiter, subqueue: SubQueue) -> None:
        self._waiting[subqueue].pop(waiter, None)

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for messages of the queue itself or of its dead letters."""
        return bool(self._waiting[SubQueue.MAIN] or self._waiting[SubQueue.DEAD_LETTER])

    @property
    def loading(self) -> bool:
        """Whether some partition is still being read from its store, so that nobody can say what it holds."""
        return any(host.availability is LOADING for host in self.hosts)

    def wake_all(self) -> None:
        """A partition has been read: whoever waits, asks again, though it may hold nothing."""
        for waiting in self._waiting.values():
            for waiter in list(waiting):
                waiting.pop(waiter, None)
                waiter.wake()

    def wake(self, subqueue: SubQueue) -> None:
        """Messages became available: let those who wait take them, first come, first served."""
        waiting = self._waiting[subqueue]
        if not waiting:
            return
        # Whoever wants still more puts itself at the end again, so walk over a copy.
        for waiter in list(waiting):
            if not any(host.available(subqueue) for host in self.hosts):
                return
            waiting.pop(waiter, None)
            waiter.wake()
