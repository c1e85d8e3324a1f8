"""A streaming query, watched from its start to its end.

It ends when it has caught up, when it is told to stop, or with an error, which is reported as one of ours
(failures.py). Stopping interrupts a micro-batch; the next run repeats it. A query reports progress only when
a batch is done, so batches have a limit unless the user gives another.
"""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_servicebus.letters import is_sub_queue
from pyspark_servicebus.offsets import lag_of
from pyspark_servicebus.pipelines.failures import translated
from pyspark_servicebus.pipelines.pipeline import Progress, Run

__all__ = ["SENT", "StreamOutcome", "default_batch", "run_stream"]

LOOK_S: Final = 1

# Spark gives a new Python process ten seconds to report, which a machine full of other work may exceed.
STARVED: Final = "Python worker failed to connect back"
STARTS_MAX: Final = 5

# A few seconds' work: often enough to see that a run moves, seldom enough to cost little.
BATCH_DEFAULT: Final = 100_000

# The name under which a pipeline observes the rows that it sends.
SENT: Final = "sent"


def default_batch(entity: str) -> int | None:
    """The limit of a batch unless the user gives one. Streams of dead letters have one of their own."""
    return None if is_sub_queue(entity) else BATCH_DEFAULT


class StreamOutcome:
    """What a query has read so far, counted batch by batch."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._lag: int | None = None
        self.stopped = False

    def look(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            # While it is idle, a query reports the next batch, without rows.
            number = progress.batchId
            self._rows[number] = max(self._rows.get(number, 0), progress.numInputRows)
            observed = progress.observedMetrics.get(SENT)
            if observed is not None:
                self._sent[number] = max(self._sent.get(number, 0), observed[SENT] or 0)
            self._lag = lag_of(progress)

    @property
    def messages(self) -> int:
        return sum(self._rows.values())

    @property
    def sent(self) -> int:
        return sum(self._sent.values())

    @property
    def total(self) -> int | None:
        """The total number of messages to read, as far as the query has reported it."""
        return None if self._lag is None else self.messages + self._lag

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
    for last in (*(False,) * (STARTS_MAX - 1), True):
        try:
            _watch(writer, run, phase, outcome)
            break
        except (PySparkException, Py4JError) as error:
            if last or STARVED not in str(error):
                raise translated(error) from error
    run.tell(Progress(phase, outcome.messages, outcome.total))
    return outcome


def _watch(writer: DataStreamWriter, run: Run, phase: str, outcome: StreamOutcome) -> None:
    query: StreamingQuery | None = None
    try:
        query = writer.start()
        while not query.awaitTermination(LOOK_S):
            outcome.look(query)
            run.tell(Progress(phase, outcome.messages, outcome.total))
            if run.stopping.is_set():
                outcome.stopped = True
                break
        outcome.look(query)
    finally:
        # Also after an interrupt: a query outlives the code that started it.
        if query is not None:
            query.stop()
