"""AMQP 2.5: begin and end, handles, windows in both directions."""

from __future__ import annotations

import pytest

from bendybus.amqp.conditions import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    WINDOW_VIOLATION,
)
from bendybus.amqp.frames import encode_frame
from bendybus.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Performative,
    Source,
    Target,
    Transfer,
)
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.events import (
    ConnectionFailed,
    DeliveriesReceived,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    OutcomesReceived,
    SessionBegun,
    SessionEnded,
)
from bendybus.engine.outgoing import WAITING_BYTES_MAX
from bendybus.errors import ProtocolError, ServerBusy
from fix_engine import RawPeer, WiredPair, begin_frame


def attach_frame(name: str, handle: int, *, role: bool = SENDER) -> Attach:
    return Attach(name=name, handle=handle, role=role, source=Source(address="s"), target=Target(address="t"))


# -- begin and end --------------------------------------------------------------------


def test_a_detach_after_the_end_of_its_session_harms_nobody(peer: RawPeer) -> None:
    """The Python SDK closes in this order."""
    peer.give(begin_frame(3), encode_frame(3, End()))
    peer.answers()
    assert peer.give(encode_frame(3, Detach(handle=0, closed=True))) == []
    assert peer.answers() == []


def test_begin_is_answered_with_the_remote_channel(peer: RawPeer) -> None:
    (begun,) = peer.give(begin_frame(3))
    assert isinstance(begun, SessionBegun)
    (answer,) = peer.answers()
    assert isinstance(answer, Begin)
    assert (answer.remote_channel, answer.incoming_window, answer.handle_max) == (3, 5000, 255)


def test_end_takes_the_links_with_it_first(pair: WiredPair) -> None:
    session, _ = pair.begin()
    pair.sender("one", session=session)
    pair.receiver("two", session=session)
    pair.server_events.clear()
    session.end()
    pair.pump()
    kinds = [type(event) for event in pair.server_events]
    assert kinds == [LinkDetached, LinkDetached, SessionEnded]
    assert [type(event) for event in pair.client_events] == kinds, "the one who ended hears of it too"
    assert pair.client.sessions == pair.server.sessions == []
    assert pair.server.link_count == 0


def test_our_end_says_why(pair: WiredPair) -> None:
    _, begun = pair.begin()
    begun.end(ServerBusy("later"))
    pair.pump()
    (ended,) = pair.client_saw(SessionEnded)
    assert ended.error == Error("com.microsoft:server-busy", "later")


def test_frames_after_our_end_are_discarded_until_the_peers(peer: RawPeer) -> None:
    session = peer.begin()
    (attached,) = peer.send(0, attach_frame("link", 0))
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    session.end()
    peer.answers()
    events = peer.give(
        encode_frame(0, attach_frame("late", 1)),
        encode_frame(0, Transfer(handle=0, delivery_id=0)),
        encode_frame(0, Transfer(handle=0, delivery_id=1, delivery_tag=b"t")),
        encode_frame(0, Disposition(role=RECEIVER, first=0)),
    )
    assert events == []
    assert [type(event) for event in peer.send(0, End())] == [LinkDetached, SessionEnded]
    assert peer.answers() == []


def test_a_session_may_be_ended_before_begin_is_answered(pair: WiredPair) -> None:
    pair.open()
    pair.client.begin().end()
    pair.pump()
    assert pair.client.sessions == pair.server.sessions == []


def test_sessions_do_not_outlive_the_connection(pair: WiredPair) -> None:
    with pytest.raises(ProtocolError):
        pair.client.begin()
    sending, _ = pair.sender()
    pair.client.close()
    assert sending.send([(b"t", b"", b"late")]) == 0
    pair.pump()
    with pytest.raises(ProtocolError):
        pair.client.begin()


# -- mistakes of the peer end its session, not its connection -------------------------


