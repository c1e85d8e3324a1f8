"""Dead-lettering: the reasons for it, and how a message is marked.

A dead-lettered message moves to another sub-queue of the same partition. It keeps its sequence number; a
message from the outbox keeps the number that it got there. Messages are dead-lettered in stock.py,
handlers/settling.py, outbox.py and fanout.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bendybus.domain.message_parts import Amendment, Cause, MessageState
from bendybus.domain.messages import Message

__all__ = ["SESSION_ID_MISSING", "TTL_EXPIRED", "Cause", "delivery_count_exceeded", "mark"]

TTL_EXPIRED: Final = Cause("TTLExpiredException", "The message expired and was dead lettered.")

# The reason that Service Bus gives when a message without a session id is moved to a session-aware entity.
SESSION_ID_MISSING: Final = Cause(
    "Session ID is null.",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)


def delivery_count_exceeded(attempts: int) -> Cause:
    return Cause(
        "MaxDeliveryCountExceeded", f"Message could not be consumed after {attempts} delivery attempts."
    )


def mark(message: Message, cause: Cause) -> None:
    """Record on a message of the dead-letter queue why it is there."""
    message.state = MessageState.ACTIVE
    message.amendment = replace(
        message.amendment or Amendment(),
        dead_letter_reason=cause.reason,
        dead_letter_description=cause.description,
    )
