"""Sessions of a partition: one holder each, their order, their locks and their states."""

from __future__ import annotations

import pytest

from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Abandon,
    Complete,
    Confirm,
    DeadLetter,
    Defer,
    Deleted,
    DeleteOldest,
    Enqueue,
    Given,
    Lock,
    LockDeferred,
    Peek,
    Receive,
    Renew,
    Renewed,
    Tick,
)
from bendybus.domain.effects import (
    MessagesAvailable,
    SaveSessionState,
    SessionsLost,
    SessionsReady,
    UpdateMessages,
)
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.session_commands import (
    AcceptSession,
    FindSessionState,
    GivenInSessions,
    ListSessions,
    LockInSession,
    LockInSessions,
    ReleaseSession,
    RenewSession,
    SessionAccepted,
    SessionLock,
    SessionsListed,
    SessionStateFound,
    SetSessionState,
)
from bendybus.errors import (
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    QuotaExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
)
from bendybus.names import Instant, LockToken, SequenceNumber, SessionId
from unit.domain.conftest import Driver, NewDriver

A, B, C = SessionId("a"), SessionId("b"), SessionId("c")


@pytest.fixture
def driver(new_driver: NewDriver) -> Driver:
    return new_driver(requires_session=True, lock_duration_s=30, max_delivery_count=3)


def send(driver: Driver, *sessions: SessionId, ttl_s: float | None = None) -> list[Message]:
    expires_at = None if ttl_s is None else Instant(driver.now + int(ttl_s * 1000))
    messages = [Message(b"payload", size=100, expires_at=expires_at, session_id=each) for each in sessions]
    driver.apply(Enqueue(messages))
    driver.apply(Confirm(messages[-1].sequence_number))
    return messages


def accept(driver: Driver, session_id: SessionId | None = None) -> SessionLock | None:
    reply = driver.apply(AcceptSession(session_id, driver.entropy(1)))
    assert isinstance(reply, SessionAccepted)
    return reply.lock


def accepted(driver: Driver, session_id: SessionId | None = None) -> SessionLock:
    lock = accept(driver, session_id)
    assert lock is not None
    return lock


def take(driver: Driver, lock: SessionLock, count: int = 10) -> list[Message]:
    reply = driver.apply(LockInSession(lock, count, driver.entropy(count)))
    assert isinstance(reply, Given)
    return reply.messages


def tokens(messages: list[Message]) -> list[LockToken]:
    return [message.lock_token for message in messages if message.lock_token is not None]


# -- accepting --------------------------------------------------------------------


def test_the_session_that_has_waited_longest_comes_first_and_is_last_afterwards(driver: Driver) -> None:
    send(driver, A, B, A, C)
    first, second = accepted(driver), accepted(driver)
    assert (first.session_id, second.session_id) == (A, B)
    driver.apply(ReleaseSession(first))
    driver.apply(ReleaseSession(second))
    assert [accepted(driver).session_id for _ in range(3)] == [C, A, B]
    assert accept(driver) is None


def test_a_session_has_one_holder(driver: Driver) -> None:
    send(driver, A)
    accepted(driver, A)
    with pytest.raises(SessionCannotBeLocked, match="'a' cannot be accepted"):
        accept(driver, A)
    assert accept(driver) is None


def test_a_session_without_messages_can_be_accepted_by_name(driver: Driver) -> None:
    lock = accepted(driver, SessionId(""))
    (message,) = send(driver, SessionId(""))
    ready = driver.effect(SessionsReady)
    assert ready is not None
    assert ready.locks == [lock]
    assert take(driver, lock) == [message]


def test_the_next_session_is_one_whose_messages_are_alive(driver: Driver) -> None:
    send(driver, A, ttl_s=10)
    send(driver, B)
    driver.later(10)
    assert accepted(driver).session_id == B
    assert driver.apply(ListSessions(None, 0, 10)) == SessionsListed([B], 1)


