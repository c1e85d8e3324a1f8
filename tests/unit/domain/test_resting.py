"""Messages that are abandoned with a delay: they rest, come back to their place, and hold back a session."""

from __future__ import annotations

import pytest

from bendybus.domain.commands import (
    Abandon,
    Confirm,
    Deleted,
    DeleteOldest,
    Enqueue,
    Given,
    Lock,
    MoveLockEnds,
    Tick,
)
from bendybus.domain.effects import MessagesAvailable, SessionsReady
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.resting import delay_ms
from bendybus.domain.session_commands import AcceptSession, LockInSession, ReleaseSession, SessionAccepted
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber, SessionId

AT = Instant(1_000_000)


def partition_of(count: int, session_id: str | None = None, **properties: object) -> Partition:
    description = QueueDescription(
        EntityPath("q"), requires_session=session_id is not None, lock_duration_s=300, **properties
    )
    partition = Partition(PartitionNumber(0), description)
    messages = [Message(b"x", size=1) for _ in range(count)]
    for message in messages:
        message.session_id = None if session_id is None else SessionId(session_id)
    partition.apply(Enqueue(messages), AT)
    partition.apply(Confirm(SequenceNumber(count)), AT)
    return partition


def lock(partition: Partition, count: int, at: int) -> list[Message]:
    given, _ = partition.apply(Lock(count, at.to_bytes(14, "big") * count), Instant(at))
    assert isinstance(given, Given)
    return given.messages


def numbers(messages: list[Message]) -> list[int]:
    return [message.sequence_number for message in messages]


def abandon(partition: Partition, messages: list[Message], at: int, delay: int | None = None) -> None:
    tokens = [message.lock_token for message in messages if message.lock_token is not None]
    partition.apply(Abandon(tokens, None, delay), Instant(at))


@pytest.mark.row("B-02")
def test_an_abandoned_message_rests_and_comes_back_to_its_place() -> None:
    partition = partition_of(3)
    (first,) = lock(partition, 1, AT)
    abandon(partition, [first], AT, 10_000)
    assert partition.next_deadline() == AT + 10_000
    counts = partition.counts()
    assert (counts.active, counts.locked) == (3, 1)
    (second,) = lock(partition, 1, AT + 9_999)
    assert second.sequence_number == 2
    _, effects = partition.apply(Tick(), Instant(AT + 10_000))
    assert any(isinstance(effect, MessagesAvailable) for effect in effects)
    (again,) = lock(partition, 1, AT + 10_000)
    assert (again.sequence_number, again.delivery_count) == (1, 1)
    assert len(list(partition.confirmed())) == 3


def test_it_is_dead_lettered_and_does_not_rest_after_the_last_delivery() -> None:
    partition = partition_of(1, max_delivery_count=1)
    abandon(partition, lock(partition, 1, AT), AT, 10_000)
    assert partition.counts(SubQueue.DEAD_LETTER).active == 1
    assert partition.counts().locked == 0


def test_the_entity_says_how_long_if_the_receiver_does_not() -> None:
    partition = partition_of(1, retry_delay_s=5, retry_delay_factor=3, retry_delay_max_s=20)
    at = int(AT)
    for rest in (5_000, 15_000, 20_000, 20_000):
        abandon(partition, lock(partition, 1, at), at)
        assert lock(partition, 1, at + rest - 1) == []
        at += rest
    abandon(partition, lock(partition, 1, at), at, 0)
    assert len(lock(partition, 1, at)) == 1


def test_a_delay_grows_up_to_its_limit() -> None:
    description = QueueDescription(EntityPath("q"), retry_delay_s=1, retry_delay_factor=10)
    assert [delay_ms(description, count) for count in (1, 2, 3, 4, 9999)] == [
        1000,
        10_000,
        100_000,
        600_000,
        600_000,
    ]
    assert delay_ms(QueueDescription(EntityPath("q")), 5) == 0


def test_a_clock_that_is_set_back_leaves_a_rest_as_long_as_it_was() -> None:
    partition = partition_of(1)
    abandon(partition, lock(partition, 1, AT), AT, 10_000)
    partition.apply(MoveLockEnds(5_000), Instant(AT - 5_000))
    assert partition.next_deadline() == AT + 5_000


# -- sessions ---------------------------------------------------------------------------


@pytest.mark.row("B-02")
def test_nothing_of_a_session_overtakes_a_message_that_rests() -> None:
    partition = partition_of(3, "s")
    accepted, _ = partition.apply(AcceptSession(SessionId("s"), bytes(14)), AT)
    assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
    held = accepted.lock

    def lock_next(at: int) -> list[Message]:
        if not partition.fitting_in_session(held, 1, 100):
            return []
        given, _ = partition.apply(LockInSession(held, 1, bytes(range(1, 15))), Instant(at))
        assert isinstance(given, Given)
        return given.messages

    abandon(partition, lock_next(AT), AT, 10_000)
    assert lock_next(AT) == []
    given, _ = partition.apply(LockInSession(held, 1, bytes(14)), AT)
    assert given == Given([])
    _, effects = partition.apply(Tick(), Instant(AT + 10_000))
    assert any(isinstance(effect, SessionsReady) for effect in effects)
    assert numbers(lock_next(AT + 10_000)) == [1]


