"""Triage: groups dead letters by their reasons, and resubmits or deletes selected ones.

A letter is completed once its copy has been accepted, so none is lost. Copies have a mark, and a
run that follows an interrupted one skips what has arrived. So a letter is sent twice
only if the interruption came between sending and completing it *and* a receiver took the copy
before the next run. If the destination has duplicate detection (and new ids are made
from the letters' numbers), not even then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bendybus.amqp.types import Array
from bendybus.client import BusClient, ClientSettings
from bendybus.errors import ArgumentError, InvalidOperation, NotSupported
from bendybus.names import COUNTER_MAX
from pyspark_servicebus.encoding import MessageEncoder
from pyspark_servicebus.entity import MessageRange, RangedEntity, Selection
from pyspark_servicebus.pipelines.checkpoint import default_checkpoint, own_checkpoint
from pyspark_servicebus.pipelines.copies import mark_of, revived
from pyspark_servicebus.pipelines.failures import spark_errors_told
from pyspark_servicebus.pipelines.jobs import Stopped, arrived, browse, stoppable
from pyspark_servicebus.pipelines.pipeline import (
    Bus,
    Progress,
    Run,
    Summary,
    dead_letters_of,
    origin_of,
    timed,
)

__all__ = ["ACTIONS", "Triage", "reason_groups"]

ACTIONS: Final = ("list", "resubmit", "discard")
STATE: Final = "triage.json"

# Sent and completed together: the most that an interruption can leave half done.
SHARE: Final = 500
FETCH_BYTES: Final = 4 * 1024 * 1024
# The name for a missing reason.
NO_REASON: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    bus: Bus
    entity: str
    """A queue or a subscription, or its dead-letter queue."""
    action: str = "list"
    reasons: tuple[str, ...] = ()
    """Only letters with these reasons; all if empty. An empty reason selects letters without a reason."""
    where: str | None = None
    """A condition in Spark SQL over the columns of the source."""
    to: str | None = None
    """Where to resubmit. The default is where they came from."""
    new_ids: bool = False
    checkpoint: str | None = None

    @property
    def destination(self) -> str:
        return self.to or origin_of(self.entity)

    def check(self) -> None:
        if self.action not in ACTIONS:
            raise ArgumentError(f"'{self.action}' is none of the actions {', '.join(ACTIONS)}.")
        if self.to is not None and self.action != "resubmit":
            raise ArgumentError(f"A destination is for 'resubmit', not for '{self.action}'.")
        state = self.bus.check_readable(dead_letters_of(self.entity))
        if self.action == "list":
            return
        if state is None:
            raise NotSupported(
                "This namespace cannot complete dead letters by their numbers: 'bendybus dead-letter "
                "resubmit' takes them one by one."
            )
        if self.action == "resubmit":
            self.bus.check_writable(self.destination)
            if not self.new_ids and self.bus.detects_duplicates(self.destination):
                raise InvalidOperation(
                    f"'{self.destination}' has duplicate detection and would drop messages whose ids it "
                    "remembers: ask for new ids."
                )

    def run(self, spark: SparkSession, run: Run) -> Summary:
        self.check()
        summary = self._once(spark, run)
        while summary.outcome == "finished" and not run.available_now:
            if run.stopping.wait(run.interval_s):
                break
            more = self._once(spark, run)
            summary = replace(
                more, messages=summary.messages + more.messages, seconds=summary.seconds + more.seconds
            )
        return summary

    def _once(self, spark: SparkSession, run: Run) -> Summary:
        outcome, done = "finished", 0
        path = self.checkpoint or default_checkpoint("triage", origin_of(self.entity))
        with timed() as seconds:
            letters = browse(spark, self.bus, dead_letters_of(self.entity), "active,deferred")
            with spark_errors_told():
                chosen = self._chosen(letters)
                groups = reason_groups(chosen)
            total = sum(group["messages"] for group in groups)
            run.tell(Progress(f"Triage of {self.entity}", 0, total))
            if self.action != "list" and total:
                try:
                    done = self._act(spark, chosen, path, run)
                except Stopped:
                    outcome = "stopped"
            run.tell(Progress(f"Triage of {self.entity}", done, total))
        details: dict[str, Any] = {"entity": self.entity, "action": self.action, "selected": total}
        if self.action == "resubmit":
            details["destination"] = self.destination
        return Summary("triage", outcome, done, seconds(), {**details, "groups": groups})

    def _chosen(self, letters: DataFrame) -> DataFrame:
        if self.reasons:
            reason = F.coalesce("dead_letter_reason", F.lit(NO_REASON))
            letters = letters.where(reason.isin(list(self.reasons)))
        return letters if self.where is None else letters.where(self.where)

    def _act(self, spark: SparkSession, chosen: DataFrame, path: str, run: Run) -> int:
        entity = dead_letters_of(self.entity)
        state = self.bus.check_readable(entity)
        assert state is not None, "checked"
        settings = self.bus.settings(entity)
        if self.action == "discard":
            with stoppable(spark, run):
                return _counted(chosen.mapInArrow(partial(_discard, settings), "done long"))
        identity = {
            "pipeline": "triage",
            "entity": origin_of(self.entity).lower(),
            "destination": self.destination.lower(),
        }
        folder = own_checkpoint(spark, path, identity)
        known: frozenset[str] = frozenset()
        with stoppable(spark, run):
            if folder.exists(STATE) and (folder.read_json(STATE) or {}).get("running"):
                known = arrived(spark, self.bus, self.destination, f"{state.generation}/")
            folder.write_json(STATE, {"running": True})
            apart = self.bus.detects_duplicates(self.destination)
            work = partial(
                _resubmit, settings, self.destination, state.generation, apart, self.new_ids, known
            )
            done = _counted(chosen.mapInArrow(work, "done long"))
        folder.write_json(STATE, {"running": False})
        return done


def reason_groups(letters: DataFrame) -> list[dict[str, Any]]:
    """The reasons, most frequent first."""
    found = (
        letters.groupBy(F.coalesce("dead_letter_reason", F.lit(NO_REASON)).alias("reason"))
        .agg(
            F.count("*").alias("messages"),
            F.min("enqueued_time").alias("oldest"),
            F.max("enqueued_time").alias("newest"),
            F.max("delivery_count").alias("deliveries_max"),
            F.max("dead_letter_error_description").alias("example"),
        )
        .orderBy(F.desc("messages"), "reason")
    )
    return [
        {**row.asDict(), "oldest": row.oldest.isoformat(), "newest": row.newest.isoformat()}
        for row in found.collect()
    ]


def _counted(done: DataFrame) -> int:
    return int(done.agg(F.coalesce(F.sum("done"), F.lit(0)).alias("done")).collect()[0].done)


# -- in tasks -----------------------------------------------------------------------------


def _resubmit(
    settings: ClientSettings,
    destination: str,
    generation: str,
    apart: bool,
    new_ids: bool,
    known: frozenset[str],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In groups: send the copies, wait for them, complete the letters."""
    context = TaskContext.get()
    retried = context is not None and context.attemptNumber() > 0
    with BusClient(settings) as client:
        if retried:
            known |= _marks_at(client, destination)
        sender = client.sender(destination)
        encoder = MessageEncoder("", group_by_id=apart)
        for numbers, payloads in _shares(batches):
            copies = []
            for number, payload in zip(numbers, payloads, strict=True):
                mark = f"{generation}/{number}"
                if mark not in known:
                    name = f"resubmitted-{generation}-{number}" if new_ids else None
                    copies.append(revived(payload, mark, name))
            # Letters of one key together and in order.
            for key, group in encoder.groups(
                pa.record_batch({"amqp_message": pa.array(copies, pa.binary())})
            ):
                sender.post(group, key)
            sender.flush()
            _complete(client, numbers)
            yield _told(len(numbers))


