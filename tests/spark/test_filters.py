"""Filters that the source takes over from Spark select just what Spark would."""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from fix_server import Kind
from pyspark_servicebus.options import ReadOptions
from pyspark_servicebus.reading import FilteringBatchReader

COLUMNS = ("partition", "sequence_number", "enqueued_time", "state", "session_id", "body")


@pytest.fixture
def rows_of(options, new_queue, fill):
    """`rows_of(filters)`: how many filters are left to Spark, and the rows."""
    queue = new_queue(Kind.PARTITIONED)
    fill(queue, 60)

    def read(*filters):
        reader = FilteringBatchReader(ReadOptions.parse(options(queue)), COLUMNS)
        left = list(reader.pushFilters(list(filters)))
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        return len(left), [row for batch in batches for row in batch.to_pylist()]

    return read


def test_they_select_what_spark_would(rows_of):
    _, everything = rows_of()
    numbers = sorted(row["sequence_number"] for row in everything)
    assert len(numbers) == 60
    middle = numbers[30]
    partition = middle >> 48
    taken = [
        (EqualTo(("partition",), partition), lambda row: row["partition"] == partition),
        (In(("partition",), (partition, 99)), lambda row: row["partition"] == partition),
        (EqualTo(("sequence_number",), middle), lambda row: row["sequence_number"] == middle),
        (GreaterThan(("sequence_number",), middle), lambda row: row["sequence_number"] > middle),
        (GreaterThanOrEqual(("sequence_number",), middle), lambda row: row["sequence_number"] >= middle),
        (LessThan(("sequence_number",), middle), lambda row: row["sequence_number"] < middle),
        (LessThanOrEqual(("sequence_number",), middle), lambda row: row["sequence_number"] <= middle),
        (EqualTo(("state",), "active"), lambda row: True),
    ]
    for pushed, wanted in taken:
        left, rows = rows_of(pushed)
        assert left == 0, pushed
        assert sorted(row["sequence_number"] for row in rows) == sorted(
            row["sequence_number"] for row in everything if wanted(row)
        ), pushed
    left, rows = rows_of(EqualTo(("partition",), partition), GreaterThan(("sequence_number",), middle))
    assert {row["partition"] for row in rows} <= {partition}
    assert left == 0


def test_a_session_is_narrowed_and_left_to_spark_as_well(rows_of):
    """Spark tells `Alpha` from `ALPHA`; the broker does not."""
    assert rows_of(EqualTo(("session_id",), "nobody")) == (1, [])


def test_times_are_narrowed_and_left_to_spark_as_well(rows_of):
    _, everything = rows_of()
    last = max(row["enqueued_time"] for row in everything)
    for pushed, wanted in (
        (GreaterThanOrEqual(("enqueued_time",), last), lambda time: time >= last),
        (LessThanOrEqual(("enqueued_time",), last), lambda time: time <= last),
        (GreaterThan(("enqueued_time",), last + datetime.timedelta(days=1)), lambda time: False),
    ):
        left, rows = rows_of(pushed)
        assert left == 1
        assert {row["sequence_number"] for row in rows} >= {
            row["sequence_number"] for row in everything if wanted(row["enqueued_time"])
        }
    assert rows == []


def test_others_are_left_to_spark(rows_of):
    left, rows = rows_of(EqualTo(("body",), b"1"), EqualTo(("state",), "deferred"))
    assert (left, len(rows)) == (2, 60)
