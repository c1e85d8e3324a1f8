"""Messages to rows: from AMQP as a peek returns it to Arrow record batches.

This is the hot path of reading. A message from Bendybus has its header and
annotations in one fixed form, which is parsed with one `unpack`. Anything
else takes the general path, with the same result. Columns: schema.py.
"""

from __future__ import annotations

import base64
import datetime
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from bendybus.amqp import annotations as annotation_names
from bendybus.amqp.annotations import entry_start
from bendybus.amqp.decoder import DECODERS, MALFORMED, NESTING_MAX, list_bounds
from bendybus.amqp.message import application_properties, read_header, scan
from bendybus.amqp.sections import section_at
from bendybus.amqp.types import Described, Timestamp
from bendybus.client.messages import ReceivedMessage, readable_annotations
from bendybus.errors import WireError
from bendybus.names import PARTITION_SHIFT
from pyspark_servicebus.options import STATES

__all__ = ["RowDecoder"]

T = TypeVar("T")

_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())

# -- the front: header and annotations ----------------------------------------------------


_ENQUEUED: Final = entry_start(annotation_names.ENQUEUED_TIME, 0x83)
_NUMBER: Final = entry_start(annotation_names.SEQUENCE_NUMBER, 0x81)
_FIRST_NUMBER: Final = entry_start(annotation_names.ENQUEUE_SEQUENCE_NUMBER, 0x81)
_PARTITION: Final = entry_start(annotation_names.PARTITION_ID, 0x61)
_STATE: Final = entry_start(annotation_names.MESSAGE_STATE, 0x71)
_MAP_START: Final = b"\x00\x53\x72\xd1"

# The broker's own annotations of a peeked message, in the order in which it writes them.
_FRONT: Final = struct.Struct(
    f">4sII{len(_ENQUEUED)}sq{len(_NUMBER)}sq{len(_FIRST_NUMBER)}sq{len(_PARTITION)}sh{len(_STATE)}si"
)
_OWN_ITEMS: Final = 10
_HEADER_START: Final = b"\x00\x53\x70\xc0"
_HEADER_WITH_TTL: Final = 0x0F
_HEADER_SIZES: Final = (0x0B, _HEADER_WITH_TTL)
_UINT: Final = struct.Struct(">I")

Front = tuple[int, int, int, int, int, "int | None", "dict[Any, Any] | None", int]
"""Enqueued, number, first number, state, delivery count, ttl, all annotations if there are more, the end."""


def _front(payload: bytes) -> Front:
    size = payload[4]
    end = 5 + size
    if payload.startswith(_HEADER_START) and size in _HEADER_SIZES:
        try:
            (start, length, items, key1, enqueued, key2, number, key3, first, key4, _, key5, state) = (
                _FRONT.unpack_from(payload, end)
            )
        except struct.error:
            return _front_the_long_way(payload)
        if (
            start == _MAP_START
            and key1 == _ENQUEUED
            and key2 == _NUMBER
            and key3 == _FIRST_NUMBER
            and key4 == _PARTITION
            and key5 == _STATE
        ):
            deliveries = _UINT.unpack_from(payload, end - 4)[0]
            ttl = _UINT.unpack_from(payload, 10)[0] if size == _HEADER_WITH_TTL else None
            more = readable_annotations(payload, end) if items > _OWN_ITEMS else None
            return enqueued, number, first, state, deliveries, ttl, more, end + 8 + length
    return _front_the_long_way(payload)


