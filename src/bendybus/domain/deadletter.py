"""Dead-lettering: the reasons for it, and how a message is marked.

A dead-lettered message moves to another sub-queue of the same partition. It keeps its sequence number; a
message from the outbox keeps the number that it got there. Messages are dead-lettered in stock.py,
handlers/settling.py, outbox.py and fanout.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from bendybus.domain.messages import Amendment, Message, MessageState
from bendybus.errors import ArgumentError

__all__ = ["SESSION_ID_MISSING", "TTL_EXPIRED", "Cause", "delivery_count_exceeded", "mark"]

# "up to 4096 chars": the bound the SDKs check before they send.
TEXT_LENGTH_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Cause:
    """The values of the properties DeadLetterReason and DeadLetterErrorDescription."""

    reason: str | None
    description: str | None

    def __post_init__(self) -> None:
        texts = {"DeadLetterReason": self.reason, "DeadLetterErrorDescription": self.description}
        for name, text in texts.items():
            if text is not None and len(text) > TEXT_LENGTH_MAX:
                raise ArgumentError(f"{name} has {len(text)} characters; at most {TEXT_LENGTH_MAX}.")


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
