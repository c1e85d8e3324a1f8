"""AMQP 2.6.7 to 2.6.14: credit, drain, transfers in one frame and many, settling."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bendybus.amqp.frames import FrameSplitter, decode_performative, encode_frame
from bendybus.amqp.performatives import (
    ACCEPTED,
    RCV_FIRST,
    RCV_SECOND,
    RECEIVER,
    RELEASED,
    SENDER,
    SND_MIXED,
    SND_SETTLED,
    SND_UNSETTLED,
    Attach,
    DeliveryState,
    Disposition,
    Error,
    Modified,
    Rejected,
    TransactionalState,
    Transfer,
)
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.deliveries import Outgoing, SentDelivery
from bendybus.engine.events import (
    DeliveriesReceived,
    DeliveriesSettled,
    LinkAttached,
    OutcomesReceived,
)
from fix_engine import (
    Cut,
    RawPeer,
    WiredPair,
    byte_by_byte,
    delivered,
    messages,
    received_by_client,
    receiving_link,
    whole,
)
from fix_examples import examples

# -- transfers [2.6.12, 2.6.14] -------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "size"),
    [(whole, 100_000), *itertools.product([whole, byte_by_byte], [0, 1, 400, 512, 513, 5_000])],
)
def test_messages_of_any_size_arrive_whole_both_ways(cut: Cut, size: int) -> None:
    pair = WiredPair(
        client_config=ConnectionConfig(container_id="client", max_frame_size=512),
        server_config=ConnectionConfig(container_id="server", max_frame_size=600),
        cut=cut,
    )
    session, _ = pair.begin()
    there, _ = pair.sender(session=session)
    _, back = pair.receiver(session=session)
    body = bytes(index % 251 for index in range(size))
    sent: list[Outgoing] = [(b"1", b"h", memoryview(body)), (b"22", b"", b"small"), (b"", body, b"")]
    there.send(sent, message_format=0x80013700)
    back.send(sent)
    pair.pump()
    expected = [(b"1", b"h" + body), (b"22", b"small"), (b"", body)]
    assert [(delivery.tag, delivery.payload) for delivery in delivered(pair)] == expected
    assert [(delivery.tag, delivery.payload) for delivery in received_by_client(pair)] == expected


def test_message_format_and_order_survive(pair: WiredPair) -> None:
    sending, _ = pair.sender()
    sending.send(messages(3), message_format=0x80013700)
    sending.send([(b"x", b"", b"y")])
    pair.pump()
    assert [(d.delivery_id, d.message_format) for d in delivered(pair)] == [
        (0, 0x80013700), (1, 0x80013700), (2, 0x80013700), (3, 0),
    ]  # fmt: skip


def test_deliveries_that_are_accepted_one_after_the_other_share_a_disposition(pair: WiredPair) -> None:
    sending, receiving = pair.sender(credit=100)
    sending.send(messages(60))
    pair.pump()
    received = delivered(pair)
    for number in range(3):
        receiving.settle(received[number::3], ACCEPTED)
    frames = [
        decode_performative(buffer, start, end)[0]
        for _, _, buffer, start, end in FrameSplitter(1 << 20).feed(pair.server.data_to_send())
    ]
    assert [(each.first, each.last) for each in frames if isinstance(each, Disposition)] == [(0, 59)]


def test_a_link_is_detached_after_the_answers_to_its_deliveries(pair: WiredPair) -> None:
    sending, receiving = pair.sender()
    sending.send(messages(2))
    pair.pump()
    receiving.settle(delivered(pair), ACCEPTED)
    receiving.detach()
    pair.pump()
    assert sending.unsettled == []


def test_all_transfers_of_one_read_are_one_event(pair: WiredPair) -> None:
    sending, _ = pair.sender(credit=500)
    sending.send(messages(200))
    pair.pump()
    (event,) = pair.server_saw(DeliveriesReceived)
    assert len(event.deliveries) == 200


def test_deliveries_of_two_links_may_interleave_frame_by_frame(peer: RawPeer) -> None:
    receiving_link(peer)
    (attached,) = peer.send(0, Attach(name="m", handle=1, role=SENDER))
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    events = peer.give(
        encode_frame(0, Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True), b"one "),
        encode_frame(0, Transfer(handle=1, delivery_id=1, delivery_tag=b"b", more=True), b"two "),
        encode_frame(0, Transfer(handle=0, delivery_id=0), b"first"),
        encode_frame(0, Transfer(handle=1), b"second"),
    )
    payloads = [event.deliveries[0].payload for event in events if isinstance(event, DeliveriesReceived)]
    assert payloads == [b"one first", b"two second"]


def test_an_aborted_delivery_vanishes(peer: RawPeer) -> None:
    link = receiving_link(peer)
    events = peer.give(
        encode_frame(0, Transfer(handle=0, delivery_id=0, more=True), b"half"),
        encode_frame(0, Transfer(handle=0, aborted=True)),
        encode_frame(0, Transfer(handle=0, delivery_id=1, aborted=True), b"never"),
        encode_frame(0, Transfer(handle=0, delivery_id=2), b"whole"),
    )
    (received,) = events
    assert isinstance(received, DeliveriesReceived)
    assert [delivery.payload for delivery in received.deliveries] == [b"whole"]
    assert link.delivery_count == 3


def test_settled_on_any_frame_means_settled(peer: RawPeer) -> None:
    receiving_link(peer)
    (received,) = peer.give(
        encode_frame(0, Transfer(handle=0, delivery_id=0, settled=True, more=True), b"a"),
        encode_frame(0, Transfer(handle=0), b"b"),
    )
    assert isinstance(received, DeliveriesReceived)
    assert received.deliveries[0].settled


def test_the_state_of_a_transfer_is_handed_on(peer: RawPeer) -> None:
    receiving_link(peer)
    state = TransactionalState(b"txn")
    (received,) = peer.give(
        encode_frame(0, Transfer(handle=0, delivery_id=0, state=state, more=True), b"a"),
        encode_frame(0, Transfer(handle=0), b"b"),
        encode_frame(0, Transfer(handle=0, delivery_id=1, state=state), b"c"),
    )
    assert isinstance(received, DeliveriesReceived)
    assert [delivery.state for delivery in received.deliveries] == [state, state]


@pytest.mark.parametrize("pieces", [[11], [5, 6], [10, 1], [3] * 4, [11, 500, 500]])
def test_an_oversize_message_is_reported_without_its_bytes_and_keeps_the_link(
    peer: RawPeer, pieces: list[int]
) -> None:
    link = receiving_link(peer, max_message_size=10)
    frames = [
        encode_frame(0, Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=more), bytes(size))
        for size, more in zip(pieces, [True] * (len(pieces) - 1) + [False], strict=True)
    ]
    for frame in frames[:-1]:
        assert peer.give(frame) == []
    (received,) = peer.give(frames[-1])
    assert isinstance(received, DeliveriesReceived)
    (delivery,) = received.deliveries
    assert (delivery.oversize, delivery.payload, delivery.tag) == (True, b"", b"t")
    link.settle([delivery], Rejected(Error("amqp:link:message-size-exceeded", "too large")))
    assert link.attached
    (answer,) = peer.answers()
    assert isinstance(answer, Disposition)


def test_a_message_of_just_the_limit_is_whole(peer: RawPeer) -> None:
    receiving_link(peer, max_message_size=10)
    (received,) = peer.give(
        encode_frame(0, Transfer(handle=0, delivery_id=0), bytes(10)),
        encode_frame(0, Transfer(handle=0, delivery_id=1, more=True), bytes(5)),
        encode_frame(0, Transfer(handle=0), bytes(5)),
    )
    assert isinstance(received, DeliveriesReceived)
    assert [(d.oversize, len(d.payload)) for d in received.deliveries] == [(False, 10), (False, 10)]


def test_a_link_that_goes_while_its_messages_wait_leaves_no_hole_in_the_ids() -> None:
    pair = WiredPair(client_config=ConnectionConfig(container_id="client", incoming_window=4))
    session, _ = pair.begin()
    _, first = pair.receiver("first", session=session)
    _, second = pair.receiver("second", session=session)
    first.send(messages(10))
    second.send(messages(3))
    first.detach()
    pair.pump()
    received = received_by_client(pair)
    assert [delivery.delivery_id for delivery in received] == list(range(len(received)))
    assert len(received) == 4 + 3


def test_a_link_that_goes_in_the_middle_of_a_delivery_keeps_nothing_of_it(peer: RawPeer) -> None:
    link = receiving_link(peer)
    peer.give(encode_frame(0, Transfer(handle=0, delivery_id=0, more=True), b"half"))
    link.detach()
    assert link._partial is None


# -- settling [2.6.12] ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("snd_settle_mode", "rcv_settle_mode"),
    list(itertools.product([SND_UNSETTLED, SND_SETTLED, SND_MIXED, None], [RCV_FIRST, RCV_SECOND, None])),
)
def test_settle_modes(snd_settle_mode: int | None, rcv_settle_mode: int | None) -> None:
    """Each pair of modes, from the server's point of view as the sender."""
    pair = WiredPair()
    asked, sending = pair.receiver(snd_settle_mode=snd_settle_mode, rcv_settle_mode=rcv_settle_mode)
    assert sending.snd_settle_mode == (SND_MIXED if snd_settle_mode is None else snd_settle_mode)
    assert sending.rcv_settle_mode == (rcv_settle_mode or RCV_FIRST)
    sending.send(messages(3))
    pair.pump()
    deliveries = received_by_client(pair)
    if snd_settle_mode == SND_SETTLED:
        assert all(delivery.settled for delivery in deliveries)
        assert sending.unsettled == []
        asked.settle(deliveries, ACCEPTED)
        assert pair.client.data_to_send() == b"", "pre-settled deliveries need no answer"
        return
    assert [delivery.delivery_id for delivery in sending.unsettled] == [0, 1, 2]
    if rcv_settle_mode != RCV_SECOND:
        asked.settle(deliveries, ACCEPTED)
        pair.pump()
        (outcomes,) = pair.server_saw(OutcomesReceived)
        assert outcomes.settled and len(outcomes.deliveries) == 3
    else:
        asked.propose(deliveries, ACCEPTED)
        pair.pump()
        (outcomes,) = pair.server_saw(OutcomesReceived)
        assert not outcomes.settled and len(sending.unsettled) == 3
        sending.settle(outcomes.deliveries, ACCEPTED)
        pair.pump()
        assert pair.client_saw(DeliveriesSettled) == [DeliveriesSettled(asked, deliveries, ACCEPTED)]
    assert sending.unsettled == []


