"""Random histories of a partition whose entity requires sessions, against a model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from bendybus.domain.commands import (
    Abandon,
    Command,
    Complete,
    DeadLetter,
    Defer,
    Done,
    Given,
    Peek,
    Release,
)
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
from bendybus.errors import SessionCannotBeLocked, SessionLockLost
from bendybus.names import Instant, SequenceNumber, SessionId
from fix_examples import examples
from unit.domain.machine_records import (
    MAIN,
    SESSIONS,
    UNKNOWN,
    Record,
    numbers,
)
from unit.domain.test_partition_machine import PartitionMachine


class SessionMachine(PartitionMachine):
    """The same, of an entity that requires sessions."""

    has_sessions = True

    def in_session(self, session_id: SessionId) -> list[Record]:
        """What a holder would be given, in order."""
        return [
            record
            for record in sorted(self.records.values(), key=lambda record: record.number)
            if record.session == session_id and record.available(MAIN) and not record.may_expire(self.now)
        ]

    @rule(
        data=st.data(),
        wanted=st.sampled_from([None, None, *SESSIONS]),
        sent=st.lists(st.sampled_from(SESSIONS), min_size=5, max_size=5),
        amount=st.integers(0, 5),
        then=st.sampled_from(["settle", "settle", "renew", "remember", "stop"]),
    )
    def work_in_session(
        self,
        data: st.DataObject,
        wanted: SessionId | None,
        sent: list[SessionId],
        amount: int,
        then: str,
    ) -> None:
        """What people do, in one go: rules drawn at random seldom come in this order."""
        if amount:
            self.enqueue(amount, None, [None] * 5, [None] * 5, sent, confirm=True)
        before = len(self.session_locks)
        self.accept_session(wanted)
        if len(self.session_locks) == before:
            return
        self.take_in_session(self.session_locks[-1], amount)
        if then == "settle" and amount:
            self.settle(data, data.draw(st.sampled_from([Complete, Abandon, Release, Defer, DeadLetter])))
        elif then == "renew":
            self.now = Instant(self.now + 1000)
            self.renew_session(self.session_locks[-1])
        elif then == "remember":
            self.set_state(self.session_locks[-1], b"state")

    def accept_session(self, wanted: SessionId | None) -> None:
        taken = {lock.session_id for lock in self.held_until if self.holds(lock)}
        # Every other session can be handed over.
        command = AcceptSession(wanted, self.entropy(1), exclusive=len(self.session_locks) % 2 == 0)
        if wanted in taken:
            try:
                self.apply(command)
            except SessionCannotBeLocked:
                return
            raise AssertionError("a session was given to two holders")
        self.end_locks()
        free = {each for each in SESSIONS if each not in taken and self.in_session(each)}
        reply = self.apply(command)
        self.drop_expired()
        assert isinstance(reply, SessionAccepted)
        if reply.lock is None:
            assert wanted is None
            assert not free
            return
        assert reply.lock.session_id in (free if wanted is None else {wanted})
        assert reply.lock not in self.session_locks
        assert reply.locked_until == self.lock_end()
        assert not any(lock.session_id == reply.lock.session_id for lock in self.held_until)
        self.session_locks.append(reply.lock)
        self.held_until[reply.lock] = reply.locked_until

    @rule(data=st.data(), amount=st.integers(0, 4), state=st.sampled_from([None, b"", b"a longer state"]))
    def go_on_in_session(self, data: st.DataObject, amount: int, state: bytes | None) -> None:
        """With a session that is held, or was."""
        lock = data.draw(st.sampled_from(self.session_locks[-3:]))
        act = data.draw(
            st.sampled_from(["take", "take together", "renew", "release", "remember", "hand over"])
        )
        if act == "take":
            self.take_in_session(lock, amount)
        elif act == "take together":
            self.take_in_sessions(self.session_locks[-3:], amount)
        elif act == "hand over":
            self.hand_over(lock)
        elif act == "renew":
            self.renew_session(lock)
        elif act == "release":
            self.release_session(lock)
        else:
            self.set_state(lock, state)

    def take_in_session(self, lock: SessionLock, amount: int) -> None:
        command = LockInSession(lock, amount, self.entropy(amount))
        if not self.holds(lock):
            self.refused_for_lost_lock(command)
            return
        self.end_locks()
        expected = [record.number for record in self.in_session(lock.session_id)][:amount]
        reply = self.apply(command)
        assert isinstance(reply, Given)
        assert numbers(reply.messages) == expected
        self.grant(reply.messages, self.held_until[lock])
        self.drop_expired()

    def take_in_sessions(self, locks: list[SessionLock], amount: int) -> None:
        """Those that are lost are given nothing."""
        wanted = [(lock, amount) for lock in locks]
        self.end_locks()
        held = [lock for lock in locks if self.holds(lock)]
        waiting = {lock: [record.number for record in self.in_session(lock.session_id)] for lock in held}
        reply = self.apply(LockInSessions(wanted, self.entropy(amount * len(wanted))))
        assert isinstance(reply, GivenInSessions)
        assert [lock for lock, _, _ in reply.given] == held
        for lock, messages, more in reply.given:
            assert numbers(messages) == waiting[lock][:amount]
            assert more or not waiting[lock][amount:]
            self.grant(messages, self.held_until[lock])
        self.drop_expired()

    def refused_for_lost_lock(self, command: Command) -> None:
        try:
            self.apply(command)
        except SessionLockLost:
            return
        raise AssertionError(f"{command} was allowed under a lost lock")

    def renew_session(self, lock: SessionLock) -> None:
        if not self.holds(lock):
            self.refused_for_lost_lock(RenewSession(lock))
            return
        assert self.apply(RenewSession(lock)) == SessionAccepted(lock, self.lock_end())
        self.held_until[lock] = self.lock_end()
        for record in self.on_loan_in(lock.session_id):
            record.until = self.lock_end()

    def hand_over(self, lock: SessionLock) -> None:
        """To someone who has the token of this lock, which may be over."""
        token = lock.handover or UNKNOWN
        command = AcceptSession(lock.session_id, self.entropy(1), exclusive=False, handover=token)
        holder = next((each for each in self.held_until if self.holds(each) and each.handover == token), None)
        if holder is None:
            try:
                self.apply(command)
            except SessionCannotBeLocked:
                return
            raise AssertionError("a session was handed over by a token that nobody has")
        reply = self.apply(command)
        assert isinstance(reply, SessionAccepted) and reply.lock is not None
        assert reply.lock.handover == token
        assert holder not in self.held_until, "the holder was told"
        self.session_locks.append(reply.lock)
        self.held_until[reply.lock] = reply.locked_until
        for record in self.on_loan_in(reply.lock.session_id):
            record.until = self.lock_end()

    def on_loan_in(self, session_id: SessionId) -> list[Record]:
        return [
            each
            for each in self.records.values()
            if each.session == session_id and each.token is not None and each.subqueue is MAIN
        ]

    def release_session(self, lock: SessionLock) -> None:
        self.end_locks()
        if self.holds(lock):
            for record in self.on_loan_in(lock.session_id):
                record.token = None
        assert self.apply(ReleaseSession(lock)) == Done()
        self.held_until.pop(lock, None)

    def set_state(self, lock: SessionLock, state: bytes | None) -> None:
        if not self.holds(lock):
            self.refused_for_lost_lock(SetSessionState(lock, state))
            self.refused_for_lost_lock(FindSessionState(lock))
            return
        assert self.apply(SetSessionState(lock, state)) == Done()
        size = None if state is None else len(state)
        assert self.apply(FindSessionState(lock)) == SessionStateFound(size, lock.session_id)
        assert self.states.get(lock.session_id, (None, self.now)) == (size, self.now)

    @invariant()
    def sessions_are_what_their_messages_and_states_say(self) -> None:
        for session_id in SESSIONS:
            mine = [
                each
                for each in self.records.values()
                if each.session == session_id and each.confirmed and each.subqueue is MAIN
            ]
            reply, _ = self.partition.apply(Peek(SequenceNumber(0), 1000, session_id=session_id), self.now)
            assert isinstance(reply, Given)
            assert numbers(reply.messages) == sorted(each.number for each in mine)
        active = {
            each.session
            for each in self.records.values()
            if each.available(MAIN) or (each.token is not None and each.subqueue is MAIN)
        }
        assert self.listed(None) == active | self.states.keys()
        since = Instant(self.now - 5000)
        assert self.listed(since) == {each for each, (_, at) in self.states.items() if at > since}

    def listed(self, updated_after: Instant | None) -> set[SessionId | None]:
        """All sessions, two at a time."""
        found: list[SessionId] = []
        while True:
            reply, effects = self.partition.apply(ListSessions(updated_after, len(found), 2), self.now)
            assert isinstance(reply, SessionsListed)
            assert effects == []
            if not reply.session_ids:
                assert reply.matching == len(found) == len(set(found))
                return set(found)
            found += reply.session_ids


SessionMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestSessionMachine = SessionMachine.TestCase