def test_who_waits_is_told_of_a_session_that_becomes_free(driver: Driver) -> None:
    send(driver, A)
    lock = accepted(driver)
    driver.apply(ReleaseSession(lock))
    assert driver.effect(MessagesAvailable) == MessagesAvailable(SubQueue.MAIN)
    assert driver.partition.available() == 1


# -- order ------------------------------------------------------------------------


@pytest.mark.row("P-13")
def test_messages_come_in_order_whatever_comes_between_and_back(driver: Driver) -> None:
    messages = send(driver, A, B, A, B, A)
    mine = messages[::2]
    lock = accepted(driver, A)
    assert take(driver, lock) == mine
    driver.settle(Abandon(tokens(mine[1:2])))
    driver.settle(Abandon(tokens(mine[:1])))
    assert take(driver, lock) == mine[:2]


def test_a_message_given_back_is_told_to_the_holder_alone(driver: Driver) -> None:
    send(driver, A)
    lock = accepted(driver, A)
    driver.settle(Abandon(tokens(take(driver, lock))))
    ready = driver.effect(SessionsReady)
    assert ready is not None
    assert ready.locks == [lock]
    assert accept(driver) is None


# -- locks ------------------------------------------------------------------------


def test_message_locks_follow_the_session(driver: Driver) -> None:
    send(driver, A, A)
    lock = accepted(driver, A)
    driver.later(20)
    (message,) = take(driver, lock, 1)
    assert message.locked_until == driver.now + 10_000
    renewed = driver.apply(RenewSession(lock))
    assert renewed == SessionAccepted(lock, Instant(driver.now + 30_000))
    assert message.locked_until == driver.now + 30_000
    driver.later(10)
    assert driver.apply(Renew(tokens([message]))) == Renewed([message.locked_until])
    assert message.locked_until == driver.now + 20_000
    assert driver.settle(Complete(tokens([message]))) == []


def test_a_session_that_runs_out_counts_its_messages_and_becomes_free(driver: Driver) -> None:
    messages = send(driver, A, A, A)
    lock = accepted(driver, A)
    held = take(driver, lock, 2)
    lost = tokens(held)
    driver.later(30)
    assert driver.partition.next_deadline() == driver.now
    driver.apply(Tick())
    told = driver.effect(SessionsLost)
    assert told is not None
    assert told.locks == [lock]
    assert [message.delivery_count for message in messages] == [1, 1, 0]
    assert driver.settle(Complete(lost)) == lost
    assert take(driver, accepted(driver)) == messages


def test_the_last_attempt_of_a_lost_session_dead_letters(driver: Driver) -> None:
    (message,) = send(driver, A)
    for _ in range(3):
        take(driver, accepted(driver, A))
        driver.later(30)
    driver.apply(Tick())
    assert message.subqueue is SubQueue.DEAD_LETTER
    # What is dead-lettered has no session to be held: whoever asks gets it.
    assert driver.lock(1, SubQueue.DEAD_LETTER) == [message]
    assert accept(driver) is None


@pytest.mark.row("P-28")
def test_a_holder_that_leaves_gives_back_uncounted(driver: Driver) -> None:
    messages = send(driver, A, A)
    lock = accepted(driver, A)
    take(driver, lock)
    driver.apply(ReleaseSession(lock))
    assert driver.effect(UpdateMessages) is None
    assert [message.delivery_count for message in messages] == [0, 0]
    assert take(driver, accepted(driver)) == messages


@pytest.mark.parametrize("how", ["runs out", "is released", "is another's"])
def test_a_lost_lock_allows_nothing(driver: Driver, how: str) -> None:
    messages = send(driver, A)
    lock = accepted(driver, A)
    if how == "runs out":
        driver.later(30)
    else:
        driver.apply(ReleaseSession(lock))
    if how == "is another's":
        accepted(driver, A)
    for command in (
        LockInSession(lock, 1, driver.entropy(1)),
        RenewSession(lock),
        SetSessionState(lock, b"x"),
        FindSessionState(lock),
        LockDeferred([messages[0].sequence_number], driver.entropy(1), session=lock),
    ):
        with pytest.raises(SessionLockLost, match="'a'"):
            driver.apply(command)


