"""What rules and selectors see of a stored message, and how actions change it.

A view decodes a section when the first rule needs something in it, once for all rules.
A changed payload is built from the sections of the old one; the bytes of
the body stay as they are. The stored form: stored.py. Both are used by domain/fanout.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from bendybus.amqp import dotnet
from bendybus.amqp.annotations import PARTITION_KEY, SCHEDULED_ENQUEUE_TIME, VIA_PARTITION_KEY
from bendybus.amqp.codec import encode
from bendybus.amqp.message import (
    Properties,
    application_properties,
    encode_section,
    read_properties,
    scan,
)
from bendybus.amqp.types import Described, Timestamp
from bendybus.domain.filters import Changes, MessageView, SystemProperty, Value
from bendybus.domain.messages import Message
from bendybus.envelope import Stored, amended, bare_start, body_start
from bendybus.errors import FilterError, WireError

__all__ = ["AmqpContents", "selector_view"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

# System property -> field of the properties section.
_FIELDS: Final[Mapping[SystemProperty, str]] = {
    SystemProperty.MESSAGE_ID: "message_id",
    SystemProperty.CORRELATION_ID: "correlation_id",
    SystemProperty.LABEL: "subject",
    SystemProperty.TO: "to",
    SystemProperty.REPLY_TO: "reply_to",
    SystemProperty.REPLY_TO_SESSION_ID: "reply_to_group_id",
    SystemProperty.SESSION_ID: "group_id",
    SystemProperty.CONTENT_TYPE: "content_type",
}

# System property -> message annotation.
_ANNOTATIONS: Final[Mapping[SystemProperty, str]] = {
    SystemProperty.PARTITION_KEY: PARTITION_KEY,
    SystemProperty.VIA_PARTITION_KEY: VIA_PARTITION_KEY,
    SystemProperty.SCHEDULED_ENQUEUE_TIME: SCHEDULED_ENQUEUE_TIME,
}

_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"


class AmqpContents:
    """`Contents` for messages stored by `envelope.admit`."""

    def view(self, message: Message) -> MessageView:
        assert message.payload is not None, "published messages have their payloads"
        try:
            return _View(message, Stored.of(message.payload))
        except WireError as unreadable:
            raise FilterError(f"the message's properties cannot be read: {unreadable}") from None

    def changed(self, payload: bytes, changes: Changes) -> bytes:
        try:
            stored = Stored.of(payload)
            bare = stored.bare
            sections = scan(bare)
            properties = read_properties(bare, sections.properties)
            user = application_properties(bare, sections.application_properties)
            _change_system(changes.system, properties, stored)
            for name in changes.removed:
                user.pop(name, None)
            user.update((name, _to_amqp(value)) for name, value in changes.user.items())
            section = _APPLICATION_PROPERTIES + encode(user) if user else b""
            before, body = bare[: bare_start(sections)], bare[body_start(sections) :]
            stored.bare = before + encode_section(properties) + section + body
            return stored.payload()
        except (WireError, ValueError, TypeError) as unwritable:
            raise FilterError(f"the changed message cannot be written: {unwritable}") from None


class _View:
    """`MessageView` of a stored message."""

    __slots__ = ("_annotations", "_message", "_properties", "_sections", "_stored", "user")

    def __init__(self, message: Message, stored: Stored) -> None:
        self._message = message
        self._stored = stored
        self._sections = sections = scan(stored.bare)
        self._properties: Properties | None = None
        self._annotations: dict[object, object] | None = None
        properties = application_properties(stored.bare, sections.application_properties)
        self.user: Mapping[str, Value] = {name: _from_amqp(value) for name, value in properties.items()}

    def system(self, name: SystemProperty) -> Value:
        try:
            field = _FIELDS.get(name)
            if field is not None:
                return self._field(field)
            annotation = _ANNOTATIONS.get(name)
            if annotation is not None:
                return self._annotation(annotation)
        except WireError as unreadable:
            raise FilterError(f"the message's properties cannot be read: {unreadable}") from None
        return self._of_the_message(name)

    def _read(self) -> Properties:
        properties = self._properties
        if properties is None:
            properties = self._properties = read_properties(self._stored.bare, self._sections.properties)
        return properties

    def _field(self, field: str) -> Value:
        value = getattr(self._read(), field)
        # On the wire, ids may be numbers, uuids or bytes. In Service Bus they are texts.
        return value if value is None or isinstance(value, str) else _id_text(value)

    def _annotation(self, name: str) -> Value:
        annotations = self._annotations
        if annotations is None:
            annotations = self._annotations = self._stored.annotations()
        return _from_amqp(annotations.get(name))

    def _of_the_message(self, name: SystemProperty) -> Value:
        message = self._message
        match name:
            case SystemProperty.TIME_TO_LIVE:
                ttl = self._stored.ttl_ms
                return None if ttl is None else timedelta(milliseconds=ttl)
            case SystemProperty.ENQUEUED_TIME:
                return _EPOCH + timedelta(milliseconds=message.enqueued_at)
            case SystemProperty.EXPIRES_AT:
                until = message.expires_at
                return None if until is None else _instant(until)
            case SystemProperty.DELIVERY_COUNT:
                return message.delivery_count
            case SystemProperty.SIZE:
                return message.size
            case SystemProperty.ENQUEUED_SEQUENCE_NUMBER if message.origin and message.origin.hops:
                # It was forwarded to the topic.
                return message.origin.sequence_number
            case _:
                return message.sequence_number

    # -- for selectors ------------------------------------------------------------

    def field(self, name: str) -> Value:
        try:
            match name:
                case "JMSMessageID":
                    return _jms_id(self._read().message_id, is_message_id=True)
                case "JMSCorrelationID":
                    return _jms_id(self._read().correlation_id, is_message_id=False)
                case "JMSDeliveryMode":
                    return "PERSISTENT" if self._stored.durable else "NON_PERSISTENT"
                case "JMSRedelivered":
                    return self._message.delivery_count > 0
                case "JMSXDeliveryCount":
                    return self._message.delivery_count + 1
                case "JMSXUserID":
                    user_id = self._read().user_id
                    return None if user_id is None else user_id.decode(errors="replace")
            return self._amqp_field(_JMS_FIELDS.get(name) or name.removeprefix(_AMQP))
        except WireError as unreadable:
            raise FilterError(f"the message's properties cannot be read: {unreadable}") from None

    def _amqp_field(self, name: str) -> Value:
        match name:
            case "durable":
                return self._stored.durable
            case "priority":
                return self._stored.priority
            case "ttl":
                return self._stored.ttl_ms
            case "first_acquirer":
                return self._message.delivery_count == 0
            case "delivery_count":
                return self._message.delivery_count
        properties = self._read()
        value = getattr(properties, name) if name in properties.__slots__ else None
        # For a selector, a time is a number of milliseconds.
        return int(value) if isinstance(value, Timestamp) else value


# -- selectors --------------------------------------------------------------------

# JMS header or property -> AMQP field, as in the JMS mapping of AMQP. Those that a client
# sees in another form are in `_View.field`.
_JMS_FIELDS: Final[Mapping[str, str]] = {
    "JMSPriority": "priority",
    "JMSTimestamp": "creation_time",
    "JMSType": "subject",
    "JMSDestination": "to",
    "JMSReplyTo": "reply_to",
    "JMSXGroupID": "group_id",
    "JMSXGroupSeq": "group_sequence",
}
_AMQP: Final = "amqp."
_ID: Final = "ID:"
# What a JMS client puts after `ID:` for an id that was not written by a JMS client.
_ENCODED_ID: Final = ("AMQP_BINARY:", "AMQP_UUID:", "AMQP_ULONG:", "AMQP_STRING:", "AMQP_NO_PREFIX:")


def selector_view(message: Message, payload: bytes) -> MessageView:
    """A message as a receiver would get it, including what settlements added to it."""
    try:
        stored = Stored.of(payload)
        if message.amendment is not None and message.amendment.is_shown:
            stored.bare = amended(stored.bare, message.amendment)
        return _View(message, stored)
    except WireError as unreadable:
        raise FilterError(f"the message's properties cannot be read: {unreadable}") from None


def _jms_id(value: object, *, is_message_id: bool) -> str | None:
    """An id as a JMS client shows it, so that it can be used in a selector."""
    match value:
        case None:
            return None
        case UUID():
            return f"{_ID}AMQP_UUID:{value}"
        case int():
            return f"{_ID}AMQP_ULONG:{int(value)}"
        case bytes():
            return f"{_ID}AMQP_BINARY:{value.hex().upper()}"
    text = str(value)
    if not text.startswith(_ID):
        return f"{_ID}AMQP_NO_PREFIX:{text}" if is_message_id else text
    return f"{_ID}AMQP_STRING:{text}" if text.startswith(_ENCODED_ID, len(_ID)) else text


# -- values -----------------------------------------------------------------------


def _from_amqp(value: object) -> Value:
    """A value as the language of rules has it; None for types that it lacks, such as a list."""
    if isinstance(value, Timestamp):
        return _instant(value)
    if isinstance(value, Described):
        return _described(value)
    if value is None or isinstance(value, str | int | float | UUID | bytes):
        return value
    return None


def _instant(milliseconds: int) -> Value:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _described(value: Described) -> Value:
    inner = value.value
    match value.descriptor, inner:
        case (str(name), int(ticks)) if name == dotnet.TIMESPAN:
            return _span(ticks)
        case (str(name), int(ticks)) if name == dotnet.DATETIME_OFFSET:
            return _instant(dotnet.instant_of_ticks(ticks))
        case (str(name), str(uri)) if name == dotnet.URI:
            return uri
        case _:
            return None


def _span(ticks: int) -> Value:
    try:
        return dotnet.span_of_ticks(ticks)
    except OverflowError:
        return None


def _to_amqp(value: Value) -> object:
    match value:
        case datetime():
            return Timestamp((value - _EPOCH) // _MILLISECOND)
        case timedelta():
            return dotnet.timespan(value)
        case _:
            return value


def _id_text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


# -- writing ----------------------------------------------------------------------


def _change_system(system: Mapping[SystemProperty, Value], properties: Properties, stored: Stored) -> None:
    annotations = stored.annotations()
    for name, value in system.items():
        if name in _FIELDS:
            setattr(properties, _FIELDS[name], value)
        elif name is SystemProperty.TIME_TO_LIVE:
            stored.ttl_ms = value // _MILLISECOND if isinstance(value, timedelta) else None
        elif value is None:
            annotations.pop(_ANNOTATIONS[name], None)
        else:
            annotations[_ANNOTATIONS[name]] = _to_amqp(value)
    stored.annotate(annotations)
