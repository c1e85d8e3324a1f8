"""Arguments, options and types that several commands share, in `az servicebus`'s words.

Options that set an entity's properties: entity_options.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import click

from bendybus.cli.completion import entity_names, topic_names
from bendybus.errors import ArgumentError, ConfigError
from bendybus.management.durations import read_duration

__all__ = [
    "ASK_EVERY_S",
    "Choices",
    "Decorator",
    "Duration",
    "confirm",
    "data_option",
    "drain_options",
    "dry_run_option",
    "entity_argument",
    "max_option",
    "property_option",
    "read_property",
    "running_data_option",
    "selector_option",
    "topic_argument",
    "yes_option",
]

E = TypeVar("E", bound=StrEnum)

# How often a command asks for the progress of what it waits for.
ASK_EVERY_S: Final = 0.2

Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""Adds an argument or options to the function of a command."""


class Choices(click.Choice[E]):
    """The values of an enumeration, where click would offer the names of its members."""

    def __init__(self, kind: type[E]) -> None:
        super().__init__(list(kind))

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        return str(choice)


class Duration(click.ParamType[str]):
    """`30s`, `1h30m`, `14d`, PT30S or `unlimited`, passed on as the management API writes it."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return read_duration(str(value))
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


topic_argument = click.argument("topic", help="Path of the topic.", shell_complete=topic_names)
entity_argument = click.argument(
    "entity",
    help="A queue, a topic, TOPIC/Subscriptions/NAME, or the /$DeadLetterQueue of one.",
    shell_complete=entity_names,
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing; only show what would be done.")
selector_option = click.option(
    "--selector", metavar="TEXT", help='Only messages that this JMS selector matches, such as "size > 5".'
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def drain_options(wait_help: str, stop_help: str) -> Decorator:
    """For commands that drain something: `wait` until it is empty, or `stop` draining."""
    wait = click.option("--wait/--no-wait", default=True, show_default=True, help=wait_help)
    stop = click.option("--stop", is_flag=True, help=stop_help)
    return lambda function: wait(stop(function))


def data_option(help_text: str) -> Decorator:
    """The folder of a server that may not run yet."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="DIR",
        default=Path(".data"),
        show_default=True,
        help=help_text,
    )


# None unless it is given: target.find_folder.
running_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Data folder of a server on this machine.",
    show_default=".data, or that of the one server that you run",
)


def max_option(default: int | None = None, *, shown: str | None = None) -> Decorator:
    """`shown` is what help calls the default, where there is no number for it."""
    return click.option(
        "--max",
        "max_count",
        type=click.IntRange(min=1),
        metavar="N",
        default=default,
        show_default=shown or True,
        help="The maximum number of messages.",
    )


def property_option(help_text: str) -> Decorator:
    return click.option(
        "--property", "-p", "properties", multiple=True, metavar="NAME=TEXT|NAME:=JSON", help=help_text
    )


def read_property(text: str) -> tuple[str, object]:
    """What `--property` was given: `name=text`, or `name:=json` for a number, true or false."""
    name, separator, value = text.partition("=")
    if not separator or not name.rstrip(":"):
        raise ConfigError(f"--property is '{text}'; it must be NAME=TEXT or NAME:=JSON")
    if not name.endswith(":"):
        return name, value
    try:
        read = json.loads(value)
    except ValueError:
        read = ()
    if not (read is None or isinstance(read, str | bool | int | float)):
        raise ConfigError(
            f"--property is '{text}'; after := a number, true, false, null or \"text\" is expected"
        )
    return name[:-1], read


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless `--yes` was given. Without a terminal this is an error."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody is here to answer: pass --yes")
    click.confirm(question, abort=True, err=True)
