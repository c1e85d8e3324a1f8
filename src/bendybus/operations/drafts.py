"""Messages between AMQP and a user: as JSON objects both ways.

The names are those of the SDKs in camel case. What `receive --output json` prints is what
`send --json` reads, so messages can be piped from one entity to another. Values that the broker
set (sequence number, times, counts) are shown and not sent.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from bendybus.amqp import annotations as annotation_names
from bendybus.amqp.types import Array, Described, Timestamp
from bendybus.client import ReceivedMessage, encode
from bendybus.domain.durations import format_duration, parse_duration
from bendybus.errors import ArgumentError
from bendybus.management.durations import read_duration

__all__ = ["STATES", "Draft", "draft_from_json", "instant", "milliseconds", "shown_message"]

STATES: Final = ("active", "deferred", "scheduled")

# The header's ttl is an unsigned 32-bit number of milliseconds: 49 days and a little.
TTL_MS_MAX: Final = 0xFFFFFFFF

# JSON name -> parameter of `bendybus.client.encode`, for all that is plain text.
_TEXTS: Final = {
    "messageId": "message_id",
    "sessionId": "session_id",
    "partitionKey": "partition_key",
    "subject": "subject",
    "correlationId": "correlation_id",
    "contentType": "content_type",
    "to": "to",
    "replyTo": "reply_to",
    "replyToSessionId": "reply_to_session_id",
}


# -- to be sent ---------------------------------------------------------------------


@dataclass(slots=True)
class Draft:
    """A message to send, in the words of `bendybus.client.encode`."""

    body: bytes = b""
    texts: dict[str, str] = field(default_factory=dict)
    properties: dict[str, object] = field(default_factory=dict)
    time_to_live_ms: int | None = None
    scheduled_enqueue_time_ms: int | None = None

    @property
    def key(self) -> str | None:
        """The key that decides its partition (P-13, P-14)."""
        return self.texts.get("session_id", self.texts.get("partition_key"))

    def encoded(self) -> bytes:
        """`ArgumentError` for values that AMQP cannot represent."""
        try:
            return encode(
                self.body,
                **self.texts,
                application_properties=self.properties,
                time_to_live_ms=self.time_to_live_ms,
                scheduled_enqueue_time_ms=self.scheduled_enqueue_time_ms,
            )
        except ValueError as error:
            # A number of more than 64 bits, half a surrogate pair, a content type that is not ASCII.
            raise ArgumentError(f"the message cannot be sent: {error}") from None


def draft_from_json(values: object) -> Draft:
    """A message from the JSON of `shown_message`; `ArgumentError` says what is wrong."""
    if not isinstance(values, Mapping):
        raise ArgumentError('each line must be a JSON object such as {"body": "hello"}')
    texts: dict[str, str] = {}
    for name, parameter in _TEXTS.items():
        value = values.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise ArgumentError(f"'{name}' must be text")
            texts[parameter] = value
    properties = values.get("applicationProperties") or {}
    if not isinstance(properties, Mapping):
        raise ArgumentError("'applicationProperties' must be an object")
    life, due = values.get("timeToLive"), values.get("scheduledEnqueueTime")
    return Draft(
        _body(values),
        texts,
        {str(name): _property(name, value) for name, value in properties.items()},
        None if life is None else milliseconds(str(life)),
        None if due is None else instant(str(due)),
    )


def _body(values: Mapping[str, object]) -> bytes:
    if "bodyBase64" in values:
        try:
            return base64.b64decode(str(values["bodyBase64"]), validate=True)
        except (ValueError, binascii.Error):
            raise ArgumentError("'bodyBase64' is not base64") from None
    body = values.get("body", "")
    if not isinstance(body, str):
        raise ArgumentError("'body' must be text; put JSON into it as text, or bytes into 'bodyBase64'")
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise ArgumentError("'body' has half of a surrogate pair, which is not text") from None


def _property(name: object, value: object) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ArgumentError(f"the property '{name}' must be text, a number, true, false or null")


def milliseconds(text: str) -> int:
    """A lifetime: `30s`, PT30S."""
    seconds = parse_duration(read_duration(text))
    if seconds is None or not 0 < seconds * 1000 <= TTL_MS_MAX:
        raise ArgumentError(f"a lifetime of '{text}' cannot be given to a message; from 1ms to 49d")
    return round(seconds * 1000)


def instant(text: str) -> int:
    """A time in ISO 8601 as milliseconds since 1970; without a zone it is this machine's."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ArgumentError(f"'{text}' is not a time such as 2030-01-31T12:00:00Z") from None


# -- to be shown --------------------------------------------------------------------


def shown_message(message: ReceivedMessage) -> dict[str, object]:
    """All fields that a message has, under the names that `draft_from_json` reads."""
    parts, state = message.parts, message.annotation(annotation_names.MESSAGE_STATE)
    named: dict[str, object] = {
        "sequenceNumber": message.sequence_number,
        "messageId": parts.properties.message_id,
        **_shown_body(message.body),
        "subject": parts.properties.subject,
        "correlationId": parts.properties.correlation_id,
        "contentType": parts.properties.content_type,
        "to": parts.properties.to,
        "replyTo": parts.properties.reply_to,
        "sessionId": parts.properties.group_id,
        "replyToSessionId": parts.properties.reply_to_group_id,
        "partitionKey": message.annotation(annotation_names.PARTITION_KEY),
        "timeToLive": None if parts.header.ttl is None else format_duration(parts.header.ttl / 1000),
        "enqueuedTime": message.annotation(annotation_names.ENQUEUED_TIME),
        "scheduledEnqueueTime": message.annotation(annotation_names.SCHEDULED_ENQUEUE_TIME),
        "lockedUntil": message.annotation(annotation_names.LOCKED_UNTIL),
        "deliveryCount": message.delivery_count,
        "state": None if state is None else STATES[message.state],
        "deadLetterSource": message.annotation(annotation_names.DEAD_LETTER_SOURCE),
        "applicationProperties": parts.application_properties or None,
    }
    return {name: _plain(value) for name, value in named.items() if value is not None}


def _shown_body(body: bytes) -> dict[str, object]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(body).decode("ascii")}


def _plain(value: object) -> object:
    match value:
        case Timestamp():
            return _moment(value)
        case UUID():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case Mapping():
            return {str(name): _plain(child) for name, child in value.items()}
        case list():
            return [_plain(child) for child in value]
        case Array():
            return _plain(value.values)
        case Described():
            return _plain(value.value)
    return value


def _moment(at: Timestamp) -> object:
    """The time as text; one that is outside the calendar as the number that it is."""
    try:
        return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return int(at)