def test_a_lost_lock_that_nobody_noticed_can_be_taken_over(driver: Driver) -> None:
    send(driver, A)
    old = accepted(driver, A)
    driver.later(30)
    new = accepted(driver, A)
    assert new != old
    told = driver.effect(SessionsLost)
    assert told is not None
    assert told.locks == [old]


# -- several sessions at once -----------------------------------------------------


def test_messages_of_several_sessions_are_locked_by_one_command(driver: Driver) -> None:
    a1, b1, a2, a3 = send(driver, A, B, A, A)
    first, second, empty = accepted(driver, A), accepted(driver, B), accepted(driver, C)
    reply = driver.apply(LockInSessions([(first, 2), (second, 5), (empty, 5)], driver.entropy(12)))
    assert isinstance(reply, GivenInSessions)
    assert reply.given == [(first, [a1, a2], True), (second, [b1], False), (empty, [], False)]
    assert len(set(tokens([a1, a2, b1]))) == 3
    assert a3.lock_token is None


def test_messages_that_are_locked_together_never_share_a_token(driver: Driver) -> None:
    messages = send(driver, A, B, B, C, C, C)
    wanted = [(accepted(driver, each), 5) for each in (A, B, C)]
    driver.apply(LockInSessions(wanted, driver.entropy(6)))
    assert len(set(tokens(messages))) == 6


def test_of_several_sessions_those_that_are_lost_are_given_nothing(driver: Driver) -> None:
    _, b1 = send(driver, A, B)
    lost, held = accepted(driver, A), accepted(driver, B)
    driver.apply(ReleaseSession(lost))
    reply = driver.apply(LockInSessions([(lost, 1), (held, 1)], driver.entropy(2)))
    assert isinstance(reply, GivenInSessions)
    assert reply.given == [(held, [b1], False)]


def test_what_several_sessions_are_given_fits_into_a_page(driver: Driver) -> None:
    send(driver, A, B, A, C)
    a, b, c = accepted(driver, A), accepted(driver, B), accepted(driver, C)
    wanted = [(a, 5), (b, 5), (c, 5)]
    assert driver.partition.fitting_in_sessions(wanted, 1000) == ([(a, 2), (b, 1), (c, 1)], 4, 3)
    assert driver.partition.fitting_in_sessions(wanted, 300) == ([(a, 2), (b, 1)], 3, 2)
    assert driver.partition.fitting_in_sessions(wanted, 250) == ([(a, 2)], 2, 1)
    assert driver.partition.fitting_in_sessions(wanted, 1) == ([(a, 1)], 1, 1)


# -- what has no session ----------------------------------------------------------


def test_a_message_without_a_session_is_refused(driver: Driver) -> None:
    with pytest.raises(InvalidOperation, match="SessionId was not set"):
        driver.apply(Enqueue([Message(b"", size=1, session_id=A), Message(b"", size=1)]))
    assert driver.partition.next_sequence_number == 1


@pytest.mark.parametrize("command", [Lock(1, bytes(ENTROPY_PER_LOCK)), Receive(1)])
def test_who_holds_no_session_gets_nothing(driver: Driver, command: Lock | Receive) -> None:
    send(driver, A)
    with pytest.raises(InvalidOperation, match="requires sessions"):
        driver.apply(command)


def test_an_entity_without_sessions_gives_none(new_driver: NewDriver) -> None:
    with pytest.raises(InvalidOperation, match="does not require sessions"):
        accept(new_driver())


# -- by number --------------------------------------------------------------------


