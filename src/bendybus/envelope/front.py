"""The front of a stored payload: what is made of a message's header and annotations.

Clients write the same few headers and keys again and again, so fronts are cached by the bytes that they are
made of. The layout: stored.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bendybus.amqp.annotations import BROKER_SET
from bendybus.amqp.codec import encode
from bendybus.amqp.message import annotation, map_entries, read_header, scan
from bendybus.amqp.types import Symbol
from bendybus.domain.routing import KEY_LENGTH_MAX, key_of
from bendybus.envelope.stored import (
    DURABLE,
    DURABLE_UNSAID,
    FIRST_ACQUIRER,
    FRONT,
    LONG_LIVED,
    NO_TTL,
    NOT_FIRST_ACQUIRER,
    PARTITION_KEY,
    PRIORITY_DEFAULT,
    PRIORITY_UNSAID,
    VERSION,
    VIA_PARTITION_KEY,
    delivery_delay,
    due_time,
    text,
)
from bendybus.errors import ArgumentError
from bendybus.names import RoutingKey

__all__ = ["PayloadFront", "known_fronts", "make_front", "read_front"]


class PayloadFront(NamedTuple):
    """The front, and what it says about the message."""

    sections: bytes
    """The header and the annotations that it was made of."""
    stored: bytes
    ttl: int
    partition_key: str | None
    via_key: str | None
    due: int
    """When the message has to be enqueued; 0 if that is not set. Below 0: so many milliseconds from now."""
    is_usual: bool
    """Whether there is no due time, a lifetime is only in the header, and the keys are not too long."""
    key: RoutingKey | None
    """The key of a message without a session id, where case is ignored; None if there is none."""


# A cache of at most two megabytes.
_CACHED_MAX: Final = 4096
_CACHED_BYTES_MAX: Final = 256
known_fronts: Final[dict[bytes, PayloadFront]] = {}
"""By the header and the annotations of a message, which must not set a due time."""


def read_front(sections: bytes) -> PayloadFront:
    """The front for the header and the annotations of a message, as far as it has them. Caches it."""
    annotations = scan(sections).message_annotations
    if annotations < 0:
        annotations = len(sections)
    front = make_front(sections[:annotations], sections[annotations:])
    if not front.due and len(sections) <= _CACHED_BYTES_MAX:
        if len(known_fronts) >= _CACHED_MAX:
            known_fronts.clear()
        known_fronts[sections] = front
    return front


def make_front(header: bytes, annotations: bytes, flags: int = 0) -> PayloadFront:
    """The front for a header section and an annotations section, each of which may be empty."""
    read = read_header(header, 0 if header else -1)
    ttl = NO_TTL if read.ttl is None else read.ttl
    priority = PRIORITY_DEFAULT if read.priority is None else read.priority
    flags |= DURABLE if read.durable else 0
    if read.durable is None:
        flags |= DURABLE_UNSAID
    if read.priority is None:
        flags |= PRIORITY_UNSAID
    if read.ttl == NO_TTL:
        flags |= LONG_LIVED
    if read.first_acquirer is not None:
        flags |= FIRST_ACQUIRER if read.first_acquirer else NOT_FIRST_ACQUIRER
    at = 0 if annotations else -1
    entries, count = map_entries(annotations, at, BROKER_SET)
    partition_key = annotation(annotations, at, PARTITION_KEY)
    if isinstance(partition_key, bytes):
        partition_key = _decoded_key(partition_key)
        entries, count = map_entries(annotations, at, BROKER_SET | {PARTITION_KEY})
        entries, count = entries + encode(Symbol(PARTITION_KEY.decode())) + encode(partition_key), count + 2
    partition_key = text("PartitionKey", partition_key)
    via_key = text("ViaPartitionKey", annotation(annotations, at, VIA_PARTITION_KEY))
    key = via_key if partition_key is None else partition_key
    is_short = max(len(partition_key or ""), len(via_key or "")) <= KEY_LENGTH_MAX
    due = -delivery_delay(annotations, at) or due_time(annotations, at)
    return PayloadFront(
        header + annotations,
        FRONT.pack(VERSION, flags, priority, ttl, count, len(entries)) + entries,
        ttl,
        partition_key,
        via_key,
        due,
        not due and not flags & LONG_LIVED and is_short,
        None if key is None else key_of(key),
    )


def _decoded_key(key: bytes) -> str:
    """A partition key that was sent as binary."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ArgumentError(f"PartitionKey must be a string, not {key!r}.") from None
