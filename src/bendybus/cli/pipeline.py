"""`bendybus pipeline`: capture, replay, report, triage, repartition and route, on Spark.

What each of them does is in `pyspark_servicebus.pipelines`, for programs as well; here are
their options. How they are run: pipeline_runs.py.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bendybus.cli.completion import entity_names
from bendybus.cli.options import Entity, Yes, confirm
from bendybus.cli.output import note, show_many
from bendybus.cli.pipeline_runs import SparkOptions, pipeline_command
from bendybus.errors import ConfigError

if TYPE_CHECKING:
    from pyspark_servicebus.pipelines import Summary

__all__ = ["app"]

app = typer.Typer(help="Data pipelines on Spark, local or on a cluster.", no_args_is_help=True)

Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Where the pipeline keeps its place.",
        show_default="beside the data, or below ./checkpoints",
    ),
]
Path_ = Annotated[str, typer.Argument(metavar="PATH", help="Folder, on any file system that Spark knows.")]
Destination = Annotated[
    str,
    typer.Argument(metavar="DESTINATION", help="A queue or a topic.", autocompletion=entity_names),
]
PerBatch = Annotated[
    int | None, typer.Option("--max-per-batch", min=1, metavar="N", help="Messages in one micro-batch.")
]
Where = Annotated[str | None, typer.Option(metavar="SQL", help="Only messages for which this holds.")]


class Format(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"


class Action(StrEnum):
    LIST = "list"
    RESUBMIT = "resubmit"
    DISCARD = "discard"


class Ending(StrEnum):
    FORWARD = "forward"
    DELETE = "delete"
    KEEP = "keep"


@app.command()
@pipeline_command
def capture(
    spark: SparkOptions,
    entity: Entity,
    path: Path_,
    form: Annotated[
        Format, typer.Option("--format", help="Files, or a Delta table through delta-rs.")
    ] = Format.PARQUET,
    consume: Annotated[
        bool, typer.Option("--consume", help="Complete what was captured; else it is only looked at.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw/--no-raw", help="Keep whole messages, for exact replays.")
    ] = True,
    max_per_batch: PerBatch = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Stream an entity into files, each message once: PATH/entity=.../date=.../partition=.../"""
    bus = spark.bus()
    from pyspark_servicebus.pipelines import Capture  # noqa: PLC0415 - see main.py

    spark.run(
        Capture(
            bus=bus,
            entity=entity,
            path=path,
            checkpoint=checkpoint,
            format=form,
            consume=consume,
            raw=raw,
            messages_per_trigger=max_per_batch,
        )
    )


@app.command()
@pipeline_command
def replay(
    spark: SparkOptions,
    path: Path_,
    destination: Destination,
    entity: Annotated[
        str | None,
        typer.Option(metavar="ENTITY", help="Whose capture.", show_default="the only one in PATH"),
    ] = None,
    where: Where = None,
    step: Annotated[
        int, typer.Option(min=1, metavar="N", help="Messages that are noted as sent at a time.")
    ] = (100_000),
    checkpoint: Checkpoint = None,
) -> None:
    """Send captured messages to an entity again, as they were and in their order."""
    bus = spark.bus()
    from pyspark_servicebus.pipelines import Replay  # noqa: PLC0415 - see main.py

    spark.run(
        Replay(
            bus=bus,
            path=path,
            destination=destination,
            entity=entity,
            where=where,
            checkpoint=checkpoint,
            step=step,
        )
    )


@app.command()
@pipeline_command
def report(
    spark: SparkOptions,
    entity: Annotated[
        list[str] | None,
        typer.Argument(help="Queues and subscriptions; their dead letters too.", autocompletion=entity_names),
    ] = None,
    captured: Annotated[
        str | None, typer.Option(metavar="PATH", help="A folder that 'capture' has written.")
    ] = None,
    page: Annotated[Path, typer.Option(metavar="FILE", help="The HTML page to write.")] = Path("report.html"),
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Keys to name.")] = 10,
) -> None:
    """Show rates, latencies, skew, keys and dead-letter reasons as one HTML page."""
    bus = spark.bus()
    from pyspark_servicebus.pipelines import Report  # noqa: PLC0415 - see main.py

    def show(summary: Summary) -> None:
        rows = [
            (part["title"], part["messages"], part["keys"], part["skew"], part["latency"].get("p50"))
            for part in summary.details.get("sections", ())
        ]
        show_many(("", "Messages", "Keys", "Skew", "Median age or latency (s)"), rows, None)
        note(f"The page: {page}")

    spark.run(Report(bus=bus, output=page, entities=tuple(entity or ()), captured=captured, top=top), show)


