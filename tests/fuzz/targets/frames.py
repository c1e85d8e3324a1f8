"""AMQP frames: the stream cut into frames, and the body of each (`amqp/frames.py`, `amqp/composite.py`)."""

from __future__ import annotations

from bendybus.amqp.frames import (
    DISPOSITION_CODE,
    HEARTBEAT,
    PROTOCOL_HEADER,
    TRANSFER_CODE,
    Frame,
    FrameSplitter,
    decode_disposition,
    decode_performative,
    decode_transfer,
    encode_frame,
    performative_code,
)
from bendybus.amqp.performatives import Disposition, Transfer
from bendybus.amqp.transfer_run import TransferRun
from bendybus.errors import WireError
from fuzz.target import Target, refusals

FRAME_SIZE_MAX = 2048


def check(data: bytes) -> None:
    frames, refused = _split(data, len(data))
    # In pieces, and with series of transfers joined, the stream is the same.
    assert _split(data, 1 + len(data) // 3) == (frames, refused)
    assert _split_runs(data) == (frames, refused)
    for each in frames:
        with refusals(WireError):
            _check_body(*each)


def _split(data: bytes, size: int) -> tuple[list[tuple[int, int, bytes]], bool]:
    splitter = FrameSplitter(FRAME_SIZE_MAX)
    frames: list[tuple[int, int, bytes]] = []
    with refusals(WireError):
        for start in range(0, len(data), size or 1):
            frames += map(_bare, splitter.feed(data[start : start + size]))
        return frames, False
    return frames, True


def _split_runs(data: bytes) -> tuple[list[tuple[int, int, bytes]], bool]:
    frames: list[tuple[int, int, bytes]] = []
    with refusals(WireError):
        for each in FrameSplitter(FRAME_SIZE_MAX).feed_runs(data):
            frames += _frames_of(each) if isinstance(each, TransferRun) else [_bare(each)]
        return frames, False
    return frames, True


def _bare(frame: Frame) -> tuple[int, int, bytes]:
    kind, channel, buffer, start, end = frame
    return kind, channel, buffer[start:end]


def _frames_of(run: TransferRun) -> list[tuple[int, int, bytes]]:
    """The frames that were joined, read one by one; the run must say the same of each."""
    frames = list(FrameSplitter(FRAME_SIZE_MAX).feed(run.buffer[run.start : run.end]))
    assert len(frames) == len(run.transfers)
    for (_, channel, buffer, start, end), joined in zip(frames, run.transfers, strict=True):
        handle, delivery_id, tag, message_format, settled, more, mode, state, aborted, at = decode_transfer(
            buffer, start, end
        )
        assert (channel, handle, more, mode, aborted) == (run.channel, run.handle, False, None, False)
        assert joined == (delivery_id, tag, message_format or 0, settled, state, buffer[at:end], False)
    return [_bare(frame) for frame in frames]


def _check_body(kind: int, channel: int, body: bytes) -> None:
    if kind == PROTOCOL_HEADER or not body:
        return
    performative, at = decode_performative(body, 0, len(body))
    code = performative_code(body, 0)
    if code == TRANSFER_CODE:
        assert isinstance(performative, Transfer)
        lean = decode_transfer(body, 0, len(body))
        assert lean[:4] == (
            performative.handle,
            performative.delivery_id,
            performative.delivery_tag,
            performative.message_format,
        )
        assert lean[9] == at
    elif code == DISPOSITION_CODE:
        assert isinstance(performative, Disposition)
        assert decode_disposition(body, 0, len(body))[:2] == (performative.role, performative.first)
    written = encode_frame(channel, performative, body[at:], kind)
    ((kind_again, channel_again, buffer, start, end),) = FrameSplitter(1 << 20).feed(written)
    again, payload_at = decode_performative(buffer, start, end)
    assert (kind_again, channel_again, buffer[payload_at:end]) == (kind, channel, body[at:])
    # Compared as bytes: a NaN is not equal to itself.
    assert encode_frame(channel, again, body[at:], kind) == written


TARGET = Target(
    name="frames",
    parses="AMQP frames and their performatives",
    check=check,
    may_raise=(WireError,),
    share=400,
    words=(
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        HEARTBEAT,
        b"\x00\x53\x14\xc0",
        b"\x00\x53\x15\xc0",
    ),
)
