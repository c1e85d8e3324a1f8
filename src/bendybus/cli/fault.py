"""`bendybus fault`: make a messaging store of a development server fail, and heal it again (B-09)."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import quote

import click

from bendybus.cli.command import Command, server_command
from bendybus.cli.options import Choices
from bendybus.cli.output import note, show_one

__all__ = ["app"]


class Switch(StrEnum):
    PAUSE = "pause"
    SLOW = "slow"
    FAIL = "fail"
    HEAL = "heal"


@click.group("fault", no_args_is_help=True)
def app() -> None:
    """Faults, for those who test their applications: store."""


@app.command
@click.argument("name", help="The store, as /health and the metrics call it: store-0.")
@click.argument("switch", type=Choices(Switch), help="What shall be wrong with it, from now on.")
@click.option(
    "--delay-ms",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="With slow: how much longer each call takes.",
)
@click.option("--reason", default="", help="With fail: the error's text.")
@server_command
def store(command: Command, name: str, switch: Switch, delay_ms: int, reason: str) -> None:
    """Pause a messaging store, slow it down, let it fail, or heal it (needs serve --development)."""
    body: dict[str, object] = {"fault": switch.value}
    if switch is Switch.SLOW:
        body["delayMs"] = delay_ms
    if switch is Switch.FAIL:
        body["reason"] = reason
    answer = command.ask_json("PUT", f"/$faults/stores/{quote(name, safe='')}", body)
    if command.as_json:
        show_one(answer, command.output)
    else:
        note(f"{name}: {'healed' if switch is Switch.HEAL else switch.value}")