@pytest.mark.parametrize(
    ("performative", "condition"),
    [
        (Transfer(handle=9, delivery_id=0), UNATTACHED_HANDLE),
        (Detach(handle=9), UNATTACHED_HANDLE),
        (Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=9), UNATTACHED_HANDLE),
        (attach_frame("other", 0), HANDLE_IN_USE),
        (attach_frame("first", 1), NOT_ALLOWED),
    ],
)
def test_a_wrong_handle_or_name_ends_the_session_only(
    peer: RawPeer, performative: Performative, condition: str
) -> None:
    broken, healthy = peer.begin(0), peer.begin(1)
    (attached,) = peer.send(0, attach_frame("first", 0))
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    peer.answers()
    detached, ended = peer.send(0, performative)
    assert isinstance(detached, LinkDetached) and detached.link is attached.link
    assert isinstance(ended, SessionEnded) and ended.session is broken
    (end,) = peer.answers()
    assert isinstance(end, End) and end.error is not None and end.error.condition == condition
    # What was on its way is thrown away, the answer is not reported again, the other session lives.
    assert peer.give(encode_frame(0, performative), encode_frame(0, End())) == []
    assert peer.server.sessions == [healthy]
    assert len(peer.send(1, attach_frame("first", 0))) == 1


def test_a_handle_above_handle_max_is_a_framing_error() -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", handle_max=7)).open()
    peer.begin()
    peer.send(0, attach_frame("seven", 7))
    (failed,) = peer.send(0, attach_frame("eight", 8))
    assert isinstance(failed, ConnectionFailed)
    assert failed.error.condition == FRAMING_ERROR


def test_we_keep_to_the_handle_max_of_the_peer(peer: RawPeer) -> None:
    peer.send(0, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9, handle_max=0))
    peer.send(0, attach_frame("a", 0))
    events = peer.send(0, attach_frame("b", 1))
    ended = events[-1]
    assert isinstance(ended, SessionEnded) and ended.error is not None
    assert ended.error.condition == RESOURCE_LIMIT_EXCEEDED


def test_links_are_bounded_over_all_sessions() -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", links_max=2)).open()
    peer.begin(0), peer.begin(1)
    peer.send(0, attach_frame("a", 0))
    peer.send(1, attach_frame("b", 0))
    (_, ended) = peer.send(1, attach_frame("c", 1))
    assert isinstance(ended, SessionEnded) and ended.error is not None
    assert ended.error.condition == RESOURCE_LIMIT_EXCEEDED
    peer.send(1, End())
    assert peer.server.link_count == 1


# -- windows [2.5.6] ------------------------------------------------------------------


def small_windows(*, client: int = 5000, server: int = 5000) -> WiredPair:
    return WiredPair(
        client_config=ConnectionConfig(container_id="client", incoming_window=client),
        server_config=ConnectionConfig(container_id="server", incoming_window=server),
    )


def messages(count: int, size: int = 10) -> list[tuple[bytes, bytes, bytes]]:
    return [(number.to_bytes(4, "big"), b"<", bytes([number % 251]) * size) for number in range(count)]


def test_the_incoming_window_is_opened_anew_when_half_is_used(peer: RawPeer) -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", incoming_window=10)).open()
    peer.begin()
    (attached,) = peer.send(0, attach_frame("link", 0))
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    peer.answers()
    transfers = [encode_frame(0, Transfer(handle=0, delivery_id=n), b"x") for n in range(10)]
    peer.give(*transfers[:4])
    assert peer.answers() == []
    peer.give(transfers[4])
    (flow,) = peer.answers()
    assert isinstance(flow, Flow)
    assert (flow.next_incoming_id, flow.incoming_window, flow.handle) == (5, 10, None)


def test_many_more_messages_than_the_window_arrive_in_order() -> None:
    pair = small_windows(server=8)
    sending, _ = pair.sender(credit=1000)
    sent = messages(500)
    assert sending.send(sent) == 500
    pair.pump()
    received = [delivery for event in pair.server_saw(DeliveriesReceived) for delivery in event.deliveries]
    assert [(delivery.tag, delivery.payload) for delivery in received] == [
        (tag, head + body) for tag, head, body in sent
    ]
    assert [delivery.delivery_id for delivery in received] == list(range(500))


def test_nothing_is_sent_into_a_window_that_is_shut() -> None:
    pair = small_windows(client=3)
    _, sending = pair.receiver()
    sending.send(messages(5))
    pair.sent_by_server += pair.server.data_to_send()
    assert [delivery.delivery_id for delivery in sending.unsettled] == [0, 1, 2]
    assert sending.credit == 95, "credit is used by what waits"