def _front_the_long_way(payload: bytes) -> Front:
    sections = scan(payload)
    header = read_header(payload, sections.header)
    annotations = readable_annotations(payload, sections.message_annotations)
    starts = (sections.properties, sections.application_properties, sections.body, sections.footer)
    bare = min((start for start in starts if start >= 0), default=sections.end)
    number = _whole(annotations.get(annotation_names.SEQUENCE_NUMBER))
    return (
        _whole(annotations.get(annotation_names.ENQUEUED_TIME)),
        number,
        _whole(annotations.get(annotation_names.ENQUEUE_SEQUENCE_NUMBER)) or number,
        _whole(annotations.get(annotation_names.MESSAGE_STATE)),
        header.delivery_count or 0,
        header.ttl,
        annotations,
        bare,
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


# -- the sender's part ------------------------------------------------------------------

# The column of each field of the properties section, by position.
_FIELDS: Final = (
    (0, "message_id"),
    (2, "to"),
    (3, "subject"),
    (4, "reply_to"),
    (5, "correlation_id"),
    (6, "content_type"),
    (10, "session_id"),
    (12, "reply_to_session_id"),
)


def _fields(buffer: bytes, at: int) -> list[object]:
    """All fields of the properties section at `at`. The usual kinds of text need no function call."""
    try:
        count, pos, _ = list_bounds(buffer, section_at(buffer, at)[1])
        values: list[object] = []
        for _ in range(count):
            code = buffer[pos]
            if code == 0x40:
                values.append(None)
                pos += 1
            elif code == 0xA1 or code == 0xA3:
                start = pos + 2
                pos = start + buffer[pos + 1]
                values.append(buffer[start:pos].decode())
            else:
                value, pos = DECODERS[code](buffer, pos + 1, NESTING_MAX - 1)
                values.append(value)
    except MALFORMED as cause:
        raise WireError(f"malformed properties at byte {at}: {cause}") from None
    return values


def _readable(read: Callable[[bytes, int], T], payload: bytes, at: int) -> T | None:
    """What is in a section; None if it cannot be read. One such message must not stop a stream for ever."""
    try:
        return read(payload, at)
    except WireError:
        return None


def _body(payload: bytes, at: int, end: int) -> bytes:
    """The data section that extends to the end; any other body on the general path."""
    if payload.startswith(b"\x00\x53\x75\xb0", at):
        start = at + 8
        if start + int(_UINT.unpack_from(payload, at + 4)[0]) == end:
            return payload[start:end]
    elif payload.startswith(b"\x00\x53\x75\xa0", at):
        start = at + 5
        if start + payload[at + 4] == end:
            return payload[start:end]
    return ReceivedMessage(payload).body


def _text(value: object) -> str | None:
    """Any value of a property as text."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        try:
            moment = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        except (ValueError, OverflowError, OSError):
            # Outside the calendar: its milliseconds.
            return str(int(value))
        return moment.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Described):
        return _text(value.value)
    if isinstance(value, str | int | float | uuid.UUID):
        return str(value)
    return repr(value)


# -- rows -------------------------------------------------------------------------------


class RowDecoder:
    """Makes record batches with exactly these columns."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        wanted = set(columns)
        self._body = "body" in wanted
        self._properties = "application_properties" in wanted
        self._raw = "amqp_message" in wanted

    def decode(self, payloads: Sequence[bytes]) -> pa.RecordBatch:
        rows = _Rows(len(payloads))
        for row, payload in enumerate(payloads):
            front = _front(payload)
            rows.fronts.append(front)
            sections = scan(payload, front[-1])
            if sections.properties >= 0:
                values = _readable(_fields, payload, sections.properties) or []
                count = len(values)
                for place, name in _FIELDS:
                    if place < count and (value := values[place]) is not None:
                        rows.column(name)[row] = value if type(value) is str else _text(value)
            if sections.application_properties >= 0:
                properties = _readable(application_properties, payload, sections.application_properties) or {}
                if self._properties:
                    rows.column("application_properties")[row] = [
                        (str(name), _text(value)) for name, value in properties.items()
                    ]
                if "DeadLetterReason" in properties or "DeadLetterErrorDescription" in properties:
                    rows.column("dead_letter_reason")[row] = _text(properties.get("DeadLetterReason"))
                    rows.column("dead_letter_error_description")[row] = _text(
                        properties.get("DeadLetterErrorDescription")
                    )
            if self._body and sections.body >= 0:
                rows.column("body")[row] = _body(payload, sections.body, sections.end)
            annotations = front[6]
            if annotations is not None:
                rows.annotate(row, annotations)
        if self._raw:
            rows.optional["amqp_message"] = list(payloads)
        return rows.batch(self._columns)


class _Rows:
    """Columns being filled. A column without any value is never created."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.fronts: list[Front] = []
        self.optional: dict[str, list[Any]] = {}

    def column(self, name: str) -> list[Any]:
        values = self.optional.get(name)
        if values is None:
            values = self.optional[name] = [None] * self._count
        return values

    def annotate(self, row: int, annotations: dict[Any, Any]) -> None:
        key = annotations.get(annotation_names.PARTITION_KEY)
        if key is not None:
            self.column("partition_key")[row] = _text(key)
        scheduled = annotations.get(annotation_names.SCHEDULED_ENQUEUE_TIME)
        if isinstance(scheduled, int):
            self.column("scheduled_enqueue_time")[row] = scheduled * 1000
        source = annotations.get(annotation_names.DEAD_LETTER_SOURCE)
        if source is not None:
            self.column("dead_letter_source")[row] = _text(source)

    def batch(self, columns: Sequence[str]) -> pa.RecordBatch:
        arrays = [self._array(name) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _array(self, name: str) -> pa.Array:
        of_front = _FROM_FRONT.get(name)
        if of_front is not None:
            kind, value = of_front
            array = pa.array([value(front) for front in self.fronts], _storage(kind))
        else:
            kind = _KINDS.get(name, pa.string())
            values = self.optional.get(name)
            if values is None:
                return pa.nulls(self._count, kind)
            array = pa.array(values, _storage(kind))
        return array.view(kind) if kind is _TIME else array


def _storage(kind: pa.DataType) -> pa.DataType:
    """Times are given as microseconds since 1970."""
    return pa.int64() if kind is _TIME else kind


_KINDS: Final = {
    "body": pa.binary(),
    "amqp_message": pa.binary(),
    "scheduled_enqueue_time": _TIME,
    "application_properties": _PROPERTIES,
}

_FROM_FRONT: Final[dict[str, tuple[pa.DataType, Callable[[Front], object]]]] = {
    "partition": (pa.int32(), lambda front: front[1] >> PARTITION_SHIFT),
    "sequence_number": (pa.int64(), lambda front: front[1]),
    "enqueued_time": (_TIME, lambda front: front[0] * 1000),
    "state": (pa.string(), lambda front: STATES[front[3]]),
    "enqueued_sequence_number": (pa.int64(), lambda front: front[2]),
    "delivery_count": (pa.int32(), lambda front: front[4]),
    "time_to_live_ms": (pa.int64(), lambda front: front[5]),
}
