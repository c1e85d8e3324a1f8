"""Receiving: on call, by iteration, ahead of need, and without a second thought (receive and delete)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from fix_server import Kind
from interop.conftest import MakeDesk
from interop.sdk import CROSSWISE, Desk, bodies, receive


def test_an_empty_queue_gives_nothing_in_the_time_given(desk: Desk) -> None:
    assert desk.is_empty()  # and so the link is open: that takes longer than the time given
    assert desk.receiver.receive_messages(5, max_wait_time=0.1) == []


def test_a_receive_ends_with_what_there_is(desk: Desk) -> None:
    desk.send("only")
    # Its thread that keeps the link alive may take the message in, and then the SDK waits the whole time.
    messages = desk.receiver.receive_messages(5, max_wait_time=2)
    desk.complete(*messages)
    assert bodies(messages) == ["only"]


def test_a_waiting_receiver_gets_a_message_as_it_comes(desk: Desk) -> None:
    desk.sender.send_messages([])  # opened before anybody waits
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(desk.receive_one)
        desk.send("fresh")
        message = waiting.result()
    desk.complete(message)
    assert str(message) == "fresh"


def test_messages_are_iterated_in_the_order_of_their_key(desk: Desk) -> None:
    contents = [str(number) for number in range(20)]
    desk.sender.send_messages([ServiceBusMessage(content, partition_key="k") for content in contents])
    iterated = []
    for message in desk.receiver:
        iterated.append(str(message))
        desk.complete(message)
        if len(iterated) == len(contents):
            break
    assert iterated == contents  # P-26


@CROSSWISE
def test_iteration_ends_when_nothing_comes(make_desk: MakeDesk, kind: Kind) -> None:
    desk = make_desk(kind)
    desk.send("a", "b")
    receiver = desk.another_receiver(max_wait_time=0.5)
    iterated = []
    for message in receiver:
        iterated.append(str(message))
        receiver.complete_message(message)
    assert sorted(iterated) == ["a", "b"]


def test_a_locked_message_is_for_nobody_else(desk: Desk) -> None:
    desk.send("mine")
    message = desk.receive_one()
    assert desk.receiver.receive_messages(1, max_wait_time=0.1) == []
    desk.complete(message)


@CROSSWISE
def test_competing_receivers_get_every_message_once(make_desk: MakeDesk, kind: Kind) -> None:
    desk = make_desk(kind)
    desk.sender.send_messages([ServiceBusMessage(str(number)) for number in range(60)])
    receivers = [desk.another_receiver() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        shares = list(pool.map(lambda receiver: receive(receiver, 20), receivers))
    assert sorted(int(str(message)) for share in shares for message in share) == list(range(60))


@CROSSWISE
def test_prefetched_messages_not_taken_come_again_uncounted(make_desk: MakeDesk, kind: Kind) -> None:
    desk = make_desk(kind)
    contents = [str(number) for number in range(30)]
    desk.sender.send_messages([ServiceBusMessage(content) for content in contents])
    with desk.another_receiver(prefetch_count=50) as eager:
        (taken,) = receive(eager, 1)
        eager.complete_message(taken)
    # Closing gave back the other 29; a lock that ran out would have counted.
    others = desk.receive(29)
    desk.complete(*others)
    assert {message.delivery_count for message in others} == {0}
    assert sorted([str(taken), *bodies(others)], key=int) == contents


@CROSSWISE
def test_prefetch_serves_more_than_its_count(make_desk: MakeDesk, kind: Kind) -> None:
    desk = make_desk(kind)
    desk.sender.send_messages([ServiceBusMessage(str(number)) for number in range(100)])
    eager = desk.another_receiver(prefetch_count=10)
    received: list[int] = []
    while len(received) < 100:
        for message in receive(eager, 1):
            received.append(int(str(message)))
            eager.complete_message(message)
    assert sorted(received) == list(range(100))


@CROSSWISE
def test_receive_and_delete_leaves_nothing(make_desk: MakeDesk, kind: Kind) -> None:
    desk = make_desk(kind)
    desk.sender.send_messages([ServiceBusMessage(str(number)) for number in range(30)])
    receiver = desk.another_receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    messages = receive(receiver, 30)
    assert sorted(bodies(messages), key=int) == [str(number) for number in range(30)]
    assert {message.locked_until_utc for message in messages} == {None}
    assert desk.is_empty()


@CROSSWISE
def test_a_deferred_message_can_be_received_and_deleted(make_desk: MakeDesk, kind: Kind) -> None:
    desk = make_desk(kind)
    desk.send("later")
    message = desk.receive_one()
    desk.receiver.defer_message(message)
    assert message.sequence_number is not None
    receiver = desk.another_receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    (message,) = receiver.receive_deferred_messages(message.sequence_number)
    assert str(message) == "later"
    assert desk.is_empty()