def _discard(settings: ClientSettings, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with BusClient(settings) as client:
        for numbers, _ in _shares(batches):
            _complete(client, numbers)
            yield _told(len(numbers))


def _marks_at(client: BusClient, destination: str) -> frozenset[str]:
    """The marks of copies that an earlier attempt of this task may have sent."""
    entity = RangedEntity(client.management(destination), FETCH_BYTES)
    everything = Selection(states=(0, 1, 2))
    try:
        ranges = [MessageRange(number, 0, COUNTER_MAX) for number in entity.info().partitions]
    except (InvalidOperation, NotSupported):
        return frozenset()
    marks = (
        mark_of(payload) for each in ranges for page in entity.browse(each, everything) for payload in page
    )
    return frozenset(mark for mark in marks if mark is not None)


def _shares(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[list[int], list[bytes]]]:
    for batch in batches:
        for start in range(0, batch.num_rows, SHARE):
            share = batch.slice(start, SHARE)
            yield share.column("sequence_number").to_pylist(), share.column("amqp_message").to_pylist()


def _complete(client: BusClient, numbers: list[int]) -> None:
    body = {"sequence-numbers": Array(int, [*numbers])}
    client.management().request("bendybus:complete-numbers", body)


def _told(done: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([done], pa.int64())], names=["done"])
