"""Messages that were just sent, on their way to the owner of their partition: the fast path of frames.py.

Nearly all messages that cross are new: a client has sent them, and no partition has done anything with them.
Such a message is a payload and a few fields, so its head is short. The heads of many commands are in one item
(`NewMessages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeGuard

from bendybus.domain.commands import Command, Enqueue
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.names import Instant, SessionId

__all__ = ["NewHead", "enqueues_only", "messages_of", "taken_apart"]

NewHead = tuple[int, int, Instant | None, SessionId | None]
"""The length of the payload; the message's size, its end and its session."""

# Compared for every message. Looking up a member of an enum is slow.
_ACTIVE: Final = MessageState.ACTIVE
_MAIN: Final = SubQueue.MAIN


def enqueues_only(command: Command) -> TypeGuard[Enqueue]:
    """Whether the command is its messages, and says nothing about them as a whole."""
    return (
        type(command) is Enqueue
        and command.identities is None
        and command.transfer is None
        and command.destination is None
        and not command.numbered
        and not command.shelved
    )


def taken_apart(messages: Sequence[Message]) -> tuple[list[NewHead], list[bytes]] | None:
    """The heads and the payloads of messages that are new; None if one of them is not."""
    heads: list[NewHead] = []
    payloads: list[bytes] = []
    for message in messages:
        payload = message.payload
        if (
            payload is None
            or message.sequence_number
            or message.enqueued_at
            or message.delivery_count
            or message.locked_until
            or message.row_id
            or message.state is not _ACTIVE
            or message.subqueue is not _MAIN
            or message.origin is not None
            or message.lock_token is not None
            or message.amendment is not None
        ):
            return None
        heads.append((len(payload), message.size, message.expires_at, message.session_id))
        payloads.append(payload)
    return heads, payloads


def messages_of(heads: Sequence[NewHead], payloads: bytes) -> list[Message]:
    """The messages that were taken apart. `payloads`: all of them, one after the other."""
    messages: list[Message] = []
    at = 0
    for length, size, expires_at, session_id in heads:
        end = at + length
        messages.append(Message(payloads[at:end], size, expires_at, session_id))
        at = end
    return messages
