"""A part of an entity that is moved: the queue itself, a subscription, or one of their dead-letter queues.

A part is compared with its copy, message by message, and the difference is corrected: missing messages are
sent or inserted, duplicates are removed. Marks on the copies (copies.py) tell which message is which.
Messages that have been sent to a queue are sent to the new one. What nobody can send is inserted: deferred
messages, dead letters and the messages of subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bendybus.amqp.types import Array
from bendybus.client import BusClient
from bendybus.errors import InvalidOperation
from pyspark_servicebus.pipelines.copies import as_sent, with_marks
from pyspark_servicebus.pipelines.few_messages import out_of_order, paired, read_few, send_few
from pyspark_servicebus.pipelines.jobs import ALL_STATES, browse, marked
from pyspark_servicebus.pipelines.pipeline import Bus

__all__ = ["Comparison", "Part"]

REMOVED_AT_ONCE: Final = 1000

# A request may have 1 MB and one message of the largest size.
INSERTED_BYTES_AT_ONCE: Final = 512 * 1024
INSERTED_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a part and its copy differ."""

    missing: Sequence[int]
    """Sequence numbers at the source."""
    surplus: Sequence[tuple[int, str]]
    """Sequence numbers and states at the target."""
    messages: int
    copies: int
    checksum: int
    deferred: Sequence[tuple[int, int]]
    """The numbers of deferred messages, and those of their copies."""

    @property
    def equal(self) -> bool:
        return not self.missing and not self.surplus


NOTHING: Final = Comparison((), (), 0, 0, 0, ())


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    bus: Bus
    source: str
    target: str
    generation: str
    """The prefix of the marks of this move."""
    sendable: bool
    """Whether active and scheduled messages can be sent to the target."""

    few: bool = False
    """Whether there are so few messages that Spark is not needed."""
    empty: bool = False
    """Whether there are none at all."""

    def compare(self, spark: SparkSession) -> Comparison:
        if self.empty:
            return NOTHING
        if self.few:
            return self._compare_few()
        place = F.row_number().over(Window.partitionBy("mark").orderBy("checksum", "sequence_number"))
        here = marked(browse(spark, self.bus, self.source, ALL_STATES), self.generation)
        there = marked(browse(spark, self.bus, self.target, ALL_STATES), None)
        columns = ("sequence_number", "state", "checksum")
        both = (
            here.withColumn("place", place)
            .alias("here")
            .join(there.withColumn("place", place).alias("there"), ["mark", "place"], "full_outer")
            .select(
                "mark",
                "here.key",
                "here.keyed",
                *(F.col(f"here.{name}").alias(name) for name in columns),
                *(F.col(f"there.{name}").alias(f"copy_{name}") for name in columns),
            )
            .cache()
        )
        try:
            return _comparison(both, self.target)
        finally:
            both.unpersist()

    def correct(self, spark: SparkSession, found: Comparison) -> None:
        self._remove(found.surplus)
        if found.missing and self.few:
            self._copy_few(frozenset(found.missing))
        elif found.missing:
            self._copy(spark, found.missing)

    def _copy(self, spark: SparkSession, missing: Sequence[int]) -> None:
        """Messages of one key go in one task, in their order."""
        rows = browse(spark, self.bus, self.source, ALL_STATES)
        wanted = spark.createDataFrame([(number,) for number in missing], "wanted long")
        chosen = rows.join(wanted, rows.sequence_number == wanted.wanted, "left_semi")
        ordered = chosen.repartition("key").sortWithinPartitions("sequence_number").cache()
        try:
            if self.sendable:
                sent = ordered.where("state <> 'deferred'")
                copies = sent.mapInArrow(partial(_marked_copies, self.generation), "amqp_message binary")
                options = self.bus.source(self.target)
                copies.write.format("servicebus").options(**options).mode("append").save()
                ordered = ordered.where("state = 'deferred'")
            insert = partial(_inserted, self.bus, self.target, self.generation)
            ordered.mapInArrow(insert, "inserted long").agg(F.sum("inserted")).collect()
        finally:
            ordered.unpersist()

    def _compare_few(self) -> Comparison:
        with BusClient(self.bus.settings()) as client:
            here = read_few(client, self.source, self.generation)
            there = read_few(client, self.target, None)
        pairs = paired(here, there)
        both = [(pair.here, pair.there) for pair in pairs if pair.here is not None and pair.there is not None]
        refuse_strangers(sum(copy.mark is None for copy in there), self.target)
        changed = sum(old.checksum != new.checksum for old, new in both)
        settled = sum((old.state == "deferred") != (new.state == "deferred") for old, new in both)
        refuse_changed(changed + settled, self.target)
        missing = [pair.here.number for pair in pairs if pair.here is not None and pair.there is None]
        surplus = [
            (pair.there.number, pair.there.state)
            for pair in pairs
            if pair.there is not None and pair.here is None
        ]
        deferred: list[tuple[int, int]] = []
        if not missing and not surplus:
            surplus = [(number, "active") for number in out_of_order(pairs)]
            deferred = sorted((old.number, new.number) for old, new in both if old.state == "deferred")
        total = sum(int(message.checksum[:12], 16) for message in here)
        return Comparison(missing, surplus, len(here), len(there), total, deferred)

    def _copy_few(self, missing: frozenset[int]) -> None:
        with BusClient(self.bus.settings()) as client:
            found = [
                each for each in read_few(client, self.source, self.generation) if each.number in missing
            ]
            sent = [each for each in found if self.sendable and each.state != "deferred"]
            send_few(client, self.target, sent)
            inserted = sorted(
                (each for each in found if not self.sendable or each.state == "deferred"),
                key=attrgetter("number"),
            )
            copies = [(as_sent(each.payload, each.mark), int(each.state == "deferred")) for each in inserted]
            _insert(client, self.target, iter(copies))

    def _remove(self, surplus: Sequence[tuple[int, str]]) -> None:
        """Remove unseen copies: duplicates, and copies of messages that expired at the source."""
        with self.bus.client(self.target) as client:
            for states, operation in (
                (("active", "deferred"), "bendybus:complete-numbers"),
                (("scheduled",), "com.microsoft:cancel-scheduled-message"),
            ):
                numbers = [number for number, found in surplus if found in states]
                for start in range(0, len(numbers), REMOVED_AT_ONCE):
                    share = numbers[start : start + REMOVED_AT_ONCE]
                    client.management().request(operation, {"sequence-numbers": Array(int, [*share])})


