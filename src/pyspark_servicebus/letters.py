"""Streams of sub-queues, in which dead letters do not arrive in the order of their sequence numbers.

A position cannot describe which letters were read. So an offset has the numbers themselves: `batch`, what
this micro-batch reads, and `seen`, what earlier ones have read and was still there when the batch was
planned. A letter that leaves the sub-queue never comes back under its number, so `seen` is never longer than
the sub-queue. A replay reads `batch` again. In mode `consume`, a commit completes both lists, so the next one
makes up for one that failed. As in stream.py, an empty batch is planned to cause the commit of the last.
Other entities: stream.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from bendybus.amqp.types import Array, Int
from bendybus.client import BusClient, ReceivedMessage
from bendybus.errors import ArgumentError, InvalidOperation
from bendybus.names import COUNTER_MAX, PARTITION_SHIFT
from pyspark_servicebus.decoding import RowDecoder
from pyspark_servicebus.entity import MessageRange, RangedEntity
from pyspark_servicebus.mistakes import told_plainly
from pyspark_servicebus.options import ReadOptions
from pyspark_servicebus.planning import selected
from pyspark_servicebus.reading import selection_of

__all__ = ["LetterStreamReader", "is_sub_queue"]

VERSION: Final = 1
# The numbers of a batch are in the checkpoint, at about ten bytes each.
BATCH_DEFAULT: Final = 10_000
# In mode 'browse' the numbers of all letters are in every offset.
LETTERS_MAX: Final = 100_000
LISTED_AT_ONCE: Final = 5_000
COMPLETED_AT_ONCE: Final = 1_000
# An idle query asks about sixty times a second. Listing reads the front of every letter.
LIST_KEPT_S: Final = 1.0


def is_sub_queue(entity: str) -> bool:
    return "/$" in entity


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterOffset:
    entity: str
    generation: str
    consumer: str
    batch: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    count: int = 0
    """Of the batches so far, so that two offsets with the same numbers differ."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "entity": self.entity,
            "generation": self.generation,
            "consumer": self.consumer,
            "count": self.count,
            "letters": _by_partition(self.batch),
            "seen": _by_partition(self.seen),
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> LetterOffset:
        try:
            return cls(
                entity=str(read["entity"]),
                generation=str(read["generation"]),
                consumer=str(read["consumer"]),
                batch=_numbers(read["letters"]),
                seen=_numbers(read["seen"]),
                count=int(read["count"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ArgumentError("The checkpoint was not written by a stream of dead letters.") from None


def _by_partition(numbers: Sequence[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number in numbers:
        found.setdefault(str(number >> PARTITION_SHIFT), []).append(number & COUNTER_MAX)
    return found


def _numbers(read: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    return tuple(
        (int(partition) << PARTITION_SHIFT) + int(counter)
        for partition, counters in read.items()
        for counter in counters
    )


class LettersPartition(InputPartition):
    """The letters of one partition that one task reads."""

    def __init__(self, partition: int, counters: Sequence[int]) -> None:
        super().__init__((partition, tuple(counters)))
        self.partition = partition
        self.counters = tuple(counters)


class LetterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        _refuse_meaningless(options)
        self._options = options
        self._columns = tuple(columns)
        self._initial: LetterOffset | None = None
        self._until: frozenset[int] | None = None
        self._lag = 0
        self._checked = False
        self._client: BusClient | None = None
        self._listed: tuple[int, ...] = ()
        self._listed_at = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_listed": (), "_until": None}

    # -- offsets ---------------------------------------------------------------------------

    @told_plainly()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._initial is None:
            self._initial = LetterOffset(
                entity=self._options.entity,
                generation=self._generation(),
                consumer=self._options.consumer or f"spark-{uuid.uuid4().hex[:12]}",
            )
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.messages_per_trigger or BATCH_DEFAULT)

    @told_plainly()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._until = frozenset(self._letters(fresh=True))

    @told_plainly()
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        given = self._checked_offset(LetterOffset.from_json(self.initialOffset() if start is None else start))
        letters = self._letters()
        known = {*given.seen, *given.batch}
        seen = tuple(number for number in letters if number in known)
        new = [number for number in letters if number not in known]
        if self._until is not None:
            new = [number for number in new if number in self._until]
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else len(new)
        self._lag = max(0, len(new) - most)
        if new or (self._options.consume and seen):
            given = replace(given, batch=tuple(new[:most]), seen=seen, count=given.count + 1)
        return given.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Only the lag: what a query would show has the numbers of all letters."""
        return {"entity": self._options.entity, "lag": self._lag}

    # -- batches ---------------------------------------------------------------------------

    @told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        finish = LetterOffset.from_json(end)
        if self._options.consume:
            self._entity().acquire_lease(finish.consumer, self._options.lease_ms)
        found = _by_partition(finish.batch)
        return [LettersPartition(int(partition), counters) for partition, counters in found.items()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LettersPartition)
        wanted = frozenset(partition.counters)
        through = MessageRange(partition.partition, min(wanted) - 1, max(wanted))
        decoder = RowDecoder(self._columns)
        with told_plainly(), BusClient(self._options.settings) as client:
            entity = RangedEntity(client.management(self._options.entity), self._options.fetch_bytes)
            for payloads in entity.browse(through, selection_of(self._options)):
                chosen = [each for each in payloads if _counter(each) in wanted]
                if chosen:
                    yield decoder.decode(chosen)

    @told_plainly()
    def commit(self, end: dict[str, Any]) -> None:
        if not self._options.consume:
            return
        finished = LetterOffset.from_json(end)
        self._entity().acquire_lease(finished.consumer, self._options.lease_ms)
        numbers = [*finished.seen, *finished.batch]
        for first in range(0, len(numbers), COMPLETED_AT_ONCE):
            share = Array(int, [*numbers[first : first + COMPLETED_AT_ONCE]])
            self._management().request("bendybus:complete-numbers", {"sequence-numbers": share})
        self._listed_at = float("-inf")

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # -- the sub-queue ---------------------------------------------------------------------

    def _checked_offset(self, offset: LetterOffset) -> LetterOffset:
        """The offset, if it is of this sub-queue; a new beginning if the user accepts losses."""
        options = self._options
        if self._checked:
            return offset
        if offset.entity.lower() != options.entity.lower():
            raise ArgumentError(
                f"The checkpoint is of '{offset.entity}', not of '{options.entity}': use another one."
            )
        generation = self._generation()
        if offset.generation != generation:
            if options.fail_on_data_loss:
                raise InvalidOperation(
                    f"'{options.entity}' is not the one of the checkpoint: it has been created again since. "
                    "Set failOnDataLoss to false to go on from what there is, or use another checkpoint."
                )
            offset = replace(offset, generation=generation, batch=(), seen=())
        self._checked = True
        return offset

    def _letters(self, *, fresh: bool = False) -> tuple[int, ...]:
        """The numbers of all letters, in their order."""
        if not fresh and time.monotonic() - self._listed_at < LIST_KEPT_S:
            return self._listed
        found: list[int] = []
        following: int | None = 0
        states = Array(Int, [Int(state) for state in self._options.states])
        while following is not None:
            body: dict[str, object] = {
                "from-sequence-number": following,
                "message-count": Int(LISTED_AT_ONCE),
                "omit-message-body": True,
                "states": states,
            }
            answer = self._management().request("bendybus:peek", body)
            if answer is None:
                break
            found += [ReceivedMessage(bytes(each)).sequence_number for each in answer["messages"]]
            following = answer["next"]
        if not self._options.consume and len(found) > LETTERS_MAX:
            raise InvalidOperation(
                f"'{self._options.entity}' has {len(found)} letters, and a stream that only browses "
                f"remembers each of them: at most {LETTERS_MAX}. Use the mode 'consume', or read a batch."
            )
        chosen = (number for number in found if selected(self._options, number >> PARTITION_SHIFT))
        self._listed, self._listed_at = tuple(sorted(chosen)), time.monotonic()
        return self._listed

    def _generation(self) -> str:
        return self._entity().info().generation

    def _entity(self) -> RangedEntity:
        return RangedEntity(self._management(), self._options.fetch_bytes)

    def _management(self) -> Any:
        if self._client is None:
            self._client = BusClient(self._options.settings)
        return self._client.management(self._options.entity)


def _refuse_meaningless(options: ReadOptions) -> None:
    if not options.extensions:
        raise ArgumentError("Option 'extensions': a stream of dead letters needs the broker's extensions.")
    if not options.starting.leaves_nothing_out:
        raise ArgumentError(
            "Option 'startingOffsets': dead letters have no order, so a stream of them begins with all."
        )
    if options.tasks_min is not None or options.tasks_max is not None:
        raise ArgumentError(
            "Options 'minPartitions', 'maxPartitions': a stream of dead letters has a task per partition."
        )


def _counter(payload: bytes) -> int:
    return ReceivedMessage(payload).sequence_number & COUNTER_MAX
