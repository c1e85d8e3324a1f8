"""How `bendybus pipeline` runs a pipeline: options that all share, a Spark session, progress, the summary.

A wrong call is reported before Spark is started, which takes seconds. The first SIGINT or
SIGTERM ends a run in order; the second ends it at once. The next run continues in both cases.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any, Concatenate, Final

import click
from pyspark.sql import SparkSession

from bendybus.auth.sas import SAS_PREFIX
from bendybus.cli.command import Command, server_command
from bendybus.cli.output import note, show_one
from bendybus.cli.tables import progress
from bendybus.cli.target import TOKEN_VARIABLE
from bendybus.errors import ConfigError
from bendybus.management.run_reports import RunReporter
from pyspark_servicebus import spark_session
from pyspark_servicebus.pipelines import Bus, Pipeline, Progress, Run, Summary, shipped

__all__ = ["SparkOptions", "pipeline_command"]

# A shuffle into 200 parts, Spark's default, is for clusters.
LOCAL_SHUFFLE_PARTITIONS: Final = 8

_OPTIONS: Final = (
    click.option(
        "--master", metavar="URL", help="Spark's master.", show_default="$SPARK_MASTER, or local[*]"
    ),
    click.option("--archive", metavar="FILE", help="A packed environment for the executors (venv-pack)."),
    click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark's; may be repeated."
    ),
    click.option(
        "--available-now/--continuous",
        default=True,
        show_default=True,
        help="End when all current messages are processed, or continue until stopped.",
    ),
    click.option(
        "--interval",
        type=click.FloatRange(min=0.1),
        default=1.0,
        show_default=True,
        metavar="SECONDS",
        help="With --continuous, the time between batches.",
    ),
    click.option(
        "--summary",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the summary there too, as JSON.",
    ),
)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where and how a pipeline runs; `run` does it."""

    command: Command
    master: str | None
    archive: str | None
    conf: tuple[str, ...]
    available_now: bool
    interval: float
    summary: Path | None

    def bus(self) -> Bus:
        """The namespace that the command was pointed at."""
        namespace = self.command.namespace()
        if not namespace.key and not namespace.signature.startswith(SAS_PREFIX):
            raise ConfigError(
                f"Spark's tasks need a connection string with a key: {TOKEN_VARIABLE} is not for them"
            )
        certificate = os.environ.get("SSL_CERT_FILE")
        options = {"certificate": certificate} if certificate and namespace.tls else {}
        return Bus(namespace.text, options)

    def run(self, pipeline: Pipeline, show: Callable[[Summary], None] | None = None) -> None:
        """Check, run and show the result; `show` replaces the usual table."""
        if self.summary is not None and not self.summary.absolute().parent.is_dir():
            raise ConfigError(f"there is no folder '{self.summary.parent}' for the summary")
        pipeline.check()
        stopping = threading.Event()
        spark = None if self._needs_no_spark(pipeline) else self._session()
        with ended_by_signals(stopping), progress() as bar:
            task = bar.add_task("Starting", total=None)
            reporter = self._reporter(pipeline)

            def tell(told: Progress) -> None:
                bar.update(task, description=told.phase, completed=told.messages, total=told.total)
                reporter.tell(told.phase, told.messages, told.total)

            run = Run(self.available_now, tell, stopping, self.interval)
            try:
                summary = pipeline.run(spark, run)  # type: ignore[arg-type]  # None only where it is small
            except BaseException as error:
                reporter.end("failed", error=str(error) or type(error).__name__)
                raise
            finally:
                if spark is not None:
                    spark.stop()
        values = summary.to_json()
        reporter.end(summary.outcome, summary.messages, values)
        if self.summary is not None:
            self.summary.write_text(json.dumps(values, indent=2) + "\n")
        if self.command.as_json:
            show_one(values, self.command.output)
        elif show is not None:
            show(summary)
        else:
            show_one(
                {name: value for name, value in values.items() if not isinstance(value, list)},
                self.command.output,
            )
        if summary.outcome == "stopped":
            note("Stopped; run it again to go on.")

    def _needs_no_spark(self, pipeline: Pipeline) -> bool:
        """Whether the work is so small that Spark's start would take longest, and no master is named."""
        named = self.master or os.environ.get("SPARK_MASTER") or self.archive or self.conf
        return not named and bool(getattr(pipeline, "small", False))

    def _reporter(self, pipeline: Pipeline) -> RunReporter:
        """Tells the server about the run, for its portal."""
        about = next(
            (found for name in ("entity", "entities", "source") if (found := getattr(pipeline, name, None))),
            "",
        )
        shown = ", ".join(about) if isinstance(about, tuple) else str(about)
        name = type(pipeline).__name__.lower()
        return RunReporter(self.command.namespace(), name, shown, self.command.certificate())

    def _session(self) -> SparkSession:
        quiet = files("pyspark_servicebus.pipelines") / "log4j2.properties"
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet}",
        }
        master = self.master or os.environ.get("SPARK_MASTER") or "local[*]"
        if master.startswith("local"):
            settings["spark.sql.shuffle.partitions"] = str(LOCAL_SHUFFLE_PARTITIONS)
        if self.archive is not None:
            settings |= shipped(self.archive)
        for each in self.conf:
            name, separator, value = each.partition("=")
            if not separator or not name.startswith("spark."):
                raise ConfigError(f"--conf '{each}' is not a setting such as spark.executor.memory=2g")
            settings[name] = value
        return spark_session("bendybus", master, settings)


def pipeline_command(function: Callable[Concatenate[SparkOptions, ...], None]) -> Callable[..., None]:
    """The function as a command against a server, with the options of Spark's after its own."""

    @functools.wraps(function)
    def run(
        command: Command,
        master: str | None,
        archive: str | None,
        conf: tuple[str, ...],
        available_now: bool,
        interval: float,
        summary: Path | None,
        **arguments: Any,
    ) -> None:
        function(SparkOptions(command, master, archive, conf, available_now, interval, summary), **arguments)

    decorated = server_command(run)
    for add in reversed(_OPTIONS):
        decorated = add(decorated)
    return decorated


@contextmanager
def ended_by_signals(stopping: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets `stopping`, the second interrupts."""

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
