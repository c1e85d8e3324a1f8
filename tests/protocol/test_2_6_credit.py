"""Credit and drain [2.6.7]."""

from __future__ import annotations

from collections import deque

from bendybus.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    Attach,
    Flow,
    Source,
    Target,
)
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.deliveries import WaitingDelivery
from bendybus.engine.events import (
    LinkAttached,
    LinkDrained,
    LinkFlow,
)
from bendybus.engine.receiving import ReceivingLink
from fix_engine import RawPeer, WiredPair, delivered, messages, received_by_client, receiving_link

# -- credit [2.6.7] -------------------------------------------------------------------


def test_no_more_is_sent_than_there_is_credit_for(pair: WiredPair) -> None:
    sending, receiving = pair.sender(credit=3)
    assert sending.credit == 3
    assert sending.send(messages(5)) == 3
    assert sending.credit == 0
    pair.pump()
    assert len(delivered(pair)) == 3
    assert receiving.credit == 0
    assert sending.send(messages(1)) == 0


def test_messages_that_cannot_be_given_back_are_sent_without_credit(pair: WiredPair) -> None:
    asked, sending = pair.receiver(credit=2)
    assert sending.send(messages(3), settled=True, overrun=True) == 3
    assert sending.credit == 0
    pair.pump()
    assert len(received_by_client(pair)) == 3
    asked.grant(10)
    pair.pump()
    assert sending.credit == 10, "both sides still count alike"


def test_credit_is_what_the_receiver_says_not_a_sum(pair: WiredPair) -> None:
    sending, receiving = pair.sender(credit=10)
    receiving.grant(4)
    pair.pump()
    assert pair.client_saw(LinkFlow) == [LinkFlow(sending)]
    assert sending.credit == 4


def test_flows_in_a_row_are_one_event(pair: WiredPair) -> None:
    sending, receiving = pair.sender(credit=10)
    for credit in (4, 5, 6):
        receiving.grant(credit)
    pair.pump()
    assert pair.client_saw(LinkFlow) == [LinkFlow(sending)]
    assert sending.credit == 6


def test_credit_is_relative_to_what_the_receiver_has_seen(pair: WiredPair) -> None:
    _, sending = pair.receiver(credit=10)
    asked = pair.client.sessions[0].links[0]
    assert isinstance(asked, ReceivingLink)
    sending.send(messages(6))
    asked.grant(10)  # before it has seen any of the six
    pair.pump()
    assert sending.credit == 4


def test_top_up_waits_until_half_is_used(pair: WiredPair) -> None:
    sending, receiving = pair.sender(credit=10)
    sending.send(messages(5))
    pair.pump()
    receiving.top_up(10)
    assert pair.server.data_to_send() == b""
    sending.send(messages(1))
    pair.pump()
    receiving.top_up(10)
    pair.pump()
    assert sending.credit == receiving.credit == 10


def test_a_link_flow_with_echo_is_answered(peer: RawPeer) -> None:
    receiving_link(peer)
    peer.send(0, Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, echo=True))
    (flow,) = peer.answers()
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 0, 100)


def test_open_deliveries_are_bounded_whatever_the_credit() -> None:
    pair = WiredPair(server_config=ConnectionConfig(container_id="server", unsettled_max=8))
    asked, sending = pair.receiver(credit=1000)
    assert sending.send(messages(20)) == 8
    assert sending.credit == 0
    pair.pump()
    asked.settle(received_by_client(pair)[:3], ACCEPTED)
    pair.pump()
    assert sending.credit == 3


# -- drain [2.6.7] --------------------------------------------------------------------


def test_drain_is_answered_with_all_credit_used_up(pair: WiredPair) -> None:
    asked, sending = pair.receiver(credit=0)
    asked.grant(10, drain=True)
    pair.pump()
    assert sending.drain and sending.credit == 10
    sending.send(messages(2))
    sending.drained()
    pair.sent_by_server.clear()
    pair.pump()
    assert len(received_by_client(pair)) == 2
    assert pair.client_saw(LinkDrained) == [LinkDrained(asked)]
    assert asked.credit == sending.credit == 0
    assert asked.delivery_count == sending.delivery_count == 10


