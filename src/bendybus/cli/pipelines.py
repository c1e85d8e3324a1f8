"""The commands of `bendybus pipeline`: capture, replay, report, triage, repartition and route.

What each of them does is in `pyspark_servicebus.pipelines`, for programs as well; here are
their options. How they are run: pipeline_runs.py.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

import click

from bendybus.cli.completion import entity_names
from bendybus.cli.options import Choices, confirm, entity_argument, yes_option
from bendybus.cli.output import note, show_many
from bendybus.cli.pipeline_runs import SparkOptions, pipeline_command
from bendybus.errors import ConfigError
from pyspark_servicebus.pipelines import Capture, Repartition, Replay, Report, Route, Summary, Triage

__all__ = ["capture", "repartition", "replay", "report", "route", "triage"]

_checkpoint_option = click.option(
    "--checkpoint",
    metavar="DIR",
    help="Where the pipeline keeps its position.",
    show_default="beside the data, or below ./checkpoints",
)
_path_argument = click.argument("path", help="Folder, on any file system that Spark supports.")
_destination_argument = click.argument("destination", help="A queue or a topic.", shell_complete=entity_names)
_per_batch_option = click.option(
    "--max-per-batch", type=click.IntRange(min=1), metavar="N", help="Messages in one micro-batch."
)
_where_option = click.option(
    "--where", metavar="SQL", help="Only messages for which this SQL condition is true."
)


REPORT_COLUMNS: Final = (
    "Entity",
    "Waiting",
    "Captured",
    "Dead letters",
    "Keys",
    "Skew",
    "Median age (s)",
    "Median latency (s)",
)


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


@click.command
@entity_argument
@_path_argument
@click.option(
    "--format",
    "form",
    type=Choices(Format),
    default=Format.PARQUET.value,
    show_default=True,
    help="Files, or a Delta table through delta-rs.",
)
@click.option("--consume", is_flag=True, help="Complete captured messages; otherwise they are only browsed.")
@click.option(
    "--raw/--no-raw", default=True, show_default=True, help="Keep whole messages, for exact replays."
)
@_per_batch_option
@_checkpoint_option
@pipeline_command
def capture(
    spark: SparkOptions,
    entity: str,
    path: str,
    form: Format,
    consume: bool,
    raw: bool,
    max_per_batch: int | None,
    checkpoint: str | None,
) -> None:
    """Stream an entity into files, each message once.

    The files are in PATH/entity=.../date=.../partition=.../
    """
    spark.run(
        Capture(
            bus=spark.bus(),
            entity=entity,
            path=path,
            checkpoint=checkpoint,
            format=form,
            consume=consume,
            raw=raw,
            messages_per_trigger=max_per_batch,
        )
    )


@click.command
@_path_argument
@_destination_argument
@click.option(
    "--entity", metavar="ENTITY", help="The entity that was captured.", show_default="the only one in PATH"
)
@_where_option
@click.option(
    "--step",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    metavar="N",
    help="The number of messages that are recorded as sent at a time.",
)
@_checkpoint_option
@pipeline_command
def replay(
    spark: SparkOptions,
    path: str,
    destination: str,
    entity: str | None,
    where: str | None,
    step: int,
    checkpoint: str | None,
) -> None:
    """Send captured messages to an entity again, as they were and in their order."""
    spark.run(
        Replay(
            bus=spark.bus(),
            path=path,
            destination=destination,
            entity=entity,
            where=where,
            checkpoint=checkpoint,
            step=step,
        )
    )


@click.command
@click.argument(
    "entity",
    nargs=-1,
    help="Queues and subscriptions; their dead letters too.",
    shell_complete=entity_names,
)
@click.option("--captured", metavar="PATH", help="A folder that 'capture' has written.")
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    metavar="FILE",
    help="The HTML page to write.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="The number of keys to list.",
)
@pipeline_command
def report(spark: SparkOptions, entity: tuple[str, ...], captured: str | None, page: Path, top: int) -> None:
    """Show rates, latencies, skew, keys and dead-letter reasons as one HTML page."""

    def show(summary: Summary) -> None:
        show_many(REPORT_COLUMNS, report_rows(summary), None)
        reasons = [
            (entity, group["reason"] or "(none given)", group["messages"])
            for entity, groups in summary.details.get("deadLetters", {}).items()
            for group in groups
        ]
        if reasons:
            show_many(("Dead letters of", "Reason", "Messages"), reasons, None)
        note(f"The page: {page}")

    spark.run(Report(bus=spark.bus(), output=page, entities=entity, captured=captured, top=top), show)


def report_rows(summary: Summary) -> list[tuple[object, ...]]:
    """A row for each entity. Keys and skew are of the waiting messages, or else of the captured ones."""
    parts = {(part["entity"], part["kind"]): part for part in summary.details.get("sections", ())}
    letters = summary.details.get("deadLetters", {})
    rows: list[tuple[object, ...]] = []
    for entity in dict.fromkeys([*(entity for entity, _ in parts), *letters]):
        waiting, captured = parts.get((entity, "waiting")), parts.get((entity, "captured"))
        shown = waiting or captured or {}
        dead = letters.get(entity)
        rows.append(
            (
                entity,
                None if waiting is None else waiting["messages"],
                None if captured is None else captured["messages"],
                None if dead is None else sum(group["messages"] for group in dead),
                shown.get("keys"),
                shown.get("skew"),
                None if waiting is None else waiting["latency"].get("p50"),
                None if captured is None else captured["latency"].get("p50"),
            )
        )
    return rows


@click.command
@entity_argument
@click.option(
    "--action",
    type=Choices(Action),
    default=Action.LIST.value,
    show_default=True,
    help="Show the groups, resubmit the letters, or delete them.",
)
@click.option(
    "--reason", multiple=True, metavar="TEXT", help="Only letters with this reason; may be repeated."
)
@_where_option
@click.option("--to", metavar="ENTITY", help="Where to resubmit.", show_default="where they came from")
@click.option("--new-ids", is_flag=True, help="Give each a new message id, made from its number.")
@yes_option
@_checkpoint_option
@pipeline_command
def triage(
    spark: SparkOptions,
    entity: str,
    action: Action,
    reason: tuple[str, ...],
    where: str | None,
    to: str | None,
    new_ids: bool,
    yes: bool,
    checkpoint: str | None,
) -> None:
    """Group dead letters by their reasons; resubmit or discard a selection."""

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
            bus=spark.bus(),
            entity=entity,
            action=action,
            reasons=reason,
            where=where,
            to=to,
            new_ids=new_ids,
            checkpoint=checkpoint,
        ),
        show,
    )


@click.command
@click.argument("entity", help="The queue or topic to move.", shell_complete=entity_names)
@click.argument("target", help="The new queue or topic, which this command creates.")
@click.option(
    "--ending",
    type=Choices(Ending),
    default=Ending.FORWARD.value,
    show_default=True,
    help="Let the old one forward to the new one, delete it, or keep it disabled.",
)
@yes_option
@_checkpoint_option
@pipeline_command
def repartition(
    spark: SparkOptions, entity: str, target: str, ending: Ending, yes: bool, checkpoint: str | None
) -> None:
    """Move a queue or topic to a new one with the other partitioning choice.

    Deferred messages, dead letters, states of sessions and subscriptions with their rules are moved too.
    """
    if not spark.available_now:
        raise ConfigError("an entity is moved once: there is no --continuous")
    confirm(f"Move all messages of '{entity}' to '{target}'? Its clients are refused meanwhile.", yes)
    spark.run(
        Repartition(bus=spark.bus(), source=entity, target=target, ending=ending, checkpoint=checkpoint)
    )


@click.command
@click.argument("source", help="A queue or TOPIC/Subscriptions/NAME.", shell_complete=entity_names)
@_destination_argument
@click.option(
    "--sql", metavar="SQL", help="The statement that selects what to send: SELECT ... FROM messages ..."
)
@click.option(
    "--sql-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The same, in a file.",
)
@click.option("--browse", is_flag=True, help="Leave the messages at the source.")
@_per_batch_option
@_checkpoint_option
@pipeline_command
def route(
    spark: SparkOptions,
    source: str,
    destination: str,
    sql: str | None,
    sql_file: Path | None,
    browse: bool,
    max_per_batch: int | None,
    checkpoint: str | None,
) -> None:
    """Stream messages from one entity through a Spark SQL statement to another."""
    if (sql is None) == (sql_file is None):
        raise ConfigError("give the statement as --sql or as --sql-file, and only one of them")
    statement = sql if sql is not None else (sql_file or Path()).read_text()
    spark.run(
        Route(
            bus=spark.bus(),
            source=source,
            destination=destination,
            statement=statement,
            checkpoint=checkpoint,
            consume=not browse,
            messages_per_trigger=max_per_batch,
        )
    )