def test_deferred_messages_are_the_holders(driver: Driver) -> None:
    first, other = send(driver, A, B)
    mine, theirs = accepted(driver, A), accepted(driver, B)
    driver.settle(Defer(tokens(take(driver, mine))))
    driver.settle(Defer(tokens(take(driver, theirs))))
    numbers = [first.sequence_number, other.sequence_number]
    with pytest.raises(MessageNotFound, match=str(other.sequence_number)):
        driver.apply(LockDeferred(numbers, driver.entropy(2), session=mine))
    with pytest.raises(InvalidOperation):
        driver.apply(LockDeferred(numbers[:1], driver.entropy(1)))
    given = driver.apply(LockDeferred(numbers[:1], driver.entropy(1), session=mine))
    assert given == Given([first])
    assert driver.settle(DeadLetter(tokens([first]))) == []


def test_a_browser_sees_one_session_or_all(driver: Driver) -> None:
    messages = send(driver, A, B, A, A)
    lock = accepted(driver, A)
    driver.settle(Defer(tokens(take(driver, lock, 1))))
    take(driver, lock, 1)
    assert driver.peek() == messages
    assert driver.apply(Peek(SequenceNumber(0), 10, session_id=A)) == Given([messages[0], *messages[2:]])
    assert driver.apply(Peek(SequenceNumber(2), 1, session_id=A)) == Given([messages[2]])


# -- state ------------------------------------------------------------------------


def test_a_state_is_saved_counts_and_outlives_messages_and_holders(driver: Driver) -> None:
    lock = accepted(driver, A)
    driver.apply(SetSessionState(lock, b"12345"))
    saved = driver.effect(SaveSessionState)
    assert saved == SaveSessionState(A, b"12345", driver.now)
    driver.apply(ReleaseSession(lock))
    assert driver.partition.size_bytes == 5
    assert driver.apply(FindSessionState(accepted(driver, A))) == SessionStateFound(5, A)


def test_no_state_is_none_and_an_empty_one_is_one(driver: Driver) -> None:
    lock = accepted(driver, A)
    assert driver.apply(FindSessionState(lock)) == SessionStateFound(None, A)
    driver.apply(SetSessionState(lock, b""))
    assert driver.apply(FindSessionState(lock)) == SessionStateFound(0, A)
    driver.apply(SetSessionState(lock, None))
    assert driver.apply(FindSessionState(lock)) == SessionStateFound(None, A)
    assert driver.apply(ListSessions(None, 0, 10)) == SessionsListed([], 0)


def test_a_state_may_be_as_large_as_a_message(new_driver: NewDriver) -> None:
    driver = new_driver(requires_session=True, max_message_size_kb=256)
    lock = accepted(driver, A)
    driver.apply(SetSessionState(lock, bytes(256 * 1024)))
    with pytest.raises(MessageSizeExceeded, match="262145 bytes"):
        driver.apply(SetSessionState(lock, bytes(256 * 1024 + 1)))
    assert driver.partition.size_bytes == 256 * 1024


def test_a_state_is_held_against_the_quota(driver: Driver) -> None:
    lock = accepted(driver, A)
    driver.apply(SetSessionState(lock, bytes(100)))
    driver.partition._parts.stock.shelves[SubQueue.MAIN].size_bytes = 1024 << 20
    with pytest.raises(QuotaExceeded):
        driver.apply(SetSessionState(lock, bytes(101)))
    driver.apply(SetSessionState(lock, bytes(99)))


def test_states_are_restored(driver: Driver) -> None:
    restored = Driver(Partition(driver.partition.number, driver.partition.description), driver.now)
    restored.partition.restore([], sessions=[(A, 7, Instant(driver.now - 10)), (B, 9, driver.now)])
    assert restored.partition.size_bytes == 16
    assert restored.apply(ListSessions(None, 0, 10)) == SessionsListed([A, B], 2)
    assert restored.apply(ListSessions(Instant(driver.now - 10), 0, 10)) == SessionsListed([B], 1)
    assert restored.apply(ListSessions(None, 1, 1)) == SessionsListed([B], 2)


