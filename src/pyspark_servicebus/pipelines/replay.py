"""Replay: sends captured messages to an entity again, in their order within each partition.

All messages of a key are in one partition, so this keeps the order of keys and sessions. The
capture is divided into steps by sequence numbers when a replay begins. A step that has been sent is
recorded in the checkpoint. After an interrupted run, the messages of its last step that have arrived are
recognised by their marks (jobs.py) and skipped. So a message is sent twice only if a receiver has
taken it before the next run; with duplicate detection not even then, because messages keep their ids.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bendybus.errors import ArgumentError, ConfigError
from pyspark_servicebus.pipelines.capture import (
    CHECKPOINTS,
    captured,
    captured_entities,
    check_captured,
    folder_name,
)
from pyspark_servicebus.pipelines.checkpoint import Folder, own_checkpoint, query_name
from pyspark_servicebus.pipelines.copies import as_sent
from pyspark_servicebus.pipelines.failures import spark_errors_told
from pyspark_servicebus.pipelines.jobs import arrived
from pyspark_servicebus.pipelines.pipeline import Bus, Progress, Run, Summary, at_least_one, timed

__all__ = ["Replay"]

PLAN: Final = "replay.json"
STEP_DEFAULT: Final = 100_000

# What can be sent again of a row without the whole message.
_SENDABLE: Final = (
    "body",
    "message_id",
    "session_id",
    "partition_key",
    "subject",
    "correlation_id",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
    "time_to_live_ms",
    "application_properties",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    bus: Bus
    path: str
    destination: str
    entity: str | None = None
    """The captured entity. Required if `path` contains several."""
    where: str | None = None
    """A condition in Spark SQL over the captured columns."""
    checkpoint: str | None = None
    step: int = STEP_DEFAULT

    def check(self) -> None:
        at_least_one("step", self.step)
        check_captured(self.path, self.entity)
        self.bus.check_writable(self.destination)

    def run(self, spark: SparkSession, run: Run) -> Summary:
        self.check()
        entity = self._entity(spark)
        rows = self._rows(spark, entity)
        path = self.checkpoint or os.path.join(
            self.path, CHECKPOINTS, f"replay-{folder_name(entity)}-to-{folder_name(self.destination)}"
        )
        identity = {
            "pipeline": "replay",
            "path": Folder(spark, self.path).uri,
            "entity": entity.lower(),
            "destination": self.destination.lower(),
            "where": self.where,
        }
        folder = own_checkpoint(spark, path, identity)
        with timed() as seconds, spark_errors_told():
            sent, finished = self._send_all(spark, rows, folder, run)
            while finished and not run.available_now and not run.stopping.wait(run.interval_s):
                # Reading the folder again finds new files.
                more, finished = self._send_all(spark, self._rows(spark, entity), folder, run)
                sent += more
        plan = folder.read_json(PLAN)
        assert plan is not None
        details = {"path": self.path, "entity": entity, "destination": self.destination, "checkpoint": path}
        return Summary(
            "replay",
            "finished" if finished else "stopped",
            sent,
            seconds(),
            {
                **details,
                "steps": len(plan["steps"]),
                "steps_done": plan["done"],
                "duplicate_detection": self.bus.detects_duplicates(self.destination),
            },
        )

    def _send_all(self, spark: SparkSession, rows: DataFrame, folder: Folder, run: Run) -> tuple[int, bool]:
        """Send everything captured and not sent yet. Returns the count, and whether it was completed."""
        plan = folder.read_json(PLAN)
        cut_off = plan is not None and plan["begun"] > plan["done"]
        sent = 0
        if plan is not None:
            sent = self._steps(spark, rows, folder, plan, run, cut_off=cut_off)
        if plan is None or (plan["done"] == len(plan["steps"]) and not run.stopping.is_set()):
            plan = _plan(rows, self.step, plan)
            folder.write_json(PLAN, plan)
            sent += self._steps(spark, rows, folder, plan, run, cut_off=False)
        return sent, plan["done"] == len(plan["steps"])

    def _entity(self, spark: SparkSession) -> str:
        entities = captured_entities(spark, self.path)
        if self.entity is not None:
            return self.entity
        if len(entities) != 1:
            raise ArgumentError(
                f"'{self.path}' has captures of {len(entities)} entities ({', '.join(entities) or 'none'}): "
                "name one."
            )
        return entities[0]

    def _rows(self, spark: SparkSession, entity: str) -> DataFrame:
        rows = captured(spark, self.path, entity)
        if self.where is None:
            return rows
        with spark_errors_told():
            return rows.where(self.where)

    def _steps(
        self,
        spark: SparkSession,
        rows: DataFrame,
        folder: Folder,
        plan: dict[str, Any],
        run: Run,
        *,
        cut_off: bool,
    ) -> int:
        """Send the rest of the plan. Returns the number of messages."""
        raw = "amqp_message" in rows.columns and not rows.where(F.col("amqp_message").isNull()).head(1)
        prefix = f"{query_name(folder)}/"
        sent = 0
        while plan["done"] < len(plan["steps"]) and not run.stopping.is_set():
            step = plan["steps"][plan["done"]]
            known = arrived(spark, self.bus, self.destination, prefix) if cut_off and raw else frozenset()
            cut_off = False
            plan["begun"] = plan["done"] + 1
            folder.write_json(PLAN, plan)
            share = _ordered(rows.where(_within(step["ranges"])))
            write = (
                share.mapInArrow(partial(_whole_messages, prefix, known), "amqp_message binary")
                if raw
                else share.select(*_columns(rows))
            )
            options = self.bus.source(self.destination)
            write.write.format("servicebus").options(**options).mode("append").save()
            plan["done"] += 1
            folder.write_json(PLAN, plan)
            sent += step["messages"]
            run.tell(Progress(f"Replaying to {self.destination}", sent, plan["messages"]))
        return sent


def _whole_messages(
    prefix: str, known: frozenset[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Captured messages as they were sent, without those that have arrived, with the marks of this replay."""
    for batch in batches:
        numbers = batch.column("sequence_number").to_pylist()
        payloads = batch.column("amqp_message").to_pylist()
        marks = [f"{prefix}{number}" for number in numbers]
        messages = [
            as_sent(payload, mark) for payload, mark in zip(payloads, marks, strict=True) if mark not in known
        ]
        yield pa.RecordBatch.from_arrays([pa.array(messages, pa.binary())], names=["amqp_message"])


