"""Arguments and options that several commands share, in `az servicebus`'s words.

Each is a type to annotate a parameter with. Those that set an entity's properties:
entity_options.py.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bendybus.cli.completion import entity_names, topic_names
from bendybus.errors import ConfigError

__all__ = [
    "Entity",
    "Topic",
    "Yes",
    "confirm",
]


Topic = Annotated[str, typer.Argument(help="Path of the topic.", autocompletion=topic_names)]
Entity = Annotated[
    str,
    typer.Argument(
        help="A queue, a topic, TOPIC/Subscriptions/NAME, or the /$DeadLetterQueue of one.",
        autocompletion=entity_names,
    ),
]


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `--yes` was given; where nobody can answer, say so instead of waiting."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody is here to answer: pass --yes")
    typer.confirm(question, abort=True, err=True)
