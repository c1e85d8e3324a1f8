"""A received message as it can be sent again: the sender's part of it, without the broker's marks."""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import replace
from typing import Final

from bendybus.amqp.annotations import PARTITION_KEY, PREFIX, SCHEDULED_ENQUEUE_TIME
from bendybus.amqp.message import TTL_LONG, Header, decode_message, encode_message
from bendybus.amqp.sections import scan
from bendybus.amqp.types import Timestamp
from bendybus.client import ReceivedMessage

__all__ = ["copy_of"]

# Until the year 10000. A message with a longer lifetime never expires.
LIFETIME_MS_MAX: Final = 253_402_300_800_000


def copy_of(
    message: ReceivedMessage,
    *,
    message_id: str | None = None,
    without: Container[str] = (),
    scheduled_at: object = None,
) -> bytes:
    """The message with its id, key, properties and body. `message_id` replaces its id.

    `without` names application properties to leave out. The lifetime starts again: an expiry time that
    was computed when the message was first sent would shorten it. `scheduled_at` is when the copy becomes
    active, as the original's annotation has it.
    """
    # What cannot be read must not be missing in the copy: then there is none.
    parts, at = decode_message(message.payload), scan(message.payload)
    ttl = parts.header.ttl
    properties = replace(parts.properties, absolute_expiry_time=None, creation_time=None)
    began_at, ends_at = parts.properties.creation_time or 0, parts.properties.absolute_expiry_time or 0
    if ttl is None and 0 < began_at < ends_at < LIFETIME_MS_MAX:
        # The lifetime stands nowhere else.
        ttl, now = TTL_LONG, round(time.time() * 1000)
        properties.creation_time = Timestamp(now)
        properties.absolute_expiry_time = Timestamp(now + ends_at - began_at)
    if message_id is not None:
        properties = replace(properties, message_id=message_id)
    annotations = {
        str(name): value
        for name, value in parts.message_annotations.items()
        # Of the annotations of Service Bus only the key is the sender's.
        if name == PARTITION_KEY or not str(name).startswith(PREFIX)
    }
    if scheduled_at is not None:
        annotations[SCHEDULED_ENQUEUE_TIME] = scheduled_at
    own = {name: value for name, value in parts.application_properties.items() if name not in without}
    front = encode_message(
        header=Header(durable=True, ttl=ttl, priority=parts.header.priority),
        message_annotations=annotations or None,
        properties=properties,
        application_properties=own or None,
    )
    return front + (message.payload[at.body : at.end] if at.body >= 0 else b"")
