"""What must happen after a command: data, never calls.

The host commits the durable ones (`StoreMessages`, `UpdateMessages`,
`RemoveMessages`) and only then lets the reply go; `MessagesAvailable` is for
the receivers that wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bendybus.domain.messages import Message, SubQueue

__all__ = [
    "DurableEffect",
    "Effect",
    "MessagesAvailable",
    "RemoveMessages",
    "StoreMessages",
    "UpdateMessages",
]


@dataclass(frozen=True, slots=True)
class StoreMessages:
    """New messages, payload and all, in the order of their sequence numbers."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class UpdateMessages:
    """Known messages whose state, sub-queue, delivery count, expiry or amendment changed.

    Of those that were scheduled and are active now, the sequence number and the enqueued time as well.
    """

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class RemoveMessages:
    """Messages that are no more."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class MessagesAvailable:
    """Something can be locked that could not be before."""

    subqueue: SubQueue


DurableEffect: TypeAlias = StoreMessages | UpdateMessages | RemoveMessages
Effect: TypeAlias = DurableEffect | MessagesAvailable
