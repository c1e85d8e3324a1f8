"""Whatever a peer sends: events and a named error, never an exception, never output without bound."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bendybus.amqp.conditions import DECODE_ERROR
from bendybus.amqp.frames import AMQP_HEADER, HEARTBEAT, SASL_HEADER, encode_frame
from bendybus.amqp.performatives import (
    ACCEPTED,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Performative,
    Received,
    Rejected,
    Released,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from bendybus.amqp.types import Described, Symbol, ULong
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.events import (
    ConnectionFailed,
    DeliveriesReceived,
    Event,
    LinkAttached,
    LinkFlow,
    OutcomesReceived,
)
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.engine.work import DELIVERIES_PER_WORK, PERFORMATIVE_WORK
from bendybus.errors import BrokerError, EntityNotFound, ProtocolError, Unauthorized, WireError
from fix_engine import OPEN, SASL_START, RawPeer, WiredPair, begin_frame, receiving_link
from fix_examples import examples

# Nothing a peer sends makes us write more than this for each frame it sent (an attach with all
# our fields is the largest answer), and a little for the start.
OUTPUT_PER_FRAME_MAX = 1_000

U32 = st.sampled_from([0, 1, 2, 7, 255, 4999, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
HANDLE = st.integers(0, 3) | U32
ID = st.integers(0, 5) | U32
OPTIONAL_BOOL = st.none() | st.booleans()
STATE = st.none() | st.sampled_from(
    [
        Accepted(),
        Released(),
        Rejected(),
        Modified(True, True, {"a": 1}),
        Received(0, 0),
        TransactionalState(b"t", ACCEPTED),
        Described(ULong(0x99), []),
    ]
)
SOURCE = st.none() | st.builds(
    Source, address=st.none() | st.text(max_size=5), filter=st.none() | st.just({"f": None})
)
TARGET = st.none() | st.builds(Target, address=st.none() | st.text(max_size=5))

PERFORMATIVES: st.SearchStrategy[Performative] = st.one_of(
    st.builds(Open, container_id=st.just("x"), max_frame_size=st.none() | U32, idle_time_out=st.none() | U32),
    st.builds(
        Begin,
        remote_channel=st.none() | st.integers(0, 3),
        next_outgoing_id=U32,
        incoming_window=U32,
        outgoing_window=U32,
        handle_max=st.none() | U32,
    ),
    st.builds(
        Attach,
        name=st.sampled_from("abc"),
        handle=HANDLE,
        role=st.booleans(),
        snd_settle_mode=st.none() | st.integers(0, 255),
        source=SOURCE,
        target=TARGET,
        initial_delivery_count=st.none() | U32,
        max_message_size=st.none() | U32,
    ),
    st.builds(
        Flow,
        next_incoming_id=st.none() | ID,
        incoming_window=U32,
        next_outgoing_id=ID,
        outgoing_window=U32,
        handle=st.none() | HANDLE,
        delivery_count=st.none() | ID,
        link_credit=st.none() | U32,
        drain=OPTIONAL_BOOL,
        echo=OPTIONAL_BOOL,
    ),
    st.builds(
        Transfer,
        handle=HANDLE,
        delivery_id=st.none() | ID,
        delivery_tag=st.none() | st.binary(max_size=40),
        settled=OPTIONAL_BOOL,
        more=OPTIONAL_BOOL,
        state=STATE,
        aborted=OPTIONAL_BOOL,
    ),
    st.builds(
        Disposition, role=st.booleans(), first=ID, last=st.none() | ID, settled=OPTIONAL_BOOL, state=STATE
    ),
    st.builds(Detach, handle=HANDLE, closed=OPTIONAL_BOOL),
    st.just(End()),
    st.just(Close()),
    st.just(SaslInit("ANONYMOUS")),
    st.just(SaslOutcome(0)),
)
FRAME = st.builds(
    encode_frame,
    st.sampled_from([0, 0, 0, 1, 2, 5000]),
    PERFORMATIVES,
    st.sampled_from([b"", b"x", b"y" * 300]),
)
# Attach and begin are frequent, or hardly anything would get as far as a delivery.
OPENING = [
    begin_frame(0),
    *(
        encode_frame(0, Attach(name=name, handle=handle, role=role))
        for handle, (name, role) in enumerate([("a", True), ("b", False), ("c", True)])
    ),
    encode_frame(0, Flow(incoming_window=99, next_outgoing_id=0, outgoing_window=9, handle=0, link_credit=9)),
]
SMALL = ConnectionConfig(container_id="server", max_message_size=500, incoming_window=20, unsettled_max=10)


def behave(events: list[Event], refuse: bool) -> None:
    """An application that answers everything at once."""
    for event in events:
        match event:
            case LinkAttached(link=link) if refuse:
                link.refuse(EntityNotFound("x"))
            case LinkAttached(link=link):
                link.accept()
                if isinstance(link, ReceivingLink):
                    link.grant(3)
                elif isinstance(link, SendingLink):
                    link.send([(b"tag", b"", b"body")] * 3)
            case DeliveriesReceived(link=link, deliveries=deliveries):
                link.settle(deliveries, ACCEPTED)
                link.top_up(3)
            case OutcomesReceived(link=link, deliveries=deliveries, settled=False):
                link.settle(deliveries, ACCEPTED)
            case LinkFlow(link=link):
                link.send([(b"tag", b"", b"body")] * 3)
                link.drained()


def check(peer: RawPeer, events: list[Event], written: int, frame_count: int) -> None:
    failures = [event for event in events if isinstance(event, ConnectionFailed)]
    assert len(failures) <= 1
    for failed in failures:
        assert isinstance(failed.error, WireError | ProtocolError | Unauthorized)
        assert failed.error.condition and str(failed.error)
        assert events[-1] is failed and peer.server.closed
    assert written <= OUTPUT_PER_FRAME_MAX * (frame_count + 5)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(FRAME, max_size=25), st.booleans(), st.booleans(), st.booleans())
def test_valid_frames_in_any_order(frames: list[bytes], opening: bool, one_read: bool, refuse: bool) -> None:
    peer = RawPeer(SMALL).open()
    frames = OPENING + frames if opening else frames
    seen: list[Event] = []
    written = 0
    for data in [b"".join(frames)] if one_read else frames:
        events = peer.give(data)
        behave(events, refuse)
        seen += events
        written += len(peer.server.data_to_send())
    check(peer, seen, written, len(frames))


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from([b"", SASL_HEADER, SASL_START, AMQP_HEADER]), st.binary(max_size=200))
def test_random_bytes(start: bytes, noise: bytes) -> None:
    peer = RawPeer()
    events = peer.give(start, noise)
    check(peer, events, len(peer.server.data_to_send()), 1)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_valid_frames_with_a_byte_or_two_changed(data: st.DataObject) -> None:
    stream = bytearray(b"".join([*OPENING, *data.draw(st.lists(FRAME, max_size=5))]))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    peer = RawPeer(SMALL).open()
    events = peer.give(bytes(stream))
    behave(events, refuse=False)
    check(peer, events, len(peer.server.data_to_send()), len(stream) // 8)


def test_false_sizes_inside_a_frame_are_decode_errors() -> None:
    flow = bytearray(encode_frame(0, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1)))
    flow[12] = 0xFF  # the size of the list
    peer = RawPeer().open()
    peer.begin()
    (failed,) = peer.give(bytes(flow))
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, BrokerError) and failed.error.condition == DECODE_ERROR
    (close,) = peer.answers()
    assert isinstance(close, Close) and close.error is not None and close.error.condition == DECODE_ERROR


def test_what_came_before_the_mistake_is_reported_before_it() -> None:
    peer = RawPeer().open()
    events = peer.give(begin_frame(0), begin_frame(1), b"\x00\x00\x00\x01")
    assert [type(event).__name__ for event in events] == ["SessionBegun", "SessionBegun", "ConnectionFailed"]
    assert peer.give(begin_frame(2)) == []


def test_heartbeats_by_the_thousand_cost_no_answer() -> None:
    peer = RawPeer().open()
    assert peer.give(HEARTBEAT * 10_000) == []
    assert peer.server.data_to_send() == b""


def test_incomplete_deliveries_of_one_connection_are_bounded_together() -> None:
    peer = RawPeer(ConnectionConfig(container_id="s", incomplete_bytes_max=1000, max_message_size=600)).open()
    peer.begin()
    for handle in range(3):
        (attached,) = peer.send(0, Attach(name=f"l{handle}", handle=handle, role=False))
        assert isinstance(attached, LinkAttached)
        attached.link.accept()
    first, second, third = (Transfer(handle=each, delivery_id=each, more=True) for each in range(3))
    assert peer.send(0, first, bytes(500)) == peer.send(0, second, bytes(500)) == []
    assert peer.server.held_bytes == 1000
    # One that is aborted makes room.
    assert peer.send(0, Transfer(handle=0, aborted=True)) == []
    assert peer.server.held_bytes == 500
    assert peer.send(0, third, bytes(500)) == []
    events = peer.send(0, first, bytes(1))
    (failed,) = (event for event in events if isinstance(event, ConnectionFailed))
    assert failed.error.condition == "amqp:resource-limit-exceeded"
    assert peer.server.held_bytes == 0


def test_an_endless_delivery_takes_no_more_memory_than_a_message_may() -> None:
    peer = RawPeer(SMALL).open()
    peer.begin()
    (attached,) = peer.send(0, Attach(name="l", handle=0, role=False))
    assert isinstance(attached, LinkAttached) and isinstance(attached.link, ReceivingLink)
    attached.link.accept()
    piece = encode_frame(0, Transfer(handle=0, delivery_id=0, more=True), bytes(100))
    for _ in range(100):
        assert peer.give(piece) == []
    partial = attached.link._partial
    assert partial is not None and partial.oversize and partial.payload is None


def test_an_unknown_symbol_is_no_performative() -> None:
    body = b"\x00\xa3\x04nope\x45"
    peer = RawPeer().open()
    (failed,) = peer.give((8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body)
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, WireError)


def test_open_under_its_symbolic_name_is_an_open() -> None:
    peer = RawPeer()
    peer.give(SASL_START)
    assert OPEN[8:11] == b"\x00\x53\x10"
    name = Symbol("amqp:open:list").encode()
    body = b"\x00\xa3" + bytes([len(name)]) + name + OPEN[11:]
    (opened,) = peer.give(AMQP_HEADER, (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body)
    assert type(opened).__name__ == "ConnectionOpened"


def test_a_large_frame_is_as_much_work_as_many_small_ones(peer: RawPeer) -> None:
    """Each of its bytes may be a value."""
    peer.begin()
    values = {"x": [None] * 250_000}
    for performative in (
        Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1, properties=values),
        Disposition(role=True, first=0, state=Modified(message_annotations=values)),
        Transfer(handle=7, delivery_id=0, delivery_tag=b"", state=Described(ULong(0x99), values["x"])),
    ):
        before = peer.server.work
        peer.send(1 if isinstance(performative, Begin) else 0, performative)
        assert peer.server.work - before > 100 * PERFORMATIVE_WORK


# Each takes a byte in a frame, and 64 in memory.
_EMPTY_LISTS: list[object] = [[] for _ in range(200_000)]


def test_the_memory_of_large_attaches_is_counted_until_their_links_are_gone(peer: RawPeer) -> None:
    peer.begin()
    held = [peer.server.held_bytes]
    for name, handle in (("a", 1), ("b", 2)):
        peer.send(0, Attach(name=name, handle=handle, role=True, unsettled={0: _EMPTY_LISTS}))
        held.append(peer.server.held_bytes)
    assert held[1] > 60 * len(_EMPTY_LISTS)
    assert held == [0, held[1], 2 * held[1]]
    peer.send(0, Detach(handle=1))
    assert peer.server.held_bytes == held[1]
    peer.send(0, End())
    assert peer.server.held_bytes == 0


def test_incomplete_deliveries_with_large_states_are_bounded(peer: RawPeer) -> None:
    link = receiving_link(peer)
    first = Transfer(
        handle=0, delivery_id=0, delivery_tag=b"", more=True, state=Described(ULong(0x99), _EMPTY_LISTS)
    )
    peer.send(0, first)
    assert peer.server.held_bytes > 60 * len(_EMPTY_LISTS)
    peer.send(0, Transfer(handle=0, aborted=True))
    assert peer.server.held_bytes == 0
    assert link.attached
    for number in range(10):
        peer.send(0, Attach(name=str(number), handle=number + 1, role=SENDER))
    links = [each for each in peer.server.sessions[0].links if isinstance(each, ReceivingLink)]
    events: list[Event] = []
    for each in links:
        each.accept()
        each.grant(1)
        events += peer.send(0, replace(first, handle=each.remote_handle))
    assert isinstance(events[-1], ConnectionFailed)
    assert "incomplete deliveries" in str(events[-1].error)


def test_the_memory_of_a_large_open_is_counted() -> None:
    peer = RawPeer()
    peer.give(SASL_START)
    peer.give(AMQP_HEADER, encode_frame(0, Open(container_id="c", properties={"p": _EMPTY_LISTS})))
    assert peer.server.held_bytes > 60 * len(_EMPTY_LISTS)


def test_dispositions_over_many_deliveries_are_as_much_work_as_those_deliveries(pair: WiredPair) -> None:
    """Until the outcome is durable, the same deliveries may be named again."""
    _, link = pair.receiver(credit=5000)
    link.send([(bytes(16), b"", b"x")] * 5000)
    pair.pump()
    again = encode_frame(0, Disposition(role=True, first=0, last=0xFFFFFFFF, state=ACCEPTED))
    events = pair.server.receive_data(again * 1000, 0.0, 1024)
    assert sum(len(event.deliveries) for event in events if isinstance(event, OutcomesReceived)) <= 10_000
    assert pair.server.has_unread
    nothing = encode_frame(0, Disposition(role=True, first=5000, last=0xFFFFFFFF, state=ACCEPTED))
    before = pair.server.work
    pair.server.read_on()
    read = pair.server.work
    assert pair.server.receive_data(nothing * 100, 0.0) == []
    assert read > before and pair.server.work - read >= 100 * (2 * 5000 // DELIVERIES_PER_WORK)
