"""Messages to be sent again: as they were first sent, with a mark that identifies the original.

What the broker wrote into a message (the count in its header, its annotations) is left out; the
sender's own bytes are not changed. The mark is the annotation `x-opt-bendybus-source`: it
tells a later run which copies have arrived, and applications ignore it. A dead
letter is revived: what dead-lettering added is removed, and its lifetime starts again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from bendybus.amqp.annotations import BROKER_SET, SCHEDULED_ENQUEUE_TIME
from bendybus.amqp.codec import encode as encode_value
from bendybus.amqp.message import (
    TTL_LONG,
    Header,
    PropertyField,
    annotation,
    application_properties,
    encode_message,
    list_field,
    map_entries,
    read_header,
    read_properties,
)
from bendybus.amqp.sections import Sections, scan
from bendybus.amqp.types import Symbol, Timestamp
from bendybus.errors import WireError

__all__ = ["MARK", "as_sent", "checksum", "mark_of", "mark_of_original", "revived", "with_marks"]

MARK: Final = "x-opt-bendybus-source"

_BROKERS_OWN: Final = BROKER_SET | {MARK.encode()}
_PAST: Final = frozenset({SCHEDULED_ENQUEUE_TIME.encode()})

# The properties that dead-lettering added to the sender's own.
_ADDED: Final = ("DeadLetterReason", "DeadLetterErrorDescription")

_ANNOTATIONS_START: Final = b"\x00\x53\x72\xd1"


def as_sent(payload: bytes, mark: str | None = None) -> bytes:
    """The message as its sender made it, with `mark` if one is given."""
    sections = scan(payload)
    return _front(payload, sections, _BROKERS_OWN, mark) + payload[_bare_start(sections) :]


def revived(payload: bytes, mark: str, message_id: str | None = None) -> bytes:
    """A dead letter as it was before it was dead-lettered, with another id if one is given."""
    sections = scan(payload)
    properties = read_properties(payload, sections.properties)
    if not _is_long_lived(payload, sections):
        # An expiry time computed from the first sending would shorten the lifetime.
        properties.absolute_expiry_time = properties.creation_time = None
    if message_id is not None:
        properties.message_id = message_id
    own = application_properties(payload, sections.application_properties)
    middle = encode_message(
        properties=properties,
        application_properties={name: value for name, value in own.items() if name not in _ADDED} or None,
    )
    body = payload[sections.body :] if sections.body >= 0 else b""
    return _front(payload, sections, _BROKERS_OWN | _PAST, mark) + middle + body


def _front(payload: bytes, sections: Sections, without: frozenset[bytes], mark: str | None) -> bytes:
    header = read_header(payload, sections.header)
    ttl = TTL_LONG if _is_long_lived(payload, sections) else header.ttl
    front = encode_message(header=Header(durable=True, ttl=ttl, priority=header.priority))
    entries, count = map_entries(payload, sections.message_annotations, without)
    if mark is not None:
        entries += encode_value(Symbol(MARK)) + encode_value(mark)
        count += 2
    if not count:
        return front
    sizes = (len(entries) + 4).to_bytes(4, "big") + count.to_bytes(4, "big")
    return front + _ANNOTATIONS_START + sizes + entries


def _is_long_lived(payload: bytes, sections: Sections) -> bool:
    """Whether only the properties have the lifetime: the time between creation and expiry."""
    if read_header(payload, sections.header).ttl not in (None, TTL_LONG):
        return False
    times = (PropertyField.ABSOLUTE_EXPIRY_TIME, PropertyField.CREATION_TIME)
    try:
        return all(isinstance(list_field(payload, sections.properties, each), Timestamp) for each in times)
    except WireError:
        # What the sender made is copied as it is, even if nobody can read it.
        return False


def _bare_start(sections: Sections) -> int:
    starts = (sections.properties, sections.application_properties, sections.body, sections.footer)
    return min((start for start in starts if start >= 0), default=sections.end)


def mark_of(payload: bytes) -> str | None:
    """The mark of a copy; None for a message that is not one of our copies."""
    found = annotation(payload, scan(payload).message_annotations, MARK.encode())
    return found if isinstance(found, str) else None


def checksum(payload: bytes) -> str:
    """Equal for a message and its copies: computed only over what the sender made."""
    return hashlib.sha256(as_sent(payload)).hexdigest()


def mark_of_original(generation: str, number: int, digest: str, *, was_scheduled: bool) -> str:
    """An original is marked by its number.

    A scheduled message gets a new number when it is due, so it is marked by its content: nobody else sends
    it meanwhile.
    """
    return f"{generation}/due/{digest}" if was_scheduled else f"{generation}/{number}"


# -- in tasks -----------------------------------------------------------------------------

MARKED_SCHEMA: Final = (
    "sequence_number long, state string, key string, keyed boolean, mark string, checksum string"
)


def with_marks(generation: str | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert rows with `amqp_message` to MARKED_SCHEMA. With `generation`, the rows are originals."""
    for batch in batches:
        payloads = batch.column("amqp_message").to_pylist()
        sums = [checksum(payload) for payload in payloads]
        if generation is None:
            marks = [mark_of(payload) for payload in payloads]
        else:
            due = batch.column("scheduled_enqueue_time").to_pylist()
            numbers = batch.column("sequence_number").to_pylist()
            marks = [
                mark_of_original(generation, number, digest, was_scheduled=when is not None)
                for number, when, digest in zip(numbers, due, sums, strict=True)
            ]
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("sequence_number"),
                batch.column("state"),
                batch.column("key"),
                batch.column("keyed"),
                pa.array(marks, pa.string()),
                pa.array(sums, pa.string()),
            ],
            names=["sequence_number", "state", "key", "keyed", "mark", "checksum"],
        )
