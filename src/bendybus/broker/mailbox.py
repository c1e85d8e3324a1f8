"""Commands that wait for a partition, each with the callback for its reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bendybus.domain.commands import Command, Reply
from bendybus.errors import BrokerError

__all__ = ["Mailbox", "OnReply"]

OnReply: TypeAlias = Callable[[Reply | BrokerError], None]
Mailbox: TypeAlias = list[tuple[Command, OnReply]]
