"""`bendybus fault`: make stores and entities of a development server fail, and heal them again (B-09)."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import quote

import click

from bendybus.cli.command import Command, server_command
from bendybus.cli.options import Choices, entity_argument
from bendybus.cli.output import note, show_one
from bendybus.errors import ConfigError

__all__ = ["app"]


class Switch(StrEnum):
    PAUSE = "pause"
    SLOW = "slow"
    FAIL = "fail"
    HEAL = "heal"


@click.group("fault", no_args_is_help=True)
def app() -> None:
    """Faults, for tests of applications."""


@app.command
@click.argument("name", help="The store, as /health and the metrics call it: store-0.")
@click.argument("switch", type=Choices(Switch), help="The fault to simulate.")
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
    """Pause a messaging store, slow it down, make it fail, or heal it (needs serve --development)."""
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


@app.command
@entity_argument
@click.option(
    "--busy",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="SHARE",
    help="This share of sends and requests is answered with server-busy: 0.2.",
)
@click.option(
    "--latency-ms",
    type=click.IntRange(min=0),
    default=0,
    help="The delay of each send and request.",
)
@click.option(
    "--throttle",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="PARTITION",
    help="Messages with a key of this partition are answered with server-busy; may be repeated.",
)
@click.option("--heal", is_flag=True, help="End all simulated faults.")
@server_command
def entity(
    command: Command, entity: str, busy: float, latency_ms: int, throttle: tuple[int, ...], heal: bool
) -> None:
    """Make an entity busy, slow or throttled for its clients, or heal it (needs serve --development)."""
    if heal is bool(busy or latency_ms or throttle):
        raise ConfigError("name what shall be wrong (--busy, --latency-ms, --throttle), or --heal")
    body = {"busyShare": busy, "latencyMs": latency_ms, "throttledPartitions": list(throttle)}
    answer = command.ask_json("PUT", _path(entity), body)
    if command.as_json:
        show_one(answer, command.output)
    else:
        note(f"{entity}: {'healed' if heal else 'faulty'}")


@app.command
@entity_argument
@server_command
def detach(command: Command, entity: str) -> None:
    """Detach all links of clients to an entity; they may attach again (needs serve --development)."""
    _act(command, entity, "detach", "links detached")


@app.command("lose-locks")
@entity_argument
@server_command
def lose_locks(command: Command, entity: str) -> None:
    """End all locks of messages and sessions, as if they had expired (needs serve --development)."""
    _act(command, entity, "lose-locks", "locks ended")


def _act(command: Command, entity: str, action: str, done: str) -> None:
    answer = command.ask_json("POST", _path(entity), {"action": action})
    if command.as_json:
        show_one(answer, command.output)
    else:
        note(f"{entity}: {done}")


def _path(entity: str) -> str:
    return f"/$faults/entities/{quote(entity)}"
