"""The page of metrics: collected on request from figures that the broker keeps anyway, as Prometheus' text.

It has what this process and others count (figures.py), and the contents of entities over all partitions,
whichever broker owns them. An entity's numbers are sums over its partitions; partitions have their own series
only if the request asks for them. Who may read the page, and where: metrics_page.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Final

from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.turns import Turns
from bendybus.domain.messages import SubQueue
from bendybus.gateway.connection import AmqpConnection
from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.namespaces import Namespace
from bendybus.server.figures import ProcessFigures, escaped, process_figures
from bendybus.server.metric_families import (
    FAMILIES,
    MESSAGES,
    PARTITION_AVAILABLE,
    PARTITIONS,
    PARTITIONS_AVAILABLE,
    SIZE,
    STARTED,
    Family,
    family_of,
)

__all__ = ["Samples", "collected", "exposition"]

STATES: Final = ("active", "deferred", "scheduled", "locked")
COUNTED: Final = [
    (subqueue, [(state, f',state="{state}",subqueue="{subqueue.name.lower()}"') for state in STATES])
    for subqueue in SubQueue
]
"""What is counted of a partition, with the labels that say so."""

# Lines that become bytes in one step.
LINES_PER_STEP: Final = 500

_STARTED_AT: Final = round(time.time(), 3)


async def exposition(
    namespaces: Sequence[Namespace],
    connections: Sequence[AmqpConnection],
    budget: MemoryBudget | None = None,
    *,
    by_partition: bool = False,
    others: Sequence[ProcessFigures] = (),
) -> list[bytes]:
    """All samples of these namespaces in Prometheus' text format, in pieces."""
    samples = await collected(namespaces, connections, budget, by_partition=by_partition, others=others)
    return await samples.text(Turns())


async def collected(
    namespaces: Sequence[Namespace],
    connections: Sequence[AmqpConnection],
    budget: MemoryBudget | None = None,
    *,
    by_partition: bool = False,
    others: Sequence[ProcessFigures] = (),
) -> Samples:
    """All samples of these namespaces.

    `others`: what the other broker processes of the server count.
    """
    turns, samples = Turns(), Samples()
    own = await process_figures(namespaces, connections, budget, by_partition=by_partition)
    counted: dict[tuple[str, str], float] = {}
    for name, labels, value in chain(own, *others):
        counted[name, labels] = counted.get((name, labels), 0) + value
    for (name, labels), value in counted.items():
        samples.add(name, labels, value)
    if budget is not None:
        samples.add(STARTED.name, "", _STARTED_AT)
    for namespace in namespaces:
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
    return samples


class Samples:
    """Samples by family: those of one stand together, under its heading."""

    def __init__(self) -> None:
        self.by_family: dict[Family, list[tuple[str, str, float]]] = {family: [] for family in FAMILIES}
        """Name, labels and value of each."""

    def add(self, name: str, labels: str, value: float) -> None:
        """`labels` as they stand between the braces."""
        self.by_family[family_of(name)].append((name, labels, value))

    async def text(self, turns: Turns) -> list[bytes]:
        pieces: list[bytes] = []
        for family, samples in self.by_family.items():
            if not samples:
                continue
            lines = [
                f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
                for name, labels, value in samples
            ]
            pieces.append(
                f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} {family.kind}\n".encode()
            )
            for start in range(0, len(lines), LINES_PER_STEP):
                pieces.append("".join(lines[start : start + LINES_PER_STEP]).encode())
                await turns.next()
        return pieces


def _add_entity(samples: Samples, queue: Queue, labels: str) -> None:
    loaded = [host.figures for host in queue.hosts if host.figures is not None]
    up = sum(host.availability is Availability.AVAILABLE for host in queue.hosts)
    samples.add(PARTITIONS.name, labels, len(queue.hosts))
    samples.add(PARTITIONS_AVAILABLE.name, labels, up)
    # An entity whose figures are unknown has none; zeros would look like an empty entity.
    if not loaded:
        return
    samples.add(SIZE.name, labels, sum(partition.size_bytes for partition in loaded))
    for subqueue, states in COUNTED:
        counts = [partition.counts(subqueue) for partition in loaded]
        for state, which in states:
            samples.add(MESSAGES.name, labels + which, sum(getattr(each, state) for each in counts))


def _add_partition(samples: Samples, host: ReceivingPort, labels: str) -> None:
    up = host.availability is Availability.AVAILABLE
    samples.add(PARTITION_AVAILABLE.name, f'{labels},store="{escaped(host.store.name)}"', int(up))
    if host.figures is None:
        return
    samples.add(SIZE.name, labels, host.figures.size_bytes)
    for subqueue, states in COUNTED:
        counts = host.figures.counts(subqueue)
        for state, which in states:
            samples.add(MESSAGES.name, labels + which, getattr(counts, state))
