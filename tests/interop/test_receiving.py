"""Receiving: on call, by iteration, ahead of need, and without a second thought (receive and delete)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from fix_server import Kind
from interop.conftest import MakeSdkQueue
from interop.sdk import CROSSWISE, SdkQueue, bodies, receive


def test_an_empty_queue_gives_nothing_in_the_time_given(sdk_queue: SdkQueue) -> None:
    assert sdk_queue.is_empty()  # and so the link is open: that takes longer than the time given
    assert sdk_queue.receiver.receive_messages(5, max_wait_time=0.1) == []


def test_a_receive_ends_with_what_there_is(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("only")
    # Its thread that keeps the link alive may take the message in, and then the SDK waits the whole time.
    messages = sdk_queue.receiver.receive_messages(5, max_wait_time=2)
    sdk_queue.complete(*messages)
    assert bodies(messages) == ["only"]


def test_a_waiting_receiver_gets_a_message_as_it_comes(sdk_queue: SdkQueue) -> None:
    sdk_queue.sender.send_messages([])  # opened before anybody waits
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sdk_queue.receive_one)
        sdk_queue.send("fresh")
        message = waiting.result()
    sdk_queue.complete(message)
    assert str(message) == "fresh"


@pytest.mark.row("P-26")
def test_messages_are_iterated_in_the_order_of_their_key(sdk_queue: SdkQueue) -> None:
    contents = [str(number) for number in range(20)]
    sdk_queue.sender.send_messages([ServiceBusMessage(content, partition_key="k") for content in contents])
    iterated = []
    for message in sdk_queue.receiver:
        iterated.append(str(message))
        sdk_queue.complete(message)
        if len(iterated) == len(contents):
            break
    assert iterated == contents


@CROSSWISE
def test_iteration_ends_when_nothing_comes(make_sdk_queue: MakeSdkQueue, kind: Kind) -> None:
    sdk_queue = make_sdk_queue(kind)
    sdk_queue.send("a", "b")
    receiver = sdk_queue.another_receiver(max_wait_time=0.5)
    iterated = []
    for message in receiver:
        iterated.append(str(message))
        receiver.complete_message(message)
    assert sorted(iterated) == ["a", "b"]


def test_a_locked_message_is_for_nobody_else(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("mine")
    message = sdk_queue.receive_one()
    assert sdk_queue.receiver.receive_messages(1, max_wait_time=0.1) == []
    sdk_queue.complete(message)


@CROSSWISE
def test_competing_receivers_get_every_message_once(make_sdk_queue: MakeSdkQueue, kind: Kind) -> None:
    sdk_queue = make_sdk_queue(kind)
    sdk_queue.sender.send_messages([ServiceBusMessage(str(number)) for number in range(60)])
    receivers = [sdk_queue.another_receiver() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        shares = list(pool.map(lambda receiver: receive(receiver, 20), receivers))
    assert sorted(int(str(message)) for share in shares for message in share) == list(range(60))


@CROSSWISE
def test_prefetched_messages_not_taken_come_again_uncounted(make_sdk_queue: MakeSdkQueue, kind: Kind) -> None:
    sdk_queue = make_sdk_queue(kind)
    contents = [str(number) for number in range(30)]
    sdk_queue.sender.send_messages([ServiceBusMessage(content) for content in contents])
    with sdk_queue.another_receiver(prefetch_count=50) as eager:
        (taken,) = receive(eager, 1)
        eager.complete_message(taken)
    # Closing gave back the other 29; a lock that ran out would have counted.
    others = sdk_queue.receive(29)
    sdk_queue.complete(*others)
    assert {message.delivery_count for message in others} == {0}
    assert sorted([str(taken), *bodies(others)], key=int) == contents


@CROSSWISE
def test_prefetch_serves_more_than_its_count(make_sdk_queue: MakeSdkQueue, kind: Kind) -> None:
    sdk_queue = make_sdk_queue(kind)
    sdk_queue.sender.send_messages([ServiceBusMessage(str(number)) for number in range(100)])
    eager = sdk_queue.another_receiver(prefetch_count=10)
    received: list[int] = []
    while len(received) < 100:
        for message in receive(eager, 1):
            received.append(int(str(message)))
            eager.complete_message(message)
    assert sorted(received) == list(range(100))


@CROSSWISE
def test_receive_and_delete_leaves_nothing(make_sdk_queue: MakeSdkQueue, kind: Kind) -> None:
    sdk_queue = make_sdk_queue(kind)
    sdk_queue.sender.send_messages([ServiceBusMessage(str(number)) for number in range(30)])
    receiver = sdk_queue.another_receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    messages = receive(receiver, 30)
    assert sorted(bodies(messages), key=int) == [str(number) for number in range(30)]
    assert {message.locked_until_utc for message in messages} == {None}
    assert sdk_queue.is_empty()


@CROSSWISE
def test_a_deferred_message_can_be_received_and_deleted(make_sdk_queue: MakeSdkQueue, kind: Kind) -> None:
    sdk_queue = make_sdk_queue(kind)
    sdk_queue.send("later")
    message = sdk_queue.receive_one()
    sdk_queue.receiver.defer_message(message)
    assert message.sequence_number is not None
    receiver = sdk_queue.another_receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    (message,) = receiver.receive_deferred_messages(message.sequence_number)
    assert str(message) == "later"
    assert sdk_queue.is_empty()
