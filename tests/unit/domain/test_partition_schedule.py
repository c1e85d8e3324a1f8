"""Scheduled messages: out of reach until they are due, then like any other (P-05, P-35)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bendybus.domain.commands import (
    CancelScheduled,
    Complete,
    Confirm,
    Done,
    Enqueue,
    Enqueued,
    LockDeferred,
    Tick,
)
from bendybus.domain.effects import MessagesAvailable, RemoveMessages, StoreMessages, UpdateMessages
from bendybus.domain.messages import Message, MessageState
from bendybus.domain.partition import Partition
from bendybus.domain.schedule import ACTIVATED_AT_ONCE_MAX, STALE_MAX, postpone
from bendybus.errors import MessageNotFound
from bendybus.names import Instant, SequenceNumber

Driver = Any  # the Driver of conftest.py
NewDriver = Callable[..., Driver]


def scheduled(driver: Driver, *delays_s: float, ttl_s: float | None = None) -> list[Message]:
    """Enqueued and confirmed, each due after its delay."""
    expires_at = None if ttl_s is None else Instant(driver.now + int(ttl_s * 1000))
    messages = [Message(b"payload", size=100, expires_at=expires_at) for _ in delays_s]
    for message, delay_s in zip(messages, delays_s, strict=True):
        postpone(message, driver.now, Instant(driver.now + int(delay_s * 1000)))
    driver.apply(Enqueue(messages))
    driver.apply(Confirm(messages[-1].sequence_number))
    return messages


def tick(driver: Driver) -> Enqueued | Done:
    """A tick whose effects become durable."""
    reply = driver.apply(Tick())
    effects = driver.effects
    if isinstance(reply, Enqueued):
        driver.apply(Confirm(SequenceNumber(reply.first + reply.count - 1)))
        driver.effects = effects + driver.effects
    return reply


def restarted(driver: Driver) -> Driver:
    """Another partition with what the store would hold."""
    before = driver.partition
    after = Partition(before.number, before.description, before.next_sequence_number)
    after.restore(before.confirmed())
    return type(driver)(after, driver.now)


def test_a_scheduled_message_cannot_be_received_before_it_is_due(driver: Driver) -> None:
    (message,) = scheduled(driver, 10)
    driver.later(9.999)
    assert tick(driver) == Done()
    assert driver.lock() == driver.receive() == []
    with pytest.raises(MessageNotFound):
        driver.apply(LockDeferred([message.sequence_number], driver.entropy(1)))
    driver.later(0.001)
    tick(driver)
    assert driver.lock() == [message]


def test_activation_gives_a_new_number_and_enqueued_time_in_one_update(new_driver: NewDriver) -> None:
    driver = new_driver(number=5)
    (message,) = scheduled(driver, 10)
    driver.send(1)
    assert message.sequence_number == 5 << 48 | 1
    driver.later(12)
    assert tick(driver) == Enqueued(SequenceNumber(5 << 48 | 3), 1)
    assert driver.effects == [UpdateMessages([message]), MessagesAvailable(message.subqueue)]
    assert (message.sequence_number, message.enqueued_at) == (5 << 48 | 3, driver.now)
    assert message.state is MessageState.ACTIVE


def test_a_message_is_activated_once(driver: Driver) -> None:
    scheduled(driver, 1)
    driver.later(1)
    assert isinstance(tick(driver), Enqueued)
    driver.later(60)
    assert tick(driver) == Done()
    assert driver.effects == []
    assert driver.partition.next_deadline() is None


def test_an_activated_message_is_shown_only_when_that_is_durable(driver: Driver) -> None:
    (message,) = scheduled(driver, 1)
    driver.later(1)
    driver.apply(Tick())
    assert driver.effect(MessagesAvailable) is None
    assert driver.lock() == driver.peek() == []
    assert list(driver.partition.confirmed()) == [message]
    driver.apply(Confirm(message.sequence_number))
    assert driver.lock() == [message]


def test_a_scheduled_message_is_shown_only_when_it_is_durable(driver: Driver) -> None:
    message = Message(b"", size=10)
    postpone(message, driver.now, Instant(driver.now + 1000))
    driver.apply(Enqueue([message]))
    driver.later(5)
    assert driver.apply(Tick()) == Done()
    assert driver.peek() == []
    with pytest.raises(MessageNotFound):
        driver.apply(CancelScheduled([message.sequence_number]))
    driver.apply(Confirm(message.sequence_number))
    assert driver.peek() == [message]
    assert isinstance(driver.apply(Tick()), Enqueued)


def test_messages_are_activated_in_the_order_in_which_they_are_due(driver: Driver) -> None:
    late, early, also_early = scheduled(driver, 3, 1, 1)
    driver.later(5)
    tick(driver)
    assert driver.lock(3) == [early, also_early, late]
    assert [message.sequence_number for message in (early, also_early, late)] == [4, 5, 6]


@pytest.mark.row("P-26")
def test_activated_messages_keep_their_place_among_those_sent_meanwhile(driver: Driver) -> None:
    (message,) = scheduled(driver, 1)
    driver.later(1)
    before, after = Message(b"", size=1), Message(b"", size=1)
    driver.apply(Enqueue([before]))
    driver.apply(Tick())
    driver.apply(Enqueue([after]))
    driver.apply(Confirm(after.sequence_number))
    assert driver.lock(3) == [before, message, after]


def test_one_batch_may_hold_scheduled_and_other_messages(driver: Driver) -> None:
    waits, goes = Message(b"", size=10), Message(b"", size=10)
    postpone(waits, driver.now, Instant(driver.now + 1000))
    assert driver.apply(Enqueue([waits, goes])) == Enqueued(SequenceNumber(1), 2, scheduled=True)
    assert driver.effects == [StoreMessages([waits, goes])]
    driver.apply(Confirm(goes.sequence_number))
    assert driver.lock(2) == [goes]
    assert driver.peek() == [waits, goes]


def test_counts_and_peek_know_what_is_scheduled(driver: Driver) -> None:
    (message,) = scheduled(driver, 10)
    counts = driver.partition.counts()
    assert (counts.active, counts.scheduled, counts.size_bytes) == (0, 1, 100)
    assert [(each.state, each.enqueued_at) for each in driver.peek()] == [
        (MessageState.SCHEDULED, driver.now + 10_000)
    ]
    driver.later(10)
    tick(driver)
    counts = driver.partition.counts()
    assert (counts.active, counts.scheduled, counts.size_bytes) == (1, 0, 100)
    assert driver.peek() == [message]


@pytest.mark.parametrize(
    ("own_s", "default_s", "lives_s"), [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7)]
)
def test_the_lifetime_is_counted_from_activation(
    new_driver: NewDriver, own_s: float | None, default_s: float | None, lives_s: float | None
) -> None:
    driver = new_driver(default_message_ttl_s=default_s)
    (message,) = scheduled(driver, 3600, ttl_s=own_s)
    driver.later(3599)
    tick(driver)
    assert driver.peek() == [message]
    driver.later(31)  # half a minute late
    tick(driver)
    assert message.expires_at == (None if lives_s is None else driver.now + lives_s * 1000)
    if lives_s is not None:
        driver.later(lives_s)
        assert driver.lock() == []


def test_the_next_deadline_is_when_the_first_is_due(driver: Driver) -> None:
    start = driver.now
    assert driver.partition.next_deadline() is None
    scheduled(driver, 20, 10)
    assert driver.partition.next_deadline() == start + 10_000
    driver.later(10)
    tick(driver)
    assert driver.partition.next_deadline() == start + 20_000


@pytest.mark.row("B-08")
def test_a_restart_finds_scheduled_messages_and_those_that_came_due_meanwhile(driver: Driver) -> None:
    missed, waiting = scheduled(driver, 10, 100)
    driver.later(50)
    driver = restarted(driver)
    assert driver.lock(2) == []
    deadline = driver.partition.next_deadline()
    assert deadline is not None and deadline <= driver.now
    tick(driver)
    assert driver.lock(2) == [missed]
    driver.apply(Complete([missed.lock_token]))
    driver.later(50)
    driver = restarted(driver)
    tick(driver)
    assert driver.lock(2) == [waiting]


def test_a_cancelled_message_is_gone(driver: Driver) -> None:
    first, second = scheduled(driver, 10, 10)
    assert driver.apply(CancelScheduled([first.sequence_number])) == Done()
    assert driver.effects == [RemoveMessages([first])]
    assert driver.partition.size_bytes == 100
    driver.later(10)
    tick(driver)
    assert driver.lock(2) == [second]


def test_cancelling_takes_all_or_none(driver: Driver) -> None:
    first, second = scheduled(driver, 10, 10)
    with pytest.raises(MessageNotFound, match="4711"):
        driver.apply(CancelScheduled([first.sequence_number, SequenceNumber(4711)]))
    assert driver.peek() == [first, second]


def test_a_transaction_cannot_cancel_a_message_twice(driver: Driver) -> None:
    # The second command would be refused when the first has been applied already.
    first, second = scheduled(driver, 10, 20)
    one, both = CancelScheduled([first.sequence_number]), CancelScheduled([first.sequence_number] * 2)
    driver.partition.check([both, CancelScheduled([second.sequence_number])], driver.now)
    with pytest.raises(MessageNotFound):
        driver.partition.check([one, one], driver.now)


@pytest.mark.parametrize("confirm", [True, False])
def test_what_is_active_can_no_longer_be_cancelled(driver: Driver, confirm: bool) -> None:
    (message,) = scheduled(driver, 1)
    number = message.sequence_number
    driver.later(1)
    if confirm:
        tick(driver)
    else:
        driver.apply(Tick())
    for each in (number, message.sequence_number):
        with pytest.raises(MessageNotFound):
            driver.apply(CancelScheduled([each]))


def test_cancelled_messages_leave_nothing_behind(driver: Driver) -> None:
    for _ in range(3 * STALE_MAX):
        (message,) = scheduled(driver, 3600)
        driver.apply(CancelScheduled([message.sequence_number]))
    assert len(driver.partition._parts.intake._schedule._agenda) <= STALE_MAX + 1


def test_more_than_one_tick_can_take_go_on_with_the_next(driver: Driver) -> None:
    count = ACTIVATED_AT_ONCE_MAX + 10
    messages = scheduled(driver, *([1] * count))
    driver.later(1)
    assert tick(driver) == Enqueued(SequenceNumber(count + 1), ACTIVATED_AT_ONCE_MAX)
    assert driver.partition.counts().scheduled == 10
    deadline = driver.partition.next_deadline()
    assert deadline is not None and deadline <= driver.now
    tick(driver)
    assert driver.lock(count) == messages


def test_without_scheduled_messages_there_is_nothing_to_tick_for(driver: Driver) -> None:
    driver.send(3)
    assert driver.partition.next_deadline() is None
