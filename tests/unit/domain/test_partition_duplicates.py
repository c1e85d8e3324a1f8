"""Duplicate detection: accepted, dropped, and forgotten in time (P-05, P-15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bendybus.domain.commands import CancelScheduled, Confirm, Enqueue, Enqueued, Tick
from bendybus.domain.duplicates import FORGET_INTERVAL_MS, DuplicateHistory, Identities
from bendybus.domain.effects import ForgetIdentities, RememberIdentities, StoreMessages
from bendybus.domain.messages import Message
from bendybus.domain.partition import Partition
from bendybus.domain.schedule import postpone
from bendybus.errors import ArgumentError, QuotaExceeded
from bendybus.names import Instant, SequenceNumber

Driver = Any  # the Driver of conftest.py
NewDriver = Callable[..., Driver]

WINDOW_S = 60


@pytest.fixture
def driver(new_driver: NewDriver) -> Driver:
    return new_driver(requires_duplicate_detection=True, duplicate_detection_window_s=WINDOW_S)


def send(driver: Driver, *ids: str | None, size: int = 100) -> Enqueued:
    reply = driver.apply(Enqueue([Message(b"", size=size) for _ in ids], ids))
    assert isinstance(reply, Enqueued)
    return reply


def test_a_duplicate_is_accepted_and_dropped(driver: Driver) -> None:
    assert send(driver, "a") == Enqueued(SequenceNumber(1), 1)
    assert send(driver, "a") == Enqueued(SequenceNumber(2), 0, duplicates=(0,))
    assert driver.effect(StoreMessages) is None
    assert driver.partition.size_bytes == 100


def test_a_duplicate_is_acknowledged_no_sooner_than_the_message_it_repeats(driver: Driver) -> None:
    send(driver, "a")
    send(driver, "a")
    assert driver.effects == [RememberIdentities(driver.now, [])]  # durable, so the reply waits


def test_a_batch_keeps_the_first_of_its_own_duplicates(driver: Driver) -> None:
    messages = [Message(b"", size=10) for _ in range(5)]
    reply = driver.apply(Enqueue(messages, ["a", "b", "a", None, "b"]))
    assert reply == Enqueued(SequenceNumber(1), 3, duplicates=(2, 4))
    driver.apply(Confirm(SequenceNumber(3)))
    assert driver.lock(5) == [messages[0], messages[1], messages[3]]


def test_messages_without_an_id_are_nobodys_duplicates(driver: Driver) -> None:
    assert send(driver, None, None).count == 2
    assert driver.effect(RememberIdentities) is None


def test_the_window_is_counted_from_the_first_acceptance(driver: Driver) -> None:
    send(driver, "a")
    driver.later(WINDOW_S - 0.001)
    assert send(driver, "a").count == 0
    driver.later(0.001)
    assert send(driver, "a").count == 1
    assert send(driver, "a").count == 0


def test_a_received_message_is_remembered_all_the_same(driver: Driver) -> None:
    send(driver, "a")
    driver.apply(Confirm(SequenceNumber(1)))
    assert len(driver.receive()) == 1
    assert send(driver, "a").count == 0


def test_a_message_that_was_refused_is_not_remembered(new_driver: NewDriver) -> None:
    driver = new_driver(requires_duplicate_detection=True, max_size_mb=1024)
    with pytest.raises(QuotaExceeded):
        send(driver, "a", size=2 << 30)
    assert send(driver, "a").count == 1


def test_scheduled_messages_take_part_both_ways(driver: Driver) -> None:
    def scheduled(identity: str) -> Enqueued:
        message = Message(b"", size=10)
        postpone(message, driver.now, Instant(driver.now + 1000))
        reply = driver.apply(Enqueue([message], [identity]))
        driver.apply(Confirm(SequenceNumber(driver.partition.next_sequence_number - 1)))
        assert isinstance(reply, Enqueued)
        return reply

    assert scheduled("a").count == 1
    assert send(driver, "a").count == scheduled("a").count == 0
    send(driver, "b")
    assert scheduled("b").count == 0
    driver.apply(CancelScheduled([SequenceNumber(1)]))
    assert send(driver, "a").count == 0


@pytest.mark.row("P-15")
def test_without_duplicate_detection_ids_mean_nothing(new_driver: NewDriver) -> None:
    driver = new_driver()
    assert send(driver, "a", "a").count == 2
    assert driver.effect(RememberIdentities) is None


def test_ticks_forget_what_has_aged_and_then_rest(driver: Driver) -> None:
    assert driver.partition.next_deadline() is None
    send(driver, "a", "b")
    driver.later(1)
    send(driver, "c")
    driver.later(WINDOW_S - 1)
    assert driver.partition.next_deadline() == driver.now
    driver.apply(Tick())
    assert driver.effects == [ForgetIdentities(Instant(driver.now - WINDOW_S * 1000))]
    assert driver.partition.next_deadline() == driver.now + FORGET_INTERVAL_MS
    driver.later(FORGET_INTERVAL_MS / 1000)
    driver.apply(Tick())
    assert driver.effect(ForgetIdentities) is not None
    assert driver.partition.next_deadline() is None


@pytest.mark.row("B-08")
def test_a_restart_remembers(driver: Driver) -> None:
    send(driver, "a")
    remembered = driver.effect(RememberIdentities)
    before = driver.partition
    after = Partition(before.number, before.description, SequenceNumber(2))
    after.restore([], [(remembered.accepted_at, digest) for digest in remembered.digests])
    driver = type(driver)(after, driver.now)
    assert send(driver, "a", "b") == Enqueued(SequenceNumber(2), 1, duplicates=(0,))


def test_the_history_is_bounded() -> None:
    history = DuplicateHistory(remembered_max=3)
    for number in range(5):
        history.remember([bytes([number])], Instant(number))
    assert len(history) == 3
    assert history.next_sweep(0) == 2


def test_a_partitioned_entity_knows_messages_by_their_key_too() -> None:
    identities = Identities(partitioned=True)
    for message_id, key in (("c", "ab"), ("bc", "a"), ("c", None), ("c", "ab"), (None, "ab")):
        identities.add(message_id, key)
    first, second, third, again, none = identities.found
    assert len({first, second, third}) == 3
    assert (again, none) == (first, None)


def test_an_unpartitioned_entity_knows_messages_by_their_id_alone() -> None:
    identities = Identities(partitioned=False)
    identities.add("m", "ab")
    identities.add("m", None)
    identities.add(None, None)
    assert identities.found == ["m", "m", None]


def test_a_partitioned_entity_refuses_what_it_cannot_know_again() -> None:
    with pytest.raises(ArgumentError, match="must have either PartitionKey or MessageId"):
        Identities(partitioned=True).add(None, None)
