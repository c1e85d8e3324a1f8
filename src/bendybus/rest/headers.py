"""Custom properties as HTTP headers, both ways.

    "text"                            string; `\\"` stands for a quote, nothing else is escaped
    "Sun, 06 Nov 1994 08:49:37 GMT"   time
    true, false                       boolean
    12, -1.5e3                        int, long or double

Any other value is text, as in the public samples
(`Priority: High`). What a header cannot carry (binary, lists, maps, null; names
that are not valid for headers) is not shown to HTTP receivers. BrokerProperties:
properties.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Final
from uuid import UUID

from bendybus.amqp.types import Int, Timestamp
from bendybus.errors import ArgumentError

__all__ = [
    "HEADER_SPELLINGS",
    "Spelled",
    "custom_properties",
    "header_text",
    "http_date",
    "instant_of_date",
    "number",
    "property_headers",
]

HEADER_SPELLINGS: Final = "bendybus.header_spellings"
"""ASGI extension: the names of a request's headers as the client wrote them, in order."""

# Headers that HTTP, its proxies and Service Bus itself use. They are never properties, in either direction.
_NOT_PROPERTIES: Final = frozenset(
    {
        "accept", "accept-charset", "accept-encoding", "accept-language", "accept-ranges", "age",
        "allow", "authorization", "brokerproperties", "cache-control", "connection",
        "content-disposition", "content-encoding", "content-language", "content-length",
        "content-location", "content-md5", "content-range", "content-type", "cookie", "date", "etag",
        "expect", "expires", "forwarded", "from", "host", "if-match", "if-modified-since",
        "if-none-match", "if-range", "if-unmodified-since", "keep-alive", "last-modified", "location",
        "max-forwards", "origin", "pragma", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "range", "referer", "retry-after", "server", "set-cookie", "te", "trailer",
        "transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning", "www-authenticate",
        "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-ms-client-request-id",
        "x-ms-retrypolicy", "x-ms-version", "x-process-at",
    }
)  # fmt: skip

# A header's name [RFC 9110 5.6.2].
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
# A line break inside a value would start another header, or another response.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_DATE: Final = "%a, %d %b %Y %H:%M:%S GMT"
_DATE_LENGTH: Final = len("Sun, 06 Nov 1994 08:49:37 GMT")


class Spelled(bytes):
    """A header name that keeps its spelling. The HTTP server lower-cases all others.

    Property names are case-sensitive, and old clients take them from the header as they are.
    """

    __slots__ = ()

    def lower(self) -> Spelled:
        return self


# -- requests ---------------------------------------------------------------------


def custom_properties(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, object]:
    """The application properties among a request's headers, under the names given."""
    properties: dict[str, object] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        if name.lower() not in _NOT_PROPERTIES:
            properties[name] = _value(header_text(raw_value))
    return properties


def header_text(raw: bytes) -> str:
    """A header's value as text: UTF-8, or else Latin-1, HTTP's older default."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _value(text: str) -> object:
    if len(text) >= 2 and text[0] == text[-1] == '"':
        inner = text[1:-1].replace('\\"', '"')
        at = instant_of_date(inner)
        return inner if at is None else Timestamp(at)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _WHOLE.fullmatch(text) and len(text) <= 20:
        return number(int(text))
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


def number(value: int) -> int | float:
    """A whole number in the narrowest type that SDKs use: int, long, else double."""
    if -(1 << 31) <= value < 1 << 31:
        return Int(value)
    if -(1 << 63) <= value < 1 << 63:
        return value
    try:
        return float(value)
    except OverflowError:
        raise ArgumentError("A number is larger than any type can hold.") from None


def instant_of_date(text: str) -> int | None:
    """Milliseconds since 1970 of an RFC 1123 date; None if the text is not one."""
    if len(text) != _DATE_LENGTH:
        return None
    try:
        at = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except ValueError:
        return None
    # A text that would be written differently as a date only looks like one.
    return (
        int(at.timestamp()) * 1000
        if at.year >= 1900 and http_date(int(at.timestamp()) * 1000) == text
        else None
    )


# -- responses --------------------------------------------------------------------


def property_headers(properties: Mapping[str, object]) -> list[tuple[bytes, bytes]]:
    """A header for each property that can be one, with the sender's spelling of its name."""
    headers: list[tuple[bytes, bytes]] = []
    for name, value in properties.items():
        if name.lower() not in _NOT_PROPERTIES and _TOKEN.fullmatch(name):
            text = _text(value)
            if text is not None:
                headers.append((Spelled(name.encode()), text.encode("utf-8", "replace")))
    return headers


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        return _quoted(http_date(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else _quoted(repr(float(value)))
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, UUID):
        return _quoted(str(value))
    return None


def _quoted(text: str) -> str:
    return '"' + _CONTROLS.sub(" ", text).replace('"', '\\"') + '"'


def http_date(instant: int) -> str:
    """An instant as HTTP and BrokerProperties write it. One outside the calendar becomes its first day."""
    try:
        return formatdate(instant / 1000, usegmt=True)
    except (OverflowError, ValueError, OSError):
        return formatdate(0, usegmt=True)
