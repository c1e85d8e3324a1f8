"""The outbox: what leaves a partition for another entity arrives there exactly once (P-34)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bendybus.domain.commands import (
    Confirm,
    DeadLetter,
    Enqueue,
    Enqueued,
    Given,
    Peek,
    Post,
    Reassign,
    Transfer,
    Transferred,
    Undeliverable,
)
from bendybus.domain.deadletter import Cause
from bendybus.domain.effects import MarkTransferred, RemoveMessages, StoreMessages, UpdateMessages
from bendybus.domain.messages import Amendment, Message, Origin, Posting, SubQueue
from bendybus.domain.outbox import HOPS_MAX
from bendybus.domain.partition import Partition
from bendybus.names import EntityPath, PartitionNumber, SequenceNumber

Driver = Any  # the Driver of conftest.py
NewDriver = Callable[..., Driver]

NEXT = EntityPath("next")
CAUSE = Cause("EntityDisabled", "'next' is Disabled and takes no messages.")


def post(driver: Driver, count: int = 10, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
    reply = driver.apply(Post(count, NEXT, subqueue))
    assert isinstance(reply, Given)
    return reply.messages


def in_outbox(driver: Driver) -> list[Message]:
    reply = driver.apply(Peek(SequenceNumber(0), 100, SubQueue.OUTBOX))
    assert isinstance(reply, Given)
    return reply.messages


def arrive(driver: Driver, *numbers: int, source: str = "a/0") -> Enqueued:
    messages = [Message(b"payload", size=100) for _ in numbers]
    transfer = Transfer(source, [SequenceNumber(number) for number in numbers])
    reply = driver.apply(Enqueue(messages, transfer=transfer))
    effects = driver.effects
    assert isinstance(reply, Enqueued)
    driver.apply(Confirm(SequenceNumber(reply.first + reply.count - 1)))
    driver.effects = effects
    return reply


def test_a_posted_message_is_out_of_reach_under_a_new_number(driver: Driver) -> None:
    first, second = driver.send(2)
    assert post(driver, 1) == [first]
    assert driver.effect(UpdateMessages) == UpdateMessages([first])
    assert first.sequence_number == second.sequence_number + 1
    assert first.amendment.posting == Posting(NEXT, SequenceNumber(1))
    assert driver.lock() == [second]
    assert in_outbox(driver) == [first]
    assert driver.partition.counts(SubQueue.OUTBOX).active == 1


def test_numbers_in_an_outbox_rise_in_the_order_of_posting(driver: Driver) -> None:
    """Also when one sent earlier becomes free later: under its old number it would be taken for known."""
    early = driver.send(1)[0]
    token = driver.lock()[0].lock_token
    late = driver.send(1)[0]
    post(driver)
    driver.apply(DeadLetter([token]))
    post(driver, subqueue=SubQueue.DEAD_LETTER)
    assert in_outbox(driver) == [late, early]


def test_what_has_arrived_is_removed_and_counts_no_more(driver: Driver) -> None:
    first, second = driver.send(2)
    post(driver)
    driver.apply(Transferred([first.sequence_number]))
    assert driver.effect(RemoveMessages) == RemoveMessages([first])
    assert in_outbox(driver) == [second]
    assert driver.partition.size_bytes == second.size
    driver.apply(Transferred([first.sequence_number]))
    assert driver.effects == []


def test_a_forwarded_message_nobody_takes_becomes_a_dead_letter(driver: Driver) -> None:
    (message,) = driver.send(1)
    post(driver)
    driver.apply(Undeliverable([message.sequence_number], CAUSE))
    assert message.subqueue is SubQueue.DEAD_LETTER
    assert (message.amendment.dead_letter_reason, message.amendment.posting) == (CAUSE.reason, None)
    assert driver.partition.counts(SubQueue.DEAD_LETTER).active == 1


def test_a_dead_letter_nobody_takes_keeps_its_reason_and_is_not_posted_again(driver: Driver) -> None:
    (message,) = driver.send(1)
    driver.apply(DeadLetter([driver.lock()[0].lock_token], "Broken", "it was"))
    post(driver, subqueue=SubQueue.DEAD_LETTER)
    driver.apply(Undeliverable([message.sequence_number], CAUSE))
    assert message.subqueue is SubQueue.TRANSFER_DEAD_LETTER
    assert message.amendment.dead_letter_reason == "Broken"
    assert post(driver, subqueue=SubQueue.DEAD_LETTER) == []


def test_a_message_that_has_come_four_hops_goes_no_further(driver: Driver) -> None:
    message = Message(b"payload", size=100, origin=Origin(SequenceNumber(5), hops=HOPS_MAX))
    driver.apply(Enqueue([message]))
    driver.apply(Confirm(message.sequence_number))
    assert post(driver) == []
    assert message.subqueue is SubQueue.DEAD_LETTER
    assert message.amendment.dead_letter_reason == "MaxTransferHopCountExceeded"


def test_what_an_outbox_sends_again_is_dropped(driver: Driver) -> None:
    assert arrive(driver, 5, 7).count == 2
    assert driver.effect(MarkTransferred) == MarkTransferred("a/0", SequenceNumber(7))
    # Answered only when what it repeats is durable: so the mark is told again.
    assert arrive(driver, 5, 7).count == 0
    assert driver.effect(StoreMessages) is None
    assert driver.effect(MarkTransferred) == MarkTransferred("a/0", SequenceNumber(7))
    assert arrive(driver, 7, 9).count == 1
    assert arrive(driver, 7, source="a/1").count == 1


def test_the_reply_to_a_transfer_names_all_that_was_dropped(new_driver: NewDriver) -> None:
    driver = new_driver(requires_duplicate_detection=True)

    def arrive_as(numbers: list[int], identities: list[str]) -> Enqueued:
        messages = [Message(b"payload", size=100) for _ in numbers]
        transfer = Transfer("a/0", [SequenceNumber(number) for number in numbers])
        reply = driver.apply(Enqueue(messages, identities, transfer))
        assert isinstance(reply, Enqueued)
        return reply

    assert arrive_as([1, 2], ["x", "y"]).duplicates == ()
    # The first two have arrived before, and the last has the id of another message.
    assert arrive_as([1, 2, 3, 4], ["x", "y", "z", "x"]).duplicates == (0, 1, 3)


def test_what_has_arrived_is_known_after_a_restart(driver: Driver) -> None:
    arrive(driver, 5, 7)
    before = driver.partition
    after = Partition(before.number, before.description, before.next_sequence_number)
    after.restore(before.confirmed(), (), {"a/0": SequenceNumber(7)})
    assert arrive(type(driver)(after, driver.now), 7, 8).count == 1


def test_an_outbox_is_there_after_a_restart(driver: Driver) -> None:
    first, second = driver.send(2)
    post(driver)
    before = driver.partition
    after = Partition(before.number, before.description, before.next_sequence_number)
    after.restore(before.confirmed())
    again = type(driver)(after, driver.now)
    assert in_outbox(again) == [first, second]
    assert again.lock() == []


@pytest.mark.row("P-16")
def test_a_reassigned_message_comes_after_all_that_was_posted_before(driver: Driver) -> None:
    """The other partition may have arrived beyond its old number, and would drop it."""
    first, second = driver.send(2)
    post(driver, 2)
    number = second.sequence_number
    driver.apply(Reassign([first.sequence_number, SequenceNumber(999)], PartitionNumber(5)))
    assert driver.effect(UpdateMessages) == UpdateMessages([first])
    assert in_outbox(driver) == [second, first]
    assert first.sequence_number > number == second.sequence_number
    assert first.amendment.posting == Posting(NEXT, SequenceNumber(1), partition=PartitionNumber(5))
    assert driver.partition.counts(SubQueue.OUTBOX).active == 2


@pytest.mark.row("P-13")
def test_a_copy_for_another_partition_is_posted_as_it_arrives(driver: Driver) -> None:
    posted, kept = Message(b"x", size=10), Message(b"y", size=1)
    posted.subqueue = SubQueue.OUTBOX
    posted.amendment = Amendment(posting=Posting(NEXT, SequenceNumber(7), partition=PartitionNumber(5)))
    reply = driver.apply(Enqueue([posted, kept], shelved=True))
    assert driver.effect(StoreMessages) == StoreMessages([posted, kept])
    assert in_outbox(driver) == []
    driver.apply(Confirm(SequenceNumber(reply.first + 1)))
    assert in_outbox(driver) == [posted]
    assert [driver.partition.counts(each).size_bytes for each in (SubQueue.MAIN, SubQueue.OUTBOX)] == [1, 10]
    driver.apply(Undeliverable([posted.sequence_number], CAUSE))
    assert posted.subqueue is SubQueue.DEAD_LETTER
