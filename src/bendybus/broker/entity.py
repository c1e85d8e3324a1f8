"""An entity at work: its partitions, whatever its kind, and how a sender finds one of them.

Nothing here knows a protocol. What is received from: queue.py. What only passes
messages on: topic.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from bendybus.broker.clock import Clock
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability, StoreState
from bendybus.broker.partition_lifecycle import PartitionLifecycle
from bendybus.broker.stores import AttachedStore
from bendybus.domain.entities import EntityDescription, normalise_path
from bendybus.domain.messages import SubQueue
from bendybus.domain.routing import RoundRobin, key_of, partition_of
from bendybus.errors import PreconditionFailed, StoreUnavailable
from bendybus.names import (
    PARTITION_SHIFT,
    EntityPath,
    Instant,
    PartitionNumber,
    RoutingKey,
    SequenceNumber,
)

__all__ = ["Entity"]

# Of messages without a key that are forwarded, so many neighbours stay together in one partition.
NUMBERED_TOGETHER: Final = 64

# Looked at for every send, and a member of an enum is slow to look up.
AVAILABLE: Final = Availability.AVAILABLE
LOADING: Final = Availability.LOADING
UNAVAILABLE: Final = Availability.UNAVAILABLE
# What such a store is given, it may not be able to keep.
TROUBLED: Final = (StoreState.SLOW, StoreState.DAMAGED)

H = TypeVar("H", bound=Host[Any])
D = TypeVar("D", bound=EntityDescription)


class _Ready:
    """The numbers of the partitions that can be expected to answer soon. Looks only at those asked for."""

    __slots__ = ("_hosts",)

    def __init__(self, hosts: Sequence[Host[Any]]) -> None:
        self._hosts = hosts

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        host = self._hosts[number]
        return host.availability is AVAILABLE and host.store.state not in TROUBLED


class Entity(ABC, Generic[H, D]):
    def __init__(
        self,
        description: D,
        partition_count: int,
        keep_time: Callable[[Host[Any]], None],
        clock: Clock | None = None,
    ) -> None:
        self.description = description
        self.now = (clock or Clock()).now
        """The time in the entity's namespace: what everything about its messages goes by."""
        self.hosts: list[H] = []
        """By partition number."""
        self.keep_time = keep_time
        """Ask for `tick` to be called on a partition from now on."""
        self.deleted = False
        self.generation = ""
        """Differs between an entity and its namesake made after it was deleted."""
        self.created_at = Instant(0)
        self.updated_at = Instant(0)
        self.accessed_at = Instant(0)
        """When messages were last sent or asked for since the server started; 0 for never."""
        self._turn = RoundRobin([PartitionNumber(number) for number in range(partition_count)])
        self._ready = _Ready(self.hosts)

    @property
    def path(self) -> EntityPath:
        return self.description.path

    @property
    def top_level(self) -> str:
        """The entity that a transaction is about, by the key under which it is found."""
        return normalise_path(self.path)

    # -- life ---------------------------------------------------------------------

    def add_partition(self, host: H) -> None:
        """The next one by number, when the entity is opened; its store knows it from now on."""
        self.hosts.append(host)
        host.store.add_resident(host)

    async def loaded(self) -> None:
        """Return when no partition is being read from its store any more."""
        for host in self.hosts:
            await host.loaded()

    @property
    def loading(self) -> bool:
        """Whether some partition is still being read from its store, so that nobody can say what it holds."""
        return any(host.availability is LOADING for host in self.hosts)

    @property
    def limited(self) -> bool:
        """Whether some partition is away, or its store so slow or damaged that it may be (P-33)."""
        return any(host.availability is UNAVAILABLE or host.store.state in TROUBLED for host in self.hosts)

    @abstractmethod
    def availability_changed(self, host: PartitionLifecycle[Any]) -> None:
        """A partition is being read from its store, or has been, or is away or gone."""

    @abstractmethod
    def refuse_sending(self, subqueue: SubQueue = SubQueue.MAIN) -> None:
        """Raise what stands against sending here, or scheduling."""

    def refuse_updated_since(self, read_at: Instant | None) -> None:
        """`PreconditionFailed` if `updated_at` is not what a client has read; None asks nothing."""
        if read_at is not None and read_at != self.updated_at:
            raise PreconditionFailed(f"'{self.path}' has been updated since it was read.")

    def refuse_unhealthy(self) -> None:
        """`StoreUnavailable` unless all partitions can be acted upon (P-32)."""
        away = [str(host.number) for host in self.hosts if host.availability is UNAVAILABLE]
        if away:
            raise StoreUnavailable(
                f"Nothing was changed: partitions of '{self.path}' are unavailable ({', '.join(away)}). "
                "Please retry the operation."
            )

    def close(self) -> None:
        """The entity is deleted; whoever still holds it finds it gone."""
        self.deleted = True
        for host in self.hosts:
            host.close()

    # -- finding the partition ----------------------------------------------------

    def arrange_turns(self) -> None:
        """It is known which store each partition lives in.

        Those of one store take turns one after the other: what comes while it commits goes into its next
        commit, and two thirds of the commits remain.
        """
        by_store: dict[AttachedStore, list[PartitionNumber]] = {}
        for host in self.hosts:
            by_store.setdefault(host.store, []).append(host.number)
        self._turn = RoundRobin([*chain.from_iterable(by_store.values())])

    def key_of(self, text: str) -> RoutingKey:
        """What chooses the partition here, of a session id or another text that is a key."""
        return key_of(text, exact=self.description.exact_keys)

    def host_for(self, key: RoutingKey | None) -> H:
        """The partition for a message with this key; without one, the next that is available (P-12, P-16)."""
        if len(self.hosts) == 1:
            return self.hosts[0]
        if key is not None:
            return self.hosts[partition_of(key, len(self.hosts))]
        number = self._turn.next(self._ready)
        if number is None:
            # None that is sure to answer soon; better one that loads, or is slow, than none.
            number = self._turn.next(
                {host.number for host in self.hosts if host.availability is not UNAVAILABLE}
            )
        if number is None:
            raise StoreUnavailable(f"No partition of '{self.path}' is available. Please retry the operation.")
        return self.hosts[number]

    def host_for_numbered(self, number: SequenceNumber) -> H:
        """The partition for a message without a key out of an outbox: always the same for the number."""
        return self.hosts[(number // NUMBERED_TOGETHER) % len(self.hosts)]

    def is_ready(self, number: PartitionNumber) -> bool:
        """Whether this partition can be expected to answer soon."""
        return number in self._ready

    def next_ready(self) -> PartitionNumber | None:
        """The next partition in turn that can be expected to answer soon."""
        return self._turn.next(self._ready)

    def host_of_sequence_number(self, sequence_number: SequenceNumber) -> H | None:
        number = sequence_number >> PARTITION_SHIFT
        return self.hosts[number] if 0 <= number < len(self.hosts) else None
