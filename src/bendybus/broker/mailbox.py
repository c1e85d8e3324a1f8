"""Commands that wait for a partition, each with the callback for its reply; and everything else that the
partition leaves behind when it passes to another broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from bendybus.domain.commands import Command, Reply
from bendybus.errors import BrokerError
from bendybus.names import LockToken

if TYPE_CHECKING:
    from bendybus.broker.holders import SessionHolder
    from bendybus.domain.session_commands import SessionLock

__all__ = ["Leftovers", "Mailbox", "OnReply"]

OnReply: TypeAlias = Callable[[Reply | BrokerError], None]
Mailbox: TypeAlias = list[tuple[Command, OnReply]]


class Leftovers(NamedTuple):
    """What the object that represents a partition leaves to its successor."""

    mailbox: Mailbox
    sessions: list[tuple[SessionLock, SessionHolder]]
    """The sessions that receivers of this broker hold."""
    unsent: list[LockToken]
    """Messages that were locked for receivers of this broker and not given to them."""
