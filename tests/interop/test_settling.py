"""Settling a message: completed, abandoned, deferred, dead-lettered; and what each leaves behind."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.exceptions import MessageNotFoundError

from fix_server import SHAPES, Shape
from interop.sdk import SdkQueue, bodies

MAX_DELIVERY_COUNT = SHAPES[Shape.USUAL]["MaxDeliveryCount"]


def defer(sdk_queue: SdkQueue, content: str) -> int:
    """Send a message and defer it; its sequence number, the only way back to it."""
    sdk_queue.send(content)
    message = sdk_queue.receive_one()
    sdk_queue.receiver.defer_message(message)
    assert message.sequence_number is not None
    return message.sequence_number


def take_deferred(receiver: ServiceBusReceiver, *numbers: int) -> list[ServiceBusReceivedMessage]:
    return receiver.receive_deferred_messages(list(numbers))


# -- complete and abandon ---------------------------------------------------------


def test_a_completed_message_is_gone(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("first", "second")
    messages = sdk_queue.receive(2)
    sdk_queue.complete(*messages)
    assert sorted(bodies(messages)) == ["first", "second"]
    assert sdk_queue.receiver.peek_messages(10, sequence_number=1) == []


def test_an_abandoned_message_comes_again_and_its_delivery_count_grows(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("try again")
    for earlier_deliveries in (0, 1):
        message = sdk_queue.receive_one()
        assert message.delivery_count == earlier_deliveries
        sdk_queue.receiver.abandon_message(message)
    message = sdk_queue.receive_one()
    assert (str(message), message.delivery_count) == ("try again", 2)
    sdk_queue.complete(message)


def test_the_last_delivery_allowed_is_followed_by_the_dead_letter_queue(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("never right")
    assert isinstance(MAX_DELIVERY_COUNT, int)
    for _ in range(MAX_DELIVERY_COUNT):
        sdk_queue.receiver.abandon_message(sdk_queue.receive_one())
    dead = sdk_queue.receive_dead_letter()
    assert (str(dead), dead.dead_letter_reason) == ("never right", "MaxDeliveryCountExceeded")
    assert dead.dead_letter_error_description
    sdk_queue.dead_letters.complete_message(dead)
    assert sdk_queue.receiver.peek_messages(1, sequence_number=1) == []


# -- dead letters -----------------------------------------------------------------


def test_a_dead_letter_says_why_and_keeps_what_the_sender_wrote(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("poison", application_properties={"attempt": 7}, message_id="m-1", partition_key="p")
    message = sdk_queue.receive_one()
    sdk_queue.receiver.dead_letter_message(message, reason="Unreadable", error_description="not JSON: ü")
    dead = sdk_queue.receive_dead_letter()
    assert (str(dead), dead.message_id, dead.partition_key) == ("poison", "m-1", "p")
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("Unreadable", "not JSON: ü")
    assert dead.application_properties is not None
    assert dead.application_properties[b"attempt"] == 7
    assert dead.sequence_number == message.sequence_number
    sdk_queue.dead_letters.complete_message(dead)


def test_a_dead_letter_needs_no_reason(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("poison")
    sdk_queue.receiver.dead_letter_message(sdk_queue.receive_one())
    dead = sdk_queue.receive_dead_letter()
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == (None, None)
    sdk_queue.dead_letters.complete_message(dead)


def test_dead_letters_are_abandoned_without_end(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("poison")
    sdk_queue.receiver.dead_letter_message(sdk_queue.receive_one(), reason="Bad")
    assert isinstance(MAX_DELIVERY_COUNT, int)
    for _ in range(MAX_DELIVERY_COUNT + 1):
        sdk_queue.dead_letters.abandon_message(sdk_queue.receive_dead_letter())
    dead = sdk_queue.receive_dead_letter()
    assert dead.dead_letter_reason == "Bad"
    sdk_queue.dead_letters.complete_message(dead)


def test_the_dead_letter_queue_can_be_peeked(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("poison")
    sdk_queue.receiver.dead_letter_message(sdk_queue.receive_one(), reason="Bad")
    (peeked,) = sdk_queue.dead_letters.peek_messages(10, sequence_number=1)
    assert (str(peeked), peeked.dead_letter_reason) == ("poison", "Bad")
    sdk_queue.dead_letters.complete_message(sdk_queue.receive_dead_letter())


# -- deferral ---------------------------------------------------------------------


def test_a_deferred_message_is_passed_over_and_still_seen(sdk_queue: SdkQueue) -> None:
    number = defer(sdk_queue, "later")
    sdk_queue.send("now")
    now = sdk_queue.receive_one()
    assert str(now) == "now"
    sdk_queue.complete(now)
    (peeked,) = sdk_queue.receiver.peek_messages(10, sequence_number=1)
    assert (peeked.sequence_number, peeked.state) == (number, ServiceBusMessageState.DEFERRED)
    sdk_queue.complete(*take_deferred(sdk_queue.receiver, number))


def test_deferred_messages_come_by_their_sequence_numbers(sdk_queue: SdkQueue) -> None:
    numbers = [defer(sdk_queue, f"later {number}") for number in range(3)]
    asked = [numbers[2], numbers[0]]
    messages = take_deferred(sdk_queue.receiver, *asked)
    assert [message.sequence_number for message in messages] == asked
    assert bodies(messages) == ["later 2", "later 0"]
    assert {message.state for message in messages} == {ServiceBusMessageState.DEFERRED}
    sdk_queue.complete(*messages, *take_deferred(sdk_queue.receiver, numbers[1]))
    with pytest.raises(MessageNotFoundError):
        take_deferred(sdk_queue.receiver, *numbers)


def test_deferred_messages_come_all_or_none(sdk_queue: SdkQueue) -> None:
    number = defer(sdk_queue, "later")
    with pytest.raises(MessageNotFoundError):
        take_deferred(sdk_queue.receiver, number, number + 1000)
    (message,) = take_deferred(sdk_queue.receiver, number)
    sdk_queue.complete(message)


def test_an_abandoned_deferred_message_stays_deferred_and_its_delivery_count_grows(
    sdk_queue: SdkQueue,
) -> None:
    number = defer(sdk_queue, "later")
    (message,) = take_deferred(sdk_queue.receiver, number)
    before = message.delivery_count
    assert before is not None
    sdk_queue.receiver.abandon_message(message)
    (message,) = take_deferred(sdk_queue.receiver, number)
    assert message.delivery_count == before + 1
    sdk_queue.complete(message)


def test_a_deferred_message_can_be_dead_lettered(sdk_queue: SdkQueue) -> None:
    (message,) = take_deferred(sdk_queue.receiver, defer(sdk_queue, "later"))
    sdk_queue.receiver.dead_letter_message(message, reason="Too late", error_description="for ever")
    dead = sdk_queue.receive_dead_letter()
    assert (str(dead), dead.dead_letter_reason) == ("later", "Too late")
    assert dead.dead_letter_error_description == "for ever"
    sdk_queue.dead_letters.complete_message(dead)


def test_a_deferred_message_can_be_deferred_again(sdk_queue: SdkQueue) -> None:
    number = defer(sdk_queue, "later")
    sdk_queue.receiver.defer_message(*take_deferred(sdk_queue.receiver, number))
    (message,) = take_deferred(sdk_queue.receiver, number)
    sdk_queue.complete(message)


def test_a_deferred_message_has_a_lock_that_can_be_renewed(sdk_queue: SdkQueue) -> None:
    (message,) = take_deferred(sdk_queue.receiver, defer(sdk_queue, "later"))
    before = message.locked_until_utc
    assert before is not None
    assert sdk_queue.receiver.renew_message_lock(message) >= before
    sdk_queue.complete(message)


def test_a_dead_letter_can_be_deferred(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("poison")
    sdk_queue.receiver.dead_letter_message(sdk_queue.receive_one(), reason="Bad")
    dead = sdk_queue.receive_dead_letter()
    assert dead.sequence_number is not None
    sdk_queue.dead_letters.defer_message(dead)
    (dead,) = take_deferred(sdk_queue.dead_letters, dead.sequence_number)
    assert dead.dead_letter_reason == "Bad"
    sdk_queue.dead_letters.complete_message(dead)


@pytest.mark.parametrize("settle", ["complete_message", "abandon_message", "defer_message"])
def test_many_messages_are_settled_one_by_one_over_one_link(sdk_queue: SdkQueue, settle: str) -> None:
    sdk_queue.send(*map(str, range(12)))
    messages = sdk_queue.receive(12)
    for message in messages:
        getattr(sdk_queue.receiver, settle)(message)
    if settle == "abandon_message":
        messages = sdk_queue.receive(12)
        assert {message.delivery_count for message in messages} == {1}
        sdk_queue.complete(*messages)
    elif settle == "defer_message":
        numbers = [number for each in messages if (number := each.sequence_number) is not None]
        sdk_queue.complete(*take_deferred(sdk_queue.receiver, *numbers))
    assert sdk_queue.is_empty()
