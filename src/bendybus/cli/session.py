"""`bendybus session`: the sessions of an entity, their states, and dead-lettering a whole one."""

from __future__ import annotations

import base64
import sys
from itertools import islice
from pathlib import Path
from typing import Final

import click

from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.options import confirm, dry_run_option, entity_argument, max_option, yes_option
from bendybus.cli.output import note, show_many, show_one
from bendybus.cli.tables import progress
from bendybus.client import BusClient
from bendybus.errors import ConfigError
from bendybus.operations.peeking import SESSION_WAIT_MIN_S, State, peeked
from bendybus.operations.sessions import dead_lettered, session_ids, session_state, set_session_state

__all__ = ["app"]

# How long to wait for a session that another receiver holds.
HELD_WAIT_S: Final = SESSION_WAIT_MIN_S + 3

_session_argument = click.argument("session_id", metavar="SESSION", help="Id of the session.")


@click.group("session", no_args_is_help=True)
def app() -> None:
    """Sessions: list, state, dead-letter."""


@app.command("list")
@entity_argument
@max_option(shown="all there are")
@server_command
def list_sessions(command: Command, entity: str, max_count: int | None) -> None:
    """List the sessions that have messages or a state."""
    with bus_client(command) as client:
        found = list(islice(session_ids(client, entity), max_count))
    if found or command.as_json:
        show_many(("Session",), ([each] for each in found), found if command.as_json else None)
    else:
        note(f"'{entity}' has no sessions now.")


@app.command
@entity_argument
@_session_argument
@click.option("--set", "text", metavar="TEXT", help="Set the state to this text.")
@click.option(
    "--file",
    "-f",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Set the state to the content of this file.",
)
@click.option("--clear", is_flag=True, help="Remove the state.")
@server_command
def state(
    command: Command, entity: str, session_id: str, text: str | None, file: Path | None, clear: bool
) -> None:
    """Print the state of a session, or change it.

    The session is locked for a moment. If another receiver holds it, the command fails.
    """
    if (text is not None) + (file is not None) + clear > 1:
        raise ConfigError("--set, --file and --clear cannot be combined")
    with _client(command) as client:
        if text is not None or file is not None or clear:
            wanted = file.read_bytes() if file is not None else text.encode() if text is not None else None
            set_session_state(client, entity, session_id, wanted)
            note(f"The state of the session '{session_id}' is {'gone' if not wanted else 'set'}.")
            return
        found = session_state(client, entity, session_id)
    if command.as_json:
        show_one({"entity": entity, "sessionId": session_id, **_shown(found)}, command.output)
    elif found is None:
        note(f"The session '{session_id}' has no state.")
    else:
        # As it is, so that it can be written to a file.
        sys.stdout.buffer.write(found)
        sys.stdout.buffer.flush()
        if sys.stdout.isatty():
            click.echo()


@app.command("dead-letter")
@entity_argument
@_session_argument
@click.option("--reason", default="", metavar="TEXT", help="Why.")
@click.option("--description", default="", metavar="TEXT", help="A longer description.")
@dry_run_option
@yes_option
@server_command
def dead_letter(
    command: Command, entity: str, session_id: str, reason: str, description: str, dry_run: bool, yes: bool
) -> None:
    """Move all messages of a session to the dead-letter queue, deferred ones too.

    Messages that a receiver has locked stay.
    """
    if dry_run:
        with bus_client(command) as client:
            count = _count(client, entity, session_id)
        _report(command, entity, session_id, count, dry_run=True)
        return
    confirm(f"Dead-letter all messages of the session '{session_id}' of '{entity}'?", yes)
    count = 0
    with _client(command) as client, progress() as bar:
        task = bar.add_task("Dead-lettering", total=None)
        for done in dead_lettered(client, entity, session_id, reason, description):
            count += done
            bar.update(task, completed=count)
    _report(command, entity, session_id, count, dry_run=False)


def _client(command: Command) -> BusClient:
    return bus_client(command, retries=0, timeout_s=HELD_WAIT_S)


def _count(client: BusClient, entity: str, session_id: str) -> int:
    management = client.management(entity)
    return sum(
        1
        for wanted in (State.ACTIVE, State.DEFERRED)
        for _ in peeked(management, state=wanted, session_id=session_id, without_body=True)
    )


def _report(command: Command, entity: str, session_id: str, count: int, *, dry_run: bool) -> None:
    if command.as_json:
        done = {"matching": count, "deadLettered": 0} if dry_run else {"deadLettered": count}
        show_one({"entity": entity, "sessionId": session_id, **done}, command.output)
        return
    plural = "" if count == 1 else "s"
    what = "Would dead-letter" if dry_run else "Dead-lettered"
    note(f"{what} {count} message{plural} of the session '{session_id}' of '{entity}'.")


def _shown(state: bytes | None) -> dict[str, object]:
    if state is None:
        return {"state": None}
    try:
        return {"state": state.decode()}
    except UnicodeDecodeError:
        return {"stateBase64": base64.b64encode(state).decode("ascii")}
