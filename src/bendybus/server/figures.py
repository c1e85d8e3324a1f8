"""What one process counts: its connections, its memory, the stores and partitions that it has.

With several brokers each process counts its own, and a page adds them up (metrics.py). A walk over all
entities is long where there are many, so it is made in turns (broker/turns.py).
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

from bendybus.broker.entity import Entity
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.topic import Topic
from bendybus.broker.turns import Turns
from bendybus.domain.partition import Partition
from bendybus.domain.tally import Tally
from bendybus.gateway.browser import Browser
from bendybus.gateway.connection import AmqpConnection
from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.sender import Sender
from bendybus.namespaces import Namespace
from bendybus.server import metric_families as families
from bendybus.server.metric_families import Family

__all__ = ["ProcessFigures", "escaped", "process_figures"]

ProcessFigures: TypeAlias = Sequence[tuple[str, str, float]]
"""Name, labels and value of what one process counts."""

AVAILABLE: Final = {
    StoreState.AVAILABLE: 1.0,
    StoreState.SLOW: 0.5,
    StoreState.DAMAGED: 0.5,
    StoreState.AWAY: 0.0,
}

# Field of a tally -> the family that shows it.
COUNTED: Final = {
    "incoming": families.INCOMING,
    "outgoing": families.OUTGOING,
    "completed": families.COMPLETED,
    "abandoned": families.ABANDONED,
    "dead_lettered": families.DEAD_LETTERED,
    "expired": families.EXPIRED,
    "lost_locks": families.LOST_LOCKS,
    "kept_too_short": families.KEPT_TOO_SHORT,
}
# A topic hands nothing out.
COUNTED_OF_TOPICS: Final = {"incoming": families.INCOMING}


async def process_figures(
    namespaces: Iterable[Namespace],
    connections: Sequence[AmqpConnection],
    budget: MemoryBudget | None,
    *,
    by_partition: bool = False,
) -> ProcessFigures:
    """`connections` are those to count; `budget` is None where only a namespace may be shown."""
    turns = Turns()
    figures = _Figures()
    figures.add(families.CONNECTIONS, "", len(connections))
    if budget is not None:
        figures.add(families.MEMORY_USED, "", budget.used_bytes)
        figures.add(families.MEMORY_LIMIT, "", budget.limit_bytes)
        figures.add(families.MEMORY_DISCONNECTS, "", budget.evictions)
        _add_process(figures)
    links = await _links(connections, turns)
    for namespace in tuple(namespaces):
        of_namespace = f'namespace="{escaped(namespace.name)}"'
        figures.add(families.CACHE, of_namespace, namespace.broker.cache.used_bytes)
        _add_stores(figures, namespace, of_namespace)
        for entity in tuple(namespace.broker.entities):
            labels = f'entity="{escaped(entity.path)}",{of_namespace}'
            _add_entity(figures, entity, labels, by_partition=by_partition)
            for role in ("sender", "receiver"):
                if count := links.get((entity, role)):
                    figures.add(families.LINKS, f'{labels},role="{role}"', count)
            await turns.next()
    return figures.all


class _Figures:
    def __init__(self) -> None:
        self.all: list[tuple[str, str, float]] = []

    def add(self, family: Family, labels: str, value: float) -> None:
        """`labels` as they stand between the braces."""
        self.all.append((family.name, labels, value))

    def add_histogram(self, family: Family, labels: str, counts: Sequence[int], total: float) -> None:
        """`counts` by bucket, one more than the family has bounds; `total` is the sum of all values."""
        comma = "," if labels else ""
        bounds = [*map(_bound, family.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            self.all.append((f"{family.name}_bucket", f'{labels}{comma}le="{bound}"', count))
        self.all.append((f"{family.name}_sum", labels, total))
        self.all.append((f"{family.name}_count", labels, sum(counts)))


def _bound(value: float) -> str:
    return f"{value:g}" if value < 1000 else str(round(value))


# -- entities -----------------------------------------------------------------------


def _add_entity(figures: _Figures, entity: Entity[Any, Any, Any], labels: str, *, by_partition: bool) -> None:
    hosts = list(entity.own.values())
    counted = COUNTED_OF_TOPICS if isinstance(entity, Topic) else COUNTED
    for field, family in counted.items():
        if by_partition:
            for host in hosts:
                figures.add(family, f'{labels},partition="{host.number}"', getattr(host.tally, field))
        elif hosts:
            figures.add(family, labels, sum([getattr(host.tally, field) for host in hosts]))
    # Those are counted where the client is connected.
    figures.add(families.REFUSED, labels, entity.refused)
    figures.add(families.THROTTLED, labels, entity.throttled)
    if counted is COUNTED:
        _add_delivery(figures, labels, [host.tally for host in hosts])
        _add_sessions(figures, labels, [host.figures for host in hosts])


def _add_delivery(figures: _Figures, labels: str, tallies: Sequence[Tally]) -> None:
    """An entity that has handed nothing out has no histogram: most of the page would be zeros."""
    if any(tally.outgoing for tally in tallies):
        counts = [sum(bucket) for bucket in zip(*(tally.latency for tally in tallies), strict=True)]
        total = sum(tally.latency_sum_ms for tally in tallies) / 1000
        figures.add_histogram(families.DELIVERY, labels, counts, total)


def _add_sessions(figures: _Figures, labels: str, partitions: Iterable[object]) -> None:
    counts = [each.session_counts for each in partitions if isinstance(each, Partition)]
    known = [count for count in counts if count is not None]
    if known:
        figures.add(families.SESSIONS, f'{labels},state="held"', sum(held for held, _ in known))
        figures.add(families.SESSIONS, f'{labels},state="waiting"', sum(waiting for _, waiting in known))


async def _links(
    connections: Sequence[AmqpConnection], turns: Turns
) -> Counter[tuple[Entity[Any, Any, Any], str]]:
    """How many links send to each entity, and how many receive from it."""
    found: Counter[tuple[Entity[Any, Any, Any], str]] = Counter()
    for connection in connections:
        for attachment in tuple(connection.links.attachments.values()):
            if attachment.entity is None:
                continue
            if isinstance(attachment.node, Sender):
                found[attachment.entity, "sender"] += 1
            elif isinstance(attachment.node, Receiver | Browser):
                found[attachment.entity, "receiver"] += 1
        await turns.next()
    return found


# -- stores, process ----------------------------------------------------------------


def _add_stores(figures: _Figures, namespace: Namespace, of_namespace: str) -> None:
    for store in namespace.broker.stores:
        labels, writer = f'{of_namespace},store="{escaped(store.name)}"', store.writer
        figures.add(families.COMMITS, labels, writer.commits)
        figures.add_histogram(families.COMMIT_SECONDS, labels, writer.commit_counts, writer.commit_sum_s)
        figures.add(families.STORED, labels, writer.messages_stored)
        figures.add(families.STORE_AVAILABLE, labels, AVAILABLE[store.state])
        figures.add(families.WAITING, labels, store.waiting_s)
        figures.add(families.FAILURES, labels, store.failures)
        figures.add(families.DAMAGES, labels, store.damages)


def _add_process(figures: _Figures) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures.add(families.CPU, "", round(used.ru_utime + used.ru_stime, 3))
    figures.add(families.DESCRIPTORS_MAX, "", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for family, value in _of_proc():
        figures.add(family, "", value)


def _of_proc() -> Iterator[tuple[Family, float]]:
    """What Linux reports about this process. Other systems have no such files, so nothing is shown there."""
    try:
        with open("/proc/self/statm") as file:
            yield families.RESIDENT, int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        yield families.DESCRIPTORS, len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        return


def escaped(text: str) -> str:
    """As a label's value is written: backslashes, quotes and ends of lines are escaped."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
