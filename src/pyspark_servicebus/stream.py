"""Reading streams: micro-batches of ranges, replayed exactly, and completed when Spark commits.

The design follows from what Spark guarantees:

- Only offsets survive, so everything needed for a replay is in them.
- `commit(end)` is called when the *next* batch is planned, is not repeated if it
  fails, and is never called for the last batch of a run. So completing is cumulative,
  and if there is nothing new, one empty batch is planned to cause that
  commit: its offset differs only in `flush`.
- `read` runs elsewhere on a copy that does not have this object's state.

An instance lives in one process on the driver's machine for one run of a query.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from bendybus.client import BusClient
from bendybus.errors import ArgumentError, InvalidOperation, NotSupported
from pyspark_servicebus.entity import (
    Entity,
    EntityInfo,
    MessageRange,
    PartitionInfo,
    RangedEntity,
    open_entity,
)
from pyspark_servicebus.mistakes import told_plainly
from pyspark_servicebus.offsets import Offset, Positions, behind
from pyspark_servicebus.options import STATES, ReadOptions
from pyspark_servicebus.planning import RangesPartition, limited, resolve, selected, share_out
from pyspark_servicebus.reading import read_ranges, selection_of

__all__ = ["StreamReader"]

# An idle query asks about sixty times a second, twice each time.
INFO_KEPT_S: Final = 0.1

_SCHEDULED: Final = STATES.index("scheduled")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._selection = selection_of(options)
        self._initial: Offset | None = None
        self._until: dict[int, int] | None = None
        """With availableNow: the end of the entity when the run began."""
        self._committed: Positions | None = None
        self._planned: Positions | None = None
        """The end of the newest batch, from which the lag is counted."""
        self._checked = False
        self._client: BusClient | None = None
        self._entity: Entity | None = None
        self._info: EntityInfo | None = None
        self._info_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Copies on executors open their own connections."""
        return {**self.__dict__, "_client": None, "_entity": None, "_info": None}

    # -- offsets ---------------------------------------------------------------------------

    @told_plainly()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # Called twice, and the second result counts, so it must equal the first.
        if self._initial is None:
            info = self._fresh_info()
            self._initial = Offset(
                entity=self._options.entity,
                generation=info.generation,
                consumer=self._options.consumer or f"spark-{uuid.uuid4().hex[:12]}",
                positions=resolve(self._options.starting, info),
            )
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @told_plainly()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._until = self._marks(self._fresh_info())

    @told_plainly()
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        given = Offset.from_json(self.initialOffset() if start is None else start)
        info = self._known_info()
        self._check(given, info)
        begin = _sound(given, info)
        marks = self._marks(info)
        if self._until is not None:
            marks = {partition: min(mark, self._until.get(partition, 0)) for partition, mark in marks.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # A partition that is away keeps its position.
        positions = {**begin.positions, **limited(begin.positions, marks, most)}
        if positions != given.positions or begin.generation != given.generation:
            end = replace(begin, positions=positions, began=begin.positions, flush=0)
        elif self._options.consume and self._committed != begin.positions and begin.began is not None:
            end = replace(begin, began=begin.positions, flush=begin.flush + 1)
        else:
            end = begin
        self._planned = end.positions
        return end.to_json()

    @told_plainly()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        if self._initial is None and self._info is None:
            return None
        info = self._known_info()
        marks = self._marks(info)
        told = Offset(entity=self._options.entity, generation=info.generation, consumer="", positions=marks)
        return {**told.to_json(), "lag": sum(behind(marks, self._planned or {}).values())}

    def _marks(self, info: EntityInfo) -> dict[int, int]:
        return {
            partition: each.mark
            for partition, each in info.partitions.items()
            if selected(self._options, partition)
        }

    # -- batches ---------------------------------------------------------------------------

    @told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, finish = Offset.from_json(start), Offset.from_json(end)
        began = begin.positions if finish.began is None else finish.began
        info = self._known_info()
        self._check(replace(finish, positions=began), info)
        if finish.generation != info.generation:
            # The messages were deleted with the entity. What is there now has other numbers.
            return []
        if self._options.consume:
            self._lease(finish)
        ranges = [
            MessageRange(partition, began.get(partition, 0), through)
            for partition, through in finish.positions.items()
        ]
        return share_out(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_ranges(self._options, self._columns, partition.ranges, self._selection)

    @told_plainly()
    def commit(self, end: dict[str, Any]) -> None:
        """The sink has durably stored everything up to here."""
        if not self._options.consume:
            return
        finished = Offset.from_json(end)
        entity = self._lease(finished)
        entity.complete_up_to(finished.consumer, finished.positions, self._options.states)
        self._committed = finished.positions

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _lease(self, offset: Offset) -> RangedEntity:
        """Become the one consumer, under the name in the checkpoint, so that a restart continues at once."""
        entity = self._opened()
        assert isinstance(entity, RangedEntity), "checked when the stream began"
        entity.acquire_lease(offset.consumer, self._options.lease_ms)
        return entity

    # -- the entity ------------------------------------------------------------------------

    def _check(self, offset: Offset, info: EntityInfo) -> None:
        """Check that this checkpoint belongs to this entity: once a run, before anything is read."""
        if self._checked:
            return
        options = self._options
        if offset.entity.lower() != options.entity.lower():
            raise ArgumentError(
                f"The checkpoint is of '{offset.entity}', not of '{options.entity}': use another one."
            )
        if options.fail_on_data_loss:
            _refuse_loss(offset, info, options)
        self._checked = True

    def _known_info(self) -> EntityInfo:
        if self._info is None or time.monotonic() - self._info_at > INFO_KEPT_S:
            return self._fresh_info()
        return self._info

    def _fresh_info(self) -> EntityInfo:
        info = self._opened().info()
        assert info.ordered, "sub-queues have a reader of their own"
        self._info, self._info_at = info, time.monotonic()
        return info

    def _opened(self) -> Entity:
        if self._client is None or self._entity is None:
            self._client = BusClient(self._options.settings)
            self._entity = open_entity(self._client, self._options)
            if self._options.consume and not isinstance(self._entity, RangedEntity):
                raise NotSupported(
                    f"'{self._options.entity}' can only be browsed: this namespace lacks the operations that "
                    "mode 'consume' needs."
                )
        return self._entity


def _sound(offset: Offset, info: EntityInfo) -> Offset:
    """Where to continue although messages are lost. A new entity is read from its beginning."""
    if offset.generation == info.generation:
        positions = {
            partition: _there(position, info.partitions.get(partition))
            for partition, position in offset.positions.items()
        }
    else:
        positions = {partition: each.first - 1 for partition, each in info.partitions.items()}
    return replace(offset, generation=info.generation, positions=positions)


def _there(position: int, partition: PartitionInfo | None) -> int:
    """Not beyond the mark, nor far before the oldest message: a gap in the numbers can be very long."""
    return position if partition is None else min(max(position, partition.first - 1), partition.mark)


def _refuse_loss(offset: Offset, info: EntityInfo, options: ReadOptions) -> None:
    """Raise if messages that this checkpoint has not read yet are gone."""
    entity = options.entity
    hint = "Set failOnDataLoss to false to go on from what there is, or use another checkpoint."
    if offset.generation != info.generation:
        raise InvalidOperation(
            f"'{entity}' is not the one of the checkpoint: it has been created again since. {hint}"
        )
    for partition, each in info.partitions.items():
        position = offset.positions.get(partition)
        if position is None:
            continue
        if position > each.mark:
            raise InvalidOperation(
                f"Partition {partition} of '{entity}' goes up to {each.mark}, and the checkpoint is at "
                f"{position}: an older state of the broker was restored. {hint}"
            )
        # A scheduled message may have had a vacant number, and this stream would have read it.
        intact_from = each.first if _SCHEDULED in options.states else each.vacant_from
        if intact_from > position + 1:
            raise InvalidOperation(
                f"The checkpoint is older than the messages of '{entity}' that are left: in partition "
                f"{partition} it would go on with {position + 1}, and the oldest is {each.first}. {hint}"
            )
