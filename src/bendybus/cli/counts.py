"""How many messages an entity or one of its sub-queues has, if the command may know."""

from __future__ import annotations

from typing import Final

from bendybus.cli.command import Command
from bendybus.errors import BrokerError
from bendybus.management.entries import Entry
from bendybus.management.properties import shown_values

__all__ = ["message_count", "seen_entity", "split_path"]

# Sub-queue, in lower case -> its count among an entity's `countDetails`.
_COUNTS: Final = {
    "": "activeMessageCount",
    "$deadletterqueue": "deadLetterMessageCount",
    "$transfer/$deadletterqueue": "transferDeadLetterMessageCount",
}


def split_path(path: str) -> tuple[str, str]:
    """An entity, and its sub-queue in lower case: `orders/$DeadLetterQueue` is orders' $deadletterqueue."""
    entity, marker, subqueue = path.partition("/$")
    return entity, (marker + subqueue)[1:].lower()


def seen_entity(command: Command, path: str) -> Entry | None:
    """The entity; None if the key may not manage it, or if it does not exist."""
    with command.management() as management:
        try:
            return management.get(path)
        except BrokerError:
            return None


def message_count(command: Command, path: str) -> int | None:
    """The messages that can be received at `path`; None if that is unknown."""
    entity, subqueue = split_path(path)
    entry = seen_entity(command, entity)
    counts = None if entry is None else shown_values(entry).get("countDetails")
    count = counts.get(_COUNTS.get(subqueue, "")) if isinstance(counts, dict) else None
    return count if isinstance(count, int) else None
