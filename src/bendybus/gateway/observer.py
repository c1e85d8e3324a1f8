"""An observer of the messages that pass through a gateway: it sees batches, never single messages.

A gateway usually has no observer, and checks for one once per batch. telemetry/ creates spans for the
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from bendybus.domain.commands import Command, Reply
from bendybus.domain.messages import Message
from bendybus.errors import BrokerError

__all__ = ["Observer", "OnReply"]

OnReply: TypeAlias = Callable[[Reply | BrokerError], None]


class Observer(Protocol):
    def sending(self, entity: str, partition: int, messages: Sequence[Message], done: OnReply) -> OnReply:
        """Messages that a client has sent go to a partition. Returns what to call instead of `done`."""

    def delivering(self, entity: str, messages: Sequence[Message], payloads: Sequence[bytes]) -> None:
        """These messages are sent to a client."""

    def settling(self, entity: str, command: Command, done: OnReply) -> OnReply:
        """A client settles messages of one partition. Returns what to call instead of `done`."""
