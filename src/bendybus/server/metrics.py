"""`/metrics`: counted when asked, from what the broker knows anyway; nothing is counted per message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bendybus.broker.broker import Broker
from bendybus.broker.health import StoreState
from bendybus.broker.host import Availability
from bendybus.domain.messages import SubQueue
from bendybus.gateway.gateway import Gateway

__all__ = ["BrokerCollector"]

AVAILABLE: Final = {StoreState.AVAILABLE: 1.0, StoreState.SLOW: 0.5, StoreState.AWAY: 0.0}


class BrokerCollector(Collector):
    def __init__(self, broker: Broker, gateway: Gateway) -> None:
        self._broker = broker
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "bendybus_connections", "AMQP connections open now.", value=self._gateway.connection_count
        )
        yield GaugeMetricFamily(
            "bendybus_payload_cache_bytes", "Payloads kept in memory.", value=self._broker.cache.used_bytes
        )
        yield from self._queues()
        yield from self._stores()

    def _queues(self) -> Iterable[Metric]:
        messages = GaugeMetricFamily(
            "bendybus_messages", "Messages held.", labels=("entity", "partition", "subqueue", "state")
        )
        size = GaugeMetricFamily("bendybus_size_bytes", "Bytes held.", labels=("entity", "partition"))
        available = GaugeMetricFamily(
            "bendybus_partition_available",
            "1 while the partition takes commands.",
            labels=("entity", "partition", "store"),
        )
        for queue in self._broker.sources():
            for host in queue.hosts:
                name = str(host.number)
                up = host.availability is Availability.AVAILABLE
                available.add_metric((queue.path, name, host.store.name), float(up))
                if host.partition is None:
                    continue
                size.add_metric((queue.path, name), host.partition.size_bytes)
                for subqueue in SubQueue:
                    counts = host.partition.counts(subqueue)
                    for state in ("active", "deferred", "scheduled", "locked"):
                        labels = (queue.path, name, subqueue.name.lower(), state)
                        messages.add_metric(labels, getattr(counts, state))
        yield from (messages, size, available)

    def _stores(self) -> Iterable[Metric]:
        commits = CounterMetricFamily("bendybus_store_commits", "Commits made durable.", labels=("store",))
        stored = CounterMetricFamily("bendybus_messages_stored", "Messages made durable.", labels=("store",))
        available = GaugeMetricFamily(
            "bendybus_store_available",
            "1 while the store answers, 0.5 while it is slow, 0 while it is away.",
            labels=("store",),
        )
        waiting = GaugeMetricFamily(
            "bendybus_store_waiting_seconds",
            "How long the store has been with the call that is under way.",
            labels=("store",),
        )
        failures = CounterMetricFamily("bendybus_store_failures", "Times it went away.", labels=("store",))
        for store in self._broker.stores():
            commits.add_metric((store.name,), store.writer.commits)
            stored.add_metric((store.name,), store.writer.messages_stored)
            available.add_metric((store.name,), AVAILABLE[store.state])
            waiting.add_metric((store.name,), store.waiting_s)
            failures.add_metric((store.name,), store.failures)
        yield from (commits, stored, available, waiting, failures)
