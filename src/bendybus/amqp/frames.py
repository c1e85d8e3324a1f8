"""Frames: splitting a byte stream into frames, reading their bodies, writing them.

The one rule: an announced size is checked before any byte is kept for it. Frames
are passed on as offsets into the received bytes, not as copies. Two bodies
are read without creating an object, because they occur once per message: transfer and
disposition. All others: `decode_performative`. What they mean: the engine.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias, cast

from bendybus.amqp.composite import decode_composite, descriptor_at
from bendybus.amqp.decoder import MALFORMED
from bendybus.amqp.encoder import encode_into
from bendybus.amqp.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    TransactionalState,
    Transfer,
)
from bendybus.amqp.transaction_codec import read_transactional
from bendybus.amqp.transfer_run import TransferRun, transfer_run
from bendybus.errors import FrameTooLarge, WireError

__all__ = [
    "AMQP",
    "AMQP_HEADER",
    "DISPOSITION_CODE",
    "DispositionFields",
    "Frame",
    "FrameSplitter",
    "HEARTBEAT",
    "PROTOCOL_HEADER",
    "SASL",
    "SASL_HEADER",
    "TLS_HEADER",
    "TRANSFER_CODE",
    "TransferFields",
    "decode_disposition",
    "decode_performative",
    "decode_transfer",
    "encode_frame",
    "encode_frame_start",
    "performative_code",
]

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_SIZE: Final = 8

# Frame types: two from the wire [AMQP 2.3.1, 5.3.1], and ours for a protocol header.
AMQP: Final = 0
SASL: Final = 1
PROTOCOL_HEADER: Final = -1

HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

# "AMQP" read as a size is more than a gigabyte.
_HEADER_MAGIC: Final = 0x414D5150

FLOW_CODE: Final = 0x13
TRANSFER_CODE: Final = 0x14
DISPOSITION_CODE: Final = 0x15

_FLOW: Final = bytes((0x00, 0x53, FLOW_CODE))

# The last byte of a descriptor in its short form, which nearly every frame uses.
_CODE_AT: Final = HEADER_SIZE + 2
_TRANSFER_CODE_BYTE: Final = bytes((TRANSFER_CODE,))

_FRAME_HEAD: Final = struct.Struct(">IBBH")
_U32: Final = struct.Struct(">I")

Frame: TypeAlias = tuple[int, int, bytes, int, int]
"""Frame type, channel, and the body as `buffer[start:end]`. A heartbeat's body is empty."""

TransferFields: TypeAlias = tuple[
    int, int | None, bytes | None, int | None, bool, bool, int | None, DeliveryState | None, bool, int
]
"""handle, delivery-id, delivery-tag, message-format, settled, more, rcv-settle-mode, state, aborted,
and the offset where the payload starts."""

DispositionFields: TypeAlias = tuple[bool, int, int, bool, DeliveryState | None]
"""role, first, last (first where absent), settled, state."""


# -- the stream ---------------------------------------------------------------------------