def test_a_session_that_rests_is_offered_to_nobody_until_its_time_is_over() -> None:
    partition = partition_of(2, "s")
    accepted, _ = partition.apply(AcceptSession(None, bytes(14)), AT)
    given, _ = partition.apply(LockInSession(accepted.lock, 1, bytes(range(1, 15))), AT)
    abandon(partition, given.messages, AT, 600_000)
    # The lock of the session ends first.
    partition.apply(Tick(), Instant(AT + 300_000))
    assert partition.available() == 0
    partition.apply(Tick(), Instant(AT + 600_000))
    assert partition.available() == 1


def test_a_clock_that_is_set_back_leaves_the_longest_rest_of_a_session() -> None:
    partition = partition_of(3, "ada")
    other = Message(b"x", size=1, session_id=SessionId("bob"))
    partition.apply(Enqueue([other]), AT)
    partition.apply(Confirm(other.sequence_number), AT)
    rests = {"bob": [5_000], "ada": [10_000, 20_000, 30_000]}
    for turn, (name, delays) in enumerate(rests.items()):
        accepted, _ = partition.apply(AcceptSession(SessionId(name), bytes([turn]) * 14), AT)
        assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
        count = len(delays)
        entropy = bytes(range(100 * turn, 100 * turn + 14 * count))
        given, _ = partition.apply(LockInSession(accepted.lock, count, entropy), AT)
        assert isinstance(given, Given)
        for message, delay in zip(given.messages, delays, strict=True):
            abandon(partition, [message], AT, delay)
        partition.apply(ReleaseSession(accepted.lock), AT)
    partition.apply(Tick(), Instant(AT + 6_000))
    assert partition.available() == 1
    partition.apply(MoveLockEnds(6_000), AT)
    for left_ms, available in ((23_999, 1), (24_000, 2)):
        partition.apply(Tick(), Instant(AT + left_ms))
        assert partition.available() == available


def send_in(partition: Partition, session_id: str, at: int) -> None:
    message = Message(b"x", size=1, session_id=SessionId(session_id))
    partition.apply(Enqueue([message]), Instant(at))
    partition.apply(Confirm(message.sequence_number), Instant(at))


def rest_in(partition: Partition, session_id: str, delay: int) -> None:
    """A receiver accepts the session, abandons its first message with a delay, and leaves."""
    accepted, _ = partition.apply(AcceptSession(SessionId(session_id), bytes(14)), AT)
    assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
    given, _ = partition.apply(LockInSession(accepted.lock, 1, bytes(range(1, 15))), AT)
    assert isinstance(given, Given)
    abandon(partition, given.messages, AT, delay)
    partition.apply(ReleaseSession(accepted.lock), AT)


@pytest.mark.parametrize("sent_before", [1, 2])
def test_what_deleting_the_oldest_leaves_of_a_session_still_rests(sent_before: int) -> None:
    partition = partition_of(sent_before, "s")
    rest_in(partition, "s", 10_000)
    send_in(partition, "s", AT + 1)
    deleted, _ = partition.apply(DeleteOldest(10, Instant(AT + 1)), Instant(AT + 2))
    assert deleted == Deleted(sent_before)
    partition.apply(Tick(), Instant(AT + 9_999))
    assert partition.available() == 0
    partition.apply(Tick(), Instant(AT + 10_000))
    assert partition.available() == 1


def test_deleting_nothing_leaves_a_session_resting() -> None:
    partition = partition_of(2, "s")
    rest_in(partition, "s", 10_000)
    deleted, _ = partition.apply(DeleteOldest(10, AT), AT)
    assert deleted == Deleted(0)
    assert partition.available() == 0


@pytest.mark.parametrize("held", [True, False])
def test_the_rest_of_a_session_ends_when_all_its_messages_are_deleted(held: bool) -> None:
    partition = partition_of(1, "s")
    rest_in(partition, "s", 10_000)
    if held:
        accepted, _ = partition.apply(AcceptSession(SessionId("s"), bytes(14)), AT)
        assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
    deleted, _ = partition.apply(DeleteOldest(10, Instant(AT + 1)), AT)
    assert deleted == Deleted(1)
    assert partition.remember(AT).resting_sessions == []
    send_in(partition, "s", AT)
    if held:
        given, _ = partition.apply(LockInSession(accepted.lock, 1, bytes(14)), AT)
        assert isinstance(given, Given) and len(given.messages) == 1
    else:
        assert partition.available() == 1
