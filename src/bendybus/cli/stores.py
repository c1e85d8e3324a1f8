"""`bendybus store`: the messaging stores of a running server: attach, drain, retire and forget them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import click

from bendybus.cli.command import Command, server_command
from bendybus.cli.options import ASK_EVERY_S, confirm, drain_options, yes_option
from bendybus.cli.output import note, show_many, show_one
from bendybus.cli.tables import progress
from bendybus.errors import InvalidOperation, Unavailable

__all__ = ["app"]

COLUMNS: Final = ("Name", "Kind", "State", "Since", "Partitions", "Bytes", "Draining")

# How long to wait for a server that restarts: the drain continues by itself.
PATIENCE_S: Final = 30.0

_name_argument = click.argument("name", help="The store, as 'bendybus store list' shows it.")


@click.group("store", no_args_is_help=True)
def app() -> None:
    """Messaging stores: list, attach, drain, retire, forget."""


@app.command("list")
@server_command
def list_stores(command: Command) -> None:
    """List the messaging stores: name, kind, state and size."""
    stores = command.ask_json("GET", "/$stores")["stores"]
    of_several = any("broker" in each for each in stores)
    columns = (*COLUMNS, "Broker") if of_several else COLUMNS
    rows = ((*_row(each), *([each["broker"]] if of_several else [])) for each in stores)
    show_many(columns, rows, stores if command.as_json else None)


@app.command
@click.argument("url", help="sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE.")
@click.option("--name", help="What to call it.", show_default="the file's or the database's name")
@server_command
def attach(command: Command, url: str, name: str | None) -> None:
    """Attach another messaging store permanently. New entities use it too."""
    _show(command, command.ask_json("POST", "/$stores", {"url": url, "name": name}), "attached")


@app.command
@_name_argument
@drain_options("Wait until the store is empty, and show the progress.", "End the drain: use the store again.")
@server_command
def drain(command: Command, name: str, wait: bool, stop: bool) -> None:
    """Empty a store: its partitions move to the others while messages flow.

    You can interrupt the command: the server continues without it, even after a restart.
    """
    answer = command.ask_json("PUT", _path(name), {"draining": not stop})
    if wait and not stop:
        answer = _follow(command, answer)
    _show(command, answer, "in use" if stop else "drained" if _is_empty(answer) else "draining")


@app.command
@_name_argument
@server_command
def retire(command: Command, name: str) -> None:
    """Remove an empty store from the server. Its file or database is kept."""
    _show(command, command.ask_json("DELETE", _path(name)), "retired")


@app.command
@_name_argument
@yes_option
@server_command
def forget(command: Command, name: str, yes: bool) -> None:
    """Give up a store that is lost for good, with every message in it.

    Its partitions start again, empty, in the other stores. The store must be unavailable.
    """
    store = command.ask_json("GET", _path(name))
    if "loss" not in store:
        raise InvalidOperation(
            f"The messaging store '{name}' is {store['state']}, so it must not be given up: "
            "drain it and retire it."
        )
    confirm(f"Give up {_told_loss(store['loss'])} with the messaging store '{name}', for good?", yes)
    answer = command.ask_json("DELETE", f"{_path(name)}?forget=true")
    _show(command, answer, f"forgotten, and with it {_told_loss(answer)}")


def _told_loss(loss: Mapping[str, Any]) -> str:
    """What is known of it: a partition that was never loaded since the start was not counted."""
    partitions, messages, uncounted = loss["partitions"], loss["messages"], loss["uncounted"]
    if uncounted == partitions:
        known = "an unknown number of messages"
    else:
        known = f"{messages} messages" + (
            f" and those of {uncounted} uncounted partitions" if uncounted else ""
        )
    return f"{partitions} partitions and {known}"


def _follow(command: Command, answer: dict[str, Any]) -> dict[str, Any]:
    """Wait until the store is empty or the drain is stopped."""
    name, total, problem = answer["name"], answer["partitions"], ""
    with progress() as bar:
        task = bar.add_task(f"Draining {name}", total=total)
        answered_at = time.monotonic()
        while not _is_empty(answer) and answer["draining"]:
            time.sleep(ASK_EVERY_S)
            try:
                answer = command.ask_json("GET", _path(name))
                answered_at = time.monotonic()
            except Unavailable:
                if time.monotonic() - answered_at > PATIENCE_S:
                    raise
            bar.update(task, completed=total - answer["partitions"])
            if answer.get("problem", problem) != problem:
                problem = answer["problem"]
                note(f"{name}: {problem}")
    return answer


def _is_empty(answer: Mapping[str, Any]) -> bool:
    return not answer["partitions"] and "moving" not in answer


def _path(name: str) -> str:
    return f"/$stores/{quote(name, safe='')}"


def _show(command: Command, answer: Mapping[str, Any], done: str) -> None:
    if command.as_json:
        show_one(answer, command.output)
    else:
        note(f"{answer['name']}: {done}")


def _row(store: Mapping[str, Any]) -> tuple[object, ...]:
    # Of a store whose broker does not answer, it is not known.
    since = (
        datetime.fromtimestamp(store["since"] / 1000, UTC).isoformat(" ", "seconds") if store["since"] else ""
    )
    draining = "yes" if store["draining"] else ""
    if "moving" in store:
        draining = f"{store['moving']}, {store['copied']} messages copied"
    elif "problem" in store:
        draining = f"waits: {store['problem']}"
    columns = ("name", "kind", "state", "partitions", "bytes")
    name, kind, state, partitions, size = (store[column] for column in columns)
    return name, kind, state, since, partitions, size, draining
