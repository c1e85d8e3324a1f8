"""Settling a message: completed, abandoned, deferred, dead-lettered; and what each leaves behind."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.exceptions import MessageNotFoundError

from fix_server import SHAPES, Shape
from interop.sdk import Desk, bodies

MAX_DELIVERY_COUNT = SHAPES[Shape.USUAL]["MaxDeliveryCount"]


def defer(desk: Desk, content: str) -> int:
    """Send a message and defer it; its sequence number, the only way back to it."""
    desk.send(content)
    message = desk.receive_one()
    desk.receiver.defer_message(message)
    assert message.sequence_number is not None
    return message.sequence_number


def take_deferred(receiver: ServiceBusReceiver, *numbers: int) -> list[ServiceBusReceivedMessage]:
    return receiver.receive_deferred_messages(list(numbers))


# -- complete and abandon ---------------------------------------------------------


def test_a_completed_message_is_gone(desk: Desk) -> None:
    desk.send("first", "second")
    messages = desk.receive(2)
    desk.complete(*messages)
    assert sorted(bodies(messages)) == ["first", "second"]
    assert desk.receiver.peek_messages(10, sequence_number=1) == []


def test_an_abandoned_message_comes_again_and_its_delivery_count_grows(desk: Desk) -> None:
    desk.send("try again")
    for earlier_deliveries in (0, 1):
        message = desk.receive_one()
        assert message.delivery_count == earlier_deliveries
        desk.receiver.abandon_message(message)
    message = desk.receive_one()
    assert (str(message), message.delivery_count) == ("try again", 2)
    desk.complete(message)


def test_the_last_delivery_allowed_is_followed_by_the_dead_letter_queue(desk: Desk) -> None:
    desk.send("never right")
    assert isinstance(MAX_DELIVERY_COUNT, int)
    for _ in range(MAX_DELIVERY_COUNT):
        desk.receiver.abandon_message(desk.receive_one())
    dead = desk.receive_dead_letter()
    assert (str(dead), dead.dead_letter_reason) == ("never right", "MaxDeliveryCountExceeded")
    assert dead.dead_letter_error_description
    desk.dead_letters.complete_message(dead)
    assert desk.receiver.peek_messages(1, sequence_number=1) == []


# -- dead letters -----------------------------------------------------------------


def test_a_dead_letter_says_why_and_keeps_what_the_sender_wrote(desk: Desk) -> None:
    desk.send("poison", application_properties={"attempt": 7}, message_id="m-1", partition_key="p")
    message = desk.receive_one()
    desk.receiver.dead_letter_message(message, reason="Unreadable", error_description="not JSON: ü")
    dead = desk.receive_dead_letter()
    assert (str(dead), dead.message_id, dead.partition_key) == ("poison", "m-1", "p")
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("Unreadable", "not JSON: ü")
    assert dead.application_properties is not None
    assert dead.application_properties[b"attempt"] == 7
    assert dead.sequence_number == message.sequence_number
    desk.dead_letters.complete_message(dead)


def test_a_dead_letter_needs_no_reason(desk: Desk) -> None:
    desk.send("poison")
    desk.receiver.dead_letter_message(desk.receive_one())
    dead = desk.receive_dead_letter()
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == (None, None)
    desk.dead_letters.complete_message(dead)


def test_dead_letters_are_abandoned_without_end(desk: Desk) -> None:
    desk.send("poison")
    desk.receiver.dead_letter_message(desk.receive_one(), reason="Bad")
    assert isinstance(MAX_DELIVERY_COUNT, int)
    for _ in range(MAX_DELIVERY_COUNT + 1):
        desk.dead_letters.abandon_message(desk.receive_dead_letter())
    dead = desk.receive_dead_letter()
    assert dead.dead_letter_reason == "Bad"
    desk.dead_letters.complete_message(dead)


def test_the_dead_letter_queue_can_be_peeked(desk: Desk) -> None:
    desk.send("poison")
    desk.receiver.dead_letter_message(desk.receive_one(), reason="Bad")
    (peeked,) = desk.dead_letters.peek_messages(10, sequence_number=1)
    assert (str(peeked), peeked.dead_letter_reason) == ("poison", "Bad")
    desk.dead_letters.complete_message(desk.receive_dead_letter())


# -- deferral ---------------------------------------------------------------------


def test_a_deferred_message_is_passed_over_and_still_seen(desk: Desk) -> None:
    number = defer(desk, "later")
    desk.send("now")
    now = desk.receive_one()
    assert str(now) == "now"
    desk.complete(now)
    (peeked,) = desk.receiver.peek_messages(10, sequence_number=1)
    assert (peeked.sequence_number, peeked.state) == (number, ServiceBusMessageState.DEFERRED)
    desk.complete(*take_deferred(desk.receiver, number))


def test_deferred_messages_come_by_their_sequence_numbers(desk: Desk) -> None:
    numbers = [defer(desk, f"later {number}") for number in range(3)]
    asked = [numbers[2], numbers[0]]
    messages = take_deferred(desk.receiver, *asked)
    assert [message.sequence_number for message in messages] == asked
    assert bodies(messages) == ["later 2", "later 0"]
    assert {message.state for message in messages} == {ServiceBusMessageState.DEFERRED}
    desk.complete(*messages, *take_deferred(desk.receiver, numbers[1]))
    with pytest.raises(MessageNotFoundError):
        take_deferred(desk.receiver, *numbers)


def test_deferred_messages_come_all_or_none(desk: Desk) -> None:
    number = defer(desk, "later")
    with pytest.raises(MessageNotFoundError):
        take_deferred(desk.receiver, number, number + 1000)
    (message,) = take_deferred(desk.receiver, number)
    desk.complete(message)


def test_an_abandoned_deferred_message_stays_deferred_and_its_delivery_count_grows(desk: Desk) -> None:
    number = defer(desk, "later")
    (message,) = take_deferred(desk.receiver, number)
    before = message.delivery_count
    assert before is not None
    desk.receiver.abandon_message(message)
    (message,) = take_deferred(desk.receiver, number)
    assert message.delivery_count == before + 1
    desk.complete(message)


def test_a_deferred_message_can_be_dead_lettered(desk: Desk) -> None:
    (message,) = take_deferred(desk.receiver, defer(desk, "later"))
    desk.receiver.dead_letter_message(message, reason="Too late", error_description="for ever")
    dead = desk.receive_dead_letter()
    assert (str(dead), dead.dead_letter_reason) == ("later", "Too late")
    assert dead.dead_letter_error_description == "for ever"
    desk.dead_letters.complete_message(dead)


def test_a_deferred_message_can_be_deferred_again(desk: Desk) -> None:
    number = defer(desk, "later")
    desk.receiver.defer_message(*take_deferred(desk.receiver, number))
    (message,) = take_deferred(desk.receiver, number)
    desk.complete(message)


def test_a_deferred_message_has_a_lock_that_can_be_renewed(desk: Desk) -> None:
    (message,) = take_deferred(desk.receiver, defer(desk, "later"))
    before = message.locked_until_utc
    assert before is not None
    assert desk.receiver.renew_message_lock(message) >= before
    desk.complete(message)


def test_a_dead_letter_can_be_deferred(desk: Desk) -> None:
    desk.send("poison")
    desk.receiver.dead_letter_message(desk.receive_one(), reason="Bad")
    dead = desk.receive_dead_letter()
    assert dead.sequence_number is not None
    desk.dead_letters.defer_message(dead)
    (dead,) = take_deferred(desk.dead_letters, dead.sequence_number)
    assert dead.dead_letter_reason == "Bad"
    desk.dead_letters.complete_message(dead)


@pytest.mark.parametrize("settle", ["complete_message", "abandon_message", "defer_message"])
def test_many_messages_are_settled_one_by_one_over_one_link(desk: Desk, settle: str) -> None:
    desk.send(*map(str, range(12)))
    messages = desk.receive(12)
    for message in messages:
        getattr(desk.receiver, settle)(message)
    if settle == "abandon_message":
        messages = desk.receive(12)
        assert {message.delivery_count for message in messages} == {1}
        desk.complete(*messages)
    elif settle == "defer_message":
        numbers = [number for each in messages if (number := each.sequence_number) is not None]
        desk.complete(*take_deferred(desk.receiver, *numbers))
    assert desk.is_empty()
