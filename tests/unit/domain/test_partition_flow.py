"""Messages on their way in, out, and under the eyes of a browser."""

from __future__ import annotations

import pytest

from bendybus.domain.commands import (
    Abandon,
    Complete,
    Confirm,
    DeadLetter,
    Defer,
    Enqueue,
    Enqueued,
    Peek,
    Release,
    Tick,
)
from bendybus.domain.effects import MessagesAvailable, RemoveMessages, StoreMessages
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.errors import QuotaExceeded
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber


def tokens(messages):
    return [message.lock_token for message in messages]


@pytest.mark.row("P-31")
def test_sequence_numbers_carry_the_partition_and_have_no_gaps(new_driver):
    driver = new_driver(number=5)
    first = [Message(b"a", size=1), Message(b"b", size=1)]
    assert driver.apply(Enqueue(first)) == Enqueued(SequenceNumber(5 << 48 | 1), 2)
    assert driver.effect(StoreMessages).messages == first
    second = driver.send(1)
    assert [each.sequence_number for each in first + second] == [5 << 48 | 1, 5 << 48 | 2, 5 << 48 | 3]
    assert driver.partition.next_sequence_number == 5 << 48 | 4


def test_enqueueing_sets_the_time(driver):
    assert driver.send(1)[0].enqueued_at == driver.now


def test_an_empty_batch_stores_nothing(driver):
    assert driver.apply(Enqueue([])) == Enqueued(SequenceNumber(1), 0)
    assert driver.effects == []


def test_the_shorter_time_to_live_holds(new_driver):
    driver = new_driver(default_message_ttl_s=60)
    assert driver.send(ttl_s=10)[0].expires_at == driver.now + 10_000
    assert driver.send(ttl_s=600)[0].expires_at == driver.now + 60_000
    assert driver.send()[0].expires_at == driver.now + 60_000


def test_without_a_default_the_senders_time_to_live_holds(driver):
    assert driver.send(ttl_s=10)[0].expires_at == driver.now + 10_000
    assert driver.send()[0].expires_at is None


def test_a_batch_beyond_the_quota_is_refused_whole(new_driver):
    driver = new_driver(number=1)
    mebibyte = 1 << 20
    driver.send(1023, size=mebibyte)
    refused = [Message(b"", size=mebibyte), Message(b"", size=1)]
    with pytest.raises(QuotaExceeded, match="Partition 1 of 'orders'"):
        driver.apply(Enqueue(refused))
    assert refused[0].sequence_number == 0
    driver.send(1, size=mebibyte)
    assert driver.partition.next_sequence_number == 1 << 48 | 1025
    assert driver.partition.size_bytes == 1024 * mebibyte


def test_removing_frees_the_quota(driver):
    driver.send(1024, size=1 << 20)
    driver.receive(1)
    driver.send(1, size=1 << 20)
    driver.settle(Complete(tokens(driver.lock(1024))))
    assert driver.partition.size_bytes == 0


def test_messages_are_hidden_until_confirmed(driver):
    messages = [Message(b"", size=1) for _ in range(3)]
    driver.apply(Enqueue(messages))
    assert driver.lock(3) == driver.receive(3) == driver.peek() == []
    driver.apply(Confirm(messages[1].sequence_number))
    assert driver.effects == [MessagesAvailable(SubQueue.MAIN)]
    assert driver.peek() == driver.lock(3) == messages[:2]
    assert driver.partition.counts().active == 2


def test_confirming_what_is_confirmed_wakes_nobody(driver):
    (message,) = driver.send()
    driver.apply(Confirm(message.sequence_number))
    assert driver.effects == []


@pytest.mark.row("P-26")
def test_the_oldest_available_message_comes_first(driver):
    messages = driver.send(6)
    taken = driver.lock(4)
    assert taken == messages[:4]
    driver.settle(Release(tokens([taken[3], taken[1]])))
    assert driver.lock(3) == [messages[1], messages[3], messages[4]]


def test_a_lock_changes_nothing_durable(new_driver):
    driver = new_driver(number=7, lock_duration_s=30)
    driver.send(2)
    messages = driver.lock(5)
    assert driver.effects == []
    assert len(set(tokens(messages))) == 2
    assert all(token[:2] == b"\0\7" and len(token) == 16 for token in tokens(messages))
    assert [each.locked_until for each in messages] == [driver.now + 30_000] * 2


def test_receive_and_delete_removes_at_once(driver):
    messages = driver.send(3)
    assert driver.receive(2) == messages[:2]
    assert driver.effects == [RemoveMessages(messages[:2])]
    assert driver.peek() == messages[2:]


@pytest.mark.row("P-30")
def test_peek_finds_every_state_in_order(driver):
    messages = driver.send(5)
    locked = driver.lock(3)
    driver.settle(Defer(tokens(locked[:1])))
    driver.settle(Abandon(tokens(locked[1:2])))
    assert driver.peek() == messages
    assert driver.effects == []
    assert driver.peek(messages[1].sequence_number, 2) == messages[1:3]
    assert driver.peek(messages[4].sequence_number + 1) == []
    assert driver.peek(0, 0) == []
    assert [each.state for each in driver.peek(0, 2)] == [MessageState.DEFERRED, MessageState.ACTIVE]


