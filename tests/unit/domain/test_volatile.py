"""A partition passes to another broker, which has another clock, with its locks, sessions and rests."""

from __future__ import annotations

import pytest

from bendybus.domain.commands import (
    Abandon,
    Complete,
    Confirm,
    DeadLetter,
    Defer,
    Enqueue,
    Given,
    Lock,
    LockDeferred,
    Renew,
    Renewed,
    Settled,
    Tick,
)
from bendybus.domain.effects import MessagesAvailable, SessionsLost
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.session_commands import (
    AcceptSession,
    LockInSession,
    ReleaseSession,
    SessionAccepted,
    SessionLock,
)
from bendybus.errors import SessionCannotBeLocked
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SessionId
from unit.domain.conftest import Driver

# The clock of the next broker is an hour behind.
BEHIND_MS = 3_600_000
S = SessionId("s")


def new_driver(**properties: object) -> Driver:
    description = QueueDescription(EntityPath("q"), lock_duration_s=60, **properties)
    return Driver(Partition(PartitionNumber(3), description))


def moved(driver: Driver, piece: int = 1000) -> Driver:
    """The partition at the next broker: what the store has of it, and what the last owner remembers."""
    former = driver.partition
    state = former.remember(driver.now)
    partition = Partition(former.number, former.description, former.next_sequence_number)
    partition.restore([message.unlocked() for message in former.confirmed()])
    now = Instant(driver.now - BEHIND_MS)
    for each in state.pieces(piece):
        partition.recall(each, now)
    assert partition.counts() == former.counts()
    assert partition.remember(now) == state
    next_driver = Driver(partition, now)
    next_driver._locks = driver._locks
    return next_driver


def token_of(message: Message) -> LockToken:
    assert message.lock_token is not None
    return message.lock_token


def accept(driver: Driver, session: SessionId | None = S) -> SessionLock:
    accepted = driver.apply(AcceptSession(session, driver.entropy(1)))
    assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
    return accepted.lock


def send_in(driver: Driver, count: int, session: SessionId = S) -> list[Message]:
    messages = [Message(b"x", size=1, session_id=session) for _ in range(count)]
    driver.apply(Enqueue(messages))
    driver.apply(Confirm(messages[-1].sequence_number))
    return messages


def lock_in(driver: Driver, lock: SessionLock, count: int) -> list[Message]:
    given = driver.apply(LockInSession(lock, count, driver.entropy(count)))
    assert isinstance(given, Given)
    return given.messages


@pytest.mark.parametrize("piece", [1, 2, 1000])
def test_a_lock_is_valid_at_the_next_broker_for_as_long_as_it_was(piece: int) -> None:
    driver = new_driver()
    sent = driver.send(5)
    first = driver.lock(2)
    driver.later(30)
    second = driver.lock(1)

    there = moved(driver, piece)
    assert [each.sequence_number for each in there.lock(5)] == [each.sequence_number for each in sent[3:]]
    assert there.apply(Complete([token_of(first[0])])) == Settled([])
    renewed = there.apply(Renew([token_of(second[0])]))
    assert isinstance(renewed, Renewed) and renewed.locked_until == [there.now + 60_000]
    there.later(29.999)
    there.apply(Tick())
    assert there.partition.available() == 0
    there.later(0.001)
    there.apply(Tick())
    assert there.effect(MessagesAvailable) is not None
    assert there.apply(Complete([token_of(first[1])])) == Settled([token_of(first[1])])
    assert there.peek()[0].delivery_count == 1


def test_deferred_messages_and_dead_letters_stay_locked() -> None:
    driver = new_driver()
    driver.send(2)
    deferred, dead = driver.lock(2)
    driver.apply(Defer([token_of(deferred)]))
    driver.apply(DeadLetter([token_of(dead)]))
    given = driver.apply(LockDeferred([deferred.sequence_number], driver.entropy(1)))
    assert isinstance(given, Given)
    (dead,) = driver.lock(1, SubQueue.DEAD_LETTER)

    there = moved(driver)
    assert there.apply(Complete([token_of(given.messages[0])])) == Settled([])
    assert there.apply(Complete([token_of(dead)])) == Settled([])
    assert not there.peek() and not there.peek(subqueue=SubQueue.DEAD_LETTER)


def test_a_session_keeps_its_holder_and_its_order() -> None:
    driver = new_driver(requires_session=True)
    sent = send_in(driver, 4)
    lock = accept(driver)
    first, second = lock_in(driver, lock, 2)
    driver.apply(Defer([token_of(first)]))
    driver.apply(LockDeferred([first.sequence_number], driver.entropy(1), session=lock))

    there = moved(driver)
    with pytest.raises(SessionCannotBeLocked):
        accept(there)
    assert there.partition.available() == 0 and there.partition.has_session(lock)
    assert there.apply(Complete([token_of(first), token_of(second)])) == Settled([])
    assert [each.sequence_number for each in lock_in(there, lock, 5)] == [
        each.sequence_number for each in sent[2:]
    ]
    there.apply(ReleaseSession(lock))
    assert [each.sequence_number for each in lock_in(there, accept(there, None), 5)] == [
        each.sequence_number for each in sent[2:]
    ]


def test_a_session_without_messages_is_held_until_its_time_is_over() -> None:
    driver = new_driver(requires_session=True)
    lock = accept(driver)
    driver.later(59)
    there = moved(driver)
    there.later(1)
    there.apply(Tick())
    lost = there.effect(SessionsLost)
    assert lost is not None and list(lost.locks) == [lock]


def test_what_rests_goes_on_resting() -> None:
    driver = new_driver()
    first, second = driver.send(2)
    driver.lock(1)
    driver.apply(Abandon([token_of(first)], None, 10_000))

    there = moved(driver)
    assert [each.sequence_number for each in there.lock(2)] == [second.sequence_number]
    there.later(10)
    there.apply(Tick())
    assert [each.sequence_number for each in there.lock(2)] == [first.sequence_number]


def test_a_session_that_rests_goes_on_resting() -> None:
    driver = new_driver(requires_session=True)
    (sent,) = send_in(driver, 1)
    lock = accept(driver)
    (message,) = lock_in(driver, lock, 1)
    driver.apply(Abandon([token_of(message)], None, 10_000))

    there = moved(driver)
    assert lock_in(there, lock, 1) == []
    there.later(10)
    there.apply(Tick())
    assert [each.sequence_number for each in lock_in(there, lock, 1)] == [sent.sequence_number]


def test_what_the_store_no_longer_has_is_left_out() -> None:
    driver = new_driver()
    driver.send(2)
    driver.lock(2)
    state = driver.partition.remember(driver.now)
    empty = new_driver()
    empty.partition.recall(state, empty.now)
    assert empty.apply(Lock(5, empty.entropy(5))) == Given([])
    assert empty.apply(Complete([lock.token for lock in state.locks])) == Settled(
        [lock.token for lock in state.locks]
    )
