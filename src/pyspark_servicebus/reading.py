"""Reading batches: the current contents of an entity as a table.

Planned on the driver's machine, read on the executors. Streams (stream.py)
read their ranges in the same way (`read_ranges`).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from bendybus.client import BusClient
from bendybus.errors import ArgumentError
from bendybus.names import PARTITION_SHIFT
from pyspark_servicebus.decoding import RowDecoder
from pyspark_servicebus.entity import MessageRange, Selection, open_entity
from pyspark_servicebus.mistakes import told_plainly
from pyspark_servicebus.options import STATES, ReadOptions
from pyspark_servicebus.planning import RangesPartition, resolve, selected, share_out

__all__ = ["BatchReader", "FilteringBatchReader", "read_ranges", "selection_of"]


def selection_of(options: ReadOptions) -> Selection:
    return Selection(options.states, options.session_id, options.starting_ms, options.ending_ms)


def read_ranges(
    options: ReadOptions, columns: Sequence[str], ranges: Iterable[MessageRange], selection: Selection
) -> Iterator[pa.RecordBatch]:
    """On an executor: the messages of these ranges, a record batch for each answer of the broker."""
    decoder = RowDecoder(columns)
    with told_plainly(), BusClient(options.settings) as client:
        entity = open_entity(client, options)
        for wanted in ranges:
            for payloads in entity.browse(wanted, selection):
                yield decoder.decode(payloads)


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        if options.consume:
            raise ArgumentError(
                "Option 'mode': a batch has no commit, so it cannot consume; browse, or use readStream."
            )
        self._options = options
        self._columns = tuple(columns)
        self._selection = selection_of(options)
        self._after = 0
        self._through = (1 << 63) - 1

    @told_plainly()
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with BusClient(options.settings) as client:
            info = open_entity(client, options).info()
        begin, end = resolve(options.starting, info), resolve(options.ending, info)
        ranges = [
            self._narrowed(MessageRange(partition, begin[partition], end[partition]))
            for partition in info.partitions
            if selected(options, partition)
        ]
        return share_out(ranges, options) or [RangesPartition(())]

    def _narrowed(self, whole: MessageRange) -> MessageRange:
        """Narrow a range by the pushed filters on sequence numbers."""
        base = whole.partition << PARTITION_SHIFT
        return MessageRange(
            whole.partition, max(whole.after, self._after - base), min(whole.through, self._through - base)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_ranges(self._options, self._columns, partition.ranges, self._selection)


class FilteringBatchReader(BatchReader):
    """Takes filters from Spark. A separate class, because Spark refuses it unless its setting allows that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for each in filters:
            if not self._takes(each):
                yield each

    def _takes(self, each: Filter) -> bool:
        """Whether Spark need not apply this filter again."""
        if isinstance(each, In) and each.attribute == ("partition",):
            return self._only(frozenset(value for value in each.value if isinstance(value, int)))
        if not isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return False
        name, value = each.attribute, each.value
        if name == ("sequence_number",) and isinstance(value, int):
            return self._bound(each, value)
        if name == ("enqueued_time",) and isinstance(value, datetime.datetime):
            self._bound_time(each, value)
            return False
        if not isinstance(each, EqualTo):
            return False
        if name == ("partition",) and isinstance(value, int):
            return self._only(frozenset((value,)))
        if name == ("session_id",) and isinstance(value, str) and self._selection.session_id is None:
            # The session id in any case. Spark applies the filter again.
            self._selection = replace(self._selection, session_id=value)
            return False
        if name == ("state",) and value in STATES and STATES.index(value) in self._selection.states:
            self._selection = replace(self._selection, states=(STATES.index(value),))
            return True
        return False

    def _only(self, partitions: frozenset[int]) -> bool:
        already = self._options.partitions
        self._options = replace(
            self._options, partitions=partitions if already is None else partitions & already
        )
        return True

    def _bound(self, each: Filter, value: int) -> bool:
        if isinstance(each, EqualTo | GreaterThanOrEqual):
            self._after = max(self._after, value - 1)
        elif isinstance(each, GreaterThan):
            self._after = max(self._after, value)
        if isinstance(each, EqualTo | LessThanOrEqual):
            self._through = min(self._through, value)
        elif isinstance(each, LessThan):
            self._through = min(self._through, value - 1)
        return True

    def _bound_time(self, each: Filter, value: datetime.datetime) -> None:
        """To the millisecond, with one to spare. Spark applies the filter again."""
        ms = int(value.timestamp() * 1000)
        selection = self._selection
        if isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
            selection = replace(selection, from_ms=max(selection.from_ms or 0, ms - 1))
        if isinstance(each, EqualTo | LessThan | LessThanOrEqual):
            least = ms + 2 if selection.before_ms is None else min(selection.before_ms, ms + 2)
            selection = replace(selection, before_ms=least)
        self._selection = selection
