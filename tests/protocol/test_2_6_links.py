"""AMQP 2.6.1 to 2.6.6: attaching, refusing, detaching."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bendybus.amqp.conditions import INVALID_FIELD, NOT_ALLOWED, TRANSFER_LIMIT_EXCEEDED
from bendybus.amqp.frames import encode_frame
from bendybus.amqp.performatives import (
    ACCEPTED,
    RCV_FIRST,
    RCV_SECOND,
    RECEIVER,
    SENDER,
    SND_UNSETTLED,
    Attach,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Performative,
    Source,
    Target,
    Terminus,
    Transfer,
)
from bendybus.engine.events import DeliveriesReceived, LinkAttached, LinkDetached, LinkFlow, SessionEnded
from bendybus.engine.link import Link
from bendybus.engine.receiving import CREDIT_OVERRUN_MAX, ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.errors import EntityNotFound, SessionLockLost
from fix_engine import RawPeer, WiredPair


def asked(
    peer: RawPeer,
    *,
    name: str = "link",
    handle: int = 0,
    role: bool = SENDER,
    source: Terminus | None = None,
    target: Terminus | None = None,
) -> Link:
    """A link that the raw peer has asked for, not answered yet."""
    if not peer.server.sessions:
        peer.begin()
    source, target = source or Source(address="s"), target or Target(address="t")
    (attached,) = peer.send(0, Attach(name=name, handle=handle, role=role, source=source, target=target))
    assert isinstance(attached, LinkAttached)
    return attached.link


def detached(peer: RawPeer) -> Detach:
    answer = peer.answers()[-1]
    assert isinstance(answer, Detach)
    return answer


# -- accepting ------------------------------------------------------------------------


def test_accept_echoes_addresses_and_settle_modes(peer: RawPeer) -> None:
    peer.begin()
    source = Source(address="amqps://host/q", filter={"com.microsoft:session-filter": "s1"})
    (attached,) = peer.send(
        0,
        Attach(
            name="r", handle=4, role=RECEIVER, source=source, target=Target(address="me"),
            snd_settle_mode=SND_UNSETTLED, rcv_settle_mode=RCV_SECOND, properties={"a": 1},
        ),
    )  # fmt: skip
    assert isinstance(attached, LinkAttached)
    link = attached.link
    assert isinstance(link, SendingLink)
    assert (link.name, link.properties, link.rcv_settle_mode) == ("r", {"a": 1}, RCV_SECOND)
    link.accept(properties={"com.microsoft:locked-until-utc": 5})
    (answer,) = peer.answers()
    assert isinstance(answer, Attach)
    assert (answer.name, answer.role, answer.source, answer.target) == (
        "r", SENDER, source, Target(address="me"),
    )  # fmt: skip
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (SND_UNSETTLED, RCV_SECOND)
    assert answer.initial_delivery_count == 0, "MUST NOT be null if role is sender"
    assert answer.properties == {"com.microsoft:locked-until-utc": 5}
    assert link.attached


@pytest.mark.parametrize("wanted", [None, RCV_FIRST, RCV_SECOND, 7])
def test_a_sender_is_told_that_its_deliveries_are_settled_at_once(peer: RawPeer, wanted: int | None) -> None:
    """The receiver states "the actual settlement mode in use" [2.7.3]. The senders of py ask for second."""
    peer.begin()
    asks = Attach(name="s", handle=0, role=SENDER, snd_settle_mode=SND_UNSETTLED, rcv_settle_mode=wanted)
    (attached,) = peer.send(0, asks)
    assert isinstance(attached, LinkAttached)
    link = attached.link
    assert isinstance(link, ReceivingLink)
    link.accept()
    (answer,) = peer.answers()
    assert isinstance(answer, Attach)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode or RCV_FIRST) == (SND_UNSETTLED, RCV_FIRST)
    assert link.rcv_settle_mode == RCV_FIRST
    link.grant(1)
    (received,) = peer.send(0, Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), b"x")
    assert isinstance(received, DeliveriesReceived)
    link.settle(received.deliveries, ACCEPTED)
    disposition = peer.answers()[-1]
    assert isinstance(disposition, Disposition)
    assert disposition.settled


def test_an_empty_terminus_is_answered_with_one_that_has_an_address(peer: RawPeer) -> None:
    # js leaves the sender's source and the receiver's target empty.
    asked(peer, name="cbs", source=Source(), target=Target()).accept()
    (answer,) = peer.answers()
    assert isinstance(answer, Attach)
    assert answer.source == Source(address="cbs")
    assert answer.target == Target(address="cbs")


def test_a_terminus_that_gets_an_address_keeps_its_other_fields(peer: RawPeer) -> None:
    target = Target(
        durable=1, expiry_policy="never", timeout=7, dynamic=False, dynamic_node_properties={"a": 1},
        capabilities=["queue"],
    )  # fmt: skip
    asked(peer, name="named", target=target).accept()
    (answer,) = peer.answers()
    assert isinstance(answer, Attach)
    assert answer.target == replace(target, address="named")


def test_a_new_link_gets_the_lowest_handle_that_is_free(peer: RawPeer) -> None:
    links = [asked(peer, name=f"link-{number}", handle=number) for number in range(4)]
    for link in links:
        link.accept()
    assert [link.handle for link in links] == [0, 1, 2, 3]
    for number in (2, 0):
        peer.send(0, Detach(handle=number, closed=True))
    again = [asked(peer, name=f"again-{number}", handle=10 + number).handle for number in range(3)]
    assert again == [0, 2, 4]


def test_null_termini_are_answered_with_addresses_too(peer: RawPeer) -> None:
    peer.begin()
    (attached,) = peer.send(0, Attach(name="bare", handle=0, role=SENDER))
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    (answer,) = peer.answers()
    assert isinstance(answer, Attach)
    assert (answer.source, answer.target) == (Source(address="bare"), Target(address="bare"))


def test_a_coordinator_stays_one(peer: RawPeer) -> None:
    asked(peer, target=Coordinator(["amqp:local-transactions"])).accept()
    (answer,) = peer.answers()
    assert isinstance(answer, Attach)
    assert answer.target == Coordinator(["amqp:local-transactions"])


def test_the_application_may_answer_with_its_own_termini_and_limit(peer: RawPeer) -> None:
    link = asked(peer)
    link.accept(source=Source(address="x"), target=Target(address="y"), max_message_size=77)
    (answer,) = peer.answers()
    assert isinstance(answer, Attach)
    assert (answer.source, answer.target) == (Source(address="x"), Target(address="y"))
    assert answer.max_message_size == link.max_message_size == 77


def test_credit_that_comes_before_the_answer_is_kept(peer: RawPeer) -> None:
    link = asked(peer, role=RECEIVER)
    assert isinstance(link, SendingLink)
    flow = Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=0, link_credit=30)
    assert peer.send(0, flow) == [LinkFlow(link)]
    assert link.credit == 0, "nothing may be sent yet"
    link.accept()
    assert link.credit == 30


def test_one_name_serves_two_links_of_opposite_roles(peer: RawPeer) -> None:
    # java names both its CBS links alike.
    first = asked(peer, name="cbs", handle=0, role=SENDER)
    second = asked(peer, name="cbs", handle=1, role=RECEIVER)
    assert isinstance(first, ReceivingLink) and isinstance(second, SendingLink)


def test_attaching_the_same_link_twice_from_our_side_is_refused_here(pair: WiredPair) -> None:
    session, _ = pair.begin()
    pair.sender("once", session=session)
    with pytest.raises(Exception, match="once"):
        session.attach("once", SENDER)


# -- refusing -------------------------------------------------------------------------


def test_refusal_is_an_attach_to_nowhere_and_a_detach_with_the_reason_together(peer: RawPeer) -> None:
    asked(peer).refuse(EntityNotFound("q"))
    attach, detach = peer.answers()
    assert isinstance(attach, Attach) and isinstance(detach, Detach)
    assert attach.source is None and attach.target is None
    assert detach.closed
    assert detach.error == Error("amqp:not-found", "The messaging entity 'q' could not be found.", None)


def test_a_refused_client_sees_the_answer_and_then_the_reason(pair: WiredPair) -> None:
    link, answering = pair.ask_link(SENDER)
    answering.refuse(EntityNotFound("q"))
    pair.pump()
    attached, gone = pair.client_events[-2:]
    assert isinstance(attached, LinkAttached) and attached.link is link and link.target is None
    assert isinstance(gone, LinkDetached) and gone.error is not None
    assert gone.error.condition == "amqp:not-found"
    assert not link.attached
    assert pair.server.link_count == pair.client.link_count == 0


def test_a_peer_that_leaves_before_the_answer_sees_attach_and_detach(peer: RawPeer) -> None:
    link = asked(peer)
    assert peer.send(0, Detach(handle=0, closed=True)) == [LinkDetached(link, None, True)]
    assert [type(answer) for answer in peer.answers()] == [Attach, Detach]
    link.accept()
    link.refuse(EntityNotFound("q"))
    assert peer.answers() == [], "it is too late for either"


# -- detaching ------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False])
def test_detach_is_answered_with_detach(peer: RawPeer, closed: bool) -> None:
    link = asked(peer)
    link.accept()
    peer.answers()
    assert peer.send(0, Detach(handle=0, closed=closed)) == [LinkDetached(link, None, closed)]
    assert detached(peer).closed is closed
    assert not link.attached


def test_a_peer_that_detaches_leaves_its_unsettled_deliveries_to_the_link(pair: WiredPair) -> None:
    asked, sending = pair.receiver()
    sending.send([(b"one", b"", b"x"), (b"two", b"", b"x")])
    asked.detach()
    pair.pump()
    assert [delivery.tag for delivery in sending.unsettled] == [b"one", b"two"]
    assert sending.session.outgoing.unsettled == {}


def test_our_detach_is_reported_when_the_peer_has_answered(pair: WiredPair) -> None:
    _, receiving = pair.sender()
    receiving.detach(SessionLockLost("gone"))
    assert not receiving.attached
    pair.pump()
    (seen,) = pair.client_saw(LinkDetached)
    assert seen.error == Error("com.microsoft:session-lock-lost", "gone")
    assert [event.link for event in pair.server_saw(LinkDetached)] == [receiving]


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_frames_after_our_detach_are_discarded_until_the_answer(peer: RawPeer, role: bool) -> None:
    link = asked(peer, role=role)
    link.accept()
    link.detach()
    peer.answers()
    flow = Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=0, link_credit=3)
    assert peer.give(encode_frame(0, flow)) == []
    if role is SENDER:
        assert peer.give(encode_frame(0, Transfer(handle=0, delivery_id=0), b"x")) == []
        assert peer.give(encode_frame(0, Transfer(handle=0, delivery_id=1, delivery_tag=b"t"), b"x")) == []
    assert peer.send(0, Detach(handle=0, closed=True)) == [LinkDetached(link, None, True)]
    assert peer.answers() == []


def test_handle_and_name_are_free_after_detach(peer: RawPeer) -> None:
    for _ in range(3):
        asked(peer).accept()
        peer.send(0, Detach(handle=0, closed=True))
    assert peer.server.link_count == 0


def test_a_name_is_free_for_a_peer_that_has_yet_to_answer_our_detach(peer: RawPeer) -> None:
    old = asked(peer, handle=0)
    old.accept()
    old.detach()
    new = asked(peer, handle=1)
    new.accept()
    peer.send(0, Detach(handle=0, closed=True))
    assert new.attached
    assert peer.server.sessions[0].links == [new]
    events = peer.send(0, Attach(name="link", handle=2, role=SENDER))
    assert isinstance(events[-1], SessionEnded), "the name is taken again"


def test_a_client_may_detach_before_its_attach_is_answered(pair: WiredPair) -> None:
    link, answering = pair.ask_link(SENDER)
    link.detach()
    pair.pump()
    assert pair.client_saw(LinkDetached) == [LinkDetached(link, None, True)]
    assert pair.server_saw(LinkDetached) == [LinkDetached(answering, None, True)]


def test_detaches_that_cross_are_one_detach(pair: WiredPair) -> None:
    sending, receiving = pair.sender()
    sending.detach()
    receiving.detach()
    pair.pump()
    assert pair.client_saw(LinkDetached) == [LinkDetached(sending, None, True)]
    assert pair.server_saw(LinkDetached) == [LinkDetached(receiving, None, True)]


def test_calls_on_a_link_that_is_gone_do_nothing(pair: WiredPair) -> None:
    sending, receiving = pair.sender()
    sending.send([(b"t", b"", b"x")])
    pair.pump()
    (received,) = pair.server_saw(DeliveriesReceived)
    left = sending.unsettled
    sending.detach()
    pair.pump()
    assert sending.send([(b"t", b"", b"x")]) == sending.credit == 0
    sending.settle(left, None)
    sending.drained()
    sending.detach()
    receiving.grant(5)
    receiving.top_up(100)
    receiving.settle(received.deliveries, None)
    receiving.detach()
    assert pair.client.data_to_send() == pair.server.data_to_send() == b""
    assert sending.unsettled == left, "what it left behind can still be asked for"


# -- mistakes of the peer detach its link, not its session ----------------------------


@pytest.mark.parametrize(
    ("role", "frames", "condition"),
    [
        (RECEIVER, [Transfer(handle=0, delivery_id=0)], NOT_ALLOWED),
        (SENDER, [Transfer(handle=0)], INVALID_FIELD),
        (SENDER, [Transfer(handle=0, more=True)], INVALID_FIELD),
        (
            SENDER,
            [Transfer(handle=0, delivery_id=0, more=True), Transfer(handle=0, delivery_id=1)],
            INVALID_FIELD,
        ),
    ],
)
def test_a_wrong_transfer_detaches_the_link_only(
    peer: RawPeer, role: bool, frames: list[Performative], condition: str
) -> None:
    link = asked(peer, role=role)
    link.accept()
    other = asked(peer, name="other", handle=1)
    peer.answers()
    events = peer.give(*[encode_frame(0, frame, b"x") for frame in frames])
    (gone,) = events
    assert isinstance(gone, LinkDetached) and gone.link is link
    assert gone.error is not None and gone.error.condition == condition
    answer = detached(peer)
    assert answer.closed and answer.error is not None and answer.error.condition == condition
    assert peer.send(0, Detach(handle=0, closed=True)) == [], "it was reported already"
    assert peer.server.sessions[0].links == [other]


@pytest.mark.parametrize("tag", [b"t", None], ids=["a run", "frame by frame"])
def test_a_transfer_before_the_link_is_accepted_is_refused(peer: RawPeer, tag: bytes | None) -> None:
    link = asked(peer)
    (gone,) = peer.give(encode_frame(0, Transfer(handle=0, delivery_id=0, delivery_tag=tag), b"x"))
    assert isinstance(gone, LinkDetached) and gone.error is not None
    assert gone.error.condition == TRANSFER_LIMIT_EXCEEDED
    assert [type(answer) for answer in peer.answers()] == [Attach, Detach]
    link.accept()
    assert peer.answers() == []


def test_overrun_of_credit_is_forgiven(peer: RawPeer) -> None:
    # py takes 10000 credit for granted.
    link = asked(peer)
    assert isinstance(link, ReceivingLink)
    link.accept()
    link.grant(1)
    peer.answers()
    (received,) = peer.give(*[encode_frame(0, Transfer(handle=0, delivery_id=n), b"x") for n in range(10)])
    assert isinstance(received, DeliveriesReceived) and len(received.deliveries) == 10
    peer.send(0, Flow(incoming_window=9, next_outgoing_id=10, outgoing_window=9, handle=0, echo=True))
    (flow,) = peer.answers()
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (10, 0)
    link.top_up(100)
    (flow,) = peer.answers()
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (10, 100)


@pytest.mark.parametrize("tag", [b"t", None], ids=["a run", "frame by frame"])
def test_overrun_of_credit_has_an_end(peer: RawPeer, tag: bytes | None) -> None:
    link = asked(peer)
    assert isinstance(link, ReceivingLink)
    link.accept()
    link.credit = -CREDIT_OVERRUN_MAX
    (gone,) = peer.give(encode_frame(0, Transfer(handle=0, delivery_id=0, delivery_tag=tag), b"x"))
    assert isinstance(gone, LinkDetached) and gone.error is not None
    assert gone.error.condition == TRANSFER_LIMIT_EXCEEDED


def test_a_senders_own_flow_is_tolerated(peer: RawPeer) -> None:
    # py sends flow on its sender links.
    link = asked(peer)
    assert isinstance(link, ReceivingLink)
    link.accept()
    link.grant(50)
    flow = Flow(
        incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, delivery_count=0, link_credit=9999
    )
    assert peer.send(0, flow) == []
    assert link.credit == 50
    peer.give(*[encode_frame(0, Transfer(handle=0, delivery_id=n), b"x") for n in range(3)])
    assert peer.send(0, flow) == [], "a count behind ours takes nothing back"
    assert (link.credit, link.delivery_count) == (47, 3)


# -- a detach that is answered later ----------------------------------------------------


def test_the_application_may_answer_a_detach_when_it_is_ready(peer: RawPeer) -> None:
    link = asked(peer)
    link.answers_later = True
    link.accept()
    peer.answers()
    assert peer.send(0, Detach(handle=0, closed=True)) == [LinkDetached(link, None, True)]
    assert peer.answers() == []
    link.answer_detach(EntityNotFound("q"))
    answer = detached(peer)
    assert answer.closed and answer.error is not None and answer.error.condition == "amqp:not-found"
    assert peer.server.link_count == 0
    link.answer_detach()
    assert peer.answers() == [], "once is enough"


def test_a_name_may_be_used_again_before_the_detach_is_answered(peer: RawPeer) -> None:
    link = asked(peer)
    link.answers_later = True
    link.accept()
    peer.send(0, Detach(handle=0, closed=False))
    again = asked(peer, handle=1)
    assert again is not link
    again.accept()
    link.answer_detach()
    assert not detached(peer).closed
    assert again.attached and peer.server.link_count == 1


def test_a_handle_may_be_used_again_before_the_detach_is_answered(peer: RawPeer) -> None:
    """Our answer may wait for an entity that ends with the link. The peer gave up its handle before that."""
    link = asked(peer)
    link.answers_later = True
    link.accept()
    peer.send(0, Detach(handle=0, closed=True))
    (attached,) = peer.send(0, Attach(name="next", handle=0, role=RECEIVER, source=Source(address="q")))
    assert isinstance(attached, LinkAttached)
    attached.link.accept()
    link.answer_detach()
    peer.answers()
    peer.send(0, Detach(handle=0))
    assert detached(peer).handle == attached.link.handle
    assert peer.server.link_count == 0


def test_a_session_that_ends_takes_unanswered_detaches_along(peer: RawPeer) -> None:
    link = asked(peer)
    link.answers_later = True
    link.accept()
    peer.send(0, Detach(handle=0, closed=True))
    peer.answers()
    (ended,) = peer.send(0, End())
    assert isinstance(ended, SessionEnded)
    peer.answers()
    link.answer_detach()
    assert peer.answers() == []


def test_a_link_that_ends_with_its_session_is_not_closed(peer: RawPeer) -> None:
    """What a close would destroy stays."""
    link = asked(peer)
    link.accept()
    assert peer.send(0, End())[0] == LinkDetached(link, None, False)
