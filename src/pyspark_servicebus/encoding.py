"""Rows to messages: from Arrow record batches to AMQP, in groups that may share a batch.

This is the hot path of writing. Rows with the same routing key form one group, in order. The
order of the groups does not matter, because order is defined only within a key. Sending: writing.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from bendybus.amqp.annotations import PARTITION_KEY
from bendybus.amqp.message import annotation, identity, scan
from bendybus.amqp.types import Timestamp
from bendybus.client import encode
from bendybus.session_ids import fold_case

__all__ = ["MessageEncoder"]

_TEXTS: Final = (
    "message_id",
    "session_id",
    "partition_key",
    "subject",
    "correlation_id",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
)

# header(durable), and the start of a properties section with one string of up to 255 bytes in a list8.
_HEADER: Final = b"\x00\x53\x70\xc0\x02\x01\x41"
_PROPERTIES: Final = b"\x00\x53\x73\xc0"
# list8 includes its own count byte; str8 has a constructor and a length.
_ID_LENGTH_MAX: Final = 255 - 3


def _plain(body: bytes, message_id: str) -> bytes:
    """`encode` for a message that has only an id and a body."""
    text = message_id.encode()
    if len(text) > _ID_LENGTH_MAX:
        return encode(body, message_id=message_id)
    return b"".join(
        (
            _HEADER,
            _PROPERTIES,
            bytes((len(text) + 3, 1, 0xA1, len(text))),
            text,
            b"\x00\x53\x75\xb0",
            len(body).to_bytes(4, "big"),
            body,
        )
    )


class MessageEncoder:
    """Encodes the rows of one task. `prefix` makes ids for rows without one; "" makes none."""

    def __init__(self, prefix: str, *, group_by_id: bool) -> None:
        self._prefix = prefix
        self._group_by_id = group_by_id
        """Whether rows without a key may not share a batch: duplicate detection with partitions."""
        self._rows = 0

    def groups(self, batch: pa.RecordBatch) -> Iterator[tuple[str | None, list[bytes]]]:
        """Messages by the key they share; None for messages without a key, all together.

        Keys that differ only in case are one key, whose messages stay in order; but a batch has one spelling.
        """
        grouped: dict[str | None, list[tuple[str | None, list[bytes]]]] = {}
        single: list[bytes] = []
        for key, message in self._messages(batch):
            if key is None and self._group_by_id:
                single.append(message)
                continue
            runs = grouped.setdefault(None if key is None else fold_case(key), [])
            if not runs or runs[-1][0] != key:
                runs.append((key, []))
            runs[-1][1].append(message)
        yield from chain.from_iterable(grouped.values())
        for message in single:
            yield None, [message]

    def _messages(self, batch: pa.RecordBatch) -> Iterator[tuple[str | None, bytes]]:
        names = set(batch.schema.names)
        if "amqp_message" in names:
            for message in batch.column("amqp_message").to_pylist():
                yield _key_of(message), message
            return
        bodies = _bodies(batch)
        texts = {name: batch.column(name).to_pylist() for name in _TEXTS if name in names}
        if not names - {"body", "message_id"} and (self._prefix or "message_id" in texts):
            yield from ((None, _plain(body, self._id(row, texts))) for row, body in enumerate(bodies))
            self._rows += len(bodies)
            return
        others = _others(batch, names)
        for row, body in enumerate(bodies):
            parts: dict[str, Any] = {name: values[row] for name, values in texts.items()}
            parts |= {name: values[row] for name, values in others.items()}
            parts["message_id"] = self._id(row, texts) or None
            key = parts.get("session_id")
            yield parts.get("partition_key") if key is None else key, encode(body, **parts)
        self._rows += len(bodies)

    def _id(self, row: int, texts: dict[str, list[str | None]]) -> str:
        given = texts.get("message_id")
        own = None if given is None else given[row]
        if own is not None:
            return own
        return f"{self._prefix}/{self._rows + row}" if self._prefix else ""


def _bodies(batch: pa.RecordBatch) -> Sequence[bytes]:
    column = batch.column("body")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary())
    return [b"" if body is None else body for body in column.to_pylist()]


def _others(batch: pa.RecordBatch, names: set[str]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    if "time_to_live_ms" in names:
        columns["time_to_live_ms"] = batch.column("time_to_live_ms").to_pylist()
    if "scheduled_enqueue_time" in names:
        micros = batch.column("scheduled_enqueue_time").cast(pa.int64()).to_pylist()
        columns["scheduled_enqueue_time_ms"] = [None if value is None else value // 1000 for value in micros]
    if "application_properties" in names:
        maps = batch.column("application_properties").to_pylist()
        columns["application_properties"] = [
            None if pairs is None else {name: _property(value) for name, value in pairs} for pairs in maps
        ]
    return columns


def _property(value: Any) -> Any:
    """The only type of Spark's that AMQP names otherwise."""
    return Timestamp(round(value.timestamp() * 1000)) if isinstance(value, datetime) else value


def _key_of(message: bytes) -> str | None:
    """The routing key of a message that is already encoded."""
    sections = scan(message)
    _, session_id = identity(message, sections.properties)
    if session_id is not None:
        return str(session_id)
    key = annotation(message, sections.message_annotations, PARTITION_KEY.encode())
    return None if key is None else str(key)