@pytest.mark.row("P-30")
def test_repeated_peeks_reach_everything_once(driver):
    messages = driver.send(25)
    locked = driver.lock(12)
    driver.settle(Defer(tokens(locked[::3])))
    seen, start = [], 0
    while page := driver.peek(start, 4):
        seen += page
        start = page[-1].sequence_number + 1
    assert seen == messages


def test_peek_does_not_end_a_lock(driver):
    driver.send()
    (message,) = driver.lock()
    driver.later(61)
    assert driver.peek() == [message]
    assert driver.effects == []
    assert message.delivery_count == 0


def test_counts_tell_states_apart(driver):
    driver.send(5, size=10)
    locked = driver.lock(3)
    driver.settle(Defer(tokens(locked[:1])))
    counts = driver.partition.counts()
    assert (counts.active, counts.deferred, counts.scheduled, counts.locked) == (4, 1, 0, 2)
    assert counts.size_bytes == driver.partition.size_bytes == 50


def test_the_next_deadline_is_the_earliest_end(driver):
    assert driver.partition.next_deadline() is None
    driver.send(ttl_s=100)
    assert driver.partition.next_deadline() == driver.now + 100_000
    driver.lock()
    assert driver.partition.next_deadline() == driver.now + 60_000


def test_an_idle_partition_soon_needs_no_ticks(driver):
    driver.send(ttl_s=100)
    driver.settle(Complete(tokens(driver.lock())))
    for _ in range(3):
        deadline = driver.partition.next_deadline()
        if deadline is None:
            break
        driver.now = deadline
        driver.apply(Tick())
        assert driver.effects == []
    assert driver.partition.next_deadline() is None


def test_available_messages_are_counted_up_to_a_size(driver):
    driver.send(1, size=100)
    driver.send(3, size=40)
    driver.lock(1)
    assert driver.partition.available() == 3
    assert driver.partition.fitting(10, 120) == driver.partition.fitting(3, 1000) == 3
    assert driver.partition.fitting(10, 119) == 2
    assert driver.partition.fitting(1, 1000) == 1
    # The oldest always fits, or it would bar the way for ever.
    assert driver.partition.fitting(10, 1) == 1
    assert driver.partition.fitting(10, 1, SubQueue.DEAD_LETTER) == 0


def test_every_durable_message_is_listed_wherever_it_is(driver):
    messages = driver.send(4)
    locked = driver.lock(3)
    driver.settle(Defer(tokens(locked[:1])))
    driver.settle(DeadLetter(tokens(locked[1:2])))
    driver.apply(Enqueue([Message(b"", size=1)]))
    listed = list(driver.partition.confirmed())
    assert len(listed) == 4
    assert set(listed) == set(messages)


def stored(number: int, state: MessageState, subqueue: SubQueue) -> Message:
    message = Message(None, size=10)
    message.sequence_number = SequenceNumber(2 << 48 | number)
    message.state, message.subqueue = state, subqueue
    return message


def test_a_restored_partition_goes_on_where_its_store_left_it():
    partition = Partition(PartitionNumber(2), QueueDescription(EntityPath("orders")))
    assert partition.next_sequence_number == 2 << 48 | 1
    main = [stored(number, MessageState.ACTIVE, SubQueue.MAIN) for number in (9, 4)]
    deferred = stored(5, MessageState.DEFERRED, SubQueue.MAIN)
    scheduled = stored(6, MessageState.SCHEDULED, SubQueue.MAIN)
    dead = stored(3, MessageState.ACTIVE, SubQueue.DEAD_LETTER)
    partition.restore([*main, deferred, scheduled, dead])
    assert partition.next_sequence_number == 2 << 48 | 10
    counts = partition.counts()
    assert (counts.active, counts.deferred, counts.scheduled, counts.size_bytes) == (2, 1, 1, 40)
    assert partition.counts(SubQueue.DEAD_LETTER).active == 1
    reply, _ = partition.apply(Peek(SequenceNumber(0), 10), Instant(0))
    assert reply.messages == [main[1], deferred, scheduled, main[0]]


def test_the_stores_counter_wins_over_its_last_message():
    partition = Partition(
        PartitionNumber(2), QueueDescription(EntityPath("orders")), SequenceNumber(2 << 48 | 100)
    )
    partition.restore([stored(9, MessageState.ACTIVE, SubQueue.MAIN)])
    assert partition.next_sequence_number == 2 << 48 | 100


def test_messages_that_arrive_deferred_or_dead_are_never_offered() -> None:
    partition = Partition(PartitionNumber(0), QueueDescription(EntityPath("q")))
    messages = [Message(b"x", size=1) for _ in range(3)]
    messages[1].state = MessageState.DEFERRED
    messages[2].subqueue = SubQueue.DEAD_LETTER
    reply, _ = partition.apply(Enqueue(messages, shelved=True), Instant(1000))
    assert isinstance(reply, Enqueued)
    assert partition.counts().deferred == 0, "not before they are durable"
    partition.apply(Confirm(SequenceNumber(reply.first + 2)), Instant(1000))
    counts, dead = partition.counts(), partition.counts(SubQueue.DEAD_LETTER)
    assert (counts.active, counts.deferred, counts.size_bytes) == (1, 1, 2)
    assert (dead.active, dead.size_bytes) == (1, 1)
    assert partition.available() == 1
    # The next ones arrive as usual.
    reply, _ = partition.apply(Enqueue([Message(b"x", size=1)]), Instant(1000))
    assert isinstance(reply, Enqueued)
    partition.apply(Confirm(reply.first), Instant(1000))
    assert partition.available() == 2
