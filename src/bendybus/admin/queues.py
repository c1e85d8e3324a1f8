"""A queue in the management API: QueueDescription as XML, read and written.

Elements are written in the order of the real service and read in any order. Which properties
there are and what they may be: domain/properties.py.
A partitioned queue of the Standard tier shows the size of all its partitions
together (P-08), and an update that sends this size back changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bendybus.admin.authorization_rules_xml import rules_element
from bendybus.admin.documents import Element
from bendybus.admin.fields import (
    Shown,
    read_new,
    read_update,
    shown_access,
    shown_as_sent,
    shown_properties,
    shown_times,
)
from bendybus.admin.totals import Totals
from bendybus.atom import elements_of
from bendybus.broker.queue import Queue
from bendybus.domain.entities import QueueDescription, Tier, effective_max_size_mb
from bendybus.domain.properties import (
    ENABLE_BATCHED_OPERATIONS,
    ENABLE_PARTITIONING,
    FIRST_WITH_PARTITIONS,
    FORWARD_TO,
    MAX_SIZE,
    USER_METADATA,
)

__all__ = ["queue_elements", "read_queue"]


def read_queue(
    path: str, elements: Mapping[str, Element], tier: Tier, current: Queue | None = None
) -> QueueDescription:
    """The queue that a client describes; with `current`, the updated queue."""
    if current is None:
        return read_new(QueueDescription, path, elements, tier)
    return read_update(current.description, elements, current.partition_count)


def queue_elements(queue: Queue, api_version: str, *, new: bool = False) -> str:
    """The children of QueueDescription, as this version of the API shows them.

    The answer to a create (`new`) has neither counts nor the time of access.
    """
    return elements_of(_shown(queue, api_version, new))


def _shown(queue: Queue, api_version: str, new: bool) -> Iterator[Shown]:
    description, totals = queue.description, Totals.of(queue)
    partitions = queue.partition_count
    partitioned = partitions > 1
    return shown_properties(
        description,
        api_version,
        instead={
            MAX_SIZE: effective_max_size_mb(description, partitions),
            ENABLE_PARTITIONING: partitioned,
        },
        after={
            ENABLE_BATCHED_OPERATIONS: (
                ("SizeInBytes", totals.size_bytes),
                ("MessageCount", totals.messages),
                shown_as_sent(description, "IsAnonymousAccessible", False),
                rules_element(description.authorization_rules),
            ),
            FORWARD_TO: shown_times(queue) + (() if new else shown_access(queue)),
            USER_METADATA: (
                shown_as_sent(description, "SupportOrdering", not partitioned),
                *(() if new else (totals.count_details(),)),
            ),
            ENABLE_PARTITIONING: (totals.availability,) if api_version >= FIRST_WITH_PARTITIONS else (),
        },
    )
