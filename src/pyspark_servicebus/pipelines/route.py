"""Route: a stream from one entity through a Spark SQL statement to another.

The statement reads the view `messages`, whose columns are the source's, and its result
is sent. The result needs `body` or `amqp_message`, and `partition_key` or `session_id` if
order has to be kept. Delivery is at least once, or exactly once if the destination has duplicate
detection, because a repeated micro-batch has the same ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bendybus.errors import ArgumentError, InvalidOperation
from pyspark_servicebus.pipelines.checkpoint import (
    clear_false_start,
    default_checkpoint,
    own_checkpoint,
)
from pyspark_servicebus.pipelines.failures import spark_errors_told
from pyspark_servicebus.pipelines.pipeline import Bus, Run, Summary, at_least_one, timed
from pyspark_servicebus.pipelines.streams import SENT, default_batch, run_stream
from pyspark_servicebus.schema import check_writable

__all__ = ["VIEW", "Route"]

VIEW: Final = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    bus: Bus
    source: str
    destination: str
    statement: str
    checkpoint: str | None = None
    consume: bool = True
    """Whether routed messages are completed at the source. Otherwise the source is only browsed."""
    messages_per_trigger: int | None = None

    def check(self) -> None:
        if self.source.lower() == self.destination.lower():
            raise InvalidOperation(f"'{self.source}' cannot be routed to itself: it would never end.")
        if not self.statement.strip():
            raise ArgumentError(f"The statement is empty; try 'SELECT * FROM {VIEW}'.")
        at_least_one("messages_per_trigger", self.messages_per_trigger)
        if self.consume:
            self.bus.check_consumable(self.source)
        else:
            self.bus.check_readable(self.source)
        self.bus.check_writable(self.destination)

    def run(self, spark: SparkSession, run: Run) -> Summary:
        self.check()
        mode = "consume" if self.consume else "browse"
        rows = self._rows(spark, mode)
        path = self.checkpoint or default_checkpoint("route", self.source, self.destination)
        identity = {
            "pipeline": "route",
            "source": self.source,
            "destination": self.destination,
            "mode": mode,
        }
        folder = own_checkpoint(spark, path, identity)
        clear_false_start(folder)
        with timed() as seconds, spark_errors_told():
            writer = (
                rows.observe(SENT, F.count(F.lit(1)).alias(SENT))
                .writeStream.format("servicebus")
                .options(**self.bus.source(self.destination))
                .option("checkpointLocation", folder.uri)
            )
            outcome = run_stream(writer, run, f"Routing {self.source} to {self.destination}")
        details = {"source": self.source, "destination": self.destination, "mode": mode}
        return Summary(
            "route",
            "stopped" if outcome.stopped else "finished",
            outcome.messages,
            seconds(),
            {
                **details,
                "sent": outcome.sent,
                "dropped": max(0, outcome.messages - outcome.sent),
                "batches": outcome.batches,
                "checkpoint": path,
            },
        )

    def _rows(self, spark: SparkSession, mode: str) -> DataFrame:
        """The result of the statement. An error in it is reported now."""
        options = self.bus.source(
            self.source,
            mode=mode,
            includeRaw=str("amqp_message" in self.statement.lower()).lower(),
            maxMessagesPerTrigger=self.messages_per_trigger or default_batch(self.source),
        )
        with spark_errors_told():
            messages = spark.readStream.format("servicebus").options(**options).load()
            rows = self._selected(spark, messages)
        if not rows.isStreaming:
            raise ArgumentError(f"The statement does not read the view '{VIEW}'.")
        check_writable(rows.schema)
        return rows

    def _selected(self, spark: SparkSession, messages: DataFrame) -> DataFrame:
        messages.createOrReplaceTempView(VIEW)
        try:
            return spark.sql(self.statement)
        finally:
            spark.catalog.dropTempView(VIEW)
