"""A rule as it is typed: whether its SQL is right, and which of the recent messages it would match."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from bendybus.amqp import annotations as annotation_names
from bendybus.client import ReceivedMessage
from bendybus.domain.filters import Reading, SqlRuleAction, SystemProperty, Value, sql_filter
from bendybus.errors import BrokerError
from bendybus_portal.access import Access
from bendybus_portal.peeking import Filters, peek_page

__all__ = ["Checked", "check_action", "check_filter", "recent_messages"]

# Messages to examine, from all subscriptions of the topic together.
RECENT_MAX: Final = 100


class PeekedView:
    """A message that was peeked, as rules see it (domain/filters/reading.py)."""

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message

    @property
    def user(self) -> Mapping[str, Value]:
        return cast(Mapping[str, Value], self._message.application_properties)

    def system(self, name: SystemProperty) -> Value:
        message, properties = self._message, self._message.parts.properties
        ttl = message.parts.header.ttl
        known: dict[SystemProperty, object] = {
            SystemProperty.MESSAGE_ID: _text(properties.message_id),
            SystemProperty.CORRELATION_ID: _text(properties.correlation_id),
            SystemProperty.LABEL: properties.subject,
            SystemProperty.TO: properties.to,
            SystemProperty.REPLY_TO: properties.reply_to,
            SystemProperty.REPLY_TO_SESSION_ID: properties.reply_to_group_id,
            SystemProperty.SESSION_ID: properties.group_id,
            SystemProperty.CONTENT_TYPE: properties.content_type,
            SystemProperty.PARTITION_KEY: message.partition_key,
            SystemProperty.TIME_TO_LIVE: None if ttl is None else timedelta(milliseconds=ttl),
            SystemProperty.ENQUEUED_TIME: _instant(message.annotation(annotation_names.ENQUEUED_TIME)),
            SystemProperty.SEQUENCE_NUMBER: message.sequence_number,
            SystemProperty.DELIVERY_COUNT: message.delivery_count,
            SystemProperty.SIZE: len(message.payload),
        }
        return cast(Value, known.get(name))

    def field(self, name: str) -> Value:
        return None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _instant(value: object) -> datetime | None:
    return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class Checked:
    problem: str = ""
    """What is wrong with the SQL; empty if nothing is."""
    matching: tuple[ReceivedMessage, ...] = ()
    looked_at: int = 0


def check_filter(expression: str, messages: Iterable[ReceivedMessage]) -> Checked:
    messages = list(messages)
    try:
        compiled = sql_filter(expression)
        matching = []
        for message in messages:
            try:
                if compiled.matches(Reading(PeekedView(message), uuid.uuid4)):
                    matching.append(message)
            except BrokerError:
                # The rule fails on this message; the subscription would decide what happens to it.
                continue
    except BrokerError as error:
        return Checked(str(error))
    return Checked("", tuple(matching), len(messages))


def check_action(text: str) -> str:
    """What is wrong with an action; empty if nothing is."""
    try:
        SqlRuleAction(text)
    except BrokerError as error:
        return str(error)
    return ""


def recent_messages(access: Access, topic: str, subscriptions: Iterable[str]) -> list[ReceivedMessage]:
    """The current messages in the subscriptions of a topic, each once."""
    found: dict[object, ReceivedMessage] = {}
    for name in subscriptions:
        page = peek_page(access, f"{topic}/Subscriptions/{name}", Filters())
        for message in page.messages:
            found.setdefault(message.message_id or id(message), message)
        if len(found) >= RECENT_MAX:
            break
    return list(found.values())[:RECENT_MAX]
