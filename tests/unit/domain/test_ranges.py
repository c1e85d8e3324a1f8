"""Reading by ranges: a mark that can be trusted, and removing that can be repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain.commands import Confirm, DeadLetter, Defer, Done, Enqueue, Enqueued, Tick
from bendybus.domain.effects import RemoveMessages
from bendybus.domain.entities import QueueDescription
from bendybus.domain.handlers.ranges import SCANNED_MAX
from bendybus.domain.leases import ConsumerLeases, LeaseRequest
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.range_commands import (
    Browse,
    Browsed,
    Discard,
    Discarded,
    DiscardThrough,
    Survey,
    Surveyed,
)
from bendybus.domain.schedule import postpone
from bendybus.errors import ConsumerLeaseHeld, InvalidOperation
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber, SessionId

ACTIVE = (MessageState.ACTIVE,)
EVERYTHING = 1 << 60


def survey(driver, subqueue=SubQueue.MAIN) -> Surveyed:
    reply = driver.apply(Survey(subqueue))
    assert isinstance(reply, Surveyed)
    return reply


def browse(
    driver, first=0, last=EVERYTHING, count=1000, size_max=1 << 30, states=ACTIVE, **filters
) -> Browsed:
    reply = driver.apply(
        Browse(SequenceNumber(first), SequenceNumber(last), count, size_max, states, **filters)
    )
    assert isinstance(reply, Browsed)
    return reply


def discard_through(driver, number, states=ACTIVE) -> int:
    reply = driver.apply(DiscardThrough(SequenceNumber(number), states))
    assert isinstance(reply, Discarded)
    return reply.count


def numbers(messages) -> list[int]:
    return [message.sequence_number for message in messages]


# -- the mark -------------------------------------------------------------------------


@pytest.mark.row("S-02")
def test_the_mark_stops_below_what_is_not_durable(driver):
    driver.send(3)
    waiting = [Message(b"x", size=1) for _ in range(2)]
    driver.apply(Enqueue(waiting))
    assert (survey(driver).stable, survey(driver).next) == (3, 6)
    driver.apply(Confirm(waiting[0].sequence_number))
    assert survey(driver).stable == 4
    driver.apply(Confirm(waiting[1].sequence_number))
    assert survey(driver).stable == 5


def test_a_drained_partition_keeps_its_mark(driver):
    driver.send(3)
    driver.receive(3)
    assert survey(driver).stable == 3
    assert survey(driver).first == survey(driver).next == 4


def test_a_message_that_is_not_durable_yet_is_not_missing(driver):
    """The oldest message is the one that is being written, though it is not to be seen yet."""
    driver.send(1)
    driver.receive(1)
    driver.apply(Enqueue([Message(b"x", size=1)]))
    assert (survey(driver).first, survey(driver).next) == (2, 3)
    message = Message(b"x", size=1)
    postpone(message, driver.now, Instant(driver.now + 1000))
    driver.apply(Enqueue([message]))
    driver.apply(Confirm(message.sequence_number))
    driver.receive(1)
    driver.later(2)
    driver.apply(Tick())
    assert (survey(driver).first, survey(driver).next) == (4, 5)


def test_an_activated_message_is_above_the_mark_until_its_new_number_is_durable(driver):
    message = Message(b"x", size=1)
    postpone(message, driver.now, Instant(driver.now + 1000))
    driver.apply(Enqueue([message]))
    driver.apply(Confirm(message.sequence_number))
    driver.send(1)
    assert survey(driver).stable == 2
    driver.later(2)
    activated = driver.apply(Tick())
    assert activated == Enqueued(SequenceNumber(3), 1)
    assert survey(driver).stable == 2
    driver.apply(Confirm(SequenceNumber(3)))
    assert survey(driver).stable == 3
    assert numbers(browse(driver).messages) == [2, 3]


@given(st.lists(st.sampled_from(["send", "schedule", "confirm", "tick"]), max_size=40))
def test_nothing_new_ever_appears_at_or_below_a_mark(steps):
    partition = Partition(PartitionNumber(3), QueueDescription(EntityPath("q")))
    at = Instant(1_000_000)
    unconfirmed: list[int] = []
    seen: set[int] = set()
    mark = 0
    for step in steps:
        at = Instant(at + 100)
        if step == "confirm" and unconfirmed:
            partition.apply(Confirm(SequenceNumber(unconfirmed.pop(0))), at)
        elif step == "tick":
            reply, _ = partition.apply(Tick(), at)
            if not isinstance(reply, Done):
                unconfirmed.append(reply.first + reply.count - 1)
        elif step in ("send", "schedule"):
            messages = [Message(b"x", size=1) for _ in range(2)]
            if step == "schedule":
                postpone(messages[0], at, Instant(at + 250))
            reply, _ = partition.apply(Enqueue(messages), at)
            unconfirmed.append(reply.first + reply.count - 1)
        shown, _ = partition.apply(
            Browse(SequenceNumber(0), SequenceNumber(EVERYTHING), 1000, 1 << 30, ACTIVE), at
        )
        now_seen = set(numbers(shown.messages))
        assert not {number for number in now_seen - seen if number <= mark}
        seen |= now_seen
        surveyed, _ = partition.apply(Survey(), at)
        assert surveyed.stable >= mark
        mark = surveyed.stable


# -- looking --------------------------------------------------------------------------


def test_a_range_is_given_in_pieces_of_the_size_asked_for(driver):
    driver.send(10, size=100)
    found, start = [], 2
    pieces = 0
    while start is not None:
        piece = browse(driver, start, 9, size_max=300)
        found += numbers(piece.messages)
        start = piece.next
        pieces += 1
    assert found == [*range(2, 10)]
    assert pieces == 3


def test_one_message_is_given_however_large_it_is(driver):
    driver.send(2, size=1000)
    assert numbers(browse(driver, size_max=1).messages) == [1]


def test_locked_messages_are_shown_and_other_states_only_when_asked_for(driver):
    driver.send(4)
    first, second = driver.lock(2)
    driver.settle(Defer([second.lock_token]))
    assert numbers(browse(driver).messages) == [1, 3, 4]
    assert numbers(browse(driver, states=(MessageState.DEFERRED,)).messages) == [2]
    assert numbers(browse(driver, states=(MessageState.DEFERRED, *ACTIVE)).messages) == [1, 2, 3, 4]
    assert first.lock_token is not None


def test_sessions_and_times_can_be_picked(driver):
    for name in ("a", "b", "a"):
        message = Message(b"x", size=1, session_id=SessionId(name))
        driver.apply(Enqueue([message]))
        driver.apply(Confirm(message.sequence_number))
        driver.later(1)
    assert numbers(browse(driver, session_id="a").messages) == [1, 3]
    assert numbers(browse(driver, enqueued_from=Instant(driver.now - 2000)).messages) == [2, 3]
    assert numbers(browse(driver, enqueued_before=Instant(driver.now - 2000)).messages) == [1]


def test_a_filter_that_lets_nothing_pass_looks_at_so_many_and_says_where_to_go_on(driver):
    driver.send(SCANNED_MAX + 5)
    found = browse(driver, session_id="nobody")
    assert (found.messages, found.next) == ([], SCANNED_MAX + 1)
    assert browse(driver, found.next, session_id="nobody") == Browsed([], None)


# -- removing -------------------------------------------------------------------------


@pytest.mark.row("S-03")
def test_removing_up_to_a_number_is_durable_and_can_be_repeated(driver):
    driver.send(5, size=10)
    assert discard_through(driver, 3) == 3
    removed = driver.effect(RemoveMessages)
    assert removed is not None and numbers(removed.messages) == [1, 2, 3]
    assert discard_through(driver, 3) == 0
    assert driver.effects == []
    assert numbers(driver.peek()) == [4, 5]
    assert driver.partition.size_bytes == 20


def test_removing_passes_by_what_the_reader_did_not_see(driver):
    driver.send(3)
    (first,) = driver.lock(1)
    driver.settle(Defer([first.lock_token]))
    later = Message(b"x", size=1)
    postpone(later, driver.now, Instant(driver.now + 10_000))
    driver.apply(Enqueue([later]))
    driver.apply(Confirm(later.sequence_number))
    assert discard_through(driver, 4) == 2
    assert [message.state for message in driver.peek()] == [MessageState.DEFERRED, MessageState.SCHEDULED]
    assert discard_through(driver, 4, (MessageState.DEFERRED,)) == 1


def test_nothing_is_removed_while_a_receiver_holds_some_of_it(driver):
    driver.send(3)
    driver.lock(1)
    with pytest.raises(InvalidOperation, match="locked"):
        discard_through(driver, 2)
    assert driver.partition.counts().active == 3


def test_single_messages_are_removed_by_their_numbers_from_dead_letters_too(driver):
    driver.send(4)
    locked = driver.lock(3)
    driver.settle(DeadLetter([message.lock_token for message in locked]))
    reply = driver.apply(
        Discard([SequenceNumber(1), SequenceNumber(3), SequenceNumber(99)], SubQueue.DEAD_LETTER)
    )
    assert reply == Discarded(2)
    assert numbers(driver.peek(subqueue=SubQueue.DEAD_LETTER)) == [2]
    assert numbers(driver.peek()) == [4]


# -- leases ---------------------------------------------------------------------------


def test_one_consumer_has_the_lease_until_it_ends():
    leases = ConsumerLeases()
    leases.acquire(SubQueue.MAIN, "a", Instant(2000), Instant(1000))
    leases.acquire(SubQueue.MAIN, "a", Instant(3000), Instant(1500))
    with pytest.raises(ConsumerLeaseHeld, match="'a' has the lease for 1 seconds"):
        leases.acquire(SubQueue.MAIN, "b", Instant(4000), Instant(2500))
    leases.require(SubQueue.MAIN, "a")
    leases.acquire(SubQueue.MAIN, "b", Instant(4000), Instant(3000))
    with pytest.raises(ConsumerLeaseHeld, match="'b' has"):
        leases.require(SubQueue.MAIN, "a")


def test_a_lease_is_given_up_by_its_holder_alone():
    leases = ConsumerLeases()
    leases.acquire(SubQueue.MAIN, "a", Instant(2000), Instant(1000))
    leases.release(SubQueue.MAIN, "b")
    leases.require(SubQueue.MAIN, "a")
    leases.release(SubQueue.MAIN, "a")
    with pytest.raises(ConsumerLeaseHeld, match="nobody has"):
        leases.require(SubQueue.MAIN, "a")


def test_a_lease_passes_to_another_owner_with_the_time_that_is_left():
    leases = ConsumerLeases()
    leases.acquire(SubQueue.MAIN, "a", Instant(2000), Instant(1000))
    leases.acquire(SubQueue.DEAD_LETTER, "c", Instant(1200), Instant(1000))

    next_leases = ConsumerLeases()
    next_leases.recall(leases.remember(Instant(1500)), Instant(70_000))

    with pytest.raises(ConsumerLeaseHeld, match="'a' has the lease for 1 seconds"):
        next_leases.serve(LeaseRequest("b", SubQueue.MAIN, 1000), Instant(70_499))
    next_leases.serve(LeaseRequest("b", SubQueue.MAIN, 1000), Instant(70_500))
    # A lease that has expired is still the last one.
    next_leases.serve(LeaseRequest("c", SubQueue.DEAD_LETTER, None), Instant(70_500))
    next_leases.serve(LeaseRequest("d", SubQueue.DEAD_LETTER, 1000), Instant(70_500))
