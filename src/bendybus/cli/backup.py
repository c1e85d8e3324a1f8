"""`bendybus backup` and `bendybus restore`: copy everything that a running server keeps, and restore it.

The server makes the backup, on its own machine, for users that can read its data folder. The command itself
restores, without a server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from bendybus.cli.command import output_option, told_errors
from bendybus.cli.operated import Ask, operated
from bendybus.cli.options import running_data_option
from bendybus.cli.output import OutputFormat, note, show_one
from bendybus.cli.tables import progress
from bendybus.errors import ConfigError, StoreUnavailable
from bendybus.server.restore import restore as make_data_folder

__all__ = ["backup", "restore"]

# How often the server is asked how far it has come.
ASK_EVERY_S: Final = 0.1

NO_KEYS: Final = (
    "The root key is not in the backup: the server was given it in BENDYBUS_SAS_KEY. Keep it safe elsewhere."
)


@click.command
@click.argument(
    "folder",
    type=click.Path(path_type=Path),
    help="The folder to create for the backup, on the server's machine.",
)
@running_data_option
@output_option
def backup(folder: Path, data: Path | None, output: OutputFormat) -> None:
    """Back up a running server.

    The backup has all namespaces with their entities, messages, keys and certificates, at one moment. You can
    interrupt the command: the server completes the backup without it.
    """
    with told_errors():
        folder = folder.absolute()
        ask = operated(data)
        made = _follow(ask, ask("POST", "/$backup", {"folder": str(folder)}))
        if made["state"] != "done" or made["folder"] != str(folder):
            why = made.get("error", "somebody has begun another one since")
            raise StoreUnavailable(f"No backup was made in {folder}: {why}")
        _show(made, f"{folder}: {_counted(made)}, {made['bytes']} bytes", output)


def _follow(ask: Ask, answer: dict[str, Any]) -> dict[str, Any]:
    """Wait until the backup is made or has failed."""
    with progress() as bar:
        task = bar.add_task("Backing up", total=None)
        while answer["state"] == "running":
            time.sleep(ASK_EVERY_S)
            answer = ask("GET", "/$backup")
            bar.update(task, description=f"Backing up: {answer.get('bytes', 0) >> 20} MB")
    return answer


@click.command
@click.argument("folder", type=click.Path(path_type=Path), help="The backup.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="The data folder to create; it must be new or empty.",
)
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="NAME=URL",
    help="The database to restore a PostgreSQL store into; may be repeated.",
)
@output_option
def restore(folder: Path, data: Path, stores: tuple[str, ...], output: OutputFormat) -> None:
    """Create a data folder from a backup.

    No server is needed. The original data is not changed.
    """
    with told_errors():
        done = make_data_folder(folder, data, dict(map(_named_url, stores)))
        entries = done.manifest.namespaces
        shown = {
            "data": str(data),
            "madeAt": done.manifest.made_at,
            "version": done.manifest.version,
            "namespaces": len(entries),
            "entities": sum(entry.entities for entry in entries),
            "stores": sum(len(entry.stores) for entry in entries),
            "keys": done.keys,
        }
        _show(shown, f"{data}: {_counted(shown)}, as of {shown['madeAt']}", output)


def _named_url(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if not separator or not name or "://" in name:
        # Not the text itself: it may have a password in it.
        raise ConfigError("--store must be NAME=URL, with the store's name as the backup has it")
    return name, url


def _show(values: Mapping[str, Any], line: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        show_one(values, output)
    else:
        note(line)
    if not values["keys"]:
        note(NO_KEYS)


def _counted(shown: Mapping[str, Any]) -> str:
    counts = (("namespaces", "namespace"), ("entities", "entity"), ("stores", "store"))
    return ", ".join(f"{shown[many]} {one if shown[many] == 1 else many}" for many, one in counts)
