"""`/metrics`: counted when asked, from what the broker knows anyway; nothing is counted per message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bendybus.broker.lifecycle import Availability, StoreState
from bendybus.domain.messages import SubQueue
from bendybus.gateway.gateway import Gateway
from bendybus.namespaces import Namespace

__all__ = ["BrokerCollector"]

AVAILABLE: Final = {StoreState.AVAILABLE: 1.0, StoreState.SLOW: 0.5, StoreState.AWAY: 0.0}


class BrokerCollector(Collector):
    def __init__(self, namespaces: Iterable[Namespace], gateway: Gateway) -> None:
        self._namespaces = namespaces
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "bendybus_connections", "AMQP connections open now.", value=self._gateway.connection_count
        )
        cached = GaugeMetricFamily(
            "bendybus_payload_cache_bytes", "Payloads kept in memory.", labels=("namespace",)
        )
        for namespace in self._namespaces:
            cached.add_metric((namespace.name,), namespace.broker.cache.used_bytes)
        yield cached
        yield from self._queues()
        yield from self._stores()

    def _queues(self) -> Iterable[Metric]:
        messages = GaugeMetricFamily(
            "bendybus_messages",
            "Messages held.",
            labels=("namespace", "entity", "partition", "subqueue", "state"),
        )
        size = GaugeMetricFamily(
            "bendybus_size_bytes", "Bytes held.", labels=("namespace", "entity", "partition")
        )
        available = GaugeMetricFamily(
            "bendybus_partition_available",
            "1 while the partition takes commands.",
            labels=("namespace", "entity", "partition", "store"),
        )
        partitions = (
            (namespace.name, queue, host)
            for namespace in self._namespaces
            for queue in namespace.broker.entities.sources()
            for host in queue.hosts
        )
        for namespace_name, queue, host in partitions:
            place = (namespace_name, queue.path, str(host.number))
            up = host.availability is Availability.AVAILABLE
            available.add_metric((*place, host.store.name), float(up))
            if host.partition is not None:
                size.add_metric(place, host.partition.size_bytes)
                for subqueue in SubQueue:
                    counts = host.partition.counts(subqueue)
                    for state in ("active", "deferred", "scheduled", "locked"):
                        labels = (*place, subqueue.name.lower(), state)
                        messages.add_metric(labels, getattr(counts, state))
        yield from (messages, size, available)

    def _stores(self) -> Iterable[Metric]:
        labels = ("namespace", "store")
        commits = CounterMetricFamily("bendybus_store_commits", "Commits made durable.", labels=labels)
        stored = CounterMetricFamily("bendybus_messages_stored", "Messages made durable.", labels=labels)
        available = GaugeMetricFamily(
            "bendybus_store_available",
            "1 while the store answers, 0.5 while it is slow, 0 while it is away.",
            labels=labels,
        )
        waiting = GaugeMetricFamily(
            "bendybus_store_waiting_seconds",
            "How long the store has been with the call that is under way.",
            labels=labels,
        )
        failures = CounterMetricFamily("bendybus_store_failures", "Times it went away.", labels=labels)
        for namespace in self._namespaces:
            for store in namespace.broker.stores:
                place = (namespace.name, store.name)
                commits.add_metric(place, store.writer.commits)
                stored.add_metric(place, store.writer.messages_stored)
                available.add_metric(place, AVAILABLE[store.state])
                waiting.add_metric(place, store.waiting_s)
                failures.add_metric(place, store.failures)
        yield from (commits, stored, available, waiting, failures)