def test_nothing_is_kept_of_a_session_that_is_over(driver: Driver) -> None:
    for number in range(50):
        session_id = SessionId(str(number))
        send(driver, session_id)
        lock = accepted(driver)
        driver.settle(Complete(tokens(take(driver, lock))))
        driver.apply(ReleaseSession(lock))
    locks = driver.partition._parts.stock.session_locks
    assert locks is not None
    assert not locks.sessions._known
    assert not locks._by_token
    assert not locks._locked


def test_messages_of_a_session_share_one_copy_of_its_id(driver: Driver) -> None:
    first, second = send(driver, *(SessionId(b"as read".decode()) for _ in range(2)))
    assert first.session_id is second.session_id


# -- with other features ----------------------------------------------------------


def test_the_oldest_are_deleted_whatever_their_session(driver: Driver) -> None:
    messages = send(driver, A, B, A)
    held = take(driver, accepted(driver, A), 1)
    assert driver.apply(DeleteOldest(1, Instant(driver.now + 1))) == Deleted(1)
    assert driver.peek() == [held[0], messages[2]]
    assert driver.apply(ListSessions(None, 0, 10)) == SessionsListed([A], 1)


def test_a_transaction_settles_in_a_session_and_sends_with_one(driver: Driver) -> None:
    send(driver, A)
    held = take(driver, accepted(driver, A))
    complete = Complete(tokens(held))
    driver.partition.check([complete, Enqueue([Message(b"", size=1, session_id=B)])], driver.now)
    with pytest.raises(InvalidOperation, match="SessionId was not set"):
        driver.partition.check([Enqueue([Message(b"", size=1)])], driver.now)
    driver.later(30)
    with pytest.raises(MessageLockLost):
        driver.partition.check([complete], driver.now)


# -- ids in another case ----------------------------------------------------------

MIXED, UPPER, LOWER = SessionId("Alpha"), SessionId("ALPHA"), SessionId("alpha")


@pytest.mark.row("P-13")
def test_ids_that_differ_in_case_are_one_session_with_one_lock(driver: Driver) -> None:
    sent = send(driver, MIXED, UPPER, LOWER)
    assert driver.apply(ListSessions(None, 0, 10)) == SessionsListed([MIXED], 1)
    lock = accepted(driver, UPPER)
    assert lock.session_id == UPPER, "as who accepts it writes it"
    with pytest.raises(SessionCannotBeLocked):
        accept(driver, LOWER)
    assert accept(driver) is None
    assert take(driver, lock) == sent
    assert [message.session_id for message in sent] == [MIXED, UPPER, LOWER], "each keeps its own"
    driver.apply(ReleaseSession(lock))
    assert accepted(driver).session_id == MIXED


def test_a_message_in_another_case_wakes_the_holder(driver: Driver) -> None:
    lock = accepted(driver, MIXED)
    (message,) = send(driver, UPPER)
    assert [effect.locks for effect in driver.effects if isinstance(effect, SessionsReady)] == [[lock]]
    assert take(driver, lock) == [message]


@pytest.mark.row("P-13")
def test_a_session_has_one_state_in_whatever_case_it_is_accepted(driver: Driver) -> None:
    first = accepted(driver, MIXED)
    driver.apply(SetSessionState(first, b"state"))
    driver.apply(ReleaseSession(first))
    second = accepted(driver, UPPER)
    assert driver.apply(FindSessionState(second)) == SessionStateFound(5, MIXED)
    _, effects = driver.partition.apply(SetSessionState(second, b"new"), driver.now)
    assert [each.session_id for each in effects if isinstance(each, SaveSessionState)] == [MIXED]


def test_after_a_restart_the_state_is_found_under_the_id_that_the_store_has(new_driver: NewDriver) -> None:
    restored = new_driver(requires_session=True)
    message = Message(b"payload", size=100, session_id=UPPER)
    message.sequence_number = SequenceNumber(1)
    restored.partition.restore([message], sessions=[(MIXED, 5, Instant(restored.now))])
    assert restored.apply(ListSessions(None, 0, 10)) == SessionsListed([MIXED], 1)
    lock = accepted(restored, LOWER)
    assert restored.apply(FindSessionState(lock)) == SessionStateFound(5, MIXED)
    assert take(restored, lock) == [message]


