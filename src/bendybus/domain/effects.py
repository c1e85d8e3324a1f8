"""What must happen after a command: data, never calls.

The host commits the durable ones and only then lets the reply go. Locking does not wait: its durable effects
concern other messages, which expired or whose locks ended. The others:
`MessagesAvailable`, `SessionsReady` and `SessionsLost` are for receivers;
`PublishMessages` and `ActivateMessages` for the host of a topic's partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import SessionLock
from bendybus.names import Instant, SequenceNumber, SessionId

__all__ = [
    "ActivateMessages",
    "DurableEffect",
    "Effect",
    "ForgetIdentities",
    "MarkTransferred",
    "MessagesAvailable",
    "PublishMessages",
    "RememberIdentities",
    "RemoveMessages",
    "SaveSessionState",
    "SessionsLost",
    "SessionsReady",
    "StoreMessages",
    "TopicEffect",
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
    """Something can be locked that could not be before: messages, or a session that has some."""

    subqueue: SubQueue
    returned: Sequence[Message] = field(default=(), compare=False)
    """Those that have come back, for readers that may have passed their place; new ones are not named."""


@dataclass(frozen=True, slots=True)
class PublishMessages:
    """A topic's messages, numbered, for its subscriptions to take: in the commit that this command makes."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class ActivateMessages:
    """A topic's scheduled messages that are due: read their payloads, then ask to `Publish` them."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class SessionsReady:
    """Sessions with a holder that have more messages for it."""

    locks: list[SessionLock]


@dataclass(frozen=True, slots=True)
class SessionsLost:
    """Session locks that have run out."""

    locks: list[SessionLock]


DurableEffect: TypeAlias = (
    StoreMessages
    | UpdateMessages
    | RemoveMessages
    | RememberIdentities
    | ForgetIdentities
    | SaveSessionState
    | MarkTransferred
)
Effect: TypeAlias = DurableEffect | MessagesAvailable | SessionsReady | SessionsLost
TopicEffect: TypeAlias = Effect | PublishMessages | ActivateMessages
