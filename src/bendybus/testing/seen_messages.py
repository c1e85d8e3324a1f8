"""What a test can see of a message without receiving it: everything, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from bendybus.amqp.message import decode_message
from bendybus.domain.messages import Message
from bendybus.envelope import render
from bendybus.names import Instant

__all__ = ["SeenMessage", "seen"]


@dataclass(frozen=True, slots=True)
class SeenMessage:
    """A message as it was in its entity at that moment."""

    body: object
    """Bytes for most clients; a message may contain a value or a list instead."""
    message_id: object
    subject: str | None
    correlation_id: object
    session_id: str | None
    application_properties: Mapping[str, object]
    sequence_number: int
    state: str
    """`active`, `deferred` or `scheduled`; a locked message keeps its state."""
    delivery_count: int
    enqueued_at: datetime
    """When it is due, while it is scheduled."""
    locked_until: datetime | None
    dead_letter_reason: str | None
    dead_letter_description: str | None

    def __str__(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace") if isinstance(self.body, bytes) else str(self.body)


def seen(message: Message, payload: bytes) -> SeenMessage:
    """A stored message for a test."""
    decoded = decode_message(b"".join(render(message, payload, locked=False)))
    properties, amendment = decoded.properties, message.amendment
    body = b"".join(decoded.data) if decoded.data else decoded.sequence or decoded.value
    return SeenMessage(
        body=b"" if body is None else body,
        message_id=properties.message_id,
        subject=properties.subject,
        correlation_id=properties.correlation_id,
        session_id=properties.group_id,
        application_properties=decoded.application_properties,
        sequence_number=message.sequence_number,
        state=message.state.name.lower(),
        delivery_count=message.delivery_count,
        enqueued_at=_time(message.enqueued_at),
        locked_until=None if message.lock_token is None else _time(message.locked_until),
        dead_letter_reason=None if amendment is None else amendment.dead_letter_reason,
        dead_letter_description=None if amendment is None else amendment.dead_letter_description,
    )


def _time(at: Instant) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
