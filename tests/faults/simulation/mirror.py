"""The broker's memory against the disks: when a store has nothing left to do, both say the same.

Every loaded partition has each message of its store once, in the same state, and
its counts and sizes are those of what a peek finds. What waits is in the order of its
numbers. Its queue knows whether it has something for receivers. Looked at whenever a partition
has changed and its writer is idle, and everywhere when a life ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from bendybus.broker.broker import Broker
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_host import PartitionHost
from bendybus.domain.commands import Given, Peek
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.sessions import Sessions
from bendybus.names import Instant, SequenceNumber
from faults.simulation.ledger import Invariant, Ledger
from faults.simulation.stores import VirtualStore

__all__ = ["compare"]

PEEKED = (SubQueue.MAIN, SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER, SubQueue.COMPLETED)


def compare(
    ledger: Ledger,
    broker: Broker,
    *,
    everything: bool = False,
    owned: Callable[[Any], bool] = lambda store: True,
) -> None:
    """Look at what has changed, or at everything, of all stores that are idle and that are `owned`."""
    idle = [each for each in broker.stores if each.writer.idle and owned(each.store)]
    stores = {each.store for each in idle}
    if not everything and not any(store in stores for store, _ in ledger.dirty):
        return
    hosts: dict[tuple[Any, Any], Host[Any]] = {}
    for entity in (*broker.entities.sources(), *broker.topics):
        for host in entity.own.values():
            if host.partition is not None and host.store in idle:
                hosts[host.store.store, host.key] = host
    looked_at = list(hosts) if everything else [place for place in ledger.dirty if place in hosts]
    for place in looked_at:
        ledger.dirty.pop(place, None)
        _compare(ledger, hosts[place], *place)


def _compare(ledger: Ledger, host: Host[Any], store: VirtualStore, key: Any) -> None:
    contents = store.contents(key)
    if contents is None:
        return
    shape = _shape if isinstance(host, PartitionHost) else _size
    kept = Counter(map(shape, contents[1]))
    remembered = Counter(map(shape, host.partition.confirmed()))
    if kept != remembered:
        ledger.violate(
            Invariant.MISCOUNTED,
            f"{host}: on disk {sorted(kept - remembered)}, in memory {sorted(remembered - kept)}",
        )
    elif isinstance(host, PartitionHost) and host.partition is not None:
        _compare_counts(ledger, host, host.partition)
        _check_order(ledger, host, host.partition)


def _compare_counts(ledger: Ledger, host: PartitionHost, partition: Partition) -> None:
    for subqueue in PEEKED:
        reply, _ = partition.apply(Peek(SequenceNumber(0), 1_000_000, subqueue), Instant(0))
        assert isinstance(reply, Given)
        counts, found = partition.counts(subqueue), _tally(reply.messages)
        told = (counts.active, counts.deferred, counts.scheduled)
        if told != found:
            ledger.violate(Invariant.MISCOUNTED, f"{host}/{subqueue.name}: counts {told}, peek finds {found}")
        # Nobody receives what is kept.
        served = host.availability is Availability.AVAILABLE and subqueue is not SubQueue.COMPLETED
        if served and partition.available(subqueue) and host not in host.queue.stocked(subqueue):
            ledger.violate(Invariant.MISCOUNTED, f"{host}/{subqueue.name}: no receiver would ask it")
        size = sum(message.size for message in reply.messages)
        if subqueue is not SubQueue.MAIN and counts.size_bytes != size:
            ledger.violate(
                Invariant.MISCOUNTED, f"{host}/{subqueue.name}: {counts.size_bytes} bytes, peek finds {size}"
            )


def _check_order(ledger: Ledger, host: PartitionHost, partition: Partition) -> None:
    """Whatever was put back is where it was taken (P-26)."""
    for subqueue, shelf in partition._parts.stock.shelves.items():
        for waiting in shelf._runs.values():
            runs = [waiting]
            if isinstance(waiting, Sessions):
                runs = [session.waiting for session in waiting._known.values()]
            for run in runs:
                numbers = [message.sequence_number for message in run]
                if any(before >= after for before, after in pairwise(numbers)):
                    found = ", ".join(map(hex, numbers))
                    ledger.violate(
                        Invariant.DISORDERED, f"{host}/{subqueue.name}: {found} wait in this order"
                    )


def _tally(messages: Iterable[Message]) -> tuple[int, int, int]:
    states = Counter(message.state for message in messages)
    return states[MessageState.ACTIVE], states[MessageState.DEFERRED], states[MessageState.SCHEDULED]


def _size(message: Message) -> tuple[int]:
    """All that can be said in a topic: what is due has its new number in memory before it is published."""
    return (message.size,)


def _shape(message: Message) -> tuple[int, int, int, int]:
    return message.sequence_number, message.subqueue, message.state, message.delivery_count
