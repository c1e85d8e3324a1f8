"""Time to live: who it ends, when, and whom it spares."""

from __future__ import annotations

import pytest

from bendybus.domain.commands import (
    Abandon,
    Complete,
    Confirm,
    DeadLetter,
    Defer,
    Enqueue,
    ReceiveDeferred,
    Tick,
)
from bendybus.domain.effects import MessagesAvailable, RemoveMessages, UpdateMessages
from bendybus.domain.messages import Message, SubQueue
from bendybus.names import Instant

DEAD_LETTERS_AVAILABLE = MessagesAvailable(SubQueue.DEAD_LETTER)


def tokens(messages):
    return [message.lock_token for message in messages]


@pytest.mark.parametrize("take", ["lock", "receive"])
def test_an_expired_message_is_never_handed_out(driver, take):
    expired = driver.send(3, ttl_s=10)
    alive = driver.send(3)
    driver.later(10)
    assert getattr(driver, take)(2) == alive[:2]
    removed = driver.effect(RemoveMessages).messages
    assert removed == (expired if take == "lock" else expired + alive[:2])
    assert driver.peek() == (alive if take == "lock" else alive[2:])


def test_a_message_lives_until_its_instant(driver):
    (message,) = driver.send(ttl_s=10)
    driver.later(9.999)
    driver.apply(Tick())
    assert driver.effects == []
    assert driver.lock() == [message]


def test_a_lifetime_begins_when_the_partition_gets_the_message(driver):
    """It may have waited for its partition, or come from a broker whose clock is behind."""
    message = Message(b"", size=100, expires_at=Instant(driver.now + 10_000))
    message.enqueued_at = driver.now
    driver.later(3600)
    driver.apply(Enqueue([message]))
    assert message.expires_at - message.enqueued_at == 10_000
    assert message.enqueued_at == driver.now
    driver.apply(Confirm(message.sequence_number))
    assert driver.lock() == [message]


def test_a_tick_removes_the_expired(driver):
    expired = driver.send(2, ttl_s=10)
    alive = driver.send(1, ttl_s=20)
    driver.later(10)
    assert driver.partition.next_deadline() == driver.now
    driver.apply(Tick())
    assert driver.effects == [RemoveMessages(expired)]
    assert driver.peek() == alive
    assert driver.partition.size_bytes == 100


@pytest.mark.parametrize("by_tick", [True, False])
def test_the_expired_are_dead_lettered_where_the_queue_says_so(new_driver, by_tick):
    driver = new_driver(dead_letter_on_expiry=True)
    expired = driver.send(2, ttl_s=10)
    driver.later(10)
    if by_tick:
        driver.apply(Tick())
    else:
        assert driver.lock(5) == []
    assert driver.effects == [UpdateMessages(expired), DEAD_LETTERS_AVAILABLE]
    assert driver.receive(2, SubQueue.DEAD_LETTER) == expired
    for message in expired:
        assert message.amendment.dead_letter_reason == "TTLExpiredException"
        assert message.amendment.dead_letter_description == "The message expired and was dead lettered."


def test_dead_letters_do_not_expire(driver):
    (message,) = driver.send(ttl_s=10)
    driver.settle(DeadLetter(tokens(driver.lock())))
    driver.later(1000)
    driver.apply(Tick())
    assert driver.effects == []
    assert driver.lock(1, SubQueue.DEAD_LETTER) == [message]


def test_deferred_messages_do_not_expire(new_driver):
    driver = new_driver(dead_letter_on_expiry=True)
    (message,) = driver.send(ttl_s=10)
    driver.settle(Defer(tokens(driver.lock())))
    driver.later(1000)
    driver.apply(Tick())
    assert driver.effects == []
    assert driver.apply(ReceiveDeferred([message.sequence_number])).messages == [message]


def test_a_locked_message_expires_only_once_unlocked(driver):
    done, given_back = driver.send(2, ttl_s=10)
    driver.lock(2)
    driver.later(20)
    driver.apply(Tick())
    assert driver.effects == []
    assert driver.settle(Complete([done.lock_token])) == []
    driver.settle(Abandon([given_back.lock_token]))
    assert driver.lock() == []
    assert driver.effects == [RemoveMessages([given_back])]


def test_a_lock_and_a_life_may_end_in_one_tick(new_driver):
    driver = new_driver(dead_letter_on_expiry=True)
    (message,) = driver.send(ttl_s=10)
    driver.lock()
    driver.later(60)
    driver.apply(Tick())
    assert driver.effect(UpdateMessages).messages == [message]
    assert driver.peek(subqueue=SubQueue.DEAD_LETTER) == [message]
    assert message.delivery_count == 1


def test_an_unconfirmed_message_expires_only_once_confirmed(driver):
    message = Message(b"", size=1, expires_at=Instant(driver.now + 10_000))
    driver.apply(Enqueue([message]))
    driver.later(10)
    driver.apply(Tick())
    assert driver.effects == []
    driver.apply(Confirm(message.sequence_number))
    driver.now = driver.partition.next_deadline()
    driver.apply(Tick())
    assert driver.effects == [RemoveMessages([message])]


def test_sweeps_keep_a_distance_though_receives_see_at_once(driver):
    driver.send(1, ttl_s=10)
    (second,) = driver.send(1, ttl_s=10.5)
    (third,) = driver.send(1, ttl_s=10.6)
    driver.later(10)
    driver.apply(Tick())
    assert driver.partition.next_deadline() == driver.now + 1000
    driver.later(0.5)
    driver.apply(Tick())
    assert driver.effects == []
    assert driver.lock() == [third]
    assert driver.effects == [RemoveMessages([second])]
