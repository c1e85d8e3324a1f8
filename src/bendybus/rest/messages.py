"""Messages between HTTP and their stored form.

An HTTP payload becomes one AMQP data section. A body that another client sent as text or
bytes is returned as such, and a body of any other AMQP type as JSON. Both directions use the
same `envelope` as AMQP links, so HTTP and AMQP clients can receive each other's messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from bendybus.amqp.message import (
    Properties,
    Sections,
    application_properties,
    body_data,
    body_sequence,
    body_value,
    encode_message,
    read_header,
    read_map,
    read_properties,
    scan,
)
from bendybus.amqp.types import Array, Described
from bendybus.domain.duplicates import Identities
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message
from bendybus.domain.topic_entities import TopicDescription
from bendybus.envelope import admit, admit_batch, render
from bendybus.errors import ArgumentError, MessageSizeExceeded, WireError
from bendybus.names import Instant, RoutingKey
from bendybus.rest.headers import custom_properties, header_text, number, property_headers
from bendybus.rest.properties import broker_properties, parse_json, sections_of, text_of

__all__ = ["BATCH_TYPE", "Admitted", "Shown", "admit_request", "message_id", "show"]

BATCH_TYPE: Final = "application/vnd.microsoft.servicebus.json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Admitted:
    """The messages of one request, to be stored together, and the key that says where."""

    messages: list[Message]
    key: RoutingKey | None
    identities: list[str | None] | None
    """What duplicate detection knows them by; None where the queue has none."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as an HTTP response tells it."""

    headers: list[tuple[bytes, bytes]]
    body: bytes


# -- in ---------------------------------------------------------------------------


def admit_request(
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes,
    at: Instant,
    description: QueueDescription | TopicDescription,
    *,
    partitioned: bool,
) -> Admitted:
    """The message of a send request, or the messages of a batch; headers as the client spelled them."""
    headers = list(headers)
    known = {name.lower(): header_text(value) for name, value in headers}
    identities = Identities(partitioned=partitioned) if description.requires_duplicate_detection else None
    content_type = known.get(b"content-type")
    if content_type is not None and content_type.partition(";")[0].strip().lower() == BATCH_TYPE:
        payload = encode_message(data=[_of_batch(entry, at) for entry in _entries(body)])
        _refuse_oversize(payload, description)
        messages, key = admit_batch(payload, at, description, identities, partitioned=partitioned)
        return Admitted(messages, key, identities.found if identities else None)
    given = parse_json(known.get(b"brokerproperties", "{}"), "The BrokerProperties header")
    payload = _encoded(given, content_type, custom_properties(headers), body, at)
    _refuse_oversize(payload, description)
    message, key = admit(payload, at, description, identities)
    return Admitted([message], key, identities.found if identities else None)


def _entries(body: bytes) -> list[object]:
    entries = parse_json(body, "The batch")
    if not isinstance(entries, list) or not entries:
        raise ArgumentError("A batch is a JSON array with at least one message in it.")
    return entries


def _of_batch(entry: object, at: Instant) -> bytes:
    """One entry of a batch: `{"Body": text, "BrokerProperties": {...}, "UserProperties": {...}}`."""
    if not isinstance(entry, dict):
        raise ArgumentError("Each message of a batch must be a JSON object with a Body.")
    body = text_of(entry.get("Body", ""), "The Body of a message in a batch")
    given = entry.get("UserProperties") or {}
    if not isinstance(given, dict):
        raise ArgumentError("UserProperties must be a JSON object.")
    properties = {
        text_of(name, "The name of a property"): _json_value(name, value) for name, value in given.items()
    }
    return _encoded(entry.get("BrokerProperties") or {}, None, properties, body.encode(), at)


def _json_value(name: str, value: object) -> object:
    if isinstance(value, str):
        return text_of(value, "The value of a property")
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return number(value)
    raise ArgumentError(f"The property '{name}' must be a string, a number, true or false.")


def _encoded(
    given: object, content_type: str | None, custom: dict[str, object], body: bytes, at: Instant
) -> bytes:
    header, annotations, properties = sections_of(given, content_type, at)
    return encode_message(
        header=header,
        message_annotations=annotations or None,
        properties=properties,
        application_properties=custom or None,
        data=body,
    )


def _refuse_oversize(payload: bytes, description: QueueDescription | TopicDescription) -> None:
    limit = description.max_message_bytes
    if len(payload) > limit:
        raise MessageSizeExceeded(
            f"The message has {len(payload)} bytes with its properties; '{description.path}' accepts {limit}."
        )


# -- out --------------------------------------------------------------------------


def show(message: Message, payload: bytes, *, locked: bool) -> Shown:
    """A stored message as headers and body.

    A sender may have put anything into its sections. A section that cannot be read is shown
    empty: the message must be receivable, or it would block those behind it.
    """
    rendered = b"".join(render(message, payload, locked=locked))
    sections = scan(rendered)
    header = read_header(rendered, sections.header)
    properties = _read(lambda: read_properties(rendered, sections.properties), Properties())
    annotations: dict[object, object] = _read(lambda: read_map(rendered, sections.message_annotations), {})
    custom: dict[str, object] = _read(
        lambda: application_properties(rendered, sections.application_properties), {}
    )
    headers = property_headers(custom)
    told = broker_properties(message, header, properties, annotations, locked=locked)
    headers.append((b"BrokerProperties", told.encode()))
    content_type = properties.content_type
    if content_type is not None and content_type.isascii() and content_type.isprintable():
        headers.append((b"Content-Type", content_type.encode()))
    return Shown(headers, _read(lambda: _body(rendered, sections), b""))


def message_id(message: Message, payload: bytes) -> str | None:
    """A stored message's id as an HTTP client would write it."""
    rendered = b"".join(render(message, payload, locked=False))
    sections = scan(rendered)
    found = _read(lambda: read_properties(rendered, sections.properties), Properties()).message_id
    return found.hex() if isinstance(found, bytes) else None if found is None else str(found)


def _read(read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except WireError:
        return otherwise


def _body(rendered: bytes, sections: Sections) -> bytes:
    data = body_data(rendered, sections)
    if data:
        return b"".join(data)
    value = body_value(rendered, sections)
    if value is None:
        sequence = body_sequence(rendered, sections)
        return _json(sequence) if sequence else b""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return value if isinstance(value, bytes) else _json(value)


def _json(value: object) -> bytes:
    return json.dumps(_jsonable(value)).encode()


def _jsonable(value: object) -> object:
    """JSON has no types but its own: bytes and ids become text, described values lose their descriptor."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, Array):
        return [_jsonable(item) for item in value.values]
    if isinstance(value, Described):
        return _jsonable(value.value)
    if isinstance(value, UUID):
        return str(value)
    assert isinstance(value, bytes), "all types of amqp/types.py are named above"
    return value.decode("utf-8", "replace")