@app.command()
@pipeline_command
def triage(
    spark: SparkOptions,
    entity: Entity,
    action: Annotated[
        Action, typer.Option(help="Show the groups, send letters again, or delete them.")
    ] = Action.LIST,
    reason: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only letters with this reason; may be repeated."),
    ] = None,
    where: Where = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="ENTITY", help="Where to resubmit.", show_default="where they came from"),
    ] = None,
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Give each a new message id, made from its number.")
    ] = False,
    yes: Yes = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Group dead letters by their reasons; resubmit or discard those that are chosen."""
    bus = spark.bus()
    from pyspark_servicebus.pipelines import Triage  # noqa: PLC0415 - see main.py

    def show(summary: Summary) -> None:
        groups = summary.details["groups"]
        rows = [(each["reason"], each["messages"], each["newest"][:19], each["example"]) for each in groups]
        show_many(("Reason", "Messages", "Newest (UTC)", "Such as"), rows, None)
        if action is not Action.LIST:
            done = "resubmitted" if action is Action.RESUBMIT else "discarded"
            note(f"{summary.messages} of {summary.details['selected']} dead letters {done}.")

    if action is Action.DISCARD:
        confirm(f"Delete the chosen dead letters of '{entity}'?", yes)
    spark.run(
        Triage(
            bus=bus,
            entity=entity,
            action=action,
            reasons=tuple(reason or ()),
            where=where,
            to=to,
            new_ids=new_ids,
            checkpoint=checkpoint,
        ),
        show,
    )


@app.command()
@pipeline_command
def repartition(
    spark: SparkOptions,
    queue: Annotated[str, typer.Argument(help="The queue to move.", autocompletion=entity_names)],
    target: Annotated[str, typer.Argument(help="The new queue; it is made here.")],
    ending: Annotated[
        Ending, typer.Option(help="Let the old queue forward to the new one, delete it, or keep it disabled.")
    ] = Ending.FORWARD,
    yes: Yes = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Move a queue's messages to a new one with the other partitioning choice."""
    bus = spark.bus()
    from pyspark_servicebus.pipelines import Repartition  # noqa: PLC0415 - see main.py

    if not spark.available_now:
        raise ConfigError("a queue is moved once: there is no --continuous")
    confirm(f"Move all messages of '{queue}' to '{target}'? Its clients are refused meanwhile.", yes)
    spark.run(Repartition(bus=bus, source=queue, target=target, ending=ending, checkpoint=checkpoint))


@app.command()
@pipeline_command
def route(
    spark: SparkOptions,
    source: Annotated[
        str, typer.Argument(help="A queue or TOPIC/Subscriptions/NAME.", autocompletion=entity_names)
    ],
    destination: Destination,
    sql: Annotated[
        str | None, typer.Option(metavar="SQL", help="What is sent: SELECT ... FROM messages ...")
    ] = None,
    sql_file: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="The same, in a file.")
    ] = None,
    browse: Annotated[bool, typer.Option("--browse", help="Leave the messages at the source.")] = False,
    max_per_batch: PerBatch = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Stream messages from one entity through a Spark SQL statement to another."""
    bus = spark.bus()
    from pyspark_servicebus.pipelines import Route  # noqa: PLC0415 - see main.py

    if (sql is None) == (sql_file is None):
        raise ConfigError("give the statement as --sql or as --sql-file, and only one of them")
    statement = sql if sql is not None else (sql_file or Path()).read_text()
    spark.run(
        Route(
            bus=bus,
            source=source,
            destination=destination,
            statement=statement,
            checkpoint=checkpoint,
            consume=not browse,
            messages_per_trigger=max_per_batch,
        )
    )
