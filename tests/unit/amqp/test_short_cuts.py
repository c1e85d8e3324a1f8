"""The short cuts for what is usual say the same as the long way, or nothing."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.composite import decode_composite
from bendybus.amqp.frames import FrameSplitter, decode_performative, decode_transfer, encode_frame
from bendybus.amqp.message import Header, Properties, encode_message, identity, scan
from bendybus.amqp.ordinary import ordinary
from bendybus.amqp.performatives import ACCEPTED, Disposition, Flow, TransactionalState, Transfer
from bendybus.amqp.transfer_run import TransferRun, transfer_run
from bendybus.amqp.types import Symbol, Timestamp, UInt
from bendybus.errors import WireError

FRAME_SIZE_MAX = 1 << 20

texts = st.text(max_size=300)
properties = st.builds(
    Properties,
    message_id=st.none() | texts | st.uuids() | st.binary(max_size=10),
    subject=st.none() | texts,
    content_type=st.none() | st.just(Symbol("text/plain")),
    group_id=st.none() | texts,
)
messages = st.builds(
    encode_message,
    header=st.none() | st.builds(Header, durable=st.booleans(), ttl=st.none() | st.integers(0, 1000)),
    message_annotations=st.none() | st.dictionaries(st.sampled_from([Symbol("x-a"), Symbol("x-b")]), texts),
    properties=st.none() | properties,
    application_properties=st.none() | st.dictionaries(texts, texts, max_size=3),
    data=st.none() | st.binary(max_size=400) | st.lists(st.binary(max_size=3), max_size=3),
)


# -- messages of the ordinary shape ---------------------------------------------------


@given(messages)
def test_an_ordinary_message_is_read_as_the_long_way_reads_it(message):
    found = ordinary(message)
    if found is not None:
        sections = scan(message)
        assert found == (sections.properties, *identity(message, sections.properties))
        assert sections.delivery_annotations == sections.footer == -1
        assert sections.header in (-1, 0)


@pytest.mark.parametrize("body", [b"", b"x" * 100, b"x" * 1000], ids=len)
@pytest.mark.parametrize("more", [None, {}, {"a": 1}, {"a": "x" * 300}], ids=str)
@pytest.mark.parametrize("group", [None, "", "s", "s" * 200], ids=str)
@pytest.mark.parametrize("key", [None, "k", "k" * 300], ids=str)
def test_what_clients_send_is_ordinary(body, more, group, key):
    typed = {"content_type": Symbol("text/plain"), "creation_time": Timestamp(1)}
    for others in ({}, typed, {"subject": "x" * 200}):
        message = encode_message(
            header=Header(durable=True, ttl=UInt(1000)),
            message_annotations=None if key is None else {Symbol("x-opt-partition-key"): key},
            properties=Properties(message_id="m", group_id=group, **others),
            application_properties=more,
            data=body,
        )
        assert ordinary(message) == (scan(message).properties, "m", group)


@pytest.mark.parametrize(
    "parts",
    [
        {"properties": Properties(message_id="m", group_id="s" * 300)},
        {"properties": Properties(message_id="m", correlation_id=UUID(int=1), group_id="s")},
        {"properties": Properties(message_id=b"m")},
        {"properties": Properties(message_id="m" * 300)},
        {"properties": None},
        {"delivery_annotations": {"x": 1}},
        {"data": None, "value": 1},
        {"data": [b"1", b"2"]},
        {"footer": {"x": 1}},
    ],
    ids=lambda parts: next(iter(parts)),
)
def test_other_shapes_are_left_to_the_long_way(parts):
    usual = {"header": Header(durable=True), "properties": Properties(message_id="m"), "data": b"x"}
    assert ordinary(encode_message(**{**usual, **parts})) is None


@given(messages, st.data())
def test_a_damaged_message_is_never_taken_for_an_ordinary_one(message, data):
    cut = data.draw(st.integers(0, len(message) - 1)) if message else 0
    for damaged in (message[:cut], message[:cut] + b"\xff" + message[cut + 1 :]):
        if ordinary(damaged) is not None:
            sections = scan(damaged)
            assert ordinary(damaged) == (sections.properties, *identity(damaged, sections.properties))


@pytest.mark.parametrize("wide", [False, True])
def test_a_list_that_announces_more_fields_than_it_has_bytes_is_not_ordinary(wide):
    fields = b"\xa1\x01m" + b"\x40" * 9 + b"\xa1\x01s"
    for count in (11, 15, 16, 255):
        size = (1 + len(fields), count) if not wide else (4 + len(fields), count)
        start = b"\xc0" + bytes(size) if not wide else b"\xd0" + struct.pack(">II", *size)
        message = b"\x00\x53\x73" + start + fields + b"\x00\x53\x75\xa0\x00"
        try:
            expected = (0, *identity(message, scan(message).properties))
        except WireError:
            expected = None
        assert ordinary(message) == expected
        assert (expected is None) == (count > len(fields))


# -- runs of transfers ------------------------------------------------------------------


def frame(number: int, payload: bytes = b"payload", channel: int = 1, **fields: object) -> bytes:
    usual = {"handle": 0, "delivery_id": number, "delivery_tag": bytes((number % 256,)), "message_format": 0}
    return encode_frame(channel, Transfer(**{**usual, **fields}), payload)


transfers = st.builds(
    frame,
    number=st.integers(0, 2**32 - 1),
    payload=st.binary(max_size=20),
    channel=st.integers(0, 1),
    handle=st.sampled_from([0, 1, 200, 70_000]),
    delivery_tag=st.none() | st.binary(max_size=32),
    message_format=st.sampled_from([None, 0, 7, 0x80013700]),
    settled=st.none() | st.booleans(),
    more=st.none() | st.booleans(),
    rcv_settle_mode=st.none() | st.just(0),
    state=st.sampled_from([None, ACCEPTED, TransactionalState(b"t")]),
    aborted=st.none() | st.booleans(),
    batchable=st.none() | st.booleans(),
)
others = st.sampled_from(
    [
        encode_frame(1, Disposition(role=True, first=0)),
        encode_frame(1, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1)),
    ]
)


def long_way(stream: bytes) -> list[tuple[object, ...]]:
    """Every frame on its own; transfers by what they say."""
    said = []
    for frame_type, channel, buffer, start, end in FrameSplitter(FRAME_SIZE_MAX).feed(stream):
        body = buffer[start:end]
        if body[2] != 0x14:
            said.append((frame_type, channel, body))
            continue
        handle, number, tag, message_format, settled, more, mode, state, aborted, at = decode_transfer(
            buffer, start, end
        )
        said.append(
            (
                channel,
                handle,
                number,
                tag,
                message_format or 0,
                settled,
                state,
                buffer[at:end],
                more,
                mode,
                aborted,
            )
        )
    return said


def with_runs(stream: bytes) -> list[tuple[object, ...]]:
    said = []
    for piece in FrameSplitter(FRAME_SIZE_MAX).feed_runs(stream):
        if isinstance(piece, TransferRun):
            said += [
                (
                    piece.channel,
                    piece.handle,
                    number,
                    tag,
                    message_format,
                    settled,
                    state,
                    payload,
                    False,
                    None,
                    False,
                )
                for number, tag, message_format, settled, state, payload, _ in piece.transfers
            ]
        else:
            _, _, buffer, start, end = piece
            said += long_way(buffer[start - 8 : end])
    return said


@given(st.lists(transfers | others, max_size=12))
def test_runs_say_the_same_as_single_frames(frames):
    stream = b"".join(frames)
    assert with_runs(stream) == long_way(stream)


def test_each_transfer_of_a_run_has_its_own_format_and_settlement():
    ends = [(0, None), (0, True), (0, True), (7, True), (7, False), (0, None)]
    stream = b"".join(
        frame(number, message_format=message_format, settled=settled)
        for number, (message_format, settled) in enumerate(ends)
    )
    (run,) = FrameSplitter(FRAME_SIZE_MAX).feed_runs(stream)
    assert [(transfer[2], transfer[3]) for transfer in run.transfers] == [
        (message_format, bool(settled)) for message_format, settled in ends
    ]


def test_a_run_ends_before_a_transfer_that_has_more_fields_than_it_counts():
    damaged = bytearray(frame(1))
    damaged[13] -= 1
    run = transfer_run(frame(0) + bytes(damaged), 0, FRAME_SIZE_MAX)
    assert run is not None and [transfer[0] for transfer in run.transfers] == [0]


@pytest.mark.parametrize("counted", [0, 1, 2])
def test_a_run_ends_before_a_transfer_that_counts_fewer_fields_than_handle_id_and_tag(counted):
    # Ends behind the tag. Byte 3 is the frame's size, 12 the list's size and 13 its count.
    damaged = bytearray(frame(1, b"", delivery_tag=b"t"))
    del damaged[damaged.index(b"t") + 1 :]
    damaged[3], damaged[12], damaged[13] = len(damaged), len(damaged) - 13, counted
    with pytest.raises(WireError):
        decode_transfer(bytes(damaged), 8, len(damaged))
    run = transfer_run(frame(0) + bytes(damaged), 0, FRAME_SIZE_MAX)
    assert run is not None and [transfer[0] for transfer in run.transfers] == [0]


def test_what_busy_clients_send_is_one_run():
    stream = b"".join(frame(number, settled=False, more=False) for number in range(300))
    (run,) = FrameSplitter(FRAME_SIZE_MAX).feed_runs(stream)
    assert isinstance(run, TransferRun)
    assert [transfer[0] for transfer in run.transfers] == list(range(300))
    assert (run.start, run.end) == (0, len(stream))


def test_a_run_ends_where_another_link_begins():
    stream = frame(0) + frame(1) + frame(2, handle=3) + frame(3, channel=9)
    runs = list(FrameSplitter(FRAME_SIZE_MAX).feed_runs(stream))
    assert [(run.channel, run.handle, len(run.transfers)) for run in runs] == [
        (1, 0, 2),
        (1, 3, 1),
        (9, 0, 1),
    ]


def test_a_run_leaves_an_unfinished_frame_for_later():
    splitter = FrameSplitter(FRAME_SIZE_MAX)
    stream = frame(0) + frame(1)
    (first,) = splitter.feed_runs(stream[:-3])
    (second,) = splitter.feed_runs(stream[-3:])
    assert [len(run.transfers) for run in (first, second)] == [1, 1]
    assert second.transfers[0][0] == 1


def test_a_frame_beyond_the_agreed_size_is_in_no_run():
    assert transfer_run(frame(0, b"x" * 1000), 0, 512) is None
    with pytest.raises(WireError):
        list(FrameSplitter(512).feed_runs(frame(0, b"x" * 1000)))


@given(st.binary(max_size=60), st.integers(0, 60))
def test_garbage_is_no_run_and_raises_nothing(junk, cut):
    good = frame(0)
    for stream in (junk, good[: min(cut, len(good))] + junk):
        run = transfer_run(stream, 0, FRAME_SIZE_MAX)
        assert run is None or with_runs(stream[: run.end]) == long_way(stream[: run.end])


# -- flows ------------------------------------------------------------------------------

numbers = st.integers(0, 2**32 - 1)
flows = st.builds(
    Flow,
    next_incoming_id=st.none() | numbers,
    incoming_window=numbers,
    next_outgoing_id=numbers,
    outgoing_window=numbers,
    handle=st.none() | numbers,
    delivery_count=st.none() | numbers,
    link_credit=st.none() | numbers,
    available=st.none() | numbers,
    drain=st.none() | st.booleans(),
    echo=st.none() | st.booleans(),
    properties=st.none() | st.just({Symbol("a"): 1}),
)


@given(flows, st.data())
def test_a_flow_is_read_as_the_long_way_reads_it(flow, data):
    frame = encode_frame(0, flow)
    assert decode_performative(frame, 8, len(frame)) == (flow, len(frame))
    at = data.draw(st.integers(8, len(frame) - 1))
    damaged = frame[:at] + bytes((data.draw(st.integers(0, 255)),)) + frame[at + 1 :]
    for body in (damaged, frame[:at]):
        try:
            expected = decode_composite(body, 8)
            expected = expected if expected[1] <= len(body) else None
        except WireError:
            expected = None
        try:
            found = decode_performative(body, 8, len(body))
        except WireError:
            found = None
        assert found == expected or not isinstance(expected[0], Flow)