def test_a_mixed_link_sends_either_way(pair: WiredPair) -> None:
    _, sending = pair.receiver()
    sending.send(messages(2), settled=True)
    sending.send(messages(2), settled=False)
    pair.pump()
    assert [delivery.settled for delivery in received_by_client(pair)] == [True, True, False, False]
    assert [delivery.delivery_id for delivery in sending.unsettled] == [2, 3]


def test_one_disposition_settles_a_whole_run(pair: WiredPair) -> None:
    sending, receiving = pair.sender()
    sending.send(messages(50))
    pair.pump()
    pair.sent_by_server.clear()
    receiving.settle(delivered(pair)[::-1], ACCEPTED)
    data = pair.server.data_to_send()
    assert len(data) == int.from_bytes(data[:4], "big"), "one frame"
    events = pair.client.receive_data(data, 0.0)
    (outcomes,) = events
    assert isinstance(outcomes, OutcomesReceived)
    assert [delivery.delivery_id for delivery in outcomes.deliveries] == list(range(50))


def test_single_dispositions_with_equal_states_become_one_event(pair: WiredPair) -> None:
    asked, sending = pair.receiver()
    sending.send(messages(6))
    pair.pump()
    deliveries = received_by_client(pair)
    states: list[DeliveryState] = [
        ACCEPTED, ACCEPTED, RELEASED, Modified(True), Modified(True), Modified(False),
    ]  # fmt: skip
    for delivery, state in zip(deliveries, states, strict=True):
        asked.propose([delivery], state)
    pair.pump()
    outcomes = pair.server_saw(OutcomesReceived)
    assert [(event.state, len(event.deliveries)) for event in outcomes] == [
        (ACCEPTED, 2), (RELEASED, 1), (Modified(True), 2), (Modified(False), 1),
    ]  # fmt: skip


