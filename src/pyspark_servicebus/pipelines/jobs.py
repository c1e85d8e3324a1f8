"""Batch jobs of a pipeline: stopping them, and finding by marks which copies have arrived.

A stop cancels the running job. That is an interruption like any other: the next run
finds out how far the job had come.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bendybus.errors import InvalidOperation
from pyspark_servicebus.pipelines.copies import MARKED_SCHEMA, with_marks
from pyspark_servicebus.pipelines.failures import translated
from pyspark_servicebus.pipelines.pipeline import Bus, Run

__all__ = ["ALL_STATES", "Stopped", "arrived", "browse", "marked", "stoppable"]

ALL_STATES: Final = "active,deferred,scheduled"


class Stopped(Exception):
    """The run was told to stop, and has stopped."""


@contextmanager
def stoppable(spark: SparkSession, run: Run) -> Iterator[None]:
    """Jobs inside are cancelled when the run has to stop, which raises `Stopped`. Errors become ours."""
    context, group, over = spark.sparkContext, uuid.uuid4().hex, threading.Event()

    def watch() -> None:
        while not over.is_set():
            if run.stopping.wait(0.2):
                context.cancelJobGroup(group)
                # A job that started in between is cancelled in the next round.
                over.wait(0.5)

    if run.stopping.is_set():
        raise Stopped
    context.setJobGroup(group, "pipeline", interruptOnCancel=True)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if run.stopping.is_set():
            raise Stopped from error
        raise translated(error) from error
    finally:
        over.set()
        watcher.join()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None takes it away


def browse(spark: SparkSession, bus: Bus, entity: str, states: str = "active") -> DataFrame:
    """Everything in an entity, with whole messages and the key that determines their order.

    `keyed`: whether it is the message's own key. Without one, the order is that of the partition.
    """
    options = bus.source(entity, includeRaw="true", states=states)
    rows = spark.read.format("servicebus").options(**options).load()
    together = F.concat(F.lit("partition "), F.col("partition"))
    own = F.coalesce("session_id", "partition_key")
    # Case is ignored in keys.
    return rows.withColumns({"key": F.upper(F.coalesce(own, together)), "keyed": own.isNotNull()})


def marked(rows: DataFrame, generation: str | None) -> DataFrame:
    """Browsed rows with their marks and checksums: see copies.with_marks."""
    return rows.mapInArrow(partial(with_marks, generation), MARKED_SCHEMA)


def arrived(spark: SparkSession, bus: Bus, entity: str, prefix: str) -> frozenset[str]:
    """The marks with this prefix of messages that are in `entity` now. Empty for a topic."""
    try:
        bus.check_readable(entity)
    except InvalidOperation:
        return frozenset()
    found = marked(browse(spark, bus, entity, ALL_STATES), None).where(F.col("mark").startswith(prefix))
    return frozenset(row.mark for row in found.select("mark").collect())
