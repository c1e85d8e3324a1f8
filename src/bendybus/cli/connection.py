"""`bendybus connection`: the AMQP connections of a server: list them, and close some."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import click

from bendybus.cli.command import Command, server_command
from bendybus.cli.completion import entity_names
from bendybus.cli.options import Decorator, dry_run_option
from bendybus.cli.output import note, show_many, show_one
from bendybus.errors import ConfigError, StoreNotFound

__all__ = ["app"]

COLUMNS: Final = ("Id", "Client", "Product", "Policy", "Since (UTC)", "Links", "Entities")


@click.group("connection", no_args_is_help=True)
def app() -> None:
    """Connections of clients: list, close."""


def _entity_option(help_text: str) -> Decorator:
    return click.option("--entity", metavar="ENTITY", help=help_text, shell_complete=entity_names)


@app.command("list")
@_entity_option("Only connections with a link to this entity.")
@server_command
def list_connections(command: Command, entity: str | None) -> None:
    """List the AMQP connections: client, address, start time and links."""
    found = _connections(command, entity)
    if found or command.as_json:
        of_several = any("broker" in each for each in found)
        columns = (*COLUMNS, "Broker") if of_several else COLUMNS
        rows = ((*_row(each), *([each.get("broker", "")] if of_several else [])) for each in found)
        show_many(columns, rows, found if command.as_json else None)
    else:
        note("There are none.")


@app.command
@click.argument("ids", metavar="[ID]...", nargs=-1, help="As 'bendybus connection list' shows them.")
@_entity_option("All connections with a link to this entity.")
@dry_run_option
@server_command
def close(command: Command, ids: tuple[str, ...], entity: str | None, dry_run: bool) -> None:
    """Close connections. Their clients may reconnect."""
    if bool(ids) == (entity is not None):
        raise ConfigError("name the connections to close by their ids, or pass --entity")
    wanted = list(ids) if entity is None else [str(each["id"]) for each in _connections(command, entity)]
    closed = [number for number in wanted if not dry_run and _close(command, number, named=entity is None)]
    if command.as_json:
        show_one({"matching": wanted, "closed": closed}, command.output)
    elif dry_run:
        note(f"Would close {len(wanted)} connection{'' if len(wanted) == 1 else 's'}: {', '.join(wanted)}")
    else:
        note(f"Closed {len(closed)} connection{'' if len(closed) == 1 else 's'}.")


def _close(command: Command, number: str, *, named: bool) -> bool:
    try:
        command.ask_json("DELETE", f"/$connections/{quote(number, safe='')}")
    except StoreNotFound:
        # One that was found by its entity may have ended meanwhile.
        if named:
            raise
        return False
    return True


def _connections(command: Command, entity: str | None) -> list[dict[str, Any]]:
    told = command.ask_json("GET", "/$connections")
    found: list[dict[str, Any]] = told["connections"]
    if missing := told.get("unreachableBrokers"):
        note(f"These brokers do not answer, and their connections are not known: {', '.join(missing)}")
    return [each for each in found if entity is None or entity.lower() in map(str.lower, _entities(each))]


def _entities(connection: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(str(link["entity"]) for link in connection["links"]))


def _row(connection: Mapping[str, Any]) -> tuple[object, ...]:
    since = datetime.fromtimestamp(connection["since"] / 1000, UTC).isoformat(" ", "seconds")[:19]
    entities = _entities(connection)
    shown = ", ".join(entities[:3]) + (f" and {len(entities) - 3} more" if len(entities) > 3 else "")
    return (
        *(connection["id"], connection["peer"], connection["product"], connection["key"]),
        *(since, connection["linkCount"], shown),
    )
