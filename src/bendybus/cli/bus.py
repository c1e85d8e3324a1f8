"""The message client of a command. Apart from command.py, because managing entities needs no AMQP."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bendybus.cli.command import Command
from bendybus.client import BusClient, ClientSettings

__all__ = ["bus_client"]

# With pauses of 0.2 and 0.4 seconds: a user is waiting at the terminal.
RETRIES: Final = 2
# How long one answer may take.
TIMEOUT_S: Final = 60.0


def bus_client(command: Command, *, retries: int = RETRIES, timeout_s: float = TIMEOUT_S) -> BusClient:
    """Connected to the namespace that the command was pointed at."""
    settings = ClientSettings.of(command.namespace())
    settings = replace(settings, certificate=command.certificate())
    return BusClient(replace(settings, retries=retries, timeout_s=timeout_s))
