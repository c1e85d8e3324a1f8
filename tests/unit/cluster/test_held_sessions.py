"""Sessions of another broker that receivers here hold: who is woken, and who is told that a lock ended."""

from __future__ import annotations

from bendybus.cluster.held_sessions import HeldSessions
from bendybus.domain.session_commands import SessionLock
from bendybus.names import LockToken, PartitionNumber, SessionId
from bendybus.session_ids import session_key


class Holder:
    def __init__(self) -> None:
        self.told: list[str] = []

    def wake(self) -> None:
        self.told.append("wake")

    def lost(self) -> None:
        self.told.append("lost")


def lock(name: str) -> SessionLock:
    token = LockToken(name.encode().ljust(16, b"."))
    return SessionLock(SessionId(name), token, session_key(SessionId(name), exact=True))


FIRST, SECOND = PartitionNumber(1), PartitionNumber(2)


def test_holders_of_one_partition_are_woken() -> None:
    sessions, one, other = HeldSessions(), Holder(), Holder()
    sessions.hold(FIRST, lock("a"), one)
    sessions.hold(SECOND, lock("b"), other)

    sessions.wake(FIRST)

    assert (one.told, other.told) == (["wake"], [])


def test_a_holder_is_told_once_that_its_session_is_lost() -> None:
    sessions, holder = HeldSessions(), Holder()
    sessions.hold(FIRST, lock("a"), holder)

    sessions.lose(lock("a").token)
    sessions.lose_all()

    assert holder.told == ["lost"]
    assert sessions.get(lock("a").token) is None


def test_a_holder_that_lets_go_is_told_nothing() -> None:
    sessions, holder = HeldSessions(), Holder()
    sessions.hold(FIRST, lock("a"), holder)

    sessions.let_go(lock("a"))
    sessions.lose_all()

    assert holder.told == []


def test_a_partition_that_is_given_up_takes_its_sessions_along() -> None:
    sessions, one, other = HeldSessions(), Holder(), Holder()
    sessions.hold(FIRST, lock("a"), one)
    sessions.hold(SECOND, lock("b"), other)

    assert [session.holder for session in sessions.leave(FIRST)] == [one]
    assert [session.holder for session in sessions.all()] == [other]
