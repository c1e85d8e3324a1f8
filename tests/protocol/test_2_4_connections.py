"""AMQP 2.4: opening and closing, channels, frame sizes, idle time-outs."""

from __future__ import annotations

import pytest

from bendybus.amqp.conditions import (
    CONNECTION_FORCED,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
)
from bendybus.amqp.frames import AMQP_HEADER, HEARTBEAT, encode_frame
from bendybus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Transfer,
)
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.events import ConnectionClosed, ConnectionFailed, ConnectionOpened, Event, SessionEnded
from bendybus.errors import ProtocolError, ServerBusy, WireError
from fix_engine import OPEN, SASL_START, RawPeer, WiredPair, begin_frame

FLOW = Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1)


def failure(events: list[Event]) -> ProtocolError | WireError:
    failed = events[-1]
    assert isinstance(failed, ConnectionFailed), events
    assert isinstance(failed.error, ProtocolError | WireError)
    return failed.error


def closing_error(peer: RawPeer) -> str:
    """The condition in the close frame that the server has written last."""
    close = peer.answers()[-1]
    assert isinstance(close, Close) and close.error is not None
    return close.error.condition


# -- open and close -------------------------------------------------------------------


def test_open_is_answered_with_our_own_limits() -> None:
    config = ConnectionConfig(container_id="server", max_frame_size=65536, channel_max=9, idle_timeout_s=120)
    peer = RawPeer(config)
    peer.give(SASL_START)
    peer.answers()
    events = peer.give(AMQP_HEADER, OPEN)
    assert [type(event) for event in events] == [ConnectionOpened]
    _, answer = peer.answers()
    assert isinstance(answer, Open)
    assert (answer.container_id, answer.max_frame_size, answer.channel_max, answer.idle_time_out) == (
        "server", 65536, 9, 120_000,
    )  # fmt: skip


def test_close_is_answered_with_close(pair: WiredPair) -> None:
    pair.open()
    pair.client.close()
    pair.pump()
    assert pair.server_saw(ConnectionClosed) == [ConnectionClosed(None)]
    assert pair.client_saw(ConnectionClosed) == [ConnectionClosed(None)]
    assert pair.client.closed and pair.server.closed


def test_our_close_says_why(pair: WiredPair) -> None:
    pair.open()
    pair.server.close(ServerBusy("later"))
    pair.pump()
    (closed,) = pair.client_saw(ConnectionClosed)
    assert closed.error == Error("com.microsoft:server-busy", "later")


def test_closes_that_cross_end_the_connection_on_both_sides(pair: WiredPair) -> None:
    pair.open()
    pair.client.close()
    pair.server.close()
    pair.pump()
    assert len(pair.client_saw(ConnectionClosed)) == len(pair.server_saw(ConnectionClosed)) == 1


def test_frames_after_our_close_are_discarded_until_the_peers(peer: RawPeer) -> None:
    peer.begin()
    peer.server.close()
    assert peer.give(begin_frame(1), encode_frame(0, FLOW)) == []
    assert peer.send(0, Close()) == [ConnectionClosed(None)]


def test_nothing_is_read_after_the_peers_close(peer: RawPeer) -> None:
    assert peer.give(encode_frame(0, Close()), begin_frame()) == [ConnectionClosed(None)]
    assert [type(answer) for answer in peer.answers()] == [Close]
    assert peer.give(begin_frame()) == []


def test_closing_twice_writes_one_close(pair: WiredPair) -> None:
    pair.open()
    pair.server.close()
    first = pair.server.data_to_send()
    pair.server.close()
    assert first and not pair.server.data_to_send()


def test_closing_before_the_peer_has_said_anything_just_ends() -> None:
    peer = RawPeer()
    peer.server.close()
    assert peer.server.closed
    assert peer.server.data_to_send() == b""


def test_a_client_may_close_before_its_open_is_answered() -> None:
    pair = WiredPair(
        client_config=ConnectionConfig(container_id="client", sasl_mechanism=None),
        server_config=ConnectionConfig(container_id="server", require_sasl=False),
    )
    pair.client.close()
    pair.pump()
    assert pair.client_saw(ConnectionClosed) == pair.server_saw(ConnectionClosed) == [ConnectionClosed(None)]


