"""A running entity of any kind: its partitions, and how a sender finds one of them.

Nothing here knows a protocol. Entities that can be received from: queue.py. Entities that only pass
messages on: topic.py.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from bendybus.broker.clock import Clock
from bendybus.broker.entity_faults import EntityFaults
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability, StoreState
from bendybus.broker.partition_port import PartitionPort, PartitionStatus, StoreView
from bendybus.domain.entities import EntityDescription, normalise_path
from bendybus.domain.messages import SubQueue
from bendybus.domain.routing import RoundRobin, key_of, partition_of
from bendybus.errors import BrokerError, PreconditionFailed, StoreUnavailable
from bendybus.names import (
    PARTITION_SHIFT,
    EntityPath,
    Instant,
    PartitionNumber,
    RoutingKey,
    SequenceNumber,
)

__all__ = ["Entity"]

# Of forwarded messages without a key, this many neighbours stay together in one partition.
NUMBERED_TOGETHER: Final = 64

# Compared for every send. Looking up a member of an enum is slow.
AVAILABLE: Final = Availability.AVAILABLE
LOADING: Final = Availability.LOADING
UNAVAILABLE: Final = Availability.UNAVAILABLE
# A store in one of these states may not be able to keep what it is given.
TROUBLED: Final = (StoreState.SLOW, StoreState.DAMAGED)

H = TypeVar("H", bound=PartitionPort)
L = TypeVar("L", bound=Host[Any])
D = TypeVar("D", bound=EntityDescription)


class _Ready:
    """The numbers of the partitions that should answer soon. Checks only those that are asked for."""

    __slots__ = ("_hosts",)

    def __init__(self, hosts: Sequence[PartitionPort]) -> None:
        self._hosts = hosts

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        host = self._hosts[number]
        return host.availability is AVAILABLE and host.store.state not in TROUBLED


# Not an ABC: when compiled, all subclasses of one would share its answers to `isinstance`.
class Entity(Generic[H, L, D]):
    def __init__(
        self,
        description: D,
        partition_count: int,
        keep_time: Callable[[Host[Any]], None],
        clock: Clock | None = None,
    ) -> None:
        self.description = description
        self.top_level: str = normalise_path(description.path)
        """The entity that a transaction belongs to, by its normalised path."""
        self.partition_count = partition_count
        self.now = (clock or Clock()).now
        """The time in the entity's namespace. Everything about its messages uses it."""
        self.hosts: list[H] = []
        """All partitions, by number, whichever broker owns them."""
        self.own: dict[PartitionNumber, L] = {}
        """The partitions that this broker owns."""
        self.keep_time = keep_time
        """Requests that `tick` be called on a partition from now on."""
        self.holders: set[Hashable] = set()
        """The links that keep a temporary entity in existence or consume a client-scoped subscription."""
        self.deleted = False
        self.generation = ""
        """Distinguishes an entity from one with the same path that was created after it was deleted."""
        self.created_at = Instant(0)
        self.updated_at = Instant(0)
        self.accessed_at = Instant(0)
        """When messages were last sent or requested since the server started; 0 for never."""
        self.last_use_elsewhere: Callable[[EntityPath], Awaitable[Instant | None]] | None = None
        """When clients of other brokers last did; None if there are no others."""
        self.faults: EntityFaults | None = None
        """What a test has made wrong with it."""
        self.refused = 0
        """Messages that clients of this broker sent and that were refused for good."""
        self.throttled = 0
        """Messages that clients of this broker were told to send again later."""
        self._turn = RoundRobin([PartitionNumber(number) for number in range(partition_count)])
        self._turn_here: RoundRobin | None = None
        """Of the partitions that this broker owns, if it owns some and not all."""
        self._ready = _Ready(self.hosts)

    @property
    def path(self) -> EntityPath:
        return self.description.path

    @property
    def abandoned(self) -> bool:
        """Whether it is temporary and nobody holds it: it is about to be deleted."""
        return self.description.temporary and not self.holders and not self.deleted

    # -- life ---------------------------------------------------------------------

    def add_partition(self, port: H, own: L | None) -> None:
        """Add the next partition, in order, when the entity is opened.

        `own`: the same partition, if this broker owns it. Its store is told.
        """
        self.hosts.append(port)
        if own is not None:
            self.own[own.number] = own
            own.store.add_resident(own)

    def exchange(self, port: H, own: L | None) -> H:
        """A partition has another owner from now on. Returns the object that represented it until now.

        `own`: the same partition, if this broker owns it now. Its store is told.
        """
        former = self.hosts[port.number]
        self.hosts[port.number] = port
        self.own.pop(port.number, None)
        if own is not None:
            self.own[own.number] = own
            own.store.add_resident(own)
        self.arrange_turns()
        return former

    async def loaded(self) -> None:
        """Return once no partition is being read from its store."""
        for host in self.hosts:
            await host.loaded()

    async def refresh(self, *, access: bool = False) -> None:
        """Bring the figures of all partitions up to date. `access`: when it was last used as well."""
        if len(self.own) < len(self.hosts):
            await asyncio.gather(*(host.refresh() for host in self.hosts))
        if access and self.last_use_elsewhere is not None:
            self.accessed_at = max(self.accessed_at, await self.last_use_elsewhere(self.path) or Instant(0))

    @property
    def loading(self) -> bool:
        """Whether some partition is still being read from its store, so that its contents are unknown."""
        return any(host.availability is LOADING for host in self.hosts)

    @property
    def loading_here(self) -> bool:
        """The same for the partitions that this broker owns."""
        return any(host.availability is LOADING for host in self.own.values())

    @property
    def limited(self) -> bool:
        """Whether some partition is away, or its store so slow or damaged that it may be (P-33)."""
        return any(host.availability is UNAVAILABLE or host.store.state in TROUBLED for host in self.hosts)

    @abstractmethod
    def availability_changed(self, host: PartitionStatus) -> None:
        """A partition is being loaded, has been loaded, is away, or is gone."""

    @property
    def awaited_here(self) -> bool:
        """Whether a receiver of this broker waits for the next message."""
        return False

    def sent_to(self, at: Instant) -> None:
        """New messages are here: a client or another entity has sent them, or they were scheduled and are
        due."""
        self.accessed_at = at

    @abstractmethod
    def refuse_sending(self, subqueue: SubQueue = SubQueue.MAIN) -> None:
        """Raise if messages cannot be sent or scheduled here."""

    def count_refused(self, reason: BrokerError, messages: int = 1) -> None:
        """Clients are told to send these messages again, or that they will never be accepted."""
        if reason.retryable:
            self.throttled += messages
        else:
            self.refused += messages

    def refuse_updated_since(self, read_at: Instant | None) -> None:
        """`PreconditionFailed` if `updated_at` is not what a client has read. None: no condition."""
        if read_at is not None and read_at != self.updated_at:
            raise PreconditionFailed(f"'{self.path}' has been updated since it was read.")

    def refuse_unhealthy(self) -> None:
        """`StoreUnavailable` unless all partitions are available (P-32)."""
        away = [str(host.number) for host in self.hosts if host.availability is UNAVAILABLE]
        if away:
            raise StoreUnavailable(
                f"Nothing was changed: partitions of '{self.path}' are unavailable ({', '.join(away)}). "
                "Please retry the operation."
            )

    def close(self) -> None:
        """The entity is deleted. Code that still holds it finds it gone."""
        self.deleted = True
        for host in self.own.values():
            host.close()

    # -- finding the partition ----------------------------------------------------

    def arrange_turns(self) -> None:
        """Set the order of turns, once the store of each partition is known.

        Partitions of one store take turns one after the other: messages that arrive during a commit go into
        the next one. This saves a third of the commits.
        """
        by_store: dict[StoreView, list[PartitionNumber]] = {}
        for host in self.hosts:
            by_store.setdefault(host.store, []).append(host.number)
        order = [*chain.from_iterable(by_store.values())]
        self._turn = RoundRobin(order)
        here = [number for number in order if number in self.own]
        self._turn_here = RoundRobin(here) if 0 < len(here) < len(order) else None

    def key_of(self, text: str) -> RoutingKey:
        """The key, for choosing a partition, of a session id or another text."""
        return key_of(text, exact=self.description.exact_keys)

    def host_for(self, key: RoutingKey | None) -> H:
        """The partition for a message with this key; without a key, the next available one (P-12, P-16)."""
        if len(self.hosts) == 1:
            return self.hosts[0]
        if key is not None:
            return self.hosts[partition_of(key, len(self.hosts))]
        number = None
        if self._turn_here is not None and self.awaited_here:
            # Every receiver gets messages of all partitions. This one need not cross to another broker.
            number = self._turn_here.next(self._ready)
        if number is None:
            number = self._turn.next(self._ready)
        if number is None:
            # No partition is sure to answer soon. One that is loading or slow is better than none.
            number = self._turn.next(
                {host.number for host in self.hosts if host.availability is not UNAVAILABLE}
            )
        if number is None:
            raise StoreUnavailable(f"No partition of '{self.path}' is available. Please retry the operation.")
        return self.hosts[number]

    def host_for_numbered(self, number: SequenceNumber) -> H:
        """The partition for a message without a key from an outbox. It is always the same for a number."""
        return self.hosts[(number // NUMBERED_TOGETHER) % len(self.hosts)]

    def is_ready(self, number: PartitionNumber) -> bool:
        """Whether this partition should answer soon."""
        return number in self._ready

    def next_ready(self) -> PartitionNumber | None:
        """The next partition in turn that should answer soon."""
        return self._turn.next(self._ready)

    def host_of_sequence_number(self, sequence_number: SequenceNumber) -> H | None:
        number = sequence_number >> PARTITION_SHIFT
        return self.hosts[number] if 0 <= number < len(self.hosts) else None
