"""The figures of a report about a set of messages: totals, rates, latencies, sizes, skew, keys.

Spark aggregates, and the result is small: plain values for page.py and for the
summary. Times are in seconds.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

__all__ = ["CAPTURED", "WAITING", "Facts", "facts_of"]

# What the messages of a section are.
WAITING: Final = "waiting"
CAPTURED: Final = "captured"

PERCENTILES: Final = (50, 90, 99, 100)
# As many as fit into a plot.
BUCKETS_MAX: Final = 60
# Durations that are familiar to people.
_BUCKETS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Facts:
    entity: str
    kind: str
    """WAITING or CAPTURED."""
    messages: int
    body_bytes: int
    keys: int
    first: str | None
    """When the oldest message was enqueued; None if there is none."""
    last: str | None
    bucket_s: int
    rates: list[tuple[str, float]]
    """Messages per second, by the start of each interval of `bucket_s`."""
    latency_name: str
    latency_s: Mapping[str, float]
    """By p50, p90, p99, max."""
    size_bytes: Mapping[str, int]
    partitions: list[tuple[int, int, int]]
    """Number, messages, bytes of bodies."""
    top_keys: list[tuple[str, int, int]]
    """Key, messages, partition."""

    @property
    def skew(self) -> float:
        """The fullest partition divided by the mean: 1 is even."""
        counts = [count for _, count, _ in self.partitions]
        return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "title": f"{self.kind.capitalize()} {'of' if self.kind == CAPTURED else 'in'} {self.entity}",
            "entity": self.entity,
            "kind": self.kind,
            "messages": self.messages,
            "bodyBytes": self.body_bytes,
            "keys": self.keys,
            "firstEnqueued": self.first,
            "lastEnqueued": self.last,
            "skew": round(self.skew, 3),
            "latency": {"of": self.latency_name, **self.latency_s},
            "sizeBytes": dict(self.size_bytes),
            "partitions": [{"partition": n, "messages": m, "bytes": b} for n, m, b in self.partitions],
            "topKeys": [{"key": key, "messages": m, "partition": n} for key, m, n in self.top_keys],
            "rates": [{"from": at, "perSecond": rate} for at, rate in self.rates],
        }


def facts_of(
    rows: DataFrame,
    entity: str,
    kind: str,
    latency_name: str,
    until: Column,
    partition_count: int,
    top: int,
) -> Facts:
    """The facts of rows from the data source. Latency is measured from the enqueued time to `until`."""
    seen = rows.select(
        "partition",
        "enqueued_time",
        F.coalesce("session_id", "partition_key").alias("key"),
        F.coalesce(F.length("body"), F.lit(0)).cast("long").alias("size"),
        (until.cast("double") - F.col("enqueued_time").cast("double")).alias("latency"),
    ).cache()
    try:
        total = _totals(seen)
        bucket_s, rates = _rates(seen, total)
        return Facts(
            entity=entity,
            kind=kind,
            messages=total.messages,
            body_bytes=total.bytes or 0,
            keys=total.keys,
            first=None if total.first is None else total.first.isoformat(timespec="seconds"),
            last=None if total.last is None else total.last.isoformat(timespec="seconds"),
            bucket_s=bucket_s,
            rates=rates,
            latency_name=latency_name,
            latency_s=_named(total.latencies, 3),
            size_bytes={name: int(value) for name, value in _named(total.sizes, 0).items()},
            partitions=_partitions(seen, partition_count),
            top_keys=_top_keys(seen, top),
        )
    finally:
        seen.unpersist()


def _totals(seen: DataFrame) -> Row:
    shares = F.array(*(F.lit(percentile / 100) for percentile in PERCENTILES))
    (total,) = seen.agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.count_distinct("key").alias("keys"),
        F.min("enqueued_time").alias("first"),
        F.max("enqueued_time").alias("last"),
        F.percentile_approx("latency", shares).alias("latencies"),
        F.percentile_approx("size", shares).alias("sizes"),
    ).collect()
    return total


def _named(values: list[float] | None, digits: int) -> dict[str, float]:
    names = ("p50", "p90", "p99", "max")
    return {name: round(float(value), digits) for name, value in zip(names, values or [], strict=False)}


def _rates(seen: DataFrame, total: Row) -> tuple[int, list[tuple[str, float]]]:
    if total.first is None:
        return 1, []
    span_s = (total.last - total.first).total_seconds()
    bucket_s = next((each for each in _BUCKETS_S if span_s / each < BUCKETS_MAX), 0)
    if not bucket_s:
        # As many whole days as necessary.
        bucket_s = 86400 * int(span_s / 86400 / BUCKETS_MAX + 1)
    begin = (F.floor(F.col("enqueued_time").cast("long") / bucket_s) * bucket_s).alias("begin")
    counted = {row.begin: row["count"] for row in seen.groupBy(begin).count().collect()}
    begins = range(min(counted), max(counted) + bucket_s, bucket_s)
    return bucket_s, [(_time(at), round(counted.get(at, 0) / bucket_s, 3)) for at in begins]


def _time(at_s: int) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _partitions(seen: DataFrame, partition_count: int) -> list[tuple[int, int, int]]:
    counted = seen.groupBy("partition").agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
    found = {row.partition: (row.messages, row.bytes) for row in counted.collect()}
    # Empty partitions count for the skew.
    return [(number, *found.get(number, (0, 0))) for number in sorted({*range(partition_count), *found})]


def _top_keys(seen: DataFrame, top: int) -> list[tuple[str, int, int]]:
    counted = (
        seen.where(F.col("key").isNotNull())
        .groupBy("key")
        .agg(F.count("*").alias("messages"), F.min("partition").alias("partition"))
        .orderBy(F.desc("messages"), "key")
        .limit(top)
    )
    return [(row.key, row.messages, row.partition) for row in counted.collect()]
