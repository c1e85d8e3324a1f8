"""Frames packed by hand read like those the codec writes."""

from __future__ import annotations

import pytest

from bendybus.amqp.frames import decode_performative, encode_frame
from bendybus.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    DeliveryState,
    Disposition,
    Error,
    Rejected,
    Transfer,
)
from bendybus.engine.packing import FRAME_OVERHEAD_MAX, TAG_SIZE_MAX, TransferHead, pack_dispositions


def read(frame: bytes) -> tuple[object, bytes]:
    assert int.from_bytes(frame[:4], "big") == len(frame)
    assert frame[4:6] == b"\x02\x00"
    performative, after = decode_performative(frame, 8, len(frame))
    return performative, frame[after:]


@pytest.mark.parametrize("tag_size", [0, 1, 16, TAG_SIZE_MAX])
@pytest.mark.parametrize("settled", [True, False])
def test_a_packed_transfer_is_that_transfer(tag_size: int, settled: bool) -> None:
    tag = bytes(range(tag_size))
    head = TransferHead(4999, 0xFFFFFFFE, tag_size, settled, 0x80013700)
    frame = head.pack(head.size + 4, head.prefix, 0xFFFFFFFF, head.mark, tag, head.suffix) + b"body"
    assert frame[6:8] == (4999).to_bytes(2, "big")
    assert read(frame) == (
        Transfer(
            handle=0xFFFFFFFE,
            delivery_id=0xFFFFFFFF,
            delivery_tag=tag,
            message_format=0x80013700,
            settled=settled,
        ),
        b"body",
    )
    assert head.size <= FRAME_OVERHEAD_MAX


def test_no_transfer_takes_more_than_was_set_aside() -> None:
    largest = Transfer(
        handle=0xFFFFFFFF, delivery_id=0xFFFFFFFF, delivery_tag=bytes(TAG_SIZE_MAX),
        message_format=0xFFFFFFFF, settled=True, more=True,
    )  # fmt: skip
    assert len(encode_frame(65535, largest)) <= FRAME_OVERHEAD_MAX


@pytest.mark.parametrize("role", [True, False])
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(
    "state",
    [
        None,
        ACCEPTED,
        RELEASED,
        *(Rejected(Error("amqp:not-found", "x" * size)) for size in (1, *range(205, 225), 70_000)),
    ],
)
def test_packed_dispositions_are_those_dispositions(
    role: bool, settled: bool, state: DeliveryState | None
) -> None:
    ranges = [(0, 0), (5, 0xFFFFFFFF)]
    frames = pack_dispositions(7, role, ranges, settled, state)
    assert [read(frame) for frame in frames] == [
        (Disposition(role=role, first=first, last=last, settled=settled, state=state), b"")
        for first, last in ranges
    ]
