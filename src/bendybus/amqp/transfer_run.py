"""Runs of transfers: the data that a busy sender's socket delivers, parsed in one loop.

A run is a series of whole frames, each a transfer on the same
link that carries a complete delivery and nothing unusual. The run ends before any
other frame, and frames.py reads that on the general path. So does the engine
with a whole run if it is in an unusual state. Every decision made here would be
the same on the general path.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from bendybus.amqp.decoder import MALFORMED

__all__ = ["PlainTransfer", "TransferRun", "transfer_run"]

PlainTransfer: TypeAlias = tuple[int, bytes, int, bool, None, bytes, bool]
"""delivery-id, delivery-tag, message-format, settled, no state, payload, not too large."""

# A frame header (size; doff and type; channel), a descriptor and a list in their short forms (its size and
# count), and the first three fields in their usual forms: handle 0, a delivery-id, the length of the tag.
_USUAL_HEAD: Final = struct.Struct(">IHHIBBBBIBB")
_TAG: Final = _USUAL_HEAD.size
_U32: Final = struct.Struct(">I")

# As numbers, which are compared faster than bytes: doff and type of an AMQP frame, and a transfer.
_PLAIN_FRAME: Final = 0x0200
_TRANSFER: Final = 0x005314C0
# The list's size counts from its count on; the first field comes after that.
_COUNT: Final = 13
_FIELDS: Final = 14

_FALSE_OR_ABSENT: Final = (b"\x42", b"\x40")

# The bytes of the fields after the tag -> message-format and settled; None if they are not a
# plain transfer. A client writes the same few values again and again, so they are parsed once.
_TAILS_MAX: Final = 256
_TAIL_BYTES_MAX: Final = 16
_tails: Final[dict[tuple[int, bytes], tuple[int, bool] | None]] = {}


@dataclass(slots=True)
class TransferRun:
    """Transfers on one link, and the bytes they were read from."""

    channel: int
    handle: int
    transfers: list[PlainTransfer]
    buffer: bytes
    start: int
    end: int


def transfer_run(buffer: bytes, pos: int, frame_size_max: int) -> TransferRun | None:
    """The run that starts at `pos`; None if the frame there does not start one."""
    run = TransferRun(-1, -1, [], buffer, pos, pos)
    # A frame whose sizes are inconsistent ends the run. The general path finds what is wrong with it.
    with suppress(*MALFORMED):
        _fill(run, buffer, pos, frame_size_max)
    return run if run.transfers else None


def _fill(run: TransferRun, buffer: bytes, pos: int, frame_size_max: int) -> None:
    length = len(buffer)
    head, tails = _USUAL_HEAD.unpack_from, _tails
    add = run.transfers.append
    # The values of the previous transfer, which are usually the same.
    known_count, known_fields, message_format, settled = -1, b"", 0, False
    while pos < length:
        size, form, channel, code, list_size, count, kind, id_kind, delivery_id, tag_kind, tag_size = head(
            buffer, pos
        )
        end = pos + size
        if code != _TRANSFER or form != _PLAIN_FRAME:
            return
        if end > length or size > frame_size_max:
            return
        stop = pos + _COUNT + list_size
        if kind == 0x43 and id_kind == 0x70 and tag_kind == 0xA0:
            handle = 0
            tag_start = pos + _TAG
            tag_end = tag_start + tag_size
        else:
            found = _read_fields(buffer, pos + _FIELDS)
            if found is None:
                return
            handle, delivery_id, tag_start, tag_end = found
        if handle != run.handle or channel != run.channel:
            if run.transfers:
                return
            run.handle, run.channel = handle, channel
        if tag_end > stop or stop > end:
            return
        fields = buffer[tag_end:stop]
        if fields != known_fields or count != known_count:
            key = (count, fields)
            tail = tails[key] if key in tails else _learn(key)
            if tail is None:
                return
            message_format, settled = tail
            known_count, known_fields = key
        add((delivery_id, buffer[tag_start:tag_end], message_format, settled, None, buffer[stop:end], False))
        pos = run.end = end


def _read_fields(buffer: bytes, field: int) -> tuple[int, int, int, int] | None:
    """Handle, delivery-id, start and end of the tag, in any of their forms; None for another form."""
    kind = buffer[field]
    if kind == 0x52:
        handle = buffer[field + 1]
        field += 2
    elif kind == 0x43:
        handle = 0
        field += 1
    elif kind == 0x70:
        handle = _U32.unpack_from(buffer, field + 1)[0]
        field += 5
    else:
        return None
    kind = buffer[field]
    if kind == 0x70:
        delivery_id = _U32.unpack_from(buffer, field + 1)[0]
        field += 5
    elif kind == 0x52:
        delivery_id = buffer[field + 1]
        field += 2
    elif kind == 0x43:
        delivery_id = 0
        field += 1
    else:
        return None
    if buffer[field] != 0xA0:
        return None
    return handle, delivery_id, field + 2, field + 2 + buffer[field + 1]


def _learn(key: tuple[int, bytes]) -> tuple[int, bool] | None:
    """Parse message-format and settled. None unless the other fields are those of a plain transfer."""
    count, fields = key
    # Handle, delivery-id and delivery-tag have been read, so they must be in the count.
    if count < 3 or len(fields) > _TAIL_BYTES_MAX:
        return None
    tail = _read_tail(count - 3, fields)
    if len(_tails) >= _TAILS_MAX:
        _tails.clear()
    _tails[key] = tail
    return tail


def _read_tail(count: int, fields: bytes) -> tuple[int, bool] | None:
    message_format, settled = 0, False
    if count > 0:
        kind = fields[:1]
        if kind == b"\x70" and len(fields) >= 5:
            message_format, fields = _U32.unpack_from(fields, 1)[0], fields[5:]
        elif kind == b"\x52" and len(fields) >= 2:
            message_format, fields = fields[1], fields[2:]
        elif kind in (b"\x43", b"\x40"):
            fields = fields[1:]
        else:
            return None
    if count > 1:
        settled = fields[:1] == b"\x41"
        if not settled and fields[:1] not in _FALSE_OR_ABSENT:
            return None
        fields = fields[1:]
    if count > 2:
        if fields[:1] not in _FALSE_OR_ABSENT:
            return None
        fields = fields[1:]
    return (message_format, settled) if len(fields) == max(0, count - 3) and _says_nothing(fields) else None


def _says_nothing(fields: bytes) -> bool:
    """Whether rcv-settle-mode and state are absent, and resume and aborted not set. batchable may be set."""
    usual = (b"\x40", b"\x40", b"\x40\x42", b"\x40\x42", b"\x40\x41\x42")
    return len(fields) <= len(usual) and all(
        field in allowed for field, allowed in zip(fields, usual, strict=False)
    )
