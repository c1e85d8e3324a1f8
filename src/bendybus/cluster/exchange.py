"""Replaces the objects that represent the partitions of a store when the store changes its owner.

A partition that this broker owns has a host, and one that another broker owns has a `RemotePartition`.
Commands, sessions and messages that wait are passed from one to the other (passing_on.py). When that happens:
ownership.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bendybus.broker.entities import Entities
from bendybus.broker.entity import Entity
from bendybus.broker.host import Host
from bendybus.broker.openers import OPENERS
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.placing import PartitionClaims
from bendybus.broker.queue import Queue
from bendybus.broker.stores import AttachedStore
from bendybus.broker.topic import SendTarget, Topic
from bendybus.broker.topic_host import TopicHost
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.handing_over import Remembered
from bendybus.cluster.passing_on import pass_on
from bendybus.cluster.serving import Service
from bendybus.names import PartitionNumber

__all__ = ["Exchange"]


class Exchange:
    def __init__(self, entities: Entities, cluster: Cluster) -> None:
        self._entities = entities
        self._cluster = cluster

    def hosts_in(self, store: AttachedStore) -> list[Host[Any]]:
        return [host for entity in self._entities for host in entity.own.values() if host.store is store]

    def with_own(
        self,
        attached: AttachedStore,
        claims: PartitionClaims,
        remembered: Remembered | None,
        service: Service | None,
    ) -> None:
        """Each partition in the store gets a host. Then they are loaded."""
        cache = self._entities.cache
        exchanged: list[tuple[PartitionPort, Host[Any]]] = []
        for entity, number in self._placed(attached.name):
            key, epoch = claims[attached.name, entity.path, number]
            host: Host[Any]
            if isinstance(entity, Topic):
                host = topic_host = TopicHost(entity, number, key, attached, cache, epoch)
                former: PartitionPort = entity.exchange(topic_host, topic_host)
            else:
                host = queue_host = PartitionHost(entity, number, key, attached, cache, epoch)
                former = entity.exchange(queue_host, queue_host)
                if remembered is not None:
                    remembered.give_to(queue_host, service)
            exchanged.append((former, host))
        for former, host in exchanged:
            host.load()
            pass_on(former, host, kept=remembered is not None)
        for entity in dict.fromkeys(entity for entity, _ in self._placed(attached.name)):
            if isinstance(entity, Queue):
                self._entities.forwarder(entity).wake()

    def with_others(
        self, name: str, *, kept: bool, before_passing_on: Callable[[], None] = lambda: None
    ) -> None:
        """Other brokers own the partitions in the store, or nobody does. `kept`: they have their sessions."""
        exchanged: list[tuple[Entity[Any, Any, Any], PartitionPort, PartitionPort]] = []
        for entity, number in self._placed(name):
            if isinstance(entity, Topic):
                port: PartitionPort = self._cluster.topic_partition(entity, entity.generation, number, name)
            else:
                port = self._cluster.queue_partition(entity, entity.generation, number, name)
            whole: Entity[Any, Any, Any] = entity
            exchanged.append((whole, whole.exchange(port, None), port))
        before_passing_on()
        for whole, former, port in exchanged:
            pass_on(former, port, kept=kept)
            whole.availability_changed(port)

    def _placed(self, name: str) -> Iterator[tuple[SendTarget, PartitionNumber]]:
        """The partitions in a store, those of topics before those of their subscriptions."""
        for kind in OPENERS:
            for record in self._entities.records():
                if record.kind != kind or name not in record.placement:
                    continue
                entity = self._entities.look_up(record.path)
                assert entity is not None, "a record is kept with its entity"
                for number, store in enumerate(record.placement):
                    if store == name:
                        yield entity, PartitionNumber(number)
