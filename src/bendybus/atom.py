"""The ATOM vocabulary of the management API, for the server and for its clients.

Names, media types and the writing of elements, which both sides share: admin/ writes
descriptions as entries and feeds, management/ writes them as requests. Neither imports
the other, so what they have in common stands below both. XML is written by hand: clients
insist on which element declares which prefix, and a tree would decide that by itself.
Which properties an entity has: domain/properties.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from bendybus.names import Instant

__all__ = [
    "ATOM",
    "COMPATIBILITY_LEVEL",
    "CORRELATION_ELEMENTS",
    "ENTRY_TYPE",
    "ERROR_TYPE",
    "FEED_TYPE",
    "INSTANCE",
    "NEVER",
    "PAGE_MAX",
    "QUEUE_DESCRIPTION",
    "RULE_DESCRIPTION",
    "SCHEMA",
    "SERVICE_BUS",
    "SUBSCRIPTION_DESCRIPTION",
    "TOPIC_DESCRIPTION",
    "attribute",
    "element",
    "elements_of",
    "format_time",
    "text",
]

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE: Final = "application/xml; charset=utf-8"

# XML namespaces.
ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"

# What the content of an entry describes.
QUEUE_DESCRIPTION: Final = "QueueDescription"
TOPIC_DESCRIPTION: Final = "TopicDescription"
SUBSCRIPTION_DESCRIPTION: Final = "SubscriptionDescription"
RULE_DESCRIPTION: Final = "RuleDescription"

# "default 100 per page; cap 100"
PAGE_MAX: Final = 100

# Of SQL filters and actions; no other level is supported.
COMPATIBILITY_LEVEL: Final = 20

# Field of a correlation filter -> its element, in the order of the real service.
CORRELATION_ELEMENTS: Final = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}

# The first moment that .NET can write.
NEVER: Final = "0001-01-01T00:00:00Z"

# What XML 1.0 cannot hold, not even escaped [XML 2.2]; names in errors are the client's own.
_UNWRITABLE: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element(name: str, value: object) -> str:
    """`<name>value</name>`, with true and false as XML writes them."""
    written = str(value).lower() if isinstance(value, bool) else str(value)
    return f"<{name}>{text(written)}</{name}>"


def elements_of(shown: Iterable[tuple[str, object] | str]) -> str:
    """Names with their values, and what is XML already, one after the other."""
    return "".join(element(*one) if isinstance(one, tuple) else one for one in shown)


def format_time(at: Instant) -> str:
    """As .NET writes it, without zeros at the end; 0 is written as `NEVER`."""
    if not at:
        return NEVER
    seconds, milliseconds = divmod(at, 1000)
    fraction = f".{milliseconds:03d}".rstrip("0") if milliseconds else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def text(given: str) -> str:
    """Text for the inside of an element."""
    return escape(_UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", given))


def attribute(given: str) -> str:
    """An attribute's value, with its quotes."""
    return quoteattr(_UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", given))
