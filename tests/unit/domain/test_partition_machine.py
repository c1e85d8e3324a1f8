"""A partition driven at random beside a model that is slow and obvious.

The model keeps one record per message and scans them all. It leaves open only
when an expired message goes (that is lazy): it checks that none is handed out,
and that nothing else goes for that reason.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Abandon,
    CancelScheduled,
    Command,
    Complete,
    Confirm,
    DeadLetter,
    Defer,
    Done,
    Enqueue,
    Enqueued,
    Given,
    Lock,
    LockDeferred,
    LockThese,
    Peek,
    Receive,
    ReceiveDeferred,
    Release,
    Renew,
    Renewed,
    Reply,
    Settled,
    Tick,
)
from bendybus.domain.effects import (
    Effect,
    ForgetIdentities,
    MarkTransferred,
    MessagesAvailable,
    RememberIdentities,
    RemoveMessages,
    SaveSessionState,
    SessionsLost,
    StoreMessages,
    UpdateMessages,
)
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Amendment, Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.schedule import postpone
from bendybus.domain.session_commands import (
    SessionLock,
)
from bendybus.errors import InvalidOperation, MessageNotFound, SessionLockLost
from bendybus.names import EntityPath, Instant, LockToken, SequenceNumber, SessionId
from fix_command_log import CommandLog, state_of
from fix_examples import examples
from unit.domain.machine_records import (
    DEAD,
    MAIN,
    NEVER_HELD,
    PARTITION,
    SESSIONS,
    SUBQUEUES,
    UNKNOWN,
    UNLOCKED,
    Record,
    Settlement,
    from_row,
    is_handover,
    numbers,
    row,
)


class PartitionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = Instant(1_000_000)
        self.serial = count(1)
        self.records: dict[SequenceNumber, Record] = {}
        self.store: dict[int, Record] = {}
        """By the row id that it gave the message, since a sequence number may change."""
        self.identities: set[tuple[Instant, bytes]] = set()
        """What the store remembers for duplicate detection."""
        self.accepted: dict[str, Instant] = {}
        self.gone: set[SequenceNumber] = set()
        self.tokens: list[LockToken] = [UNKNOWN]
        self.session_locks: list[SessionLock] = [NEVER_HELD]
        self.held_until: dict[SessionLock, Instant] = {}
        self.states: dict[SessionId, tuple[int, Instant]] = {}
        """Of the sessions that have one: its size, and when it was set; as the store knows it."""
        self.transferred: dict[str, SequenceNumber] = {}
        """Up to which number each outbox has arrived; as the store knows it."""
        self.log = CommandLog()

    has_sessions = False

    @initialize(ttl_s=st.sampled_from([None, 30]), dead_letter_on_expiry=st.booleans(), once=st.booleans())
    def begin(self, ttl_s: float | None, dead_letter_on_expiry: bool, once: bool) -> None:
        self.created_as = QueueDescription(
            EntityPath("orders"),
            default_message_ttl_s=ttl_s,
            dead_letter_on_expiry=dead_letter_on_expiry,
            max_delivery_count=3,
            lock_duration_s=10,
            requires_duplicate_detection=once,
            duplicate_detection_window_s=20,
            requires_session=self.has_sessions,
        )
        self.partition = Partition(PARTITION, self.created_as)

    def teardown(self) -> None:
        """A log of commands replays exactly."""
        if hasattr(self, "partition"):
            again = Partition(PARTITION, self.created_as)
            self.log.replay(again)
            assert state_of(again) == state_of(self.partition)

    # -- applying, and following the effects ----------------------------------

    def apply(self, command: Command) -> Reply:
        """Apply; write the effects to the store; let the model lose what has expired."""
        self.log.command(command, self.now)
        reply, effects = self.partition.apply(command, self.now)
        kinds = [type(effect) for effect in effects if not isinstance(effect, MessagesAvailable)]
        assert len(kinds) == len(set(kinds)), "effects of one kind are told once"
        lost: list[SessionLock] = []
        for effect in effects:
            self.commit(effect)
            if isinstance(effect, SessionsLost):
                lost += effect.locks
        overdue = {lock for lock, until in self.held_until.items() if until <= self.now}
        handed_over = {lock for lock in self.held_until if is_handover(command, lock)}
        assert set(lost) <= overdue | handed_over, "only what has run out or was handed over is lost"
        for lock in lost:
            del self.held_until[lock]
        return reply

    def commit(self, effect: Effect) -> None:
        match effect:
            case StoreMessages(messages):
                for message in messages:
                    assert not message.row_id
                    message.row_id = next(self.serial)
                    self.store[message.row_id] = row(message)
            case UpdateMessages(messages):
                assert self.store.keys() >= {message.row_id for message in messages}
                self.store.update((message.row_id, row(message)) for message in messages)
            case RemoveMessages(messages):
                for message in messages:
                    del self.store[message.row_id]
            case RememberIdentities(accepted_at, digests):
                self.identities.update((accepted_at, digest) for digest in digests)
            case ForgetIdentities(accepted_through):
                self.identities = {each for each in self.identities if each[0] > accepted_through}
            case SaveSessionState(session_id, state, at):
                self.states.pop(session_id, None)
                if state is not None:
                    self.states[session_id] = len(state), at
            case MarkTransferred(source, number):
                self.transferred[source] = number
        stored = [record.number for record in self.store.values()]
        assert len(stored) == len(set(stored)), "no two messages have one number"

    def drop_expired(self) -> None:
        """Believe the store about expired messages, and about nothing else."""
        by_number = {stored.number: stored for stored in self.store.values()}
        for record in list(self.records.values()):
            if not record.may_expire(self.now):
                continue
            stored = by_number.get(record.number)
            if stored is None:
                assert not self.partition.description.dead_letter_on_expiry
                self.forget(record)
            elif stored.subqueue is DEAD:
                assert self.partition.description.dead_letter_on_expiry
                reason = "TTLExpiredException", "The message expired and was dead lettered."
                self.bury(record, *reason)

    def forget(self, record: Record) -> None:
        del self.records[record.number]
        self.gone.add(record.number)

    def bury(self, record: Record, reason: str | None, description: str | None) -> None:
        before = record.amendment or Amendment()
        record.amendment = replace(before, dead_letter_reason=reason, dead_letter_description=description)
        record.subqueue, record.state = DEAD, MessageState.ACTIVE

    def fail(self, record: Record) -> None:
        record.token = None
        record.delivery_count += record.subqueue is MAIN
        if record.subqueue is MAIN and record.delivery_count >= self.partition.description.max_delivery_count:
            text = f"Message could not be consumed after {record.delivery_count} delivery attempts."
            self.bury(record, "MaxDeliveryCountExceeded", text)

    def end_locks(self) -> None:
        for record in self.records.values():
            if record.token is not None and record.until <= self.now:
                self.fail(record)

    def held(self, token: LockToken) -> Record | None:
        return next((record for record in self.records.values() if record.token == token), None)

    def holds(self, lock: SessionLock) -> bool:
        return self.held_until.get(lock, UNLOCKED) > self.now

    def entropy(self, locks: int) -> bytes:
        return b"".join(next(self.serial).to_bytes(ENTROPY_PER_LOCK, "big") for _ in range(locks))

    def lock_end(self) -> Instant:
        return Instant(self.now + int(self.partition.description.lock_duration_s * 1000))

    def grant(self, messages: list[Message], until: Instant | None = None) -> None:
        for message in messages:
            record = self.records[message.sequence_number]
            assert message.lock_token is not None
            assert message.lock_token not in self.tokens
            assert message.locked_until == (until or self.lock_end())
            record.token, record.until = message.lock_token, message.locked_until
            self.tokens.append(message.lock_token)

    # -- rules ----------------------------------------------------------------

    @rule(
        amount=st.integers(1, 5),
        ttl_s=st.sampled_from([None, 5, 50]),
        delays=st.lists(st.sampled_from([None, None, 1, 5, 30]), min_size=5, max_size=5),
        ids=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=5, max_size=5),
        sessions=st.lists(st.sampled_from(SESSIONS), min_size=5, max_size=5),
        confirm=st.booleans(),
    )
    def enqueue(
        self,
        amount: int,
        ttl_s: int | None,
        delays: list[int | None],
        ids: list[str | None],
        sessions: list[SessionId],
        confirm: bool,
    ) -> None:
        first = self.partition.next_sequence_number
        limit = None if ttl_s is None else Instant(self.now + ttl_s * 1000)
        messages = [
            Message(b"", size=10 + each, expires_at=limit, session_id=session if self.has_sessions else None)
            for each, session in enumerate(sessions[:amount])
        ]
        duplicates = self.duplicates(ids[:amount])
        some = False
        numbers = count(first)
        for place, (message, delay) in enumerate(zip(messages, delays, strict=False)):
            if delay is not None:
                postpone(message, self.now, Instant(self.now + delay * 1000))
            if place in duplicates:
                continue
            number = SequenceNumber(next(numbers))
            record = Record(number, message.size, self.expiry(ttl_s), message.session_id, enqueued=self.now)
            if delay is not None:
                some, record.enqueued = True, None
                due = Instant(self.now + delay * 1000)
                expires_at = None if ttl_s is None else Instant(due + ttl_s * 1000)
                record.expires_at, record.due, record.state = expires_at, due, MessageState.SCHEDULED
            self.records[number] = record
        reply = self.apply(Enqueue(messages, ids[:amount]))
        assert reply == Enqueued(first, amount - len(duplicates), some, duplicates)
        if confirm:
            self.confirm(back=0)

    def duplicates(self, ids: list[str | None]) -> tuple[int, ...]:
        """Which of these are to be dropped; the others are accepted."""
        if not self.partition.description.requires_duplicate_detection:
            return ()
        dropped = []
        for place, each in enumerate(ids):
            if each is not None and self.accepted.get(each, Instant(-20_000)) + 20_000 > self.now:
                dropped.append(place)
            elif each is not None:
                self.accepted[each] = self.now
        return tuple(dropped)

    def expiry(self, ttl_s: float | None) -> Instant | None:
        """Of a message that is enqueued now and has this lifetime of its own."""
        spans = [
            span for span in (ttl_s, self.partition.description.default_message_ttl_s) if span is not None
        ]
        return Instant(self.now + int(min(spans) * 1000)) if spans else None

    @rule(back=st.integers(0, 4))
    def confirm(self, back: int) -> None:
        number = SequenceNumber(self.partition.next_sequence_number - 1 - back)
        self.apply(Confirm(number))
        for record in self.records.values():
            record.confirmed = record.confirmed or (record.ticket or record.number) <= number

    @rule(amount=st.integers(0, 4), subqueue=SUBQUEUES, delete=st.booleans())
    def take(self, amount: int, subqueue: SubQueue, delete: bool) -> None:
        if self.has_sessions and subqueue is MAIN:
            try:
                self.apply(Receive(amount) if delete else Lock(amount, self.entropy(amount)))
            except InvalidOperation:
                return
            raise AssertionError("messages of a session were given to somebody who does not hold it")
        self.end_locks()
        oldest = [
            record.number
            for record in sorted(self.records.values(), key=lambda record: record.number)
            if record.available(subqueue) and not record.may_expire(self.now)
        ]
        command = Receive(amount, subqueue) if delete else Lock(amount, self.entropy(amount), subqueue)
        reply = self.apply(command)
        assert isinstance(reply, Given)
        assert numbers(reply.messages) == oldest[:amount]
        if delete:
            for number in oldest[:amount]:
                self.forget(self.records[number])
        else:
            self.grant(reply.messages)
        self.drop_expired()

    @precondition(lambda self: self.records)
    @rule(data=st.data(), subqueue=SUBQUEUES)
    def take_these(self, data: st.DataObject, subqueue: SubQueue) -> None:
        """Whatever is asked for, only what is available is locked, and in the order of the numbers."""
        if self.has_sessions and subqueue is MAIN:
            return
        asked = data.draw(st.lists(st.sampled_from(list(self.records)), max_size=4, unique=True))
        self.end_locks()
        expected = [
            number
            for number in sorted(asked)
            if self.records[number].available(subqueue) and not self.records[number].may_expire(self.now)
        ]
        reply = self.apply(LockThese(asked, self.entropy(len(asked)), subqueue))
        assert isinstance(reply, Given)
        assert numbers(reply.messages) == expected
        self.grant(reply.messages)
        self.drop_expired()

    @rule(data=st.data(), kind=st.sampled_from([Complete, Complete, Abandon, Release, Defer, DeadLetter]))
    def settle(self, data: st.DataObject, kind: type[Settlement]) -> None:
        tokens = data.draw(st.lists(st.sampled_from(self.tokens[-12:]), max_size=4))
        held = [self.held(token) for token in tokens]
        refused = kind is DeadLetter and any(
            record is not None and record.subqueue is not MAIN and record.until > self.now for record in held
        )
        if refused:
            try:
                self.apply(kind(tokens))
            except InvalidOperation:
                return
            raise AssertionError("a dead letter was dead-lettered again")
        self.end_locks()
        reply = self.apply(kind(tokens))
        lost = []
        for token in tokens:
            record = self.held(token)
            if record is None:
                lost.append(token)
                continue
            self.settle_record(record, kind)
        assert reply == Settled(lost)

    def settle_record(self, record: Record, kind: type[Settlement]) -> None:
        record.token = None
        if kind is Complete:
            self.forget(record)
        elif kind is Abandon:
            self.fail(record)
        elif kind is Defer:
            record.state = MessageState.DEFERRED
            record.delivery_count += record.subqueue is MAIN
        elif kind is DeadLetter:
            self.bury(record, None, None)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        tokens = data.draw(st.lists(st.sampled_from(self.tokens[-12:]), max_size=3))
        self.end_locks()
        reply = self.apply(Renew(tokens))
        held = [self.held(token) for token in tokens]
        for record in held:
            # In a session a message's lock is the session's.
            if record is not None and not (self.has_sessions and record.subqueue is MAIN):
                record.until = self.lock_end()
        assert reply == Renewed([None if record is None else record.until for record in held])

    @precondition(lambda self: self.records)
    @rule(data=st.data(), subqueue=SUBQUEUES, delete=st.booleans())
    def take_deferred(self, data: st.DataObject, subqueue: SubQueue, delete: bool) -> None:
        deferred = [
            record.number for record in self.records.values() if record.state is MessageState.DEFERRED
        ]
        asked = data.draw(st.lists(st.sampled_from(deferred or list(self.records)), max_size=3, unique=True))
        lock: SessionLock | None = None
        if self.has_sessions and subqueue is MAIN:
            lock = data.draw(st.sampled_from(self.session_locks[-3:]))
        found = all(
            (record := self.records[number]).state is MessageState.DEFERRED
            and record.token is None
            and record.subqueue is subqueue
            and (lock is None or record.session == lock.session_id)
            for number in asked
        )
        command: Command = (
            ReceiveDeferred(asked, subqueue, lock)
            if delete
            else LockDeferred(asked, self.entropy(len(asked)), subqueue, lock)
        )
        try:
            reply = self.apply(command)
        except MessageNotFound:
            assert not found
            return
        except SessionLockLost:
            assert lock is not None
            assert not self.holds(lock)
            return
        assert lock is None or self.holds(lock)
        assert found
        assert isinstance(reply, Given)
        assert numbers(reply.messages) == asked
        if delete:
            for number in asked:
                self.forget(self.records[number])
        else:
            self.grant(reply.messages, None if lock is None else self.held_until[lock])

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def cancel_scheduled(self, data: st.DataObject) -> None:
        waiting = [record.number for record in self.records.values() if record.due is not None]
        asked = data.draw(st.lists(st.sampled_from(waiting or list(self.records)), max_size=3, unique=True))
        found = all((record := self.records[number]).due is not None and record.confirmed for number in asked)
        try:
            assert self.apply(CancelScheduled(asked)) == Done()
        except MessageNotFound:
            assert not found
            return
        assert found
        for number in asked:
            self.forget(self.records[number])

    @rule(seconds=st.sampled_from([0, 0.999, 1, 5, 9, 30]), confirm=st.booleans())
    def tick(self, seconds: float, confirm: bool) -> None:
        self.now = Instant(self.now + int(seconds * 1000))
        self.end_locks()
        due = sorted(
            (record.due, record.number)
            for record in self.records.values()
            if record.due is not None and record.due <= self.now and record.confirmed
        )
        first = self.partition.next_sequence_number
        reply = self.apply(Tick())
        self.drop_expired()
        assert reply == (Enqueued(first, len(due)) if due else Done())
        for number, (at, old) in enumerate(due, first):
            record = self.records.pop(old)
            self.gone.add(old)
            ttl_s = None if record.expires_at is None else (record.expires_at - at) / 1000
            record.number, record.expires_at = SequenceNumber(number), self.expiry(ttl_s)
            record.state, record.due, record.enqueued = MessageState.ACTIVE, None, self.now
            record.ticket, record.confirmed = None, False
            record.amendment = replace(record.amendment or Amendment(), earlier_number=old)
            self.records[record.number] = record
        if confirm:
            self.confirm(back=0)

    @rule(seconds=st.sampled_from([1, 5, 10]))
    def time_passes_unnoticed(self, seconds: int) -> None:
        self.now = Instant(self.now + seconds * 1000)

    @rule(lock_duration_s=st.sampled_from([5, 10, 60]), max_delivery_count=st.sampled_from([1, 3]))
    def update(self, lock_duration_s: float, max_delivery_count: int) -> None:
        self.partition.description = replace(
            self.partition.description,
            lock_duration_s=lock_duration_s,
            max_delivery_count=max_delivery_count,
        )
        self.log.description(self.partition.description)

    # -- invariants -----------------------------------------------------------

    def peeked(self, partition: Partition, subqueue: SubQueue) -> list[Message]:
        """All a browser finds, three at a time."""
        found: list[Message] = []
        start = SequenceNumber(0)
        while True:
            reply, effects = partition.apply(Peek(start, 3, subqueue), self.now)
            assert isinstance(reply, Given)
            assert effects == []
            if not reply.messages:
                return found
            found += reply.messages
            start = SequenceNumber(found[-1].sequence_number + 1)

    @invariant()
    def every_message_is_in_exactly_one_place(self) -> None:
        for subqueue in SubQueue:
            records = sorted(
                (each for each in self.records.values() if each.subqueue is subqueue and each.confirmed),
                key=lambda record: record.number,
            )
            found = self.peeked(self.partition, subqueue)
            assert [(row(each), each.lock_token) for each in found] == [
                (replace(each, ticket=None, confirmed=False, token=None, until=UNLOCKED), each.token)
                for each in records
            ]
            assert not self.gone & set(numbers(found))

    @invariant()
    def counts_are_what_peek_finds(self) -> None:
        for subqueue in SubQueue:
            found = self.peeked(self.partition, subqueue)
            states = [message.state for message in found]
            counts = self.partition.counts(subqueue)
            assert counts.active == states.count(MessageState.ACTIVE)
            assert counts.deferred == states.count(MessageState.DEFERRED)
            assert counts.scheduled == states.count(MessageState.SCHEDULED)
            assert counts.locked == sum(message.lock_token is not None for message in found)
        states = sum(size for size, _ in self.states.values())
        assert self.partition.size_bytes == sum(record.size for record in self.records.values()) + states

    @invariant()
    def the_deadline_is_never_late(self) -> None:
        ends = [record.until for record in self.records.values() if record.token is not None]
        ends += self.held_until.values()
        ends += [each.due for each in self.records.values() if each.due is not None and each.confirmed]
        deadline = self.partition.next_deadline()
        if ends:
            assert deadline is not None
            assert deadline <= min(ends)

    @invariant()
    def nothing_durable_is_forgotten(self) -> None:
        new = [each for each in self.store.values() if not self.records[each.number].confirmed]
        assert len(list(self.partition.confirmed())) >= len(self.store) - len(new)

    @invariant()
    def the_store_restores_the_partition(self) -> None:
        restored = Partition(PARTITION, self.partition.description, self.partition.next_sequence_number)
        states = [(session_id, size, at) for session_id, (size, at) in self.states.items()]
        stored = [from_row(each) for each in self.store.values()]
        restored.restore(stored, sorted(self.identities), self.transferred, states)
        assert restored._parts.intake._transferred == self.partition._parts.intake._transferred
        histories = [each._parts.intake._history for each in (restored, self.partition)]
        if histories[0] is not None and histories[1] is not None:
            assert dict(histories[0]._accepted) == dict(histories[1]._accepted)
        assert restored.next_sequence_number == self.partition.next_sequence_number
        for subqueue in SubQueue:
            found = [each for each in self.peeked(restored, subqueue) if self.is_confirmed(each)]
            assert list(map(row, found)) == list(map(row, self.peeked(self.partition, subqueue)))
            sizes = [each.counts(subqueue).size_bytes for each in (restored, self.partition)]
            assert sizes[0] == sizes[1]

    def is_confirmed(self, message: Message) -> bool:
        return self.records[message.sequence_number].confirmed


PartitionMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestPartitionMachine = PartitionMachine.TestCase
