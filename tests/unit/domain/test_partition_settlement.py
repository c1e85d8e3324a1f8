"""What becomes of a locked message: settlement, loss of the lock, deferral, dead-lettering."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bendybus.domain.commands import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Deleted,
    DeleteOldest,
    LockDeferred,
    ReceiveDeferred,
    Release,
    Renew,
    Renewed,
    Tick,
)
from bendybus.domain.effects import MessagesAvailable, RemoveMessages, UpdateMessages
from bendybus.domain.messages import Amendment, MessageState, SubQueue
from bendybus.errors import ArgumentError, InvalidOperation, MessageNotFound
from bendybus.names import LockToken

MAIN_AVAILABLE = MessagesAvailable(SubQueue.MAIN)
DEAD_LETTERS_AVAILABLE = MessagesAvailable(SubQueue.DEAD_LETTER)


def tokens(messages):
    return [message.lock_token for message in messages]


def numbers(messages):
    return [message.sequence_number for message in messages]


def deferred(driver, amount=1):
    messages = driver.send(amount)
    driver.settle(Defer(tokens(driver.lock(amount))))
    return messages


def dead_lettered(driver, amount=1):
    messages = driver.send(amount)
    driver.settle(DeadLetter(tokens(driver.lock(amount)), "bad"))
    return messages


def test_complete_removes(driver):
    messages = driver.send(3)
    driver.lock(3)
    assert driver.settle(Complete(tokens(messages[:2]))) == []
    assert driver.effects == [RemoveMessages(messages[:2])]
    assert driver.peek() == messages[2:]


def test_abandon_gives_back_with_a_higher_delivery_count(driver):
    (message,) = driver.send()
    driver.lock()
    driver.settle(Abandon([message.lock_token], b"properties"))
    assert driver.effects == [UpdateMessages([message]), MAIN_AVAILABLE]
    assert (message.delivery_count, message.lock_token, message.locked_until) == (1, None, 0)
    assert message.amendment == Amendment(properties=(b"properties",))
    assert driver.lock() == [message]


@pytest.mark.row("P-28")
def test_release_gives_back_as_if_never_delivered(driver):
    (message,) = driver.send()
    driver.lock()
    driver.settle(Release([message.lock_token]))
    assert driver.effects == [MAIN_AVAILABLE]
    assert message.delivery_count == 0
    assert driver.lock() == [message]


@pytest.mark.parametrize("command", [Complete, Abandon, Release, Defer, DeadLetter])
def test_lost_locks_do_not_stop_the_others(driver, command):
    driver.send(2)
    (stale,) = driver.lock()
    stale_token = stale.lock_token
    driver.later(60)
    (fresh,) = [each for each in driver.lock(2) if each is not stale]
    unknown = LockToken(b"u" * 16)
    assert driver.settle(command([stale_token, fresh.lock_token, unknown])) == [stale_token, unknown]
    assert fresh.lock_token is None or command is Complete
    assert stale.delivery_count == 1


def test_a_lock_is_lost_at_the_very_instant_it_ends(driver):
    first, second = driver.send(2)
    driver.lock(2)
    lost = second.lock_token
    driver.later(59.999)
    assert driver.settle(Complete([first.lock_token])) == []
    driver.later(0.001)
    assert driver.settle(Complete([lost])) == [lost]
    assert driver.effects == [UpdateMessages([second]), MAIN_AVAILABLE]
    assert driver.peek() == [second]


def test_a_lock_that_runs_out_counts_as_a_failed_delivery(driver):
    (message,) = driver.send()
    driver.lock()
    driver.later(59.999)
    driver.apply(Tick())
    assert driver.effects == []
    driver.later(0.001)
    driver.apply(Tick())
    assert driver.effects == [UpdateMessages([message]), MAIN_AVAILABLE]
    assert (message.delivery_count, message.lock_token) == (1, None)


def test_a_receive_meets_messages_whose_locks_have_run_out(driver):
    (message,) = driver.send()
    driver.lock()
    driver.later(60)
    assert driver.receive() == [message]
    assert driver.effect(RemoveMessages).messages == [message]
    assert driver.effect(UpdateMessages) is None


def test_a_renewed_lock_lasts_its_duration_anew(driver):
    (message,) = driver.send()
    driver.lock()
    driver.later(50)
    assert driver.apply(Renew([message.lock_token])) == Renewed([driver.now + 60_000])
    driver.later(59)
    assert driver.settle(Complete([message.lock_token])) == []


def test_a_lost_lock_is_not_renewed(driver):
    (message,) = driver.send()
    driver.lock()
    token = message.lock_token
    driver.later(60)
    assert driver.apply(Renew([token])) == Renewed([None])
    assert driver.effect(UpdateMessages).messages == [message]


def test_a_changed_lock_duration_holds_from_the_next_lock(driver):
    driver.send(2)
    (long,) = driver.lock()
    driver.partition.description = replace(driver.partition.description, lock_duration_s=5)
    (short,) = driver.lock()
    driver.later(5)
    assert driver.partition.next_deadline() == driver.now
    driver.apply(Tick())
    assert (long.delivery_count, short.delivery_count) == (0, 1)
    driver.later(55)
    driver.apply(Tick())
    assert (long.delivery_count, short.delivery_count) == (1, 1)


@pytest.mark.parametrize("by_time", [True, False])
def test_the_last_failed_delivery_dead_letters(new_driver, by_time):
    driver = new_driver(max_delivery_count=2)
    (message,) = driver.send()
    for _ in range(2):
        assert driver.lock() == [message]
        if by_time:
            driver.later(60)
            driver.apply(Tick())
        else:
            driver.settle(Abandon([message.lock_token]))
    assert driver.effects == [UpdateMessages([message]), DEAD_LETTERS_AVAILABLE]
    assert message.amendment.dead_letter_reason == "MaxDeliveryCountExceeded"
    text = "Message could not be consumed after 2 delivery attempts."
    assert message.amendment.dead_letter_description == text
    assert driver.lock() == []
    assert driver.lock(1, SubQueue.DEAD_LETTER) == [message]


def test_dead_lettering_moves_and_tells_why(driver):
    (message,) = driver.send(size=10)
    driver.lock()
    driver.settle(DeadLetter([message.lock_token], "bad", "no such customer", b"properties"))
    assert driver.effects == [UpdateMessages([message]), DEAD_LETTERS_AVAILABLE]
    assert message.amendment == Amendment((b"properties",), "bad", "no such customer")
    assert driver.peek() == []
    assert driver.peek(subqueue=SubQueue.DEAD_LETTER) == [message]
    assert driver.partition.counts().size_bytes == 0
    assert driver.partition.counts(SubQueue.DEAD_LETTER).size_bytes == driver.partition.size_bytes == 10


def test_a_dead_letter_is_not_dead_lettered_again(driver):
    dead_lettered(driver)
    driver.send()
    (dead,) = driver.lock(1, SubQueue.DEAD_LETTER)
    (alive,) = driver.lock()
    with pytest.raises(InvalidOperation, match=f"Message {dead.sequence_number} of 'orders'"):
        driver.apply(DeadLetter([alive.lock_token, dead.lock_token]))
    assert alive.subqueue is SubQueue.MAIN
    assert driver.settle(Complete([alive.lock_token, dead.lock_token])) == []


def test_a_dead_letter_whose_lock_is_lost_is_merely_lost(driver):
    dead_lettered(driver)
    (dead,) = driver.lock(1, SubQueue.DEAD_LETTER)
    token = dead.lock_token
    driver.later(60)
    assert driver.settle(DeadLetter([token])) == [token]


@pytest.mark.parametrize("texts", [("x" * 4097, None), (None, "x" * 4097)])
def test_a_reason_has_at_most_4096_characters(driver, texts):
    driver.send()
    (message,) = driver.lock()
    with pytest.raises(ArgumentError, match="4097"):
        driver.apply(DeadLetter([message.lock_token], *texts))
    assert driver.settle(DeadLetter([message.lock_token], "x" * 4096, "x" * 4096)) == []


def test_dead_letters_are_delivered_any_number_of_times_and_keep_their_count(new_driver):
    driver = new_driver(max_delivery_count=1)
    (message,) = dead_lettered(driver)
    for _ in range(3):
        assert driver.lock(1, SubQueue.DEAD_LETTER) == [message]
        driver.settle(Abandon([message.lock_token]))
        assert driver.effects == [UpdateMessages([message]), DEAD_LETTERS_AVAILABLE]
        assert message.delivery_count == 0


def test_dead_letters_come_oldest_first_however_they_arrived(driver):
    messages = driver.send(4)
    driver.lock(4)
    for each in (2, 0, 3, 1):
        driver.settle(DeadLetter([messages[each].lock_token]))
    assert driver.receive(4, SubQueue.DEAD_LETTER) == messages


def test_a_deferred_message_is_reached_by_its_number_only(driver):
    (message,) = driver.send()
    driver.lock()
    driver.settle(Defer([message.lock_token], b"properties"))
    assert driver.effects == [UpdateMessages([message])]
    assert (message.state, message.delivery_count) == (MessageState.DEFERRED, 1)
    assert message.amendment == Amendment(properties=(b"properties",))
    assert driver.lock() == []
    given = driver.apply(LockDeferred(numbers([message]), driver.entropy(1)))
    assert given.messages == [message]
    assert driver.effects == []
    assert message.locked_until == driver.now + 60_000
    assert driver.settle(Complete([message.lock_token])) == []
    assert driver.peek() == []


def test_deferred_messages_come_in_the_order_asked(driver):
    first, second = deferred(driver, 2)
    given = driver.apply(ReceiveDeferred(numbers([second, first])))
    assert given.messages == [second, first]
    assert driver.effects == [RemoveMessages([second, first])]
    assert driver.peek() == []


@pytest.mark.parametrize("command", [Abandon, Release])
def test_a_deferred_message_goes_back_to_the_deferred(driver, command):
    (message,) = deferred(driver)
    driver.apply(LockDeferred(numbers([message]), driver.entropy(1)))
    driver.settle(command([message.lock_token]))
    assert driver.effect(MessagesAvailable) is None
    assert (message.state, message.lock_token) == (MessageState.DEFERRED, None)
    assert message.delivery_count == (2 if command is Abandon else 1)
    assert driver.lock() == []
    assert driver.apply(ReceiveDeferred(numbers([message]))).messages == [message]


def test_a_deferred_message_whose_lock_runs_out_goes_back_to_the_deferred(driver):
    (message,) = deferred(driver)
    driver.apply(LockDeferred(numbers([message]), driver.entropy(1)))
    driver.later(60)
    driver.apply(Tick())
    assert driver.effects == [UpdateMessages([message])]
    assert driver.apply(ReceiveDeferred(numbers([message]))).messages == [message]


def test_deferred_messages_are_given_all_or_none(driver):
    first, locked = deferred(driver, 2)
    (active,) = driver.send()
    driver.apply(LockDeferred(numbers([locked]), driver.entropy(1)))
    for command in (
        LockDeferred(numbers([first, locked, active]), driver.entropy(3)),
        ReceiveDeferred([7, *numbers([first])]),
    ):
        with pytest.raises(MessageNotFound) as raised:
            driver.apply(command)
        for number in set(command.sequence_numbers) - {first.sequence_number}:
            assert str(number) in str(raised.value)
        assert first.lock_token is None
    assert driver.apply(ReceiveDeferred(numbers([first]))).messages == [first]


def test_a_deferred_number_asked_twice_is_given_once(driver):
    (message,) = deferred(driver)
    given = driver.apply(ReceiveDeferred(numbers([message, message])))
    assert given.messages == [message]


def test_dead_letters_can_be_deferred_in_their_own_sub_queue(driver):
    (message,) = dead_lettered(driver)
    driver.lock(1, SubQueue.DEAD_LETTER)
    driver.settle(Defer([message.lock_token]))
    assert driver.partition.counts(SubQueue.DEAD_LETTER).deferred == 1
    with pytest.raises(MessageNotFound):
        driver.apply(ReceiveDeferred(numbers([message])))
    given = driver.apply(ReceiveDeferred(numbers([message]), SubQueue.DEAD_LETTER))
    assert given.messages == [message]


def test_a_dead_lettered_deferred_message_is_active_there(driver):
    (message,) = deferred(driver)
    driver.apply(LockDeferred(numbers([message]), driver.entropy(1)))
    driver.settle(DeadLetter([message.lock_token]))
    assert driver.lock(1, SubQueue.DEAD_LETTER) == [message]


# -- deleting by age ----------------------------------------------------------------


@pytest.mark.row("B-01")
def test_the_oldest_are_deleted_but_not_the_locked_or_the_younger(driver):
    locked, first, second, third = driver.send(4)
    assert driver.lock() == [locked]
    driver.later(1)
    before = driver.now
    driver.send(2)
    assert driver.apply(DeleteOldest(2, before)) == Deleted(2)
    assert driver.effect(RemoveMessages) == RemoveMessages([first, second])
    assert driver.apply(DeleteOldest(10, before)) == Deleted(1)
    assert driver.effect(RemoveMessages) == RemoveMessages([third])
    assert driver.apply(DeleteOldest(10, before)) == Deleted(0)
    assert driver.effects == []
    assert len(driver.lock(10)) == 2


def test_expired_messages_are_not_counted_among_the_oldest_that_are_deleted(driver):
    expired = driver.send(2, ttl_s=1)
    first, second, third = driver.send(3)
    driver.later(1)
    assert driver.apply(DeleteOldest(2, driver.now)) == Deleted(2)
    assert driver.effect(RemoveMessages) == RemoveMessages([*expired, first, second])
    assert driver.peek() == [third]
