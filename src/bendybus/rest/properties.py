"""BrokerProperties: the JSON object next to a payload, in both directions.

A sender's values become sections of an AMQP message. A receiver's values
come from the rendered message and the broker's own record of it. Unknown names
are ignored, and numbers and booleans may be texts: old Python clients send
nothing else. Custom properties: headers.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from bendybus.amqp import annotations as annotation_names
from bendybus.amqp.message import TTL_LONG, Header, Properties
from bendybus.amqp.types import Timestamp
from bendybus.domain.messages import Message, MessageState
from bendybus.errors import ArgumentError
from bendybus.names import Instant
from bendybus.rest.headers import http_date, instant_of_date

__all__ = ["broker_properties", "parse_json", "sections_of", "text_of"]

# The last moment that SDKs can write: 9999-12-31T23:59:59.999Z. What lives longer never expires.
INSTANT_MAX: Final = 253_402_300_799_999
# The time between receiving a message and enqueueing it in its partition.
ENQUEUE_MS_MAX: Final = 1000
# .NET's longest time span in seconds, which Service Bus gives for a message that never expires.
UNLIMITED_S: Final = 922337203685.4775

# [d.]hh:mm:ss[.fffffff]
_TIME_SPAN: Final = re.compile(r"(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2}):(\d{1,2}(?:\.\d{1,7})?)", re.ASCII)

# The values of the state annotation. A message without it is active.
_STATES: Final[Mapping[object, str]] = {
    MessageState.DEFERRED: "Deferred",
    MessageState.SCHEDULED: "Scheduled",
}


def parse_json(text: str | bytes, what: str) -> object:
    """JSON from a client, or an `ArgumentError` that says what was expected."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ArgumentError(f"{what} is nested too deeply.") from None
    except ValueError as error:
        raise ArgumentError(f"{what} is not valid JSON: {error}") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


# -- requests ---------------------------------------------------------------------


def sections_of(
    given: object, content_type: str | None, sent_at: Instant
) -> tuple[Header, dict[str, object], Properties]:
    """Header, message annotations and properties of the message that these BrokerProperties describe."""
    if not isinstance(given, dict):
        raise ArgumentError("BrokerProperties must be a JSON object.")
    lifetime_ms = _lifetime_ms(given, sent_at)
    is_long = lifetime_ms is not None and lifetime_ms >= TTL_LONG
    header = Header(
        durable=_flag(given, "ForcePersistence") or None, ttl=TTL_LONG if is_long else lifetime_ms
    )
    annotations: dict[str, object] = {}
    for name, annotation in (
        ("PartitionKey", annotation_names.PARTITION_KEY),
        ("ViaPartitionKey", annotation_names.VIA_PARTITION_KEY),
    ):
        key = _text(given, name)
        if key is not None:
            annotations[annotation] = key
    scheduled = _text(given, "ScheduledEnqueueTimeUtc")
    if scheduled is not None:
        at = instant_of_date(scheduled)
        if at is None:
            raise ArgumentError(f"ScheduledEnqueueTimeUtc '{scheduled[:60]}' is not an RFC 1123 date.")
        annotations[annotation_names.SCHEDULED_ENQUEUE_TIME] = Timestamp(at)
    properties = Properties(
        message_id=_text(given, "MessageId"),
        to=_text(given, "To"),
        subject=_text(given, "Label"),
        reply_to=_text(given, "ReplyTo"),
        correlation_id=_text(given, "CorrelationId"),
        content_type=_symbol(content_type),
        group_id=_text(given, "SessionId"),
        reply_to_group_id=_text(given, "ReplyToSessionId"),
    )
    if lifetime_ms is not None and is_long:
        properties.creation_time = Timestamp(sent_at)
        properties.absolute_expiry_time = Timestamp(sent_at + lifetime_ms)
    return header, annotations, properties


def text_of(value: object, what: str) -> str:
    """Text that can be stored. Half a surrogate pair, which JSON can express, cannot."""
    if not isinstance(value, str):
        raise ArgumentError(f"{what} must be a string.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{what} holds half of a surrogate pair.") from None
    return value


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    return text_of(value, name)


