"""The partition machine with everything that forwarding and transactions add to it (P-23, P-34).

Beside the same model (test_partition_machine.py): messages on their way out and
those that come from another outbox, numbers set aside, deletion, and transactions
as the broker commits them: all commands checked, then all applied, or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from bendybus.domain.commands import (
    Abandon,
    Command,
    Complete,
    DeadLetter,
    Defer,
    Deleted,
    DeleteOldest,
    Done,
    Enqueue,
    Enqueued,
    Given,
    Post,
    Reassign,
    Release,
    Reserve,
    Settled,
    Transfer,
    Transferred,
    Undeliverable,
)
from bendybus.domain.deadletter import Cause
from bendybus.domain.messages import UNASSIGNED, Amendment, Message, MessageState, Origin, Posting, SubQueue
from bendybus.domain.outbox import HOPS_EXCEEDED, HOPS_MAX
from bendybus.domain.schedule import postpone
from bendybus.errors import BrokerError, InvalidOperation, MessageLockLost, QuotaExceeded
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SequenceNumber
from fix_examples import examples
from unit.domain.machine_records import DEAD, MAIN, SESSIONS, Record, numbers
from unit.domain.test_partition_machine import PartitionMachine
from unit.domain.test_session_machine import SessionMachine

ELSEWHERE: Final = EntityPath("elsewhere")
OUTBOX, TRANSFER_DEAD = SubQueue.OUTBOX, SubQueue.TRANSFER_DEAD_LETTER
CAUSE: Final = Cause("Refused", "nobody wants it")

# Three of these are beyond the quota of 1 GB, two are not.
LARGE: Final = 400_000_000
QUOTA: Final = 1 << 30

Settling = Complete | Abandon | Release | Defer | DeadLetter


@dataclass
class Work:
    """One part of a transaction: messages to send (here, or to another entity), or a settlement."""

    sizes: list[int]
    destination: EntityPath | None = None
    kind: type[Settling] | None = None
    token: LockToken | None = None


WORK: Final = st.builds(
    Work,
    sizes=st.lists(st.sampled_from([10, 20, LARGE]), min_size=1, max_size=2),
    destination=st.sampled_from([None, None, ELSEWHERE]),
)


class OutboxRules(PartitionMachine):
    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[SequenceNumber] = []

    # -- the model's part ---------------------------------------------------------------

    def oldest(self, subqueue: SubQueue) -> list[Record]:
        return [
            record
            for record in sorted(self.records.values(), key=lambda record: record.number)
            if record.available(subqueue) and not record.may_expire(self.now)
        ]

    def fits(self, size: int) -> bool:
        held = sum(record.size for record in self.records.values())
        held += sum(state_size for state_size, _ in self.states.values())
        return held + size <= QUOTA

    def new(self, size: int, place: int = 0, **options: object) -> Message:
        session = SESSIONS[place % len(SESSIONS)] if self.has_sessions else None
        return Message(b"", size=size, session_id=session, **options)

    def note(self, first: int, messages: list[Message], destination: EntityPath | None = None) -> None:
        """These were enqueued under numbers from `first` on."""
        for number, message in enumerate(messages, first):
            record = Record(
                SequenceNumber(number),
                message.size,
                self.expiry(None),
                message.session_id,
                message.subqueue,
                enqueued=self.now,
                hops=0 if message.origin is None else message.origin.hops,
            )
            if destination is not None:
                record.expires_at, record.subqueue = None, OUTBOX
                record.amendment = Amendment(posting=Posting(destination, UNASSIGNED))
            self.records[record.number] = record

    def renumber(self, record: Record, number: int) -> None:
        self.gone.add(record.number)
        del self.records[record.number]
        record.number = SequenceNumber(number)
        self.records[record.number] = record

    def set_aside(self, record: Record, cause: Cause) -> None:
        """What nobody will have: back among the dead letters, or where those go that were dead already."""
        amendment = record.amendment or Amendment()
        posting = amendment.posting
        came_from = record.subqueue if posting is None else posting.subqueue
        was_sent_here = posting is None or posting.sequence_number != UNASSIGNED
        record.amendment = replace(amendment, posting=None)
        record.subqueue = DEAD if came_from is MAIN and was_sent_here else TRANSFER_DEAD
        if came_from is not DEAD:
            record.amendment = replace(
                record.amendment,
                dead_letter_reason=cause.reason,
                dead_letter_description=cause.description,
            )

    # -- rules --------------------------------------------------------------------------

    @rule(subqueue=st.sampled_from([MAIN, DEAD]), amount=st.integers(0, 4), send_first=st.booleans())
    def post(self, subqueue: SubQueue, amount: int, send_first: bool) -> None:
        if self.has_sessions:
            subqueue = DEAD  # an entity with sessions cannot forward its messages
        elif send_first and self.fits(30):
            self.arrive("here", 2, 0, 0, False)
            self.confirm(back=0)
        taken = self.oldest(subqueue)[:amount]
        first = self.partition.next_sequence_number
        reply = self.apply(Post(amount, ELSEWHERE, subqueue))
        self.drop_expired()
        posted = [record for record in taken if record.hops < HOPS_MAX]
        assert isinstance(reply, Given)
        assert numbers(reply.messages) == list(range(first, first + len(posted)))
        for record in taken:
            if record.hops >= HOPS_MAX:
                self.set_aside(record, HOPS_EXCEEDED)
        for number, record in enumerate(posted, first):
            posting = Posting(ELSEWHERE, record.number, subqueue)
            before = record.amendment or Amendment()
            record.amendment = replace(before, posting=posting, earlier_number=None)
            record.subqueue = OUTBOX
            self.renumber(record, number)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), succeeds=st.booleans())
    def deliver(self, data: st.DataObject, succeeds: bool) -> None:
        """Of what is in the outbox, and of what is not: that is told again after a crash, and ignored."""
        outgoing = [each.number for each in self.records.values() if each.available(OUTBOX)]
        asked = data.draw(st.lists(st.sampled_from(outgoing or list(self.records)), max_size=4, unique=True))
        reply = self.apply(Transferred(asked) if succeeds else Undeliverable(asked, CAUSE))
        assert reply == Done()
        for number in asked:
            if number not in outgoing:
                continue
            if succeeds:
                self.forget(self.records[number])
            else:
                self.set_aside(self.records[number], CAUSE)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), partition=st.integers(0, 3).map(PartitionNumber))
    def reassign(self, data: st.DataObject, partition: PartitionNumber) -> None:
        """Under numbers that come after all others; what is not in the outbox is left alone."""
        outgoing = [each.number for each in self.records.values() if each.available(OUTBOX)]
        asked = data.draw(st.lists(st.sampled_from(outgoing or list(self.records)), max_size=4, unique=True))
        first = self.partition.next_sequence_number
        assert self.apply(Reassign(asked, partition)) == Done()
        for number, record in enumerate([self.records[each] for each in asked if each in outgoing], first):
            assert record.amendment is not None and record.amendment.posting is not None
            posting = replace(record.amendment.posting, partition=partition)
            record.amendment = replace(record.amendment, posting=posting)
            self.renumber(record, number)

    @rule(
        source=st.sampled_from(["one/0", "one/1"]),
        amount=st.integers(1, 4),
        back=st.integers(0, 4),
        hops=st.sampled_from([0, 1, HOPS_MAX]),
        dead=st.booleans(),
    )
    def arrive(self, source: str, amount: int, back: int, hops: int, dead: bool) -> None:
        """From another outbox, some of it for the second time; dead letters among it if `dead`."""
        arrived = self.transferred.get(source, SequenceNumber(0))
        start = max(1, arrived + 1 - back)
        transfer = Transfer(source, [SequenceNumber(start + place) for place in range(amount)])
        messages = [
            self.new(10 + place, place, origin=Origin(SequenceNumber(1), hops=hops) if hops else None)
            for place in range(amount)
        ]
        new = [each for number, each in zip(transfer.numbers, messages, strict=True) if number > arrived]
        if dead and new:
            new[0].subqueue = DEAD
        first = self.partition.next_sequence_number
        command = Enqueue(messages, transfer=transfer, shelved=dead)
        if not self.fits(sum(message.size for message in new)):
            self.refused(command, QuotaExceeded)
            return
        known = tuple(range(amount - len(new)))
        assert self.apply(command) == Enqueued(first, len(new), duplicates=known)
        self.note(first, new)
        assert self.transferred[source] == max(arrived, transfer.numbers[-1])

    def refused(self, command: Command, error: type[BrokerError]) -> None:
        try:
            self.apply(command)
        except error:
            return
        raise AssertionError(f"{command} was not refused")

    @rule(amount=st.integers(1, 3))
    def reserve(self, amount: int) -> None:
        first = self.partition.next_sequence_number
        assert self.apply(Reserve(amount)) == Enqueued(first, amount)
        self.reserved += [SequenceNumber(first + place) for place in range(amount)]

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), delay=st.sampled_from([0, 1, 5, 30]), ttl_s=st.sampled_from([None, 5]))
    def schedule_numbered(self, data: st.DataObject, delay: int, ttl_s: int | None) -> None:
        """By now other messages have later numbers, and may be durable before."""
        chosen = sorted(data.draw(st.sets(st.sampled_from(self.reserved), min_size=1, max_size=2)))
        self.reserved = [number for number in self.reserved if number not in chosen]
        due = Instant(self.now + delay * 1000)
        messages = []
        for place, number in enumerate(chosen):
            limit = None if ttl_s is None else Instant(self.now + ttl_s * 1000)
            message = self.new(10, place, expires_at=limit)
            postpone(message, self.now, due)
            message.sequence_number = number
            messages.append(message)
        if not self.fits(10 * len(chosen)):
            self.refused(Enqueue(messages, numbered=True), QuotaExceeded)
            return
        ticket = self.partition.next_sequence_number
        assert self.apply(Enqueue(messages, numbered=True)) == Enqueued(ticket, 1, scheduled=True)
        for message in messages:
            self.records[message.sequence_number] = Record(
                message.sequence_number,
                message.size,
                None if ttl_s is None else Instant(due + ttl_s * 1000),
                message.session_id,
                state=MessageState.SCHEDULED,
                due=due,
                ticket=ticket,
            )

    @rule(
        amount=st.integers(1, 4),
        age_s=st.sampled_from([-1, 0, 1, 5]),
        subqueue=st.sampled_from([MAIN, MAIN, DEAD]),
    )
    def delete_oldest(self, amount: int, age_s: int, subqueue: SubQueue) -> None:
        """With an age of -1: everything that was enqueued up to now."""
        before = Instant(self.now - age_s * 1000)
        self.end_locks()
        doomed = [
            record
            for record in self.oldest(subqueue)[:amount]
            if record.enqueued is not None and record.enqueued < before
        ]
        assert self.apply(DeleteOldest(amount, before, subqueue)) == Deleted(len(doomed))
        for record in doomed:
            self.forget(record)
        self.drop_expired()

    # -- transactions --------------------------------------------------------------------

    @rule(
        data=st.data(),
        sends=st.lists(WORK, max_size=3),
        kinds=st.lists(st.sampled_from([Complete, Abandon, Release, Defer, DeadLetter]), max_size=3),
        taken_from=st.sampled_from([None, MAIN, MAIN, DEAD]),
        confirm=st.booleans(),
    )
    def transact(
        self,
        data: st.DataObject,
        sends: list[Work],
        kinds: list[type[Settling]],
        taken_from: SubQueue | None,
        confirm: bool,
    ) -> None:
        """Check all of it, then apply all of it; or none, when one part cannot be."""
        if taken_from is not None and kinds and not (self.has_sessions and taken_from is MAIN):
            self.take(2, taken_from, delete=False)
        tokens = data.draw(st.permutations(self.tokens[-3:]))
        settled = [Work([], kind=kind, token=token) for kind, token in zip(kinds, tokens, strict=False)]
        work = data.draw(st.permutations([*sends, *settled]))
        commands = [self.command(each) for each in work]
        expected = self.obstacle(work)
        try:
            self.partition.check(commands, self.now)
        except BrokerError as refusal:
            assert isinstance(refusal, expected or ())
            return  # and nothing has changed, as every invariant will see
        assert expected is None
        for each, command in zip(work, commands, strict=True):
            self.perform(each, command)
        if confirm:
            self.confirm(back=0)

    def command(self, work: Work) -> Command:
        if work.kind is not None:
            assert work.token is not None
            return work.kind([work.token])
        messages = [self.new(size, place) for place, size in enumerate(work.sizes)]
        return Enqueue(messages, destination=work.destination)

    def obstacle(self, work: list[Work]) -> tuple[type[BrokerError], ...] | None:
        """What stands against it; several things may, and the first is told."""
        reasons: list[type[BrokerError]] = []
        for each in work:
            record = None if each.token is None else self.held(each.token)
            if each.kind is not None and (record is None or record.until <= self.now):
                reasons.append(MessageLockLost)
            elif each.kind is DeadLetter and record is not None and record.subqueue is not MAIN:
                reasons.append(InvalidOperation)
        if not self.fits(sum(size for each in work for size in each.sizes)):
            reasons.append(QuotaExceeded)
        return tuple(reasons) or None

    def perform(self, work: Work, command: Command) -> None:
        if work.kind is None:
            assert isinstance(command, Enqueue)
            first = self.partition.next_sequence_number
            assert self.apply(command) == Enqueued(first, len(command.messages))
            self.note(first, command.messages, work.destination)
            return
        assert work.token is not None
        self.end_locks()
        record = self.held(work.token)
        assert record is not None
        assert self.apply(command) == Settled([])
        self.settle_record(record, work.kind)


class OutboxMachine(OutboxRules):
    pass


class SessionOutboxMachine(OutboxRules, SessionMachine):
    """The same of an entity that requires sessions."""


OutboxMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
SessionOutboxMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestOutboxMachine = OutboxMachine.TestCase
TestSessionOutboxMachine = SessionOutboxMachine.TestCase