def test_what_waits_for_the_window_counts_as_open() -> None:
    pair = WiredPair(
        client_config=ConnectionConfig(container_id="client", incoming_window=3),
        server_config=ConnectionConfig(container_id="server", unsettled_max=8),
    )
    _, sending = pair.receiver()
    assert sending.send(messages(20)) == 8
    assert sending.credit == 0


def test_the_bytes_that_wait_for_the_window_are_bounded() -> None:
    pair = small_windows(client=1)
    asked, sending = pair.receiver(credit=10)
    sending.send(messages(1) + messages(1, WAITING_BYTES_MAX))
    assert sending.credit == 0, "too much is waiting already"
    pair.pump()
    assert pair.server_saw(LinkFlow) == [LinkFlow(sending)], "the open window is news to the link"
    assert sending.credit == 8
    assert asked.delivery_count == 2


def test_the_window_of_a_flow_counts_from_what_the_peer_had_seen() -> None:
    pair = small_windows(client=10)
    _, sending = pair.receiver()
    sending.send(messages(4))
    pair.client.sessions[0].write(
        Flow(next_incoming_id=0, incoming_window=6, next_outgoing_id=0, outgoing_window=1)
    )
    pair.server.receive_data(pair.client.data_to_send(), 0.0)
    assert sending.session.outgoing.window == 2


@pytest.mark.parametrize("tag", [b"t", None], ids=["a run", "frame by frame"])
def test_transfers_beyond_the_window_end_the_session(tag: bytes | None) -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", incoming_window=4)).open()
    peer.begin()
    (attached,) = peer.send(0, attach_frame("link", 0))
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    peer.answers()
    transfers = [Transfer(handle=0, delivery_id=number, delivery_tag=tag) for number in range(5)]
    events = peer.give(*[encode_frame(0, transfer) for transfer in transfers])
    ended = events[-1]
    assert isinstance(ended, SessionEnded) and ended.error is not None
    assert ended.error.condition == WINDOW_VIOLATION


def test_a_frame_counts_in_the_window_even_when_its_link_is_gone(peer: RawPeer) -> None:
    peer.begin()
    (attached,) = peer.send(0, attach_frame("link", 0))
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    attached.link.detach()
    peer.answers()
    peer.give(encode_frame(0, Transfer(handle=0, delivery_id=0)))
    peer.send(0, Flow(incoming_window=1, next_outgoing_id=1, outgoing_window=1, echo=True))
    (flow,) = peer.answers()
    assert isinstance(flow, Flow) and flow.next_incoming_id == 1


def test_a_session_flow_with_echo_is_answered(peer: RawPeer) -> None:
    peer.begin()
    assert peer.send(0, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True)) == []
    (flow,) = peer.answers()
    assert isinstance(flow, Flow) and flow.handle is None and not flow.echo


def test_a_peer_that_has_not_seen_our_begin_still_opens_the_window(peer: RawPeer) -> None:
    session = peer.begin()
    peer.send(0, Flow(incoming_window=7, next_outgoing_id=0, outgoing_window=1))
    assert session.outgoing.window == 7


def test_a_window_of_the_largest_size_stays_large(peer: RawPeer) -> None:
    # net receivers say uint.max
    session = peer.begin()
    peer.send(0, Flow(next_incoming_id=0, incoming_window=0xFFFFFFFF, next_outgoing_id=0, outgoing_window=1))
    assert session.outgoing.window == 0xFFFFFFFF


# -- serial numbers wrap [2.8.10] -----------------------------------------------------


def test_delivery_and_transfer_ids_wrap() -> None:
    first = 0xFFFFFFFF - 5
    pair = WiredPair(
        client_config=ConnectionConfig(container_id="client", first_outgoing_id=first),
        server_config=ConnectionConfig(container_id="server", incoming_window=4),
    )
    sending, receiving = pair.sender()
    sending.send(messages(20))
    pair.pump()
    deliveries = [delivery for event in pair.server_saw(DeliveriesReceived) for delivery in event.deliveries]
    assert [delivery.delivery_id for delivery in deliveries] == [(first + n) & 0xFFFFFFFF for n in range(20)]
    receiving.settle(deliveries, ACCEPTED)
    pair.pump()
    (outcomes,) = pair.client_saw(OutcomesReceived)
    assert [delivery.tag for delivery in outcomes.deliveries] == [tag for tag, _, _ in messages(20)]
    assert sending.unsettled == []