def test_deferred_messages_peeks_and_deletes_go_by_the_session_whatever_its_case(driver: Driver) -> None:
    first, second, other = send(driver, MIXED, UPPER, B)
    lock = accepted(driver, LOWER)
    given = take(driver, lock)
    driver.apply(Defer(tokens(given[:1])))
    peeked = driver.apply(Peek(SequenceNumber(0), 10, session_id=UPPER))
    assert isinstance(peeked, Given)
    assert peeked.messages == [first, second]
    found = driver.apply(LockDeferred([first.sequence_number], driver.entropy(1), SubQueue.MAIN, lock))
    assert found == Given([first])
    driver.apply(ReleaseSession(lock))
    later = Instant(driver.now + 1)
    assert driver.apply(DeleteOldest(10, later, session_id=LOWER)) == Deleted(1)
    left = driver.apply(Peek(SequenceNumber(0), 10))
    assert isinstance(left, Given)
    assert other in left.messages
    assert second not in left.messages


def test_where_case_counted_at_creation_sessions_stay_apart(new_driver: NewDriver) -> None:
    driver = new_driver(requires_session=True, exact_keys=True)
    send(driver, MIXED, UPPER)
    assert driver.apply(ListSessions(None, 0, 10)) == SessionsListed([MIXED, UPPER], 2)
    assert len(take(driver, accepted(driver, MIXED))) == 1
    assert len(take(driver, accepted(driver, UPPER))) == 1


# -- handing over -----------------------------------------------------------------


def accepted_to_share(driver: Driver, session_id: SessionId | None = A) -> SessionLock:
    reply = driver.apply(AcceptSession(session_id, driver.entropy(1), exclusive=False))
    assert isinstance(reply, SessionAccepted) and reply.lock is not None
    assert reply.lock.handover is not None
    return reply.lock


def take_over(driver: Driver, session_id: SessionId, token: LockToken | None) -> SessionLock:
    reply = driver.apply(AcceptSession(session_id, driver.entropy(1), exclusive=False, handover=token))
    assert isinstance(reply, SessionAccepted) and reply.lock is not None
    return reply.lock


def test_a_session_that_is_handed_over_keeps_its_messages_and_loses_its_holder(driver: Driver) -> None:
    send(driver, A, A)
    first = accepted_to_share(driver)
    (message,) = take(driver, first, 1)
    driver.later(20)
    second = take_over(driver, A, first.handover)
    assert second != first
    assert second.handover == first.handover
    assert SessionsLost([first]) in driver.effects
    # The second's time begins anew, and so does that of what the first had received.
    driver.later(20)
    assert message.lock_token is not None
    driver.apply(Complete([message.lock_token]))
    with pytest.raises(SessionLockLost):
        take(driver, first)
    assert len(take(driver, second)) == 1
    driver.apply(ReleaseSession(first))
    driver.apply(RenewSession(second))


def test_a_session_is_handed_over_to_its_token_alone(driver: Driver) -> None:
    first = accepted_to_share(driver)
    exclusive = accepted(driver, B)
    for session_id, token in ((A, first.token[:-1] + b"x"), (B, exclusive.token), (C, first.handover)):
        with pytest.raises(SessionCannotBeLocked):
            take_over(driver, session_id, LockToken(token or b""))
    with pytest.raises(SessionCannotBeLocked):
        accepted(driver, A)
    driver.apply(RenewSession(first))


def test_a_token_is_worth_nothing_when_its_lock_has_run_out(driver: Driver) -> None:
    first = accepted_to_share(driver)
    driver.later(31)
    with pytest.raises(SessionCannotBeLocked):
        take_over(driver, A, first.handover)
    assert accepted_to_share(driver).handover != first.handover


def test_a_token_is_not_shown(driver: Driver) -> None:
    first = accepted_to_share(driver)
    assert "token" not in repr(first)
    assert repr(first.handover) not in repr(first)