def test_what_the_peer_settled_and_what_it_left_open_are_two_events(pair: WiredPair) -> None:
    asked, sending = pair.receiver()
    sending.send(messages(2))
    pair.pump()
    first, second = received_by_client(pair)
    asked.propose([first], ACCEPTED)
    asked.settle([second], ACCEPTED)
    pair.pump()
    assert [event.settled for event in pair.server_saw(OutcomesReceived)] == [False, True]


def test_a_range_over_two_links_is_one_event_for_each(pair: WiredPair) -> None:
    session, _ = pair.begin()
    _, first = pair.receiver("first", session=session)
    _, second = pair.receiver("second", session=session)
    first.send(messages(2))
    second.send(messages(2))
    pair.pump()
    pair.client.sessions[0].write_dispositions(RECEIVER, range(4), settled=True, state=ACCEPTED)
    pair.pump()
    outcomes = pair.server_saw(OutcomesReceived)
    assert [(event.link, len(event.deliveries)) for event in outcomes] == [(first, 2), (second, 2)]


def test_a_range_may_claim_more_than_was_ever_sent(pair: WiredPair) -> None:
    _, sending = pair.receiver()
    sending.send(messages(3))
    pair.pump()
    pair.client.sessions[0].write(Disposition(role=RECEIVER, first=1, last=0, settled=True, state=ACCEPTED))
    pair.pump()
    (outcomes,) = pair.server_saw(OutcomesReceived)
    assert len(outcomes.deliveries) == 3


