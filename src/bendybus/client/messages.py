"""Messages with the fields of Service Bus: encoded from their fields, and decoded field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Final, TypeVar
from uuid import UUID

from bendybus.amqp import annotations as annotation_names
from bendybus.amqp.codec import encode as encode_value
from bendybus.amqp.message import (
    DecodedMessage,
    Header,
    Properties,
    annotation,
    application_properties,
    body_data,
    body_sequence,
    body_value,
    decode_message,
    encode_message,
    read_header,
    read_map,
    read_properties,
    scan,
)
from bendybus.amqp.types import Timestamp
from bendybus.errors import WireError

__all__ = ["ReceivedMessage", "encode", "readable_annotations"]

T = TypeVar("T")

# Annotations of Service Bus that senders set.
_SENDERS: Final = (annotation_names.PARTITION_KEY, annotation_names.SCHEDULED_ENQUEUE_TIME)


def encode(
    body: bytes,
    *,
    message_id: str | None = None,
    session_id: str | None = None,
    partition_key: str | None = None,
    subject: str | None = None,
    correlation_id: str | None = None,
    content_type: str | None = None,
    to: str | None = None,
    reply_to: str | None = None,
    reply_to_session_id: str | None = None,
    time_to_live_ms: int | None = None,
    scheduled_enqueue_time_ms: int | None = None,
    application_properties: Mapping[str, object] | None = None,
) -> bytes:
    """A message as `Sender.send` takes it; times are milliseconds since 1970, or long."""
    annotations: dict[str, object] = {}
    if partition_key is not None:
        annotations[annotation_names.PARTITION_KEY] = partition_key
    if scheduled_enqueue_time_ms is not None:
        annotations[annotation_names.SCHEDULED_ENQUEUE_TIME] = Timestamp(scheduled_enqueue_time_ms)
    properties = Properties(
        message_id=message_id,
        to=to,
        subject=subject,
        reply_to=reply_to,
        correlation_id=correlation_id,
        content_type=content_type,
        group_id=session_id,
        reply_to_group_id=reply_to_session_id,
    )
    return encode_message(
        header=Header(durable=True, ttl=time_to_live_ms),
        message_annotations=annotations or None,
        properties=properties,
        application_properties=application_properties or None,
        data=body,
    )


class ReceivedMessage:
    """A received message. A field is decoded only when it is read."""

    def __init__(self, payload: bytes, delivery: object = None) -> None:
        self.payload = payload
        self.delivery = delivery
        """What settles it; None where a message was only looked at."""

    @cached_property
    def parts(self) -> DecodedMessage:
        """A section that cannot be read is empty: a sender may have put anything into it."""
        try:
            return decode_message(self.payload)
        except WireError:
            return _readable_parts(self.payload)

    @property
    def body(self) -> bytes:
        """The data sections joined; a body of another kind as AMQP encodes its value."""
        parts = self.parts
        if parts.data:
            return b"".join(parts.data)
        if parts.sequence:
            return encode_value(parts.sequence)
        if isinstance(parts.value, str):
            return parts.value.encode()
        return b"" if parts.value is None else encode_value(parts.value)

    @property
    def message_id(self) -> str | UUID | bytes | int | None:
        return self.parts.properties.message_id

    @property
    def session_id(self) -> str | None:
        return self.parts.properties.group_id

    @property
    def subject(self) -> str | None:
        return self.parts.properties.subject

    @property
    def correlation_id(self) -> str | UUID | bytes | int | None:
        return self.parts.properties.correlation_id

    @property
    def content_type(self) -> str | None:
        return self.parts.properties.content_type

    @property
    def application_properties(self) -> dict[str, object]:
        return self.parts.application_properties

    @property
    def delivery_count(self) -> int:
        """The number of earlier deliveries."""
        return self.parts.header.delivery_count or 0

    @property
    def partition_key(self) -> str | None:
        key = self.annotation(annotation_names.PARTITION_KEY)
        return key if isinstance(key, str) else None

    @property
    def sequence_number(self) -> int:
        number = self.annotation(annotation_names.SEQUENCE_NUMBER)
        return number if isinstance(number, int) else 0

    @property
    def enqueued_time_ms(self) -> int:
        time_ms = self.annotation(annotation_names.ENQUEUED_TIME)
        return time_ms if isinstance(time_ms, int) else 0

    @property
    def state(self) -> int:
        """0 active, 1 deferred, 2 scheduled. Of a received message, its former state."""
        state = self.annotation(annotation_names.MESSAGE_STATE)
        return state if isinstance(state, int) else 0

    def annotation(self, name: str) -> object:
        return self.parts.message_annotations.get(name)


def _readable_parts(payload: bytes) -> DecodedMessage:
    at = scan(payload)
    return DecodedMessage(
        header=_read(lambda: read_header(payload, at.header), Header()),
        delivery_annotations=_read(lambda: read_map(payload, at.delivery_annotations), {}),
        message_annotations=readable_annotations(payload, at.message_annotations),
        properties=_read(lambda: read_properties(payload, at.properties), Properties()),
        application_properties=_read(lambda: application_properties(payload, at.application_properties), {}),
        data=_read(lambda: body_data(payload, at), []),
        sequence=_read(lambda: body_sequence(payload, at), []),
        value=_read(lambda: body_value(payload, at), None),
        footer=_read(lambda: read_map(payload, at.footer), {}),
    )


def readable_annotations(payload: bytes, at: int) -> dict[object, object]:
    """The annotations at `at`. If the sender's own cannot be read, those of Service Bus alone."""
    try:
        return read_map(payload, at)
    except WireError:
        found: dict[object, object] = {}
        for name in annotation_names.BROKER_SET | {name.encode() for name in _SENDERS}:
            with suppress(WireError):
                found[name.decode()] = annotation(payload, at, name)
        return {name: value for name, value in found.items() if value is not None}


def _read(read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except WireError:
        return otherwise
