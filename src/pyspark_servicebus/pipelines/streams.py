"""A streaming query, watched from its start to its end.

It ends when it has caught up, when it is told to stop, or with an error, which is reported in
our own words (failures.py). Stopping interrupts a micro-batch; the next run repeats it.
"""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_servicebus.pipelines.failures import translated
from pyspark_servicebus.pipelines.pipeline import Progress, Run

__all__ = ["StreamOutcome", "run_stream"]

LOOK_S: Final = 1


class StreamOutcome:
    """What a query has read so far, counted batch by batch."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self.stopped = False

    def look(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            # While it is idle, a query reports the next batch, without rows.
            number = progress.batchId
            self._rows[number] = max(self._rows.get(number, 0), progress.numInputRows)

    @property
    def messages(self) -> int:
        return sum(self._rows.values())

    @property
    def batches(self) -> int:
        return sum(1 for rows in self._rows.values() if rows)


def run_stream(writer: DataStreamWriter, run: Run, phase: str) -> StreamOutcome:
    outcome = StreamOutcome()
    writer = (
        writer.trigger(availableNow=True)
        if run.available_now
        else writer.trigger(processingTime=f"{run.interval_s} seconds")
    )
    query: StreamingQuery | None = None
    try:
        query = writer.start()
        while not query.awaitTermination(LOOK_S):
            outcome.look(query)
            run.tell(Progress(phase, outcome.messages))
            if run.stopping.is_set():
                outcome.stopped = True
                break
        outcome.look(query)
    except (PySparkException, Py4JError) as error:
        raise translated(error) from error
    finally:
        # Also after an interrupt: a query outlives the code that started it.
        if query is not None:
            query.stop()
    run.tell(Progress(phase, outcome.messages))
    return outcome
