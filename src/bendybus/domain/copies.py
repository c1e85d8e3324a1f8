"""Copies of a topic's messages, as the subscriptions enqueue them. Which take one: fanout.py."""

from __future__ import annotations

from collections.abc import Sequence

from bendybus.domain.commands import Enqueue
from bendybus.domain.deadletter import SESSION_ID_MISSING, Cause, mark
from bendybus.domain.messages import Message, Origin, SubQueue
from bendybus.domain.topic_entities import SubscriptionDescription

__all__ = ["bury", "copy_for", "give", "give_all", "origin_of"]


def give_all(messages: Sequence[Message], takers: Sequence[tuple[SubscriptionDescription, Enqueue]]) -> None:
    """Give a copy of each message to each of these subscriptions, whatever the messages say."""
    origins = [origin_of(message) for message in messages]
    for subscription, taking in takers:
        copies = [
            Message(message.payload, message.size, message.expires_at, message.session_id, origin=origin)
            for message, origin in zip(messages, origins, strict=True)
        ]
        if subscription.requires_session:
            for copy in copies:
                give(subscription, copy, taking)
        else:
            taking.messages += copies


def origin_of(message: Message, *, keeps_body: bool = True) -> Origin:
    """The origin of a copy: this topic, or the entity from which the message was forwarded to it."""
    known = message.origin
    if known is None:
        return Origin(message.sequence_number)
    number = known.sequence_number if known.hops else message.sequence_number
    return Origin(number, hops=known.hops, body=known.body if keeps_body else 0)


def copy_for(message: Message, origin: Origin) -> Message:
    """A copy that no rule has changed. All of them share the origin, and so the stored body."""
    return Message(message.payload, message.size, message.expires_at, message.session_id, origin=origin)


def give(subscription: SubscriptionDescription, copy: Message, taking: Enqueue) -> None:
    """Add a copy to what the subscription enqueues. One without the session id that it needs is buried."""
    if subscription.requires_session and copy.session_id is None:
        bury(copy, SESSION_ID_MISSING, taking)
    else:
        taking.messages.append(copy)


def bury(copy: Message, cause: Cause, taking: Enqueue) -> None:
    """Add a copy that goes to the dead-letter queue."""
    copy.subqueue = SubQueue.DEAD_LETTER
    mark(copy, cause)
    taking.messages.append(copy)
    taking.shelved = True
