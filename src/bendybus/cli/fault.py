"""`bendybus fault`: make a messaging store of a development server fail, and heal it again (B-09)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from bendybus.cli.command import Command, server_command

__all__ = ["app"]

app = typer.Typer(
    help="Faults, for those who test their applications: store.",
    no_args_is_help=True,
)


class Switch(StrEnum):
    PAUSE = "pause"
    SLOW = "slow"
    FAIL = "fail"
    HEAL = "heal"


@app.callback()
def fault() -> None:
    """Faults, for those who test their applications: store."""


@app.command()
@server_command
def store(
    command: Command,
    name: Annotated[str, typer.Argument(help="The store, as /health and the metrics call it: store-0.")],
    switch: Annotated[Switch, typer.Argument(help="What shall be wrong with it, from now on.")],
    delay_ms: Annotated[int, typer.Option(min=1, help="With slow: how much longer each call takes.")] = 500,
    reason: Annotated[str, typer.Option(help="With fail: the error's text.")] = "",
) -> None:
    """Pause a messaging store, slow it down, let it fail, or heal it (needs serve --development)."""
    from urllib.parse import quote  # noqa: PLC0415 - see main.py

    from bendybus.cli.output import note, show_one  # noqa: PLC0415
    from bendybus.management.json_api import ask_json  # noqa: PLC0415

    body: dict[str, object] = {"fault": switch.value}
    if switch is Switch.SLOW:
        body["delayMs"] = delay_ms
    if switch is Switch.FAIL:
        body["reason"] = reason
    answer = ask_json(command.namespace(), "PUT", f"/$faults/stores/{quote(name, safe='')}", body)
    if command.as_json:
        show_one(answer, command.output)
    else:
        note(f"{name}: {'healed' if switch is Switch.HEAL else switch.value}")
