"""What `/metrics` shows: collected on request from figures that the broker keeps anyway.

A table of families, and a walk over namespaces, entities and stores that fills them. The walk is
long where there are many partitions, so it is made in turns (broker/turns.py). An entity's numbers are
sums over its partitions; partitions have series of their own only when they are asked for. Who may read
it, and where: metrics_page.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, TypeAlias

from bendybus.broker.lifecycle import Availability, StoreState
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.turns import Turns
from bendybus.domain.messages import SubQueue
from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.namespaces import Namespace

__all__ = ["FAMILIES", "Family", "ProcessFigures", "exposition", "process_figures"]

AVAILABLE: Final = {
    StoreState.AVAILABLE: 1.0,
    StoreState.SLOW: 0.5,
    StoreState.DAMAGED: 0.5,
    StoreState.AWAY: 0.0,
}
STATES: Final = ("active", "deferred", "scheduled", "locked")
COUNTED: Final = [
    (subqueue, [(state, f',state="{state}",subqueue="{subqueue.name.lower()}"') for state in STATES])
    for subqueue in SubQueue
]
"""What is counted of a partition, with the labels that say so."""

ProcessFigures: TypeAlias = Sequence[tuple[str, str, float]]
"""Name, labels and value of what one process counts."""

# Lines that become bytes in one step.
LINES_PER_STEP: Final = 500


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name with the ending that counters have, and what it means."""

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str


CONNECTIONS: Final = Family("bendybus_connections", "gauge", "AMQP connections open now.")
MEMORY_USED: Final = Family("bendybus_memory_used_bytes", "gauge", "Bytes kept for connections.")
MEMORY_LIMIT: Final = Family(
    "bendybus_memory_limit_bytes", "gauge", "Bytes that may be kept for connections: --memory."
)
MEMORY_DISCONNECTS: Final = Family(
    "bendybus_memory_disconnects_total", "counter", "Connections that were closed because memory was used up."
)
CACHE: Final = Family("bendybus_payload_cache_bytes", "gauge", "Payloads kept in memory.")
MESSAGES: Final = Family("bendybus_messages", "gauge", "Messages held.")
SIZE: Final = Family("bendybus_size_bytes", "gauge", "Bytes held.")
PARTITIONS: Final = Family("bendybus_partitions", "gauge", "Partitions of the entity.")
PARTITIONS_AVAILABLE: Final = Family(
    "bendybus_partitions_available", "gauge", "Partitions of the entity that take commands."
)
PARTITION_AVAILABLE: Final = Family(
    "bendybus_partition_available", "gauge", "1 while the partition takes commands."
)
COMMITS: Final = Family("bendybus_store_commits_total", "counter", "Commits made durable.")
STORED: Final = Family("bendybus_messages_stored_total", "counter", "Messages made durable.")
STORE_AVAILABLE: Final = Family(
    "bendybus_store_available",
    "gauge",
    "1 while the store answers, 0.5 while it is slow or damaged, 0 while it is away.",
)
WAITING: Final = Family(
    "bendybus_store_waiting_seconds", "gauge", "How long the store has been with the call that is under way."
)
FAILURES: Final = Family("bendybus_store_failures_total", "counter", "Times it went away.")
DAMAGES: Final = Family("bendybus_store_damages_total", "counter", "Calls that met damage in the store.")

FAMILIES: Final = (
    *(CONNECTIONS, MEMORY_USED, MEMORY_LIMIT, MEMORY_DISCONNECTS),
    *(CACHE, MESSAGES, SIZE, PARTITIONS, PARTITIONS_AVAILABLE, PARTITION_AVAILABLE),
    *(COMMITS, STORED, STORE_AVAILABLE, WAITING, FAILURES, DAMAGES),
)


