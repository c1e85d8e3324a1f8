"""Capture: streams an entity into Parquet files or a Delta table, each message once.

    PATH/entity=orders/date=2026-11-15/partition=3/part-....parquet

Each entity has a folder and a checkpoint of its own below PATH: Spark's file sink silently skips the
batches of a second query with the same folder. Parquet is exact only for Spark, which
knows which files belong to interrupted batches; a Delta table (delta.py) is exact for all readers.
`captured` reads what was captured.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import reduce
from typing import Final
from urllib.parse import quote, unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bendybus.errors import ArgumentError, ConfigError
from pyspark_servicebus.pipelines.checkpoint import (
    Folder,
    clear_false_start,
    is_local,
    own_checkpoint,
    query_name,
)
from pyspark_servicebus.pipelines.failures import spark_errors_told
from pyspark_servicebus.pipelines.pipeline import Bus, Run, Summary, at_least_one, timed
from pyspark_servicebus.pipelines.streams import default_batch, run_stream
from pyspark_servicebus.schema import ALL_COLUMNS

__all__ = ["FORMATS", "Capture", "captured", "captured_entities", "check_captured"]

FORMATS: Final = ("parquet", "delta")
CHECKPOINTS: Final = "_checkpoints"

# Columns of captured rows in addition to the source's own.
CAPTURED_TIME: Final = "captured_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    bus: Bus
    entity: str
    path: str
    checkpoint: str | None = None
    """Below `path` unless given."""
    format: str = "parquet"
    consume: bool = False
    """Whether captured messages are completed. Otherwise the entity is only browsed."""
    raw: bool = True
    """Whether whole messages are kept too, so that a replay has every property with its own type."""
    messages_per_trigger: int | None = None

    def check(self) -> None:
        if self.format not in FORMATS:
            raise ArgumentError(f"'{self.format}' is none of the formats {', '.join(FORMATS)}.")
        at_least_one("messages_per_trigger", self.messages_per_trigger)
        if self.format == "delta":
            require_delta()
        if self.consume:
            self.bus.check_consumable(self.entity)
        else:
            self.bus.check_readable(self.entity)

    def run(self, spark: SparkSession, run: Run) -> Summary:
        self.check()
        checkpoint = self.checkpoint or _join(self.path, CHECKPOINTS, folder_name(self.entity))
        sink = _join(self.path, folder_name(self.entity))
        self._refuse_other_query(spark, sink, checkpoint)
        identity = {
            "pipeline": "capture",
            "entity": self.entity,
            "path": Folder(spark, sink).uri,
            "format": self.format,
            "mode": self._mode,
        }
        folder = own_checkpoint(spark, checkpoint, identity)
        clear_false_start(folder)
        with timed() as seconds, spark_errors_told():
            writer = self._rows(spark).writeStream.option("checkpointLocation", folder.uri)
            if self.format == "delta":
                from pyspark_servicebus.pipelines.delta import DeltaSink  # noqa: PLC0415 - needs delta-rs

                spark.dataSource.register(DeltaSink)
                writer = writer.format(DeltaSink.name()).option("table", Folder(spark, sink).uri)
                writer = writer.option("query", query_name(folder))
            else:
                writer = writer.format("parquet").partitionBy("date", "partition").option("path", sink)
            outcome = run_stream(writer, run, f"Capturing {self.entity}")
        details = {"entity": self.entity, "path": sink, "format": self.format, "mode": self._mode}
        return Summary(
            "capture",
            "stopped" if outcome.stopped else "finished",
            outcome.messages,
            seconds(),
            {**details, "batches": outcome.batches, "checkpoint": checkpoint},
        )

    @property
    def _mode(self) -> str:
        return "consume" if self.consume else "browse"

    def _rows(self, spark: SparkSession) -> DataFrame:
        options = self.bus.source(
            self.entity,
            mode=self._mode,
            includeRaw=str(self.raw).lower(),
            maxMessagesPerTrigger=self.messages_per_trigger or default_batch(self.entity),
        )
        rows = spark.readStream.format("servicebus").options(**options).load()
        return rows.withColumns(
            {CAPTURED_TIME: F.current_timestamp(), "date": F.to_date("enqueued_time").cast("string")}
        )

    def _refuse_other_query(self, spark: SparkSession, sink: str, checkpoint: str) -> None:
        """A sink identifies the batches that it has only by their numbers, whichever query counted them."""
        there = Folder(spark, sink)
        if there.exists("_delta_log" if self.format == "parquet" else "_spark_metadata"):
            raise ConfigError(f"'{sink}' holds a capture in the other format: use another path")
        if there.exists("_spark_metadata") and not Folder(spark, checkpoint).exists("offsets"):
            raise ConfigError(
                f"'{sink}' was captured under another checkpoint than '{checkpoint}': name that one, or "
                "capture to another path"
            )


def require_delta() -> None:
    try:
        import deltalake  # noqa: F401, PLC0415 - only looked for
    except ImportError:
        raise ConfigError("Delta tables need delta-rs: pip install 'bendybus[delta]'") from None


# -- what was captured --------------------------------------------------------------------


def check_captured(path: str, entity: str | None = None) -> None:
    """Raise if there is no capture in `path`. Folders that only Spark can reach are not looked at."""
    if not is_local(path):
        return
    if not os.path.isdir(path):
        raise ArgumentError(f"There is no folder '{path}'.")
    names = sorted(name for name in os.listdir(path) if name.startswith("entity="))
    _pick(path, [unquote(name.removeprefix("entity=")) for name in names], entity)


def _pick(path: str, entities: list[str], entity: str | None) -> list[str]:
    """All entities, or the one that is named."""
    if not entities:
        raise ArgumentError(f"'{path}' holds no capture: there is no folder 'entity=...' in it.")
    if entity is None:
        return entities
    known = [each for each in entities if each.lower() == entity.lower()]
    if not known:
        raise ArgumentError(f"'{path}' has no capture of '{entity}'; it has: {', '.join(entities)}.")
    return known


def captured_entities(spark: SparkSession, path: str) -> list[str]:
    """The entities that were captured below `path`."""
    return [
        unquote(name.removeprefix("entity="))
        for name in Folder(spark, path).folders()
        if name.startswith("entity=")
    ]


def captured(spark: SparkSession, path: str, entity: str | None = None) -> DataFrame:
    """The captured messages of one entity or all entities, each once, with a column `entity`."""
    entities = _pick(path, captured_entities(spark, path), entity)
    with spark_errors_told():
        parts = [
            _read(spark, _join(path, folder_name(each))).withColumn("entity", F.lit(each))
            for each in entities
        ]
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _read(spark: SparkSession, folder: str) -> DataFrame:
    there = Folder(spark, folder)
    if not any(name.startswith("date=") for name in there.folders()):
        # An entity that was always empty leaves no file with a schema.
        empty = spark.createDataFrame([], ALL_COLUMNS)
        return empty.withColumns({CAPTURED_TIME: F.current_timestamp(), "date": F.current_date()})
    if there.exists("_delta_log"):
        require_delta()
        from pyspark_servicebus.pipelines.delta import delta_files  # noqa: PLC0415 - needs delta-rs

        files = delta_files(there.uri)
        return spark.read.option("basePath", folder).parquet(*files)
    return spark.read.parquet(folder)


def folder_name(entity: str) -> str:
    """One folder name for any entity: `entity=orders`, `entity=news%2Fsubscriptions%2Fall`."""
    return f"entity={quote(entity.lower(), safe='-_. ')}"


def _join(*parts: str) -> str:
    return os.path.join(*parts)