def test_drain_without_credit_is_answered_all_the_same(peer: RawPeer) -> None:
    # py closes with flow(link-credit=0, drain=true); js waits for drain and link-credit 0 in the answer.
    peer.begin()
    (attached,) = peer.send(
        0, Attach(name="l", handle=0, role=RECEIVER, source=Source(address="s"), target=Target(address="t"))
    )
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    peer.answers()
    (flowed,) = peer.send(
        0,
        Flow(
            incoming_window=9,
            next_outgoing_id=0,
            outgoing_window=9,
            handle=0,
            delivery_count=0,
            link_credit=0,
            drain=True,
        ),
    )
    assert isinstance(flowed, LinkFlow) and flowed.link.drain
    flowed.link.drained()
    (answer,) = peer.answers()
    assert isinstance(answer, Flow)
    assert (answer.handle, answer.link_credit, answer.delivery_count, answer.drain) == (0, 0, 0, True)


def test_drained_without_a_drain_says_nothing(pair: WiredPair) -> None:
    _, sending = pair.receiver(credit=5)
    sending.drained()
    assert pair.server.data_to_send() == b""
    assert sending.credit == 5


def test_the_answer_to_a_drain_waits_for_what_the_window_holds_back() -> None:
    pair = WiredPair(client_config=ConnectionConfig(container_id="client", incoming_window=4))
    asked, sending = pair.receiver(credit=0)
    asked.grant(50, drain=True)
    pair.pump()
    sending.send(messages(20))
    sending.drained()
    pair.pump()
    kinds = [type(event) for event in pair.client_events]
    assert kinds[-1] is LinkDrained and kinds.count(LinkDrained) == 1
    assert len(received_by_client(pair)) == 20


def test_a_drain_that_is_taken_back_is_not_answered() -> None:
    pair = WiredPair(client_config=ConnectionConfig(container_id="client", incoming_window=4))
    asked, sending = pair.receiver(credit=0)
    asked.grant(50, drain=True)
    pair.pump()
    sending.send(messages(20))
    sending.drained()
    asked.grant(50)
    pair.pump()
    assert pair.client_saw(LinkDrained) == []
    assert sending.credit == 30


def test_a_new_drain_needs_an_answer_of_its_own() -> None:
    pair = WiredPair(client_config=ConnectionConfig(container_id="client", incoming_window=4))
    asked, sending = pair.receiver(credit=50)
    sending.send(messages(20))
    asked.grant(50, drain=True)
    pair.server.receive_data(pair.client.data_to_send(), 0.0)
    sending.drained()
    asked.grant(50)
    asked.grant(50, drain=True)
    pair.pump()
    assert pair.client_saw(LinkDrained) == [], "the application has not spoken for the second one"
    sending.drained()
    pair.pump()
    assert len(pair.client_saw(LinkDrained)) == 1


def test_a_drain_is_answered_once(pair: WiredPair) -> None:
    asked, sending = pair.receiver(credit=0)
    asked.grant(5, drain=True)
    pair.pump()
    sending.drained()
    assert not sending.drain
    pair.pump()
    sending.drained()
    assert pair.server.data_to_send() == b""


def test_a_drain_nobody_asked_for_is_not_reported(peer: RawPeer) -> None:
    link = receiving_link(peer)
    flow = Flow(
        incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, delivery_count=0, drain=True
    )
    assert peer.send(0, flow) == []
    assert link.credit == 100


class _Unread(deque[WaitingDelivery]):
    def __iter__(self):
        raise AssertionError("all deliveries that wait were looked at")


def test_a_drain_does_not_look_at_what_other_links_have_waiting(pair: WiredPair) -> None:
    session, _ = pair.begin()
    _, sending = pair.receiver("busy", session=session, credit=5000)
    idle, quiet = pair.receiver("idle", session=session, credit=5)
    outgoing = sending.session.outgoing
    outgoing.window = 0
    sending.send([(b"0", b"", b"x")] * 5000)
    quiet.drain = True
    outgoing._waiting = _Unread(outgoing._waiting)
    quiet.drained()
    assert quiet.credit == 0 and not quiet.drain
    sending.drain = True
    sending.drained()
    assert sending.drain, "it is answered when all have been sent"
    pair.pump()
    idle.grant(1)
    pair.pump()
    assert not sending.drain and sending.waiting_count == 0