async def exposition(
    namespaces: Iterable[Namespace],
    connections: int,
    budget: MemoryBudget | None = None,
    *,
    by_partition: bool = False,
    others: Iterable[ProcessFigures] = (),
) -> list[bytes]:
    """All samples of these namespaces in Prometheus' text format, in pieces.

    `others`: what the other broker processes of the server count.
    """
    turns, samples = Turns(), _Samples()
    families = {family.name: family for family in FAMILIES}
    counted: dict[tuple[str, str], float] = {}
    for name, labels, value in chain(process_figures(namespaces, connections, budget), *others):
        counted[name, labels] = counted.get((name, labels), 0) + value
    for (name, labels), value in counted.items():
        samples.add(families[name], labels, value)
    for namespace in tuple(namespaces):
        of_namespace = f'namespace="{escaped(namespace.name)}"'
        for queue in tuple(namespace.broker.entities.sources()):
            named = f'entity="{escaped(queue.path)}",{of_namespace}'
            await queue.refresh()
            if by_partition:
                for host in queue.hosts:
                    _add_partition(samples, host, f'{named},partition="{host.number}"')
                    await turns.next()
            else:
                _add_entity(samples, queue, named)
                await turns.next()
    return await samples.text(turns)


def process_figures(
    namespaces: Iterable[Namespace], connections: int, budget: MemoryBudget | None
) -> ProcessFigures:
    """What belongs to one process: its connections, its memory, and the stores that it has."""
    figures: list[tuple[Family, str, float]] = [(CONNECTIONS, "", connections)]
    if budget is not None:
        figures += [
            (MEMORY_USED, "", budget.used_bytes),
            (MEMORY_LIMIT, "", budget.limit_bytes),
            (MEMORY_DISCONNECTS, "", budget.evictions),
        ]
    for namespace in namespaces:
        of_namespace = f'namespace="{escaped(namespace.name)}"'
        figures.append((CACHE, of_namespace, namespace.broker.cache.used_bytes))
        figures += _of_stores(namespace, of_namespace)
    return [(family.name, labels, value) for family, labels, value in figures]


class _Samples:
    """Lines by family: those of one stand together, under its heading."""

    def __init__(self) -> None:
        self._lines: dict[Family, list[str]] = {family: [] for family in FAMILIES}

    def add(self, family: Family, labels: str, value: float) -> None:
        """`labels` as they stand between the braces."""
        where = f"{{{labels}}}" if labels else ""
        self._lines[family].append(f"{family.name}{where} {value}\n")

    async def text(self, turns: Turns) -> list[bytes]:
        pieces: list[bytes] = []
        for family, lines in self._lines.items():
            if not lines:
                continue
            pieces.append(
                f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} {family.kind}\n".encode()
            )
            for start in range(0, len(lines), LINES_PER_STEP):
                pieces.append("".join(lines[start : start + LINES_PER_STEP]).encode())
                await turns.next()
        return pieces


def _add_entity(samples: _Samples, queue: Queue, labels: str) -> None:
    loaded = [host.figures for host in queue.hosts if host.figures is not None]
    up = sum(host.availability is Availability.AVAILABLE for host in queue.hosts)
    samples.add(PARTITIONS, labels, len(queue.hosts))
    samples.add(PARTITIONS_AVAILABLE, labels, up)
    # An entity whose figures are unknown has none; zeros would look like an empty entity.
    if not loaded:
        return
    samples.add(SIZE, labels, sum(partition.size_bytes for partition in loaded))
    for subqueue, states in COUNTED:
        counts = [partition.counts(subqueue) for partition in loaded]
        for state, which in states:
            samples.add(MESSAGES, labels + which, sum(getattr(each, state) for each in counts))


def _add_partition(samples: _Samples, host: ReceivingPort, labels: str) -> None:
    up = host.availability is Availability.AVAILABLE
    samples.add(PARTITION_AVAILABLE, f'{labels},store="{escaped(host.store.name)}"', int(up))
    if host.figures is None:
        return
    samples.add(SIZE, labels, host.figures.size_bytes)
    for subqueue, states in COUNTED:
        counts = host.figures.counts(subqueue)
        for state, which in states:
            samples.add(MESSAGES, labels + which, getattr(counts, state))


def _of_stores(namespace: Namespace, of_namespace: str) -> Iterator[tuple[Family, str, float]]:
    for store in namespace.broker.stores:
        labels = f'{of_namespace},store="{escaped(store.name)}"'
        yield COMMITS, labels, store.writer.commits
        yield STORED, labels, store.writer.messages_stored
        yield STORE_AVAILABLE, labels, AVAILABLE[store.state]
        yield WAITING, labels, store.waiting_s
        yield FAILURES, labels, store.failures
        yield DAMAGES, labels, store.damages


def escaped(text: str) -> str:
    """As a label's value is written: backslashes, quotes and ends of lines are escaped."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