def _symbol(content_type: str | None) -> str | None:
    if content_type is not None and not content_type.isascii():
        raise ArgumentError("The Content-Type must be ASCII.")
    return content_type or None


def _flag(given: Mapping[str, object], name: str) -> bool:
    value = given.get(name)
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ArgumentError(f"{name} must be true or false, not {value!r}.")


def _lifetime_ms(given: Mapping[str, object], sent_at: Instant) -> int | None:
    """None: it never expires."""
    seconds = _seconds(given.get("TimeToLive"))
    if seconds is None:
        seconds = _time_span(given.get("TimeToLiveTimeSpan"))
    if seconds is None:
        return None
    if not seconds > 0:
        raise ArgumentError(f"TimeToLive must be more than 0 seconds, not {seconds!r}.")
    return None if seconds * 1000 > INSTANT_MAX - sent_at else max(int(seconds * 1000), 1)


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise ArgumentError(f"TimeToLive must be a number of seconds, not {value!r}.")


def _time_span(value: object) -> float | None:
    if value is None:
        return None
    found = _TIME_SPAN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ArgumentError(f"TimeToLiveTimeSpan must be [d.]hh:mm:ss, not {value!r}.")
    days, hours, minutes, seconds = found.groups(default="0")
    return ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + float(seconds)


# -- responses --------------------------------------------------------------------


def broker_properties(
    message: Message,
    header: Header,
    properties: Properties,
    annotations: Mapping[object, object],
    *,
    locked: bool,
) -> str:
    """The properties for a receiver, as ASCII JSON, because they are the value of a header."""
    origin = message.origin
    told: dict[str, object] = {
        # Service Bus counts this delivery too; a message counts only failed ones.
        "DeliveryCount": message.delivery_count + 1,
        "EnqueuedSequenceNumber": (message if origin is None else origin).sequence_number,
        "EnqueuedTimeUtc": http_date(message.enqueued_at),
    }
    if locked:
        assert message.lock_token is not None
        told["LockToken"] = str(UUID(bytes_le=message.lock_token))
        told["LockedUntilUtc"] = http_date(message.locked_until)
    told |= {
        "MessageId": _identifier(properties.message_id),
        "PartitionKey": _plain(annotations.get(annotation_names.PARTITION_KEY)),
        "SequenceNumber": message.sequence_number,
        "SessionId": _plain(properties.group_id),
        "State": _STATES.get(annotations.get(annotation_names.MESSAGE_STATE), "Active"),
        "TimeToLive": _time_to_live_s(message, _sent_ttl_ms(header, properties)),
        "CorrelationId": _identifier(properties.correlation_id),
        "Label": _plain(properties.subject),
        "To": _plain(properties.to),
        "ReplyTo": _plain(properties.reply_to),
        "ReplyToSessionId": _plain(properties.reply_to_group_id),
    }
    scheduled = annotations.get(annotation_names.SCHEDULED_ENQUEUE_TIME)
    if isinstance(scheduled, int):
        told["ScheduledEnqueueTimeUtc"] = http_date(scheduled)
    return json.dumps(
        {name: value for name, value in told.items() if value is not None}, separators=(",", ":")
    )


def _sent_ttl_ms(header: Header, properties: Properties) -> int | None:
    begins_at, ends_at = properties.creation_time, properties.absolute_expiry_time
    if header.ttl is None and begins_at is not None and ends_at is not None:
        return ends_at - begins_at
    return header.ttl


def _time_to_live_s(message: Message, sent_ttl_ms: int | None) -> float:
    """The sender's time to live, or the entity's if that is shorter."""
    if message.expires_at is None:
        return UNLIMITED_S
    lived_ms = message.expires_at - message.enqueued_at
    # A sender's lifetime starts when its message arrives, a few milliseconds before it is enqueued.
    if sent_ttl_ms is not None and sent_ttl_ms - lived_ms < ENQUEUE_MS_MAX:
        return sent_ttl_ms / 1000
    return lived_ms / 1000


def _identifier(value: object) -> str | None:
    """An id of any of the four AMQP types as text."""
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)


def _plain(value: object) -> str | None:
    return str(value) if isinstance(value, str) else None
