"""What a broker needs from the other brokers of its namespace. A broker that is alone has none.

Each messaging store belongs to one broker, which owns the partitions in it; in a cluster on PostgreSQL a
store may pass to another broker (cluster/ownership.py). One broker has the catalog and makes all changes to
entities; the others follow it (cluster/following.py). The implementation: cluster/.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence, Set
from typing import TYPE_CHECKING, Protocol

from bendybus.broker.partition_port import PartitionPort, ReceivingPort, StoreView
from bendybus.domain.filters import RuleDescription
from bendybus.names import EntityPath, Instant, PartitionNumber
from bendybus.store.catalog import EntityRecord

if TYPE_CHECKING:
    from bendybus.broker.client_subscriptions import WantedSubscription
    from bendybus.broker.queue import Queue
    from bendybus.broker.topic import Topic

__all__ = ["Alone", "Elsewhere", "LinkedEntities"]


class LinkedEntities(Protocol):
    """Entities that links make (gateway/client_entities.py): asks the broker that has the catalog.

    A link is a holder at its own broker only. The broker that has the catalog asks the others before it
    deletes what a link might hold.
    """

    async def create_temporary(self, path: EntityPath, *, is_topic: bool) -> None:
        """Nobody deletes it before the caller has had time to hold it."""

    async def create_missing(self, path: EntityPath, *, is_topic: bool, idle_s: float | None) -> None: ...

    async def consume(self, topic: EntityPath, wanted: WantedSubscription, refusal: str | None) -> None:
        """`refusal`: why the client may not create or delete entities, if it may not."""

    async def consume_known(self, path: EntityPath) -> None:
        """`SubscriptionInUse` if somebody holds the subscription."""

    async def unsubscribe(self, path: EntityPath) -> None:
        """Delete a subscription that the caller has let go of. `SubscriptionInUse` if somebody holds it."""

    async def release(self, path: EntityPath) -> None:
        """The caller has let go of a temporary entity. Returns when it is deleted, if nobody holds it."""

    async def is_held(self, path: EntityPath) -> bool:
        """Where the catalog is: whether a link of another broker holds the entity.

        `StoreUnavailable` if one of them cannot be asked.
        """


class Elsewhere(Protocol):
    """The other brokers. Only the broker with the catalog calls methods that change entities. Other brokers
    use `change_rules` and `linked_entities` only.
    """

    has_catalog: bool
    """Whether this broker has the catalog, and so makes the changes."""
    has_others: bool
    """Whether there are other brokers, whose links may hold entities too."""

    common: Container[str] | None
    """The stores that all brokers have, and that new partitions may be placed in; None for all stores."""

    @property
    def linked_entities(self) -> LinkedEntities: ...

    @property
    def store_names(self) -> Set[str]:
        """The names of the messaging stores that other brokers have."""

    def refuse(self, what: str, in_cluster: str = "") -> None:
        """`NotSupported` if there are other brokers: this does not work with several yet.

        `in_cluster`: what to do instead if the brokers are on many machines.
        """

    def refuse_following(self) -> None:
        """`NotSupported` if another broker has the catalog: this broker cannot create or delete entities."""

    def stores(self) -> Sequence[StoreView]:
        """The messaging stores that other brokers have."""

    def queue_partition(
        self, queue: Queue, generation: str, number: PartitionNumber, store: str
    ) -> ReceivingPort:
        """A partition of a queue or subscription in a store of another broker."""

    def topic_partition(
        self, topic: Topic, generation: str, number: PartitionNumber, store: str
    ) -> PartitionPort: ...

    async def make_partitions(self, record: EntityRecord) -> None:
        """Create the partitions of a new entity that are in stores of other brokers."""

    async def drop_partitions(self, record: EntityRecord) -> None:
        """Remove those again."""

    async def changed(self, records: Sequence[EntityRecord]) -> None:
        """The catalog has these new or changed records. Returns once all brokers that can be reached know."""

    async def send_off(self, paths: Sequence[EntityPath], *, force: bool) -> None:
        """Messages that were sent through these entities leave at the other brokers too (departure.py)."""

    async def stay(self, paths: Sequence[EntityPath]) -> None:
        """The entities are not deleted after all."""

    async def removed(self, paths: Sequence[EntityPath]) -> None:
        """The catalog no longer lists these. Returns once all brokers that can be reached know."""

    def forgotten(self, paths: Iterable[EntityPath]) -> None:
        """These entities are closed here."""

    async def namespace_changed(self) -> None:
        """The catalog has new settings of the namespace."""

    async def last_use(self, path: EntityPath) -> Instant | None:
        """When clients of other brokers last used the entity; None if one of them cannot be asked."""

    async def change_rules(
        self, topic_path: str, name: str, changes: Sequence[RuleDescription | str]
    ) -> None:
        """Add rules of a subscription, or remove them by their names, where the catalog is: all or none."""


class Alone:
    """`Elsewhere` of a broker that has no others."""

    has_catalog = True
    has_others = False
    common: Container[str] | None = None
    store_names: Set[str] = frozenset()

    def refuse(self, what: str, in_cluster: str = "") -> None:
        pass

    def refuse_following(self) -> None:
        pass

    def stores(self) -> Sequence[StoreView]:
        return ()

    def queue_partition(
        self, queue: Queue, generation: str, number: PartitionNumber, store: str
    ) -> ReceivingPort:
        raise AssertionError("all stores are here")

    def topic_partition(
        self, topic: Topic, generation: str, number: PartitionNumber, store: str
    ) -> PartitionPort:
        raise AssertionError("all stores are here")

    async def make_partitions(self, record: EntityRecord) -> None:
        pass

    async def drop_partitions(self, record: EntityRecord) -> None:
        pass

    async def changed(self, records: Sequence[EntityRecord]) -> None:
        pass

    async def send_off(self, paths: Sequence[EntityPath], *, force: bool) -> None:
        pass

    async def stay(self, paths: Sequence[EntityPath]) -> None:
        pass

    async def removed(self, paths: Sequence[EntityPath]) -> None:
        pass

    def forgotten(self, paths: Iterable[EntityPath]) -> None:
        pass

    async def namespace_changed(self) -> None:
        pass

    async def last_use(self, path: EntityPath) -> Instant | None:
        return Instant(0)

    @property
    def linked_entities(self) -> LinkedEntities:
        raise AssertionError("the catalog is here, and there are no others")

    async def change_rules(
        self, topic_path: str, name: str, changes: Sequence[RuleDescription | str]
    ) -> None:
        raise AssertionError("the catalog is here")
