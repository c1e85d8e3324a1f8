"""A stream is cut into the same frames however it is chunked, and lies about sizes cost nothing."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.codec import encode
from bendybus.amqp.frames import (
    AMQP,
    AMQP_HEADER,
    DISPOSITION_CODE,
    HEARTBEAT,
    PROTOCOL_HEADER,
    SASL,
    SASL_HEADER,
    TRANSFER_CODE,
    FrameSplitter,
    decode_disposition,
    decode_performative,
    decode_transfer,
    encode_frame,
    performative_code,
)
from bendybus.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Close,
    Disposition,
    Error,
    Open,
    Released,
    SaslInit,
    TransactionalState,
    Transfer,
)
from bendybus.amqp.types import Described, UByte, UInt, ULong
from bendybus.errors import FrameTooLarge, WireError

MAX = 4096

_STREAM = b"".join(
    (
        SASL_HEADER,
        encode_frame(0, SaslInit("ANONYMOUS"), frame_type=SASL),
        AMQP_HEADER,
        encode_frame(0, Open(container_id="c")),
        HEARTBEAT,
        encode_frame(7, Transfer(handle=1, delivery_id=0, delivery_tag=b"tag"), b"payload" * 100),
        encode_frame(7, Disposition(role=RECEIVER, first=0, settled=True, state=ACCEPTED)),
        encode_frame(0, Close()),
    )
)


def _cut(chunks: list[bytes], max_frame_size: int = MAX) -> list[tuple[int, int, bytes]]:
    splitter = FrameSplitter(max_frame_size)
    return [
        (frame_type, channel, buffer[start:end])
        for chunk in chunks
        for frame_type, channel, buffer, start, end in splitter.feed(chunk)
    ]


def _outcome(chunks: list[bytes]) -> tuple[list[tuple[int, int, bytes]], str]:
    """Frames up to the first error, and that error."""
    frames: list[tuple[int, int, bytes]] = []
    splitter = FrameSplitter(MAX)
    try:
        for chunk in chunks:
            for frame_type, channel, buffer, start, end in splitter.feed(chunk):
                frames.append((frame_type, channel, buffer[start:end]))
    except WireError as error:
        return frames, str(error)
    return frames, ""


def test_headers_heartbeats_and_frames_come_out_in_order() -> None:
    frames = _cut([_STREAM])
    kinds = [frame_type for frame_type, _, _ in frames]
    assert kinds == [PROTOCOL_HEADER, SASL, PROTOCOL_HEADER, AMQP, AMQP, AMQP, AMQP, AMQP]
    assert [channel for _, channel, _ in frames] == [0, 0, 0, 0, 0, 7, 7, 0]
    assert frames[0][2] == SASL_HEADER
    assert frames[4][2] == b""
    assert frames[5][2].endswith(b"payload" * 100)


def test_a_stream_fed_byte_by_byte_gives_the_same_frames() -> None:
    assert _cut([_STREAM[at : at + 1] for at in range(len(_STREAM))]) == _cut([_STREAM])


@given(st.lists(st.integers(0, len(_STREAM)), max_size=8))
def test_a_stream_cut_anywhere_gives_the_same_frames(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(_STREAM)]
    assert _cut([_STREAM[left:right] for left, right in pairwise(edges)]) == _cut([_STREAM])


@given(st.lists(st.sampled_from([_STREAM, HEARTBEAT, AMQP_HEADER, b"\0", b"\xff", b"\0\0\0\x09\x02"])))
def test_a_broken_stream_breaks_at_the_same_frame_however_it_is_fed(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    assert _outcome([stream[at : at + 1] for at in range(len(stream))]) == _outcome([stream])


def test_an_extended_header_is_stepped_over() -> None:
    frame = bytes.fromhex("0000000d 03 00 0005 ffffffff 40")
    assert _cut([frame]) == [(AMQP, 5, b"\x40")]


@pytest.mark.parametrize("size", [MAX + 1, 2**30, 2**32 - 1])
def test_a_frame_beyond_the_agreed_size_is_refused_at_its_first_four_bytes(size: int) -> None:
    with pytest.raises(FrameTooLarge):
        _cut([size.to_bytes(4, "big")])


def test_a_frame_of_the_agreed_size_is_taken() -> None:
    frame = MAX.to_bytes(4, "big") + bytes.fromhex("02 00 0000") + bytes(MAX - 8)
    assert _cut([frame]) == [(AMQP, 0, bytes(MAX - 8))]


@pytest.mark.parametrize(
    "frame",
    ["00000007 02000000", "00000000 02000000", "00000008 01000000", "00000008 00000000", "00000008 03000000"],
    ids=["size below header", "size zero", "doff one", "doff zero", "doff beyond size"],
)
def test_sizes_and_offsets_that_cannot_be_are_wire_errors(frame: str) -> None:
    with pytest.raises(WireError):
        _cut([bytes.fromhex(frame)])


def test_a_frame_type_nobody_defined_is_a_wire_error() -> None:
    with pytest.raises(WireError):
        _cut([bytes.fromhex("00000008 02 02 0000")])


@given(st.binary(max_size=300))
def test_random_streams_raise_nothing_but_wire_errors(stream: bytes) -> None:
    _outcome([stream])
    for read in (decode_transfer, decode_disposition, decode_performative):
        body = b"\x00\x53" + bytes([TRANSFER_CODE if read is decode_transfer else DISPOSITION_CODE]) + stream
        with contextlib.suppress(WireError):
            read(body, 0, len(body))
    with contextlib.suppress(WireError):
        performative_code(stream, 0)


# -- bodies -------------------------------------------------------------------------------


def _body(performative: Transfer | Disposition | Open | Close, payload: bytes = b"") -> bytes:
    return encode_frame(0, performative, payload)[8:]


@pytest.mark.parametrize(
    ("transfer", "fields"),
    [
        (Transfer(handle=0), (0, None, None, None, False, False, None, None, False)),
        (
            Transfer(handle=3, delivery_id=300, delivery_tag=b"t" * 16, message_format=2**31, settled=True),
            (3, 300, b"t" * 16, 2**31, True, False, None, None, False),
        ),
        (Transfer(handle=1, more=True, aborted=True), (1, None, None, None, False, True, None, None, True)),
        (
            Transfer(handle=1, delivery_id=2**32 - 1, rcv_settle_mode=1, state=TransactionalState(b"x")),
            (1, 2**32 - 1, None, None, False, False, 1, TransactionalState(b"x"), False),
        ),
    ],
    ids=["bare", "usual", "aborted", "transactional"],
)
def test_a_transfer_is_read_without_its_payload(transfer: Transfer, fields: tuple[object, ...]) -> None:
    body = _body(transfer, b"payload")
    assert performative_code(body, 0) == TRANSFER_CODE
    assert decode_transfer(body, 0, len(body)) == (*fields, len(body) - len(b"payload"))
    assert decode_performative(body, 0, len(body)) == (transfer, len(body) - len(b"payload"))


@pytest.mark.parametrize(
    ("disposition", "fields"),
    [
        (Disposition(role=RECEIVER, first=5), (True, 5, 5, False, None)),
        (
            Disposition(role=SENDER, first=5, last=9, settled=True, state=ACCEPTED),
            (False, 5, 9, True, ACCEPTED),
        ),
        (Disposition(role=RECEIVER, first=2**31, state=Released()), (True, 2**31, 2**31, False, Released())),
    ],
    ids=["bare", "accepted", "released"],
)
def test_a_disposition_is_read_as_a_tuple(disposition: Disposition, fields: tuple[object, ...]) -> None:
    body = _body(disposition)
    assert performative_code(body, 0) == DISPOSITION_CODE
    assert decode_disposition(body, 0, len(body)) == fields


@pytest.mark.parametrize(
    "octets",
    [
        "00 53 14 d0 0000000a 00000003 43 52 05 a0 01 74",
        "00 80 0000000000000014 c0 07 03 43 52 05 a0 01 74",
        "00 a3 12 616d71703a7472616e736665723a6c697374 c0 07 03 43 52 05 a0 01 74",
        "00 53 14 c0 0a 03 43 52 05 b0 00000001 74",
        "00 53 14 c0 0f 03 50 00 80 0000000000000005 a0 01 74",
    ],
    ids=["long list", "long descriptor", "symbol descriptor", "long tag", "other integers"],
)
def test_an_unusual_transfer_means_the_same(octets: str) -> None:
    body = bytes.fromhex(octets)
    assert performative_code(body, 0) == TRANSFER_CODE
    expected = (0, 5, b"t", None, False, False, None, None, False, len(body))
    assert decode_transfer(body, 0, len(body)) == expected


@pytest.mark.parametrize(
    ("octets", "state"),
    [("45", ACCEPTED), ("c0 01 00", ACCEPTED), ("d0 00000004 00000000", ACCEPTED)],
)
def test_accepted_is_recognised_in_every_form(octets: str, state: object) -> None:
    items = b"\x41\x43\x40\x41\x00\x53\x24" + bytes.fromhex(octets)
    body = b"\x00\x53\x15\xc0" + bytes([len(items) + 1, 5]) + items
    assert decode_disposition(body, 0, len(body)) == (True, 0, 0, True, state)


@pytest.mark.parametrize(
    "fields",
    [[], [None], ["h"], [b"h"], [True], [UInt(1), True], [UInt(1), None, UInt(1)], [UInt(1), *[None] * 11]],
)
def test_a_transfer_with_wrong_fields_is_a_wire_error(fields: list[object]) -> None:
    body = encode(Described(ULong(TRANSFER_CODE), fields))
    with pytest.raises(WireError):
        decode_transfer(body, 0, len(body))


@pytest.mark.parametrize("items", ["03 01 43 40", "07 05 43 40 40 40 56 02", "03 02 43 a0"])
def test_a_transfer_whose_bytes_do_not_add_up_is_a_wire_error(items: str) -> None:
    body = b"\x00\x53\x14\xc0" + bytes.fromhex(items)
    with pytest.raises(WireError):
        decode_transfer(body, 0, len(body))


def test_rare_fields_of_a_transfer_are_not_lost_on_the_short_way() -> None:
    body = encode(Described(ULong(TRANSFER_CODE), [UInt(1), *[None] * 5, UInt(1)]))
    assert decode_transfer(body, 0, len(body))[6] == 1
    body = encode(Described(ULong(TRANSFER_CODE), [UInt(1), *[None] * 6, ACCEPTED]))
    assert decode_transfer(body, 0, len(body))[7] == ACCEPTED


def test_small_integers_of_another_type_are_taken_in_a_transfer() -> None:
    body = encode(Described(ULong(TRANSFER_CODE), [UByte(4)]))
    assert decode_transfer(body, 0, len(body))[0] == 4


@pytest.mark.parametrize("performative", [Transfer(handle=1, more=True), Disposition(role=True, first=1)])
def test_a_body_that_runs_out_of_its_frame_is_a_wire_error(performative: Transfer | Disposition) -> None:
    body = _body(performative)
    read = decode_transfer if isinstance(performative, Transfer) else decode_disposition
    for end in range(len(body)):
        # The bytes that follow belong to the next frame.
        with pytest.raises(WireError):
            read(body, 0, end)
        with pytest.raises(WireError):
            read(body[:end], 0, end)


def test_only_performatives_are_bodies_of_frames() -> None:
    for value in (Error("amqp:not-found"), ACCEPTED, Described(ULong(0x99), []), "text"):
        body = encode(value)
        with pytest.raises(WireError):
            decode_performative(body, 0, len(body))