def test_open_twice_is_illegal(peer: RawPeer) -> None:
    assert failure(peer.give(OPEN)).condition == ILLEGAL_STATE
    assert closing_error(peer) == ILLEGAL_STATE


@pytest.mark.parametrize(
    "performative",
    [
        Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1),
        FLOW,
        Transfer(handle=0),
        Disposition(role=True, first=0),
        Close(),
    ],
)
def test_nothing_may_come_before_open(performative: Performative) -> None:
    peer = RawPeer()
    peer.give(SASL_START)
    peer.answers()
    assert failure(peer.give(AMQP_HEADER, encode_frame(0, performative))).condition == ILLEGAL_STATE
    # A close needs an open before it, also when it carries bad news.
    assert [type(answer) for answer in peer.answers()] == [bytes, Open, Close]


def test_a_peer_that_takes_no_frames_worth_the_name_is_refused() -> None:
    peer = RawPeer()
    peer.give(SASL_START)
    events = peer.give(AMQP_HEADER, encode_frame(0, Open(container_id="x", max_frame_size=511)))
    assert failure(events).condition == INVALID_FIELD


# -- channels -------------------------------------------------------------------------


def test_a_channel_above_channel_max_is_a_framing_error() -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", channel_max=3)).open()
    peer.begin(3)
    assert failure(peer.give(begin_frame(4))).condition == FRAMING_ERROR
    assert closing_error(peer) == FRAMING_ERROR


def test_we_keep_to_the_channel_max_of_the_peer() -> None:
    peer = RawPeer()
    peer.give(SASL_START)
    peer.give(AMQP_HEADER, encode_frame(0, Open(container_id="x", channel_max=0)))
    peer.begin(0)
    assert failure(peer.give(begin_frame(1))).condition == RESOURCE_LIMIT_EXCEEDED


def test_begin_twice_on_a_channel_is_illegal(peer: RawPeer) -> None:
    peer.begin(7)
    assert failure(peer.give(begin_frame(7))).condition == ILLEGAL_STATE


@pytest.mark.parametrize(
    "performative",
    [
        FLOW,
        Transfer(handle=0, delivery_id=0),
        Disposition(role=True, first=0),
        Attach(name="x", handle=0, role=False),
        End(),
    ],
)
def test_frames_on_a_channel_without_a_session_are_not_allowed(
    peer: RawPeer, performative: Performative
) -> None:
    peer.begin(0)
    assert failure(peer.send(1, performative)).condition == NOT_ALLOWED