class FrameSplitter:
    """Takes chunks of any size. Yields the frames and protocol headers that they complete.

    A protocol header may be wherever a frame may be: its magic, read as a size, is
    larger than any accepted frame, so no state is needed to tell them apart. The engine
    decides whether a header is allowed at that moment.
    """

    __slots__ = ("_chunks", "_kept", "_needed", "max_frame_size")

    def __init__(self, max_frame_size: int) -> None:
        assert 512 <= max_frame_size < _HEADER_MAGIC, max_frame_size
        self.max_frame_size = max_frame_size
        self._chunks: list[bytes] = []
        self._kept = 0
        # Chunks are joined only when there are this many bytes, so a frame in many chunks is copied once.
        self._needed = 4

    @property
    def kept_bytes(self) -> int:
        """How many bytes of an incomplete frame have been received."""
        return self._kept

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes, in order. The caller must consume them all.

        Raises `WireError` where the stream stops being AMQP, after the frames before it.
        """
        buffer = self._gather(data)
        pos = 0
        while (end := self._frame_end(buffer, pos)) is not None:
            yield _frame_at(buffer, pos, end)
            pos = end
        self._keep(buffer, pos)

    def feed_runs(self, data: bytes) -> Iterator[Frame | TransferRun]:
        """`feed`, with series of ordinary transfers joined."""
        buffer = self._gather(data)
        pos = 0
        while (end := self._frame_end(buffer, pos)) is not None:
            if buffer[pos + _CODE_AT : pos + _CODE_AT + 1] == _TRANSFER_CODE_BYTE:
                run = transfer_run(buffer, pos, self.max_frame_size)
                if run is not None:
                    yield run
                    pos = run.end
                    continue
            yield _frame_at(buffer, pos, end)
            pos = end
        self._keep(buffer, pos)

    def _gather(self, data: bytes) -> bytes:
        """The kept bytes and the new ones, or nothing while they are not enough for a frame."""
        self._chunks.append(data)
        self._kept += len(data)
        if self._kept < self._needed:
            return b""
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._kept = 0
        self._needed = 4
        return buffer

    def _frame_end(self, buffer: bytes, pos: int) -> int | None:
        """Where the frame at `pos` ends; None if it is not complete."""
        if len(buffer) - pos < 4:
            return None
        size = self._size_at(buffer, pos)
        if pos + size > len(buffer):
            self._needed = size
            return None
        return pos + size

    def _keep(self, buffer: bytes, pos: int) -> None:
        if pos < len(buffer):
            self._chunks.append(buffer[pos:])
            self._kept = len(buffer) - pos

    def _size_at(self, buffer: bytes, pos: int) -> int:
        size: int = _U32.unpack_from(buffer, pos)[0]
        if size > self.max_frame_size:
            if size == _HEADER_MAGIC:
                return HEADER_SIZE
            raise FrameTooLarge(f"a frame of {size} bytes, {self.max_frame_size} were agreed")
        # "The frame is malformed if the size is less than the size of the frame header" [AMQP 2.3.1]
        if size < HEADER_SIZE:
            raise WireError(f"a frame of {size} bytes is shorter than its own header")
        return size


def _frame_at(buffer: bytes, pos: int, end: int) -> Frame:
    size, doff, frame_type, channel = _FRAME_HEAD.unpack_from(buffer, pos)
    if size == _HEADER_MAGIC:
        return PROTOCOL_HEADER, 0, buffer, pos, end
    # doff is the offset of the body in words of four bytes. Eight bytes are always there.
    if doff < 2 or doff * 4 > size:
        raise WireError(f"the body of a frame of {size} bytes cannot start at byte {doff * 4}")
    if frame_type > SASL:
        raise WireError(f"frame type {frame_type} is neither AMQP nor SASL")
    return frame_type, channel, buffer, pos + doff * 4, end


def encode_frame(
    channel: int, performative: Performative, payload: bytes = b"", frame_type: int = AMQP
) -> bytes:
    """A whole frame. SASL frames have no channel: pass 0."""
    return encode_frame_start(channel, performative, len(payload), frame_type) + payload


def encode_frame_start(
    channel: int, performative: Performative, payload_size: int, frame_type: int = AMQP
) -> bytes:
    """A frame without its payload, which has this size and is written after it."""
    out = bytearray(HEADER_SIZE)
    encode_into(out, performative)
    _FRAME_HEAD.pack_into(out, 0, len(out) + payload_size, 2, frame_type, channel)
    return bytes(out)


# -- bodies -------------------------------------------------------------------------------

_PERFORMATIVES: Final = frozenset((
    Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close,
    SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome,
))  # fmt: skip


def performative_code(buffer: bytes, pos: int) -> int:
    """Which performative a body starts with, by its descriptor."""
    try:
        if buffer[pos] == 0x00 and buffer[pos + 1] == 0x53:
            return buffer[pos + 2]
        return descriptor_at(buffer, pos)[0]
    except MALFORMED as cause:
        raise WireError(f"malformed frame body at byte {pos}: {cause}") from None


def decode_performative(buffer: bytes, pos: int, end: int) -> tuple[Performative, int]:
    """Any frame body as its class, and the offset where the payload starts."""
    if buffer.startswith(_FLOW, pos) and (flow := _lean_flow(buffer, pos, end)) is not None:
        return flow
    performative, after = decode_composite(buffer, pos)
    if type(performative) not in _PERFORMATIVES:
        raise WireError(f"{type(performative).__name__} is not the body of a frame")
    if after > end:
        raise WireError(f"a performative ends at byte {after}, its frame at byte {end}")
    return cast(Performative, performative), after


def decode_transfer(buffer: bytes, pos: int, end: int) -> TransferFields:
    """A transfer as a tuple. Falls back to the general path if a field is unusual."""
    fields = _lean_fields(buffer, pos, end, TRANSFER_CODE, 11)
    if fields is not None:
        (handle, delivery_id, tag, message_format, settled, more, mode, state, _, aborted, _, after) = fields
        if (
            type(handle) is int
            and (type(delivery_id) is int or delivery_id is None)
            and (type(tag) is bytes or tag is None)
            and (type(message_format) is int or message_format is None)
            and (settled is True or settled is False or settled is None)
            and (more is True or more is False or more is None)
            and mode is None
            and (state is None or type(state) is TransactionalState)
            and (aborted is True or aborted is False or aborted is None)
        ):
            return (
                handle, delivery_id, tag, message_format, settled is True, more is True, None, state,
                aborted is True, cast(int, after),
            )  # fmt: skip
    transfer, after = decode_performative(buffer, pos, end)
    assert type(transfer) is Transfer, transfer
    return (
        transfer.handle, transfer.delivery_id, transfer.delivery_tag, transfer.message_format,
        transfer.settled is True, transfer.more is True, transfer.rcv_settle_mode, transfer.state,
        transfer.aborted is True, after,
    )  # fmt: skip


def decode_disposition(buffer: bytes, pos: int, end: int) -> DispositionFields:
    """A disposition as a tuple. Falls back to the general path if a field is unusual."""
    fields = _lean_fields(buffer, pos, end, DISPOSITION_CODE, 6)
    if fields is not None:
        (role, first, last, settled, state, _, _) = fields
        if (
            (role is True or role is False)
            and type(first) is int
            and (type(last) is int or last is None)
            and (settled is True or settled is False or settled is None)
            and (state is ACCEPTED or state is None or type(state) is TransactionalState)
        ):
            return role, first, first if last is None else last, settled is True, state
    disposition, _ = decode_performative(buffer, pos, end)
    assert type(disposition) is Disposition, disposition
    last_id = disposition.first if disposition.last is None else disposition.last
    return disposition.role, disposition.first, last_id, disposition.settled is True, disposition.state


def _lean_flow(buffer: bytes, pos: int, end: int) -> tuple[Flow, int] | None:
    """A flow with fields of the usual types. Receivers send one for every few messages."""
    fields = _lean_fields(buffer, pos, end, FLOW_CODE, 11)
    if fields is None:
        return None
    (seen, window, next_id, outgoing_window, handle, count, credit, available, drain, echo, more, after) = (
        fields
    )
    if (
        type(window) is int
        and type(next_id) is int
        and type(outgoing_window) is int
        and (type(seen) is int or seen is None)
        and (type(handle) is int or handle is None)
        and (type(count) is int or count is None)
        and (type(credit) is int or credit is None)
        and (type(available) is int or available is None)
        and (drain is True or drain is False or drain is None)
        and (echo is True or echo is False or echo is None)
        and more is None
    ):
        flow = Flow(
            next_incoming_id=seen, incoming_window=window, next_outgoing_id=next_id,
            outgoing_window=outgoing_window, handle=handle, delivery_count=count, link_credit=credit,
            available=available, drain=drain, echo=echo,
        )  # fmt: skip
        return flow, cast(int, after)
    return None


def _lean_fields(buffer: bytes, pos: int, end: int, code: int, width: int) -> list[object] | None:
    """The fields of an ordinary frame body and the offset after it; None if it is not ordinary.

    Ordinary: null, boolean, uint, a short binary, and `accepted`, also within a transaction. For others the
    general path decides whether the body is unusual or wrong.
    """
    fields: list[object] = [None] * (width + 1)
    try:
        # A descriptor in its short form, then a list in its short form.
        if buffer[pos] or buffer[pos + 1] != 0x53 or buffer[pos + 2] != code or buffer[pos + 3] != 0xC0:
            return None
        stop = pos + 5 + buffer[pos + 4]
        count = buffer[pos + 5]
        pos += 6
        if count > width or stop > end:
            return None
        for index in range(count):
            kind = buffer[pos]
            pos += 1
            if kind == 0x40:
                continue
            if kind == 0x52:
                fields[index] = buffer[pos]
                pos += 1
            elif kind == 0x43:
                fields[index] = 0
            elif kind == 0x41:
                fields[index] = True
            elif kind == 0x42:
                fields[index] = False
            elif kind == 0x56 and buffer[pos] <= 1:
                fields[index] = buffer[pos] == 1
                pos += 1
            elif kind == 0x70:
                fields[index] = _U32.unpack_from(buffer, pos)[0]
                pos += 4
            elif kind == 0xA0:
                after = pos + 1 + buffer[pos]
                fields[index] = buffer[pos + 1 : after]
                pos = after
            elif kind == 0x00 and buffer.startswith(b"\x53\x24\x45", pos):
                fields[index] = ACCEPTED
                pos += 3
            elif kind == 0x00 and (transactional := read_transactional(buffer, pos)) is not None:
                fields[index], pos = transactional
            else:
                return None
    except MALFORMED:
        return None
    if pos != stop:
        return None
    fields[width] = stop
    return fields
