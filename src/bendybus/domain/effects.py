"""What must happen after a command: data, never calls.

The host commits the durable ones (all but `MessagesAvailable`) and only then
lets the reply go; `MessagesAvailable` is for the receivers that wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bendybus.domain.messages import Message, SubQueue
from bendybus.names import Instant, SequenceNumber, SessionId

__all__ = [
    "DurableEffect",
    "Effect",
    "ForgetIdentities",
    "MarkTransferred",
    "MessagesAvailable",
    "RememberIdentities",
    "RemoveMessages",
    "SaveSessionState",
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
class RememberIdentities:
    """Messages known by these digests were accepted then; perhaps none, if all were duplicates.

    Even so it is durable: a duplicate is acknowledged only when the message it repeats is.
    """

    accepted_at: Instant
    digests: list[bytes]


@dataclass(frozen=True, slots=True)
class ForgetIdentities:
    """What was accepted up to then is outside the window of duplicate detection."""

    accepted_through: Instant


@dataclass(frozen=True, slots=True)
class SaveSessionState:
    """What a session's holder wants remembered, messages or none; None to forget it."""

    session_id: SessionId
    state: bytes | None
    at: Instant


@dataclass(frozen=True, slots=True)
class MarkTransferred:
    """Everything up to this number of another partition's outbox has arrived here: never take it again."""

    source: str
    """That partition, by the generation of its entity and its own number."""
    number: SequenceNumber


@dataclass(frozen=True, slots=True)
class MessagesAvailable:
    """Something can be locked that could not be before."""

    subqueue: SubQueue


DurableEffect: TypeAlias = (
    StoreMessages
    | UpdateMessages
    | RemoveMessages
    | RememberIdentities
    | ForgetIdentities
    | SaveSessionState
    | MarkTransferred
)
Effect: TypeAlias = DurableEffect | MessagesAvailable
