"""`bendybus replay`: put completed messages that the server has kept back (operations/replaying.py)."""

from __future__ import annotations

import click

from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.options import confirm, dry_run_option, entity_argument, selector_option, yes_option
from bendybus.cli.output import note, show_one
from bendybus.cli.tables import progress
from bendybus.errors import ArgumentError, ConfigError, NotSupported, Unavailable
from bendybus.operations.drafts import instant
from bendybus.operations.replaying import Replaying

__all__ = ["replay"]


class Time(click.ParamType[int]):
    """A date and time such as 2026-11-16T10:00, in the machine's time zone unless it names one."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return instant(str(value))
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


@click.command
@entity_argument
@click.option("--from", "since", type=Time(), metavar="TIME", help="Completed at this time or later.")
@click.option("--to", "until", type=Time(), metavar="TIME", help="Completed before this time.")
@click.option("--enqueued-from", type=Time(), metavar="TIME", help="Enqueued at this time or later.")
@click.option("--enqueued-to", type=Time(), metavar="TIME", help="Enqueued before this time.")
@click.option("--session-id", "--session", help="Only messages of this session.")
@click.option("--key", help="Only messages with this session id or partition key.")
@click.option(
    "--sequence-number",
    "numbers",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Only the message with this number; may be repeated.",
)
@selector_option
@dry_run_option
@yes_option
@server_command
def replay(
    command: Command,
    entity: str,
    since: int | None,
    until: int | None,
    enqueued_from: int | None,
    enqueued_to: int | None,
    session_id: str | None,
    key: str | None,
    numbers: tuple[int, ...],
    selector: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Put completed messages back, as if they had just been sent.

    The queue or subscription must have --keep-completed. Without options, all kept messages are put back.
    """
    if numbers and (key is not None or selector is not None):
        raise ConfigError("--sequence-number cannot be combined with --key or --selector")
    with bus_client(command) as client, progress() as bar:
        replaying = Replaying(
            client,
            entity,
            session_id,
            key,
            selector,
            numbers,
            since,
            until,
            enqueued_from,
            enqueued_to,
        )
        try:
            matching = replaying.count()
        except NotSupported:
            raise NotSupported("This server does not keep completed messages.") from None
        count = 0
        if not dry_run and matching:
            bar.stop()
            confirm(f"Put {_messages(matching)} back into '{entity}'?", yes)
            bar.start()
            task = bar.add_task("Putting back", total=matching)
            for moved in replaying.run():
                count += moved
                bar.update(task, completed=count)
    if command.as_json:
        show_one({"entity": entity, "matching": matching, "replayed": count}, command.output)
    elif dry_run:
        note(f"Would put {_messages(matching)} back into '{entity}'.")
    else:
        note(f"Put {_messages(count)} back into '{entity}'.")
    if replaying.unavailable:
        raise Unavailable(
            f"{replaying.unavailable} partitions of '{entity}' are unavailable: their messages are not "
            "among these. Run the command again later; nothing is put back twice."
        )


def _messages(count: int) -> str:
    return f"{count} completed message{'' if count == 1 else 's'}"