def test_dispositions_for_what_is_settled_already_are_ignored(pair: WiredPair) -> None:
    asked, sending = pair.receiver()
    sending.send(messages(2))
    pair.pump()
    deliveries = received_by_client(pair)
    asked.settle(deliveries, ACCEPTED)
    asked.settle(deliveries, ACCEPTED)
    pair.pump()
    assert len(pair.server_saw(OutcomesReceived)) == 1


def test_a_failed_settlement_carries_its_reason(pair: WiredPair) -> None:
    asked, sending = pair.receiver(rcv_settle_mode=RCV_SECOND)
    sending.send(messages(1))
    pair.pump()
    deliveries = received_by_client(pair)
    asked.propose(deliveries, ACCEPTED)
    pair.pump()
    (outcomes,) = pair.server_saw(OutcomesReceived)
    lost = Rejected(Error("com.microsoft:message-lock-lost", "x" * 300))
    sending.settle(outcomes.deliveries, lost)
    pair.pump()
    assert pair.client_saw(DeliveriesSettled) == [DeliveriesSettled(asked, deliveries, lost)]


def test_a_link_that_goes_waits_for_no_settlement(pair: WiredPair) -> None:
    asked, sending = pair.receiver(rcv_settle_mode=RCV_SECOND)
    sending.send(messages(2))
    pair.pump()
    asked.propose(received_by_client(pair), ACCEPTED)
    asked.detach()
    assert asked.session.proposed == {}


def test_a_disposition_of_the_sender_that_settles_nothing_is_ignored(pair: WiredPair) -> None:
    asked, sending = pair.receiver(rcv_settle_mode=RCV_SECOND)
    sending.send(messages(2))
    pair.pump()
    asked.propose(received_by_client(pair), ACCEPTED)
    sending.session.write_dispositions(SENDER, [0, 1], settled=False, state=ACCEPTED)
    pair.pump()
    assert pair.client_saw(DeliveriesSettled) == []


def test_settling_what_the_peer_settled_itself_says_nothing(pair: WiredPair) -> None:
    asked, sending = pair.receiver()
    sending.send(messages(1))
    pair.pump()
    asked.settle(received_by_client(pair), RELEASED)
    pair.pump()
    (outcomes,) = pair.server_saw(OutcomesReceived)
    sending.settle(outcomes.deliveries, RELEASED)
    assert pair.server.data_to_send() == b""


# -- any cutting of the stream gives the same -----------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=20),
)
def test_the_stream_may_be_cut_anywhere(sizes: list[int], cuts: list[int]) -> None:
    lengths = itertools.cycle(cuts)

    def cut(data: bytes) -> list[bytes]:
        pieces = []
        while data:
            length = next(lengths)
            pieces.append(data[:length])
            data = data[length:]
        return pieces

    def run(pair: WiredPair) -> tuple[list[bytes], bytes, bytes, list[int]]:
        sending, receiving = pair.sender()
        sending.send([(b"tag", b"", bytes([size % 256]) * size) for size in sizes])
        pair.pump()
        deliveries = delivered(pair)
        receiving.settle(deliveries, ACCEPTED)
        pair.pump()
        settled = [d.delivery_id for event in pair.client_saw(OutcomesReceived) for d in event.deliveries]
        return (
            [delivery.payload for delivery in deliveries],
            bytes(pair.sent_by_client),
            bytes(pair.sent_by_server),
            settled,
        )

    small_frames = ConnectionConfig(container_id="server", max_frame_size=512)
    assert run(WiredPair(server_config=small_frames, cut=cut)) == run(WiredPair(server_config=small_frames))


class _Counted(dict[int, SentDelivery]):
    """Counts how many values are looked at."""

    looked_at = 0

    def values(self):
        self.looked_at += len(self)
        return super().values()


def test_the_links_of_a_session_that_ends_share_one_look_at_its_deliveries(pair: WiredPair) -> None:
    session, _ = pair.begin()
    receivers = [pair.receiver(str(number), session=session) for number in range(50)]
    links = [link for _, link in receivers]
    for link in links:
        link.send(messages(20))
    outgoing = links[0].session.outgoing
    outgoing.unsettled = unsettled = _Counted(outgoing.unsettled)
    session.end()
    pair.pump()
    assert unsettled.looked_at == 50 * 20
    assert [len(link.unsettled) for link in links] == [20] * 50


def test_looking_through_the_deliveries_of_a_session_is_work(pair: WiredPair) -> None:
    session, _ = pair.begin()
    idle, _ = pair.receiver("idle", session=session)
    _, busy = pair.receiver("busy", session=session, credit=50_000)
    busy.send([(b"0", b"", b"x")] * 50_000)
    pair.pump()
    before = pair.server.work
    idle.detach()
    pair.pump()
    assert pair.server.work - before > 100
    assert len(busy.unsettled) == 50_000
