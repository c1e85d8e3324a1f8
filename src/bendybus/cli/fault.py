"""`bendybus fault`: make a messaging store of a development server fail, and heal it again (B-09)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bendybus.cli.command import Command, server_command
from bendybus.errors import ArgumentError, ServerBusy

if TYPE_CHECKING:
    from bendybus.cli.target import Target

__all__ = ["app"]

TIMEOUT_S: Final = 10

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
    from bendybus.cli.output import note, show_one  # noqa: PLC0415 - see main.py

    body: dict[str, object] = {"fault": switch.value}
    if switch is Switch.SLOW:
        body["delayMs"] = delay_ms
    if switch is Switch.FAIL:
        body["reason"] = reason
    answer = _put(command.target(), name, body)
    if command.as_json:
        show_one(answer, command.output)
    else:
        note(f"{name}: {'healed' if switch is Switch.HEAL else switch.value}")


def _put(target: Target, name: str, body: dict[str, object]) -> dict[str, object]:
    import http.client  # noqa: PLC0415 - see main.py
    import json  # noqa: PLC0415
    import ssl  # noqa: PLC0415
    from urllib.parse import quote  # noqa: PLC0415

    connection = (
        http.client.HTTPConnection(target.host, target.http_port, timeout=TIMEOUT_S)
        if target.plain
        else http.client.HTTPSConnection(
            target.host, target.http_port, timeout=TIMEOUT_S, context=ssl.create_default_context()
        )
    )
    path, headers = f"/$faults/stores/{quote(name, safe='')}", {"Authorization": target.token()}
    try:
        connection.request("PUT", path, json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except OSError as error:
        raise ServerBusy(f"{target.netloc} cannot be reached: {error}") from error
    finally:
        connection.close()
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ArgumentError(f"{target.netloc} answered {response.status}, and not as a Bendybus server does.")
    if response.status != http.client.OK:
        raise ArgumentError(str(answer.get("error", response.status)))
    return answer