def test_begin_that_answers_nothing_is_not_allowed(peer: RawPeer) -> None:
    begin = Begin(remote_channel=5, next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    assert failure(peer.send(0, begin)).condition == NOT_ALLOWED


def test_a_begin_is_answered_once(pair: WiredPair) -> None:
    session, _ = pair.begin()
    again = Begin(remote_channel=session.channel, next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    assert failure(pair.client.receive_data(encode_frame(9, again), 0.0)).condition == NOT_ALLOWED


def test_a_channel_is_free_again_after_end(peer: RawPeer) -> None:
    for _ in range(3):
        session = peer.begin(5)
        (ended,) = peer.send(5, End())
        assert isinstance(ended, SessionEnded) and ended.session is session
        assert [type(answer) for answer in peer.answers()] == [End]
    assert peer.server.sessions == []


# -- frame sizes ----------------------------------------------------------------------


def test_frames_up_to_what_we_take_are_taken_once_sasl_is_done(peer: RawPeer) -> None:
    frame = encode_frame(0, Open(container_id="x"))
    huge = (262_144).to_bytes(4, "big") + frame[4:] + bytes(262_144 - len(frame))
    assert failure(peer.give(huge)).condition == ILLEGAL_STATE, "read, and refused only as a second open"


def test_a_frame_beyond_what_we_take_is_a_framing_error_before_it_arrives() -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", max_frame_size=4096)).open()
    assert failure(peer.give(b"\x00\x00\x10\x01")).condition == FRAMING_ERROR
    assert closing_error(peer) == FRAMING_ERROR


def test_we_keep_to_the_frame_size_of_the_peer() -> None:
    pair = WiredPair(client_config=ConnectionConfig(container_id="client", max_frame_size=512))
    _, answering = pair.receiver()
    pair.sent_by_server.clear()
    answering.send([(b"tag", b"head", bytes(5000))])
    data = pair.server.data_to_send()
    sizes = []
    while data:
        size = int.from_bytes(data[:4], "big")
        sizes.append(size)
        data = data[size:]
    assert max(sizes) <= 512 < sum(sizes)


def test_a_peer_that_takes_any_frame_gets_none_larger_than_we_take_ourselves() -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", max_frame_size=1000))
    peer.give(SASL_START)
    peer.give(AMQP_HEADER, encode_frame(0, Open(container_id="js", max_frame_size=0xFFFFFFFF)))
    assert peer.server.outgoing_frame_size == 1000


# -- idle time-outs [2.4.5] -----------------------------------------------------------


def opened_at_zero(*, ours: float | None = None, theirs: float | None = None) -> WiredPair:
    pair = WiredPair(
        client_config=ConnectionConfig(container_id="client", idle_timeout_s=theirs),
        server_config=ConnectionConfig(container_id="server", idle_timeout_s=ours),
    )
    pair.open()
    return pair


def test_we_send_a_heartbeat_at_half_of_what_the_peer_asks() -> None:
    server = opened_at_zero(theirs=60).server
    assert server.next_deadline() == 30
    assert server.tick(29.9) == []
    assert server.data_to_send() == b""
    assert server.tick(30) == []
    assert server.data_to_send() == HEARTBEAT
    assert server.next_deadline() == 60


def test_other_frames_take_the_place_of_heartbeats() -> None:
    pair = opened_at_zero(theirs=60)
    pair.now = 20
    pair.begin()
    assert pair.server.next_deadline() == 50
    pair.server.tick(49)
    assert pair.server.data_to_send() == b""


def test_a_peer_that_asks_for_nothing_gets_no_heartbeats() -> None:
    server = opened_at_zero().server
    assert server.next_deadline() is None
    server.tick(1_000_000)
    assert server.data_to_send() == b""


def test_a_peer_that_asks_for_frames_all_the_time_does_not_get_them() -> None:
    peer = RawPeer()
    peer.give(SASL_START)
    peer.give(AMQP_HEADER, encode_frame(0, Open(container_id="x", idle_time_out=1)))
    peer.answers()
    assert peer.server.next_deadline() == 0.1


def test_a_peer_silent_for_twice_our_idle_time_out_is_closed() -> None:
    pair = opened_at_zero(ours=120)
    assert pair.server.next_deadline() == 240
    assert pair.server.tick(239) == []
    assert failure(pair.server.tick(240)).condition == CONNECTION_FORCED
    assert pair.server.closed
    pair.pump()
    (closed,) = pair.client_saw(ConnectionClosed)
    assert closed.error is not None and closed.error.condition == CONNECTION_FORCED


def test_a_heartbeat_from_the_peer_counts_as_life() -> None:
    server = opened_at_zero(ours=120).server
    assert server.receive_data(HEARTBEAT, 200) == []
    assert server.tick(400) == []
    assert server.next_deadline() == 440


def test_two_engines_keep_each_other_alive() -> None:
    pair = opened_at_zero(ours=10, theirs=10)
    for now in range(1, 100):
        pair.now = now
        assert pair.client.tick(now) == pair.server.tick(now) == []
        pair.pump()
    assert not pair.client.closed and not pair.server.closed


def test_a_peer_that_never_speaks_is_given_up_as_well() -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", idle_timeout_s=10))
    assert peer.server.tick(5) == []
    assert peer.server.next_deadline() == 25
    assert failure(peer.server.tick(25)).condition == CONNECTION_FORCED


def test_a_tick_moves_the_deadline_on_before_its_heartbeat_is_written() -> None:
    server = opened_at_zero(theirs=60).server
    server.tick(30)
    assert server.next_deadline() == 60


def test_no_heartbeat_follows_our_close() -> None:
    pair = opened_at_zero(theirs=60)
    pair.server.close()
    pair.server.data_to_send()
    pair.server.tick(100)
    assert pair.server.data_to_send() == b""


def test_a_closed_connection_has_no_deadline() -> None:
    pair = opened_at_zero(ours=10, theirs=10)
    pair.client.close()
    pair.pump()
    assert pair.client.next_deadline() is None
    assert pair.client.tick(1000) == []
