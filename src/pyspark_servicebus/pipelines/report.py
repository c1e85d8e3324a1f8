"""Report: what is in entities, and what was captured of them, as one HTML page and as JSON.

It only reads. A continuous run writes the page again and again; a
reader finds the old page or the new one. The numbers: facts.py. The page: page.py.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bendybus.errors import ArgumentError, BrokerError
from pyspark_servicebus.pipelines.capture import captured, captured_entities, check_captured
from pyspark_servicebus.pipelines.facts import CAPTURED, WAITING, Facts, facts_of
from pyspark_servicebus.pipelines.jobs import Stopped, stoppable
from pyspark_servicebus.pipelines.page import page
from pyspark_servicebus.pipelines.pipeline import (
    Bus,
    Progress,
    Run,
    Summary,
    at_least_one,
    dead_letters_of,
    is_dead_letters,
    timed,
)
from pyspark_servicebus.pipelines.triage import reason_groups

__all__ = ["Report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    bus: Bus
    output: Path
    entities: tuple[str, ...] = ()
    """Queues and subscriptions, with their dead letters."""
    captured: str | None = None
    """A folder that 'capture' has written."""
    top: int = 10

    def check(self) -> None:
        if not self.entities and self.captured is None:
            raise ArgumentError("A report needs an entity, or a folder with a capture.")
        at_least_one("top", self.top)
        if not self.output.absolute().parent.is_dir():
            raise ArgumentError(f"There is no folder '{self.output.parent}' for the page.")
        if self.captured is not None:
            check_captured(self.captured)
        for entity in self.entities:
            if is_dead_letters(entity):
                raise ArgumentError(f"Name the entity itself; the report has its dead letters: '{entity}'.")
            self.bus.check_readable(entity)

    def run(self, spark: SparkSession, run: Run) -> Summary:
        self.check()
        with timed() as seconds:
            outcome, details = self._once(spark, run)
            while outcome == "finished" and not run.available_now:
                if run.stopping.wait(run.interval_s):
                    break
                outcome, newer = self._once(spark, run)
                details = newer or details
        messages = sum(part["messages"] for part in details.get("sections", ()))
        return Summary("report", outcome, messages, seconds(), {"page": str(self.output), **details})

    def _once(self, spark: SparkSession, run: Run) -> tuple[str, dict[str, Any]]:
        parts: list[Facts] = []
        letters: list[tuple[str, list[dict[str, Any]]]] = []
        try:
            with stoppable(spark, run):
                for entity in self.entities:
                    run.tell(Progress(f"Reporting on {entity}", sum(each.messages for each in parts)))
                    parts.append(self._waiting(spark, entity))
                    letters.append((entity, self._letters(spark, entity)))
                if self.captured is not None:
                    for entity in captured_entities(spark, self.captured):
                        run.tell(Progress(f"Reporting on the capture of {entity}", 0))
                        parts.append(self._captured(spark, entity))
                    if not parts:
                        captured(spark, self.captured)
        except Stopped:
            return "stopped", {}
        self._write(parts, letters)
        sections = [part.to_json() for part in parts]
        return "finished", {"sections": sections, "deadLetters": dict(letters)}

    def _waiting(self, spark: SparkSession, entity: str) -> Facts:
        state = self.bus.check_readable(entity)
        options = self.bus.source(entity, includeProperties="false")
        rows = spark.read.format("servicebus").options(**options).load()
        count = 1 if state is None else state.partition_count
        return facts_of(rows, entity, WAITING, "Age of waiting", F.current_timestamp(), count, self.top)

    def _letters(self, spark: SparkSession, entity: str) -> list[dict[str, Any]]:
        options = self.bus.source(
            dead_letters_of(entity), includeBody="false", includeProperties="false", states="active,deferred"
        )
        return reason_groups(spark.read.format("servicebus").options(**options).load())

    def _captured(self, spark: SparkSession, entity: str) -> Facts:
        assert self.captured is not None
        rows = captured(spark, self.captured, entity)
        try:
            state = self.bus.check_readable(entity)
        except BrokerError:
            # The entity may no longer exist. Then only partitions that had messages are known.
            state = None
        count = 1 if state is None else state.partition_count
        name = "Latency from enqueued to captured"
        return facts_of(rows, entity, CAPTURED, name, F.col("captured_time"), count, self.top)

    def _write(self, parts: list[Facts], letters: list[tuple[str, list[dict[str, Any]]]]) -> None:
        made_at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        title = "Report on " + (", ".join(self.entities) or str(self.captured))
        fresh = self.output.with_name(f".{self.output.name}.{os.getpid()}")
        fresh.write_text(page(title, made_at, parts, dict(letters)), encoding="utf-8")
        fresh.replace(self.output)
