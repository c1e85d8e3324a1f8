"""What must happen after a command, as data rather than calls.

The host commits the durable effects before it sends the reply. A reply to a lock command does not wait: its
durable effects concern other messages, which expired or whose locks ended. The other effects:
`MessagesAvailable`, `SessionsReady` and `SessionsLost` are for receivers;
`PublishMessages` and `ActivateMessages` are for the host of a topic's partition.

Nobody changes an effect, a command or a reply. Yet effects, commands and their usual replies are not frozen:
a frozen dataclass takes several times as long to make.
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
    "SaveNextNumber",
    "SaveSessionState",
    "SessionsLost",
    "SessionsReady",
    "StoreMessages",
    "TopicEffect",
    "UpdateMessages",
]


@dataclass(slots=True)
class StoreMessages:
    """New messages with their payloads, in the order of their sequence numbers."""

    messages: list[Message]


@dataclass(slots=True)
class UpdateMessages:
    """Known messages whose state, sub-queue, delivery count, expiry or amendment changed.

    For messages that were scheduled and are now active, the sequence number and enqueued time changed too.
    """

    messages: list[Message]


@dataclass(slots=True)
class RemoveMessages:
    """Messages that no longer exist."""

    messages: list[Message]


@dataclass(slots=True)
class RememberIdentities:
    """Messages with these digests were accepted at this time. There may be none, if all were duplicates.

    The effect is durable even then: a duplicate is acknowledged only once the original message is durable.
    """

    accepted_at: Instant
    digests: list[bytes]


@dataclass(slots=True)
class ForgetIdentities:
    """Identities accepted up to this time are outside the duplicate detection window."""

    accepted_through: Instant


@dataclass(slots=True)
class SaveSessionState:
    """Store the state that a session's holder has set; None deletes it. The session may have no messages."""

    session_id: SessionId
    state: bytes | None
    at: Instant


@dataclass(slots=True)
class MarkTransferred:
    """Everything up to this number of another partition's outbox has arrived here. Do not accept it again."""

    source: str
    """The other partition: the generation of its entity, and its number."""
    number: SequenceNumber


@dataclass(slots=True)
class SaveNextNumber:
    """Numbers were reserved, and no message has them yet. They must not be given again after a load.

    Every commit stores the partition's next number, so nothing else has to be stored.
    """


@dataclass(slots=True)
class MessagesAvailable:
    """Something new can be locked: messages, or a session that has messages."""

    subqueue: SubQueue
    returned: Sequence[Message] = field(default=(), compare=False)
    """Messages that came back, for readers that may be past their position. New messages are not listed."""


@dataclass(slots=True)
class PublishMessages:
    """Numbered messages of a topic. Its subscriptions take them in the same commit as this command."""

    messages: list[Message]


@dataclass(slots=True)
class ActivateMessages:
    """Scheduled messages of a topic that are due: read their payloads, then apply `Publish`."""

    messages: list[Message]


@dataclass(slots=True)
class SessionsReady:
    """Sessions that are held and have more messages for their holders."""

    locks: list[SessionLock]


@dataclass(slots=True)
class SessionsLost:
    """Session locks that have expired."""

    locks: list[SessionLock]


DurableEffect: TypeAlias = (
    StoreMessages
    | UpdateMessages
    | RemoveMessages
    | RememberIdentities
    | ForgetIdentities
    | SaveSessionState
    | MarkTransferred
    | SaveNextNumber
)
Effect: TypeAlias = DurableEffect | MessagesAvailable | SessionsReady | SessionsLost
TopicEffect: TypeAlias = Effect | PublishMessages | ActivateMessages