def refuse_strangers(count: int, target: str) -> None:
    if count:
        raise InvalidOperation(
            f"Somebody else has sent {count} messages to '{target}'; nothing was given up."
        )


def refuse_changed(count: int, target: str) -> None:
    if count:
        raise InvalidOperation(
            f"{count} messages differ from their copies in '{target}'; nothing was given up."
        )


def _comparison(both: DataFrame, target: str) -> Comparison:
    """Compare messages with their copies. Either may be missing."""
    number, copy = F.col("sequence_number"), F.col("copy_sequence_number")
    missing, surplus = copy.isNull(), number.isNull()
    # A message that has become due since is active in one place and scheduled in the other.
    was_deferred, is_deferred = F.col("state") == "deferred", F.col("copy_state") == "deferred"
    (told,) = both.agg(
        F.count(number).alias("messages"),
        F.count(copy).alias("copies"),
        F.sum(F.conv(F.substring("checksum", 1, 12), 16, 10).cast("decimal(38,0)")).alias("total"),
        F.count_if(F.col("mark").isNull()).alias("strangers"),
        F.count_if(F.col("checksum") != F.col("copy_checksum")).alias("changed"),
        F.count_if(was_deferred != is_deferred).alias("settled"),
        F.count_if(missing | surplus).alias("unequal"),
    ).collect()
    refuse_strangers(told.strangers, target)
    refuse_changed(told.changed + told.settled, target)
    deferred: list[tuple[int, int]] = []
    if not told.unequal:
        absent: list[int] = []
        extra = _out_of_order(both)
        chosen = both.where(was_deferred & is_deferred).select(number, copy).orderBy(number)
        deferred = [(row.sequence_number, row.copy_sequence_number) for row in chosen.collect()]
    else:
        absent = [row.sequence_number for row in both.where(missing).select(number).collect()]
        extra = [(row.copy_sequence_number, row.copy_state) for row in both.where(surplus).collect()]
    return Comparison(absent, extra, told.messages, told.copies, int(told.total or 0), deferred)


def _out_of_order(both: DataFrame) -> list[tuple[int, str]]:
    """All copies of keys whose order is wrong. They are removed and sent again."""
    active = both.where("keyed and state = 'active' and copy_state = 'active'")
    last = F.lag("sequence_number").over(Window.partitionBy("key").orderBy("copy_sequence_number"))
    wrong = active.withColumn("last", last).where("last > sequence_number").select("key").distinct()
    again = active.join(wrong, "key", "left_semi").select("copy_sequence_number")
    return [(row.copy_sequence_number, "active") for row in again.collect()]


# -- in tasks -----------------------------------------------------------------------------


def _copied(generation: str, batch: pa.RecordBatch) -> list[bytes]:
    payloads = batch.column("amqp_message").to_pylist()
    (marks,) = with_marks(generation, iter([batch]))
    pairs = zip(payloads, marks.column("mark").to_pylist(), strict=True)
    return [as_sent(payload, mark) for payload, mark in pairs]


def _marked_copies(generation: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        copies = pa.array(_copied(generation, batch), pa.binary())
        yield pa.RecordBatch.from_arrays([copies], names=["amqp_message"])


def _inserted(
    bus: Bus, target: str, generation: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Insert the messages of a task, in their order. A request that is repeated makes duplicates."""
    with BusClient(bus.settings(target)) as client:
        for batch in batches:
            states = [int(state == "deferred") for state in batch.column("state").to_pylist()]
            copies = zip(_copied(generation, batch), states, strict=True)
            inserted = _insert(client, target, copies)
            yield pa.RecordBatch.from_arrays([pa.array([inserted], pa.int64())], names=["inserted"])


def _insert(client: BusClient, target: str, copies: Iterator[tuple[bytes, int]]) -> int:
    inserted = 0
    for share in _shares(copies):
        messages = [{"message": message, "state": state} for message, state in share]
        client.management(target).request("bendybus:insert-messages", {"messages": messages})
        inserted += len(share)
    return inserted


def _shares(copies: Iterator[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    share: list[tuple[bytes, int]] = []
    size = 0
    for copy in copies:
        if share and (size + len(copy[0]) > INSERTED_BYTES_AT_ONCE or len(share) >= INSERTED_AT_ONCE):
            yield share
            share, size = [], 0
        share.append(copy)
        size += len(copy[0])
    if share:
        yield share
