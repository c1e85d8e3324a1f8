"""`bendybus broker`: the brokers of a running server, what each of them owns, and brokers that drain."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import click

from bendybus.cli.command import Command, server_command
from bendybus.cli.options import ASK_EVERY_S, drain_options
from bendybus.cli.output import note, show_many, show_one

__all__ = ["app", "show_owners"]

COLUMNS: Final = ("Name", "State", "Leads", "Address", "Version", "Stores", "Partitions")

_name_argument = click.argument("name", help="The broker, as 'bendybus broker list' shows it.")


@click.group("broker", no_args_is_help=True)
def app() -> None:
    """The brokers of a server that has several: list, show, drain."""


@app.command("list")
@server_command
def list_brokers(command: Command) -> None:
    """List the brokers: state, leader, and the messaging stores that each one owns."""
    brokers = command.ask_json("GET", "/$brokers")["brokers"]
    show_many(COLUMNS, map(_row, brokers), brokers if command.as_json else None)


@app.command
@_name_argument
@server_command
def show(command: Command, name: str) -> None:
    """Show a broker, and the partitions of each entity that it owns."""
    broker = command.ask_json("GET", f"/$brokers/{quote(name, safe='')}")
    if not command.as_json:
        broker["stores"] = ", ".join(broker["stores"])
        broker["entities"] = {path: _spans(numbers) for path, numbers in broker["entities"].items()}
    show_one(broker, command.output)


@app.command
@_name_argument
@drain_options("Wait until the broker owns no messaging store.", "End the drain: the broker gets its share.")
@server_command
def drain(command: Command, name: str, wait: bool, stop: bool) -> None:
    """Move the messaging stores of a broker to the other brokers of its cluster, before you stop it.

    Locks and sessions stay valid. The broker serves its clients until it stops.
    """
    path = f"/$brokers/{quote(name, safe='')}"
    broker = command.ask_json("PUT", path, {"draining": not stop})
    while wait and not stop and broker["stores"] and broker["state"] == "draining":
        time.sleep(ASK_EVERY_S)
        broker = command.ask_json("GET", path)
    if command.as_json:
        show_one(broker, command.output)
    else:
        left = f", and still owns {', '.join(broker['stores'])}" if broker["stores"] and not stop else ""
        note(f"{name}: {broker['state']}{left}")


def show_owners(command: Command, path: str) -> None:
    """Which broker owns each partition of an entity."""
    partitions = command.ask_json("GET", f"/$brokers?entity={quote(path, safe='')}")["partitions"]
    rows = ((each["number"], each["store"], each["owner"]) for each in partitions)
    show_many(("Partition", "Store", "Owner"), rows, partitions if command.as_json else None)


def _row(broker: Mapping[str, Any]) -> tuple[object, ...]:
    stores, leads = ", ".join(broker["stores"]), "yes" if broker["leads"] else ""
    named = (broker["name"], broker["state"], leads, broker["address"], broker["version"])
    return *named, stores, broker["partitions"]


def _spans(numbers: list[int]) -> str:
    """`0-3, 7`: numbers that follow each other are shown as one."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
