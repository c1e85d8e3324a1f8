"""Triage of few dead letters, in this process: to start Spark takes longer than the work.

It reads, groups, sends and completes with the code that Spark's tasks use (triage.py), and keeps its
position in the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from bendybus.client import BusClient
from bendybus.names import COUNTER_MAX
from pyspark_servicebus.decoding import RowDecoder
from pyspark_servicebus.entity import MessageRange, open_entity
from pyspark_servicebus.options import ReadOptions
from pyspark_servicebus.pipelines.pipeline import Bus
from pyspark_servicebus.reading import selection_of

__all__ = ["SMALL", "group_letters", "read_letters", "with_reasons"]

# Up to so many letters, at 256 KB at most; more are a matter for Spark.
SMALL: Final = 20_000

_COLUMNS: Final = (
    "sequence_number",
    "enqueued_time",
    "delivery_count",
    "dead_letter_reason",
    "dead_letter_error_description",
    "amqp_message",
)


def read_letters(bus: Bus, entity: str) -> Iterator[pa.RecordBatch]:
    """The letters of a dead-letter queue, partition by partition, in their order."""
    options = ReadOptions.parse(bus.source(entity, includeRaw="true", states="active,deferred"))
    decoder = RowDecoder(_COLUMNS)
    with BusClient(bus.settings(entity)) as client:
        letters = open_entity(client, options)
        for partition in letters.info().partitions:
            for payloads in letters.browse(MessageRange(partition, 0, COUNTER_MAX), selection_of(options)):
                yield decoder.decode(payloads)


def with_reasons(batch: pa.RecordBatch, reasons: frozenset[str]) -> pa.RecordBatch:
    """Only letters with these reasons; all if there are none. The empty text stands for a missing reason."""
    if not reasons:
        return batch
    given = batch.column("dead_letter_reason").to_pylist()
    return batch.filter(pa.array([(reason or "") in reasons for reason in given], pa.bool_()))


def group_letters(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The reasons, most frequent first: the same as `triage.reason_groups`."""
    groups: dict[str, dict[str, Any]] = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _COLUMNS[1:5]]
        for enqueued, deliveries, reason, description in zip(*columns, strict=True):
            group = groups.setdefault(
                reason or "",
                {
                    "reason": reason or "",
                    "messages": 0,
                    "oldest": enqueued,
                    "newest": enqueued,
                    "deliveries_max": deliveries,
                    "example": description,
                },
            )
            group["messages"] += 1
            group["oldest"] = min(group["oldest"], enqueued)
            group["newest"] = max(group["newest"], enqueued)
            group["deliveries_max"] = max(group["deliveries_max"], deliveries)
            group["example"] = max(group["example"] or "", description or "") or None
    ordered = sorted(groups.values(), key=lambda group: (-group["messages"], group["reason"]))
    return [
        {
            **group,
            # As Spark gives them, in a session whose time zone is UTC.
            "oldest": group["oldest"].replace(tzinfo=None).isoformat(),
            "newest": group["newest"].replace(tzinfo=None).isoformat(),
        }
        for group in ordered
    ]
