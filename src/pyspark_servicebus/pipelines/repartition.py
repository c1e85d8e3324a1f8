"""Repartition: moves a queue's messages to a new queue with the other partitioning choice.

    planned -> created -> frozen -> equal -> opened -> done

Each phase is recorded in the checkpoint when it is reached, and every phase can be repeated.
While the old queue is frozen, its clients are refused, and the new queue delivers nothing. The
copies have marks, so that after any interruption both queues are compared and only the
difference is corrected: missing messages are sent, duplicates are removed. The old queue is
given up only when counts, checksums and the order of every key agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bendybus.amqp.types import Array, Int, Timestamp
from bendybus.errors import (
    ArgumentError,
    ConfigError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    NotSupported,
    Unavailable,
)
from pyspark_servicebus.pipelines.checkpoint import Folder, default_checkpoint, own_checkpoint
from pyspark_servicebus.pipelines.copies import as_sent, with_marks
from pyspark_servicebus.pipelines.entities import Queues
from pyspark_servicebus.pipelines.jobs import Stopped, browse, marked, stoppable
from pyspark_servicebus.pipelines.pipeline import (
    Bus,
    EntityState,
    Progress,
    Run,
    Summary,
    dead_letters_of,
    timed,
)

__all__ = ["ENDINGS", "Repartition"]

ENDINGS: Final = ("forward", "delete", "keep")
STATE: Final = "repartition.json"
PHASES: Final = ("planned", "created", "frozen", "equal", "opened", "done")

# Each round corrects what the last one left. If more are needed, something else changes the queues.
ROUNDS_MAX: Final = 6
REMOVED_AT_ONCE: Final = 1000

STATES: Final = "active,scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    bus: Bus
    source: str
    target: str
    """The new queue. The pipeline creates it."""
    ending: str = "forward"
    """What happens to the old queue: it forwards to the new one, is deleted, or is kept disabled."""
    checkpoint: str | None = None

    def check(self) -> None:
        if self.ending not in ENDINGS:
            raise ArgumentError(f"'{self.ending}' is none of {', '.join(ENDINGS)}.")
        if self.source.lower() == self.target.lower():
            raise ArgumentError(f"'{self.source}' cannot be moved to itself: name a new queue.")
        queues = Queues(self.bus.connection_string, self.bus.options.get("certificate"))
        # If a run was interrupted near its end, the old queue may already be gone.
        if queues.find(self.source) is None and queues.find(self.target) is None:
            raise EntityNotFound(self.source)

    def run(self, spark: SparkSession, run: Run) -> Summary:
        self.check()
        path = self.checkpoint or default_checkpoint("repartition", self.source, self.target)
        queues = Queues(self.bus.connection_string, self.bus.options.get("certificate"))
        with timed() as seconds:
            begun = Folder(spark, path).exists(STATE)
            if not begun:
                # Nothing is recorded for a run that cannot start.
                self._refuse(queues)
            identity = {
                "pipeline": "repartition",
                "source": self.source.lower(),
                "target": self.target.lower(),
                "ending": self.ending,
            }
            move = _Move(self, spark, run, queues, own_checkpoint(spark, path, identity))
            outcome = move.go_on()
        details: dict[str, Any] = {
            "source": self.source,
            "target": self.target,
            "ending": self.ending,
            "checkpoint": path,
        }
        told = {name: move.state.get(name) for name in ("phase", "partitioned", "checksum")}
        return Summary("repartition", outcome, move.state.get("messages", 0), seconds(), details | told)

    def _refuse(self, queues: Queues) -> None:
        """Raise if the move cannot start."""
        source = queues.get(self.source)
        if queues.find(self.target) is not None:
            raise EntityExists(f"'{self.target}' exists already: the new queue is made by the pipeline.")
        if source.text("ForwardTo"):
            raise InvalidOperation(f"'{self.source}' forwards its messages, so it has none to move.")
        state = self._state(self.source)
        if state.deferred:
            raise InvalidOperation(
                f"'{self.source}' has {state.deferred} deferred messages, which their receivers know by "
                "numbers that would change: receive them first."
            )
        self._refuse_dead_letters()
        if source.text("RequiresSession") == "true" and self.ending != "keep":
            self._refuse_session_states()

    def _refuse_dead_letters(self) -> None:
        if self.ending == "keep":
            return
        letters = self._state(dead_letters_of(self.source))
        if letters.active or letters.deferred:
            raise InvalidOperation(
                f"'{self.source}' has {letters.active + letters.deferred} dead letters, which cannot "
                "be sent to a dead-letter queue: triage them first, or keep the old queue."
            )

    def _refuse_session_states(self) -> None:
        """Session states cannot be read without their locks, so they cannot be moved."""
        with self.bus.client(self.source) as client:
            body: dict[str, object] = {"last-updated-time": Timestamp(0), "skip": Int(0), "top": Int(1)}
            answer = client.management().request("com.microsoft:get-message-sessions", body)
        listed = None if answer is None else answer.get("sessions-ids")
        found = listed.values if isinstance(listed, Array) else listed
        if found:
            raise InvalidOperation(
                f"Sessions of '{self.source}' have states ('{found[0]}' has), which would be lost: clear "
                "them, or keep the old queue."
            )

    def _state(self, entity: str) -> EntityState:
        state = self.bus.check_readable(entity)
        if state is None:
            raise NotSupported("This namespace lacks the operations that repartitioning needs.")
        return state


class _Move:
    """One run of the move: from the phase that was reached to the end, or as far as possible."""

    def __init__(
        self, plan: Repartition, spark: SparkSession, run: Run, queues: Queues, folder: Folder
    ) -> None:
        self._plan = plan
        self._spark = spark
        self._run = run
        self._queues = queues
        self._folder = folder
        self.state: dict[str, Any] = folder.read_json(STATE) or {}

    def go_on(self) -> str:
        steps: dict[str, Callable[[], None]] = {
            "planned": self._begin,
            "created": self._create,
            "frozen": self._freeze,
            "equal": self._copy,
            "opened": self._open,
            "done": self._give_up,
        }
        reached = self.state.get("phase")
        if reached is not None and reached not in PHASES:
            raise ConfigError(f"the checkpoint is in the phase '{reached}', which this version does not know")
        for phase in PHASES[0 if reached is None else PHASES.index(reached) + 1 :]:
            self._run.tell(Progress(f"Repartition: {phase}", self.state.get("messages", 0)))
            if self._run.stopping.is_set():
                return "stopped"
            try:
                steps[phase]()
            except Stopped:
                return "stopped"
            self.state["phase"] = phase
            self._folder.write_json(STATE, self.state)
        return "finished"

    # -- phases ----------------------------------------------------------------------------

    def _begin(self) -> None:
        source = self._queues.get(self._plan.source)
        self.state = {
            "generation": self._plan._state(self._plan.source).generation,
            "status": source.text("Status") or "Active",
            "partitioned": source.text("EnablePartitioning") != "true",
        }

    def _create(self) -> None:
        """Create the new queue. It takes our messages and delivers none before all of them are there."""
        if self._queues.find(self._plan.target) is None:
            partitioned = str(self.state["partitioned"]).lower()
            self._queues.create_like(
                self._queues.get(self._plan.source),
                self._plan._state(self._plan.source).partition_count,
                self._plan.target,
                EnablePartitioning=partitioned,
                Status="ReceiveDisabled",
            )
        self.state["target_generation"] = self._plan._state(self._plan.target).generation

    def _freeze(self) -> None:
        self._same_queues()
        self._queues.set_status(self._plan.source, "Disabled")

    def _copy(self) -> None:
        """Copy until both are equal. The old queue changes only by messages that become due or expire."""
        self._same_queues()
        for _ in range(ROUNDS_MAX):
            with stoppable(self._spark, self._run):
                difference = self._compare()
                if difference.none:
                    self.state |= {"messages": difference.messages, "checksum": difference.checksum}
                    self._plan._refuse_dead_letters()
                    return
                self._remove(difference.surplus)
                self._send(difference.missing)
            self._run.tell(Progress("Repartition: copied", difference.messages, difference.messages))
        raise Unavailable(
            f"'{self._plan.target}' does not become equal to '{self._plan.source}': is somebody else sending "
            "to it, or do messages share an id that its duplicate detection drops? Nothing was given up."
        )

    def _open(self) -> None:
        self._queues.set_status(self._plan.target, self.state["status"])

    def _give_up(self) -> None:
        plan = self._plan
        if plan.ending == "keep":
            return
        old = self._queues.find(plan.source)
        if old is not None and old.text("ForwardTo"):
            return
        pattern = self._queues.get(plan.target)
        if old is not None:
            self._queues.delete(plan.source)
        if plan.ending == "forward":
            partitioned = str(not self.state["partitioned"]).lower()
            self._queues.create_like(
                pattern,
                plan._state(plan.target).partition_count,
                plan.source,
                EnablePartitioning=partitioned,
                RequiresSession="",
                ForwardTo=plan.target,
                Status=self.state["status"],
            )

    def _same_queues(self) -> None:
        """Check that these are the two planned queues, and not others created later with the same names."""
        plan = self._plan
        for entity, name in ((plan.source, "generation"), (plan.target, "target_generation")):
            if plan._state(entity).generation != self.state[name]:
                raise InvalidOperation(
                    f"'{entity}' was created again after the move began: start a new move."
                )

    # -- the difference --------------------------------------------------------------------

    def _compare(self) -> _Difference:
        plan, spark = self._plan, self._spark
        place = F.row_number().over(Window.partitionBy("mark").orderBy("sequence_number"))
        here = marked(browse(spark, plan.bus, plan.source, STATES), self.state["generation"])
        there = marked(browse(spark, plan.bus, plan.target, STATES), None)
        both = (
            here.withColumn("place", place)
            .alias("here")
            .join(there.withColumn("place", place).alias("there"), ["mark", "place"], "full_outer")
            .select(
                "mark",
                "here.key",
                *(F.col(f"here.{name}").alias(name) for name in ("sequence_number", "state", "checksum")),
                *(
                    F.col(f"there.{name}").alias(f"copy_{name}")
                    for name in ("sequence_number", "state", "checksum")
                ),
            )
            .cache()
        )
        try:
            return _difference(both, plan.target)
        finally:
            both.unpersist()

    def _send(self, missing: Sequence[int]) -> None:
        """Send messages of one key in one task, in their order."""
        if not missing:
            return
        plan = self._plan
        rows = browse(self._spark, plan.bus, plan.source, STATES)
        wanted = self._spark.createDataFrame([(number,) for number in missing], "wanted long")
        chosen = rows.join(wanted, rows.sequence_number == wanted.wanted, "left_semi")
        ordered = chosen.repartition("key").sortWithinPartitions("sequence_number")
        copies = ordered.mapInArrow(partial(_marked_copies, self.state["generation"]), "amqp_message binary")
        copies.write.format("servicebus").options(**plan.bus.source(plan.target)).mode("append").save()

    def _remove(self, surplus: Sequence[tuple[int, str]]) -> None:
        """Remove unseen copies: duplicates, and copies of messages that expired at the source."""
        with self._plan.bus.client(self._plan.target) as client:
            for state, operation in (
                ("active", "bendybus:complete-numbers"),
                ("scheduled", "com.microsoft:cancel-scheduled-message"),
            ):
                numbers = [number for number, found in surplus if found == state]
                for start in range(0, len(numbers), REMOVED_AT_ONCE):
                    share = numbers[start : start + REMOVED_AT_ONCE]
                    client.management().request(operation, {"sequence-numbers": Array(int, [*share])})


@dataclass(frozen=True, slots=True)
class _Difference:
    missing: Sequence[int]
    """Sequence numbers at the source."""
    surplus: Sequence[tuple[int, str]]
    """Sequence numbers and states at the target."""
    messages: int
    checksum: str

    @property
    def none(self) -> bool:
        return not self.missing and not self.surplus


def _difference(both: DataFrame, target: str) -> _Difference:
    """Compare messages with their copies. Either may be missing."""
    number, copy = F.col("sequence_number"), F.col("copy_sequence_number")
    missing, surplus = copy.isNull(), number.isNull()
    (told,) = both.agg(
        F.count(number).alias("messages"),
        F.sum(F.conv(F.substring("checksum", 1, 12), 16, 10).cast("decimal(38,0)")).alias("total"),
        F.count_if(F.col("mark").isNull()).alias("strangers"),
        F.count_if(F.col("checksum") != F.col("copy_checksum")).alias("changed"),
        F.count_if(missing | surplus).alias("unequal"),
    ).collect()
    if told.strangers:
        raise InvalidOperation(
            f"Somebody else has sent {told.strangers} messages to '{target}'; nothing was given up."
        )
    if told.changed:
        raise InvalidOperation(
            f"{told.changed} messages differ from their copies in '{target}'; nothing was given up."
        )
    checksum = f"{int(told.total or 0):x}"
    if not told.unequal:
        return _Difference((), _out_of_order(both), told.messages, checksum)
    return _Difference(
        [row.sequence_number for row in both.where(missing).select(number).collect()],
        [(row.copy_sequence_number, row.copy_state) for row in both.where(surplus).collect()],
        told.messages,
        checksum,
    )


def _out_of_order(both: DataFrame) -> list[tuple[int, str]]:
    """All copies of keys whose order is wrong. They are removed and sent again."""
    active = both.where("state = 'active' and copy_state = 'active'")
    last = F.lag("sequence_number").over(Window.partitionBy("key").orderBy("copy_sequence_number"))
    wrong = active.withColumn("last", last).where("last > sequence_number").select("key").distinct()
    again = active.join(wrong, "key", "left_semi").select("copy_sequence_number")
    return [(row.copy_sequence_number, "active") for row in again.collect()]


def _marked_copies(generation: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        payloads = batch.column("amqp_message").to_pylist()
        for marks in with_marks(generation, iter([batch])):
            pairs = zip(payloads, marks.column("mark").to_pylist(), strict=True)
            copies = [as_sent(payload, mark) for payload, mark in pairs]
            yield pa.RecordBatch.from_arrays([pa.array(copies, pa.binary())], names=["amqp_message"])
