"""Arguments, options and types that several commands share, in `az servicebus`'s words.

Options that set an entity's properties: entity_options.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias, TypeVar

import click

from bendybus.cli.completion import entity_names, topic_names
from bendybus.errors import ArgumentError, ConfigError
from bendybus.management.durations import read_duration

__all__ = [
    "Choices",
    "Decorator",
    "Duration",
    "confirm",
    "entity_argument",
    "max_option",
    "property_option",
    "topic_argument",
    "yes_option",
]

E = TypeVar("E", bound=StrEnum)

Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""Adds an argument or options to the function of a command."""


class Choices(click.Choice[E]):
    """The values of an enumeration, where click would offer the names of its members."""

    def __init__(self, kind: type[E]) -> None:
        super().__init__(list(kind))

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        return str(choice)


class Duration(click.ParamType[str]):
    """`30s`, `1h30m`, `14d`, PT30S or `unlimited`, handed on as the management API writes it."""

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
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
max_option = click.option(
    "--max",
    "max_count",
    type=click.IntRange(min=1),
    metavar="N",
    default=10,
    show_default=True,
    help="At most so many.",
)


def property_option(help_text: str) -> Decorator:
    return click.option(
        "--property", "-p", "properties", multiple=True, metavar="NAME=TEXT|NAME:=JSON", help=help_text
    )


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `--yes` was given; where nobody can answer, say so instead of waiting."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody is here to answer: pass --yes")
    click.confirm(question, abort=True, err=True)