def _columns(rows: DataFrame) -> list[str]:
    if "body" not in rows.columns:
        raise ConfigError("the capture has neither bodies nor whole messages: so nothing can be sent")
    return [name for name in _SENDABLE if name in rows.columns]


def _ordered(rows: DataFrame) -> DataFrame:
    """Each partition's rows in one task, in order, so that keys and sessions keep their order."""
    return rows.repartition("partition").sortWithinPartitions("partition", "sequence_number")


def _plan(rows: DataFrame, step: int, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Steps of about this many messages: for each, a range of sequence numbers in every partition.

    `before` is the last plan that was completed. The new plan contains what was captured since.
    """
    through: dict[str, int] = {} if before is None else dict(before["through"])
    if through:
        rows = rows.where(~_within({each: [-1, last] for each, last in through.items()}))
    total = rows.count()
    count = max(1, -(-total // step))
    fractions = [F.lit(number / count) for number in range(1, count)]
    cuts = F.percentile_approx("sequence_number", F.array(*fractions), 10_000) if fractions else F.array()
    number = F.col("sequence_number")
    partitions = (
        rows.groupBy("partition")
        .agg(F.min(number).alias("first"), F.max(number).alias("last"), cuts.alias("cuts"))
        .collect()
    )
    bounds = {
        str(row["partition"]): [row["first"] - 1, *(row["cuts"] or [])[: count - 1], row["last"]]
        for row in partitions
    }
    steps: list[dict[str, Any]] = [
        {"ranges": {each: [cut[place], cut[place + 1]] for each, cut in bounds.items()}, "messages": total}
        for place in range(count if total else 0)
    ]
    if count > 1:
        for each in steps:
            each["messages"] = rows.where(_within(each["ranges"])).count()
    through |= {each: cut[-1] for each, cut in bounds.items()}
    return {"messages": total, "steps": steps, "done": 0, "begun": 0, "through": through}


def _within(ranges: Mapping[str, Sequence[int]]) -> Column:
    """Rows after the first number and up to the second, in each partition."""
    number, partition = F.col("sequence_number"), F.col("partition")
    return reduce(
        lambda one, other: one | other,
        (
            (partition == int(each)) & (number > after) & (number <= through)
            for each, (after, through) in ranges.items()
        ),
    )
