"""Triage: groups dead letters by their reasons, and resubmits or deletes selected ones.

A letter is completed once its copy has been accepted, so none is lost. Copies have a mark, and a
run that follows an interrupted one skips what has arrived. So a letter is sent twice
only if the interruption came between sending and completing it *and* a receiver took the copy
before the next run. If the destination has duplicate detection (and new ids are made
from the letters' numbers), not even then. Few letters need no Spark: small_triage.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from pyspark_servicebus.pipelines.checkpoint import (
    Folder,
    LocalFolder,
    default_checkpoint,
    is_local,
    own_checkpoint,
    own_local_checkpoint,
)
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
from pyspark_servicebus.pipelines.small_triage import SMALL, group_letters, read_letters, with_reasons

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

    @property
    def small(self) -> bool:
        """Whether it can run without Spark: few letters, no SQL condition, a checkpoint on this machine."""
        if self.where is not None or not is_local(self._checkpoint):
            return False
        state = self.bus.check_readable(dead_letters_of(self.entity))
        return state is not None and state.active + state.deferred <= SMALL

    @property
    def _checkpoint(self) -> str:
        return self.checkpoint or default_checkpoint("triage", origin_of(self.entity))

    def run(self, spark: SparkSession | None, run: Run) -> Summary:
        """Without a session, only a triage that is `small`."""
        self.check()
        if spark is None and self.where is not None:
            raise ArgumentError("A condition in SQL needs Spark.")
        summary = self._once(spark, run)
        while summary.outcome == "finished" and not run.available_now:
            if run.stopping.wait(run.interval_s):
                break
            more = self._once(spark, run)
            summary = replace(
                more, messages=summary.messages + more.messages, seconds=summary.seconds + more.seconds
            )
        return summary

    def _once(self, spark: SparkSession | None, run: Run) -> Summary:
        outcome, done = "finished", 0
        with timed() as seconds:
            letters = _FewLetters(self, run) if spark is None else _Letters(self, spark, run)
            groups = letters.groups()
            if run.available_now:
                self._refuse_unmatched(groups)
            total = sum(group["messages"] for group in groups)
            run.tell(Progress(f"Triage of {self.entity}", 0, total))
            if self.action != "list" and total:
                try:
                    done = self._act(letters)
                except Stopped:
                    outcome = "stopped"
            run.tell(Progress(f"Triage of {self.entity}", done, total))
        details: dict[str, Any] = {"entity": self.entity, "action": self.action, "selected": total}
        if self.action == "resubmit":
            details["destination"] = self.destination
        return Summary("triage", outcome, done, seconds(), {**details, "groups": groups})

    def _refuse_unmatched(self, groups: list[dict[str, Any]]) -> None:
        """A reason that no letter has is a mistake, or was dealt with already: nothing is done then."""
        found = {group["reason"] for group in groups}
        for reason in self.reasons:
            if reason not in found:
                named = f"the reason '{reason}'" if reason else "no reason"
                also = "" if self.where is None else " and fulfils the condition"
                raise ArgumentError(
                    f"No dead letter of '{self.entity}' has {named}{also}; nothing was done. "
                    "Without --reason all are shown."
                )

    def _act(self, letters: _Letters | _FewLetters) -> int:
        if self.action == "discard":
            return letters.discard()
        identity = {
            "pipeline": "triage",
            "entity": origin_of(self.entity).lower(),
            "destination": self.destination.lower(),
        }
        folder = letters.checkpoint(identity)
        known: frozenset[str] = frozenset()
        if (folder.read_json(STATE) or {}).get("running"):
            known = letters.arrived()
        folder.write_json(STATE, {"running": True})
        done = letters.resubmit(known, self.bus.detects_duplicates(self.destination))
        folder.write_json(STATE, {"running": False})
        return done


class _Letters:
    """The chosen letters, as a table of Spark's."""

    def __init__(self, plan: Triage, spark: SparkSession, run: Run) -> None:
        self._plan = plan
        self._spark = spark
        self._run = run
        self._entity = dead_letters_of(plan.entity)
        letters = browse(spark, plan.bus, self._entity, "active,deferred")
        if plan.reasons:
            reason = F.coalesce("dead_letter_reason", F.lit(NO_REASON))
            letters = letters.where(reason.isin(list(plan.reasons)))
        with spark_errors_told():
            self._chosen = letters if plan.where is None else letters.where(plan.where)

    def groups(self) -> list[dict[str, Any]]:
        with spark_errors_told():
            return reason_groups(self._chosen)

    def checkpoint(self, identity: Mapping[str, Any]) -> Folder:
        return own_checkpoint(self._spark, self._plan._checkpoint, identity)

    def arrived(self) -> frozenset[str]:
        with stoppable(self._spark, self._run):
            prefix = f"{_generation(self._plan.bus, self._entity)}/"
            return arrived(self._spark, self._plan.bus, self._plan.destination, prefix)

    def discard(self) -> int:
        with stoppable(self._spark, self._run):
            settings = self._plan.bus.settings(self._entity)
            return _counted(self._chosen.mapInArrow(partial(_discard, settings), "done long"))

    def resubmit(self, known: frozenset[str], apart: bool) -> int:
        work = _resubmission(self._plan, known, apart)
        with stoppable(self._spark, self._run):
            return _counted(self._chosen.mapInArrow(work, "done long"))


class _FewLetters:
    """The chosen letters, in memory."""

    def __init__(self, plan: Triage, run: Run) -> None:
        self._plan = plan
        self._run = run
        self._entity = dead_letters_of(plan.entity)
        read = read_letters(plan.bus, self._entity)
        wanted = frozenset(plan.reasons)
        self._batches = [batch for each in read if (batch := with_reasons(each, wanted)).num_rows]

    def groups(self) -> list[dict[str, Any]]:
        return group_letters(self._batches)

    def checkpoint(self, identity: Mapping[str, Any]) -> LocalFolder:
        return own_local_checkpoint(self._plan._checkpoint, identity)

    def arrived(self) -> frozenset[str]:
        with self._plan.bus.client(self._plan.destination) as client:
            return _marks_at(client, self._plan.destination)

    def discard(self) -> int:
        return self._counted(_discard(self._plan.bus.settings(self._entity), iter(self._batches)))

    def resubmit(self, known: frozenset[str], apart: bool) -> int:
        return self._counted(_resubmission(self._plan, known, apart)(iter(self._batches)))

    def _counted(self, told: Iterator[pa.RecordBatch]) -> int:
        done, total = 0, sum(batch.num_rows for batch in self._batches)
        for each in told:
            done += each.column("done")[0].as_py()
            self._run.tell(Progress(f"Triage of {self._plan.entity}", done, total))
            if self._run.stopping.is_set() and done < total:
                raise Stopped
        return done


def _resubmission(
    plan: Triage, known: frozenset[str], apart: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    entity = dead_letters_of(plan.entity)
    generation = _generation(plan.bus, entity)
    return partial(
        _resubmit, plan.bus.settings(entity), plan.destination, generation, apart, plan.new_ids, known
    )


def _generation(bus: Bus, entity: str) -> str:
    state = bus.check_readable(entity)
    assert state is not None, "checked"
    return state.generation


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
