"""Completed messages that are kept: what is kept, for how long, how many, and how it is put back (B-07)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bendybus.domain import completed
from bendybus.domain.commands import (
    Abandon,
    Command,
    Complete,
    Confirm,
    DeadLetter,
    Defer,
    Enqueue,
    Enqueued,
    Lock,
    LockDeferred,
    Receive,
    ReceiveDeferred,
    Reply,
    Tick,
)
from bendybus.domain.effects import Effect, RemoveMessages, SessionsReady, StoreMessages, UpdateMessages
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.range_commands import Discard, DiscardThrough, Purge, Replay, Replayable
from bendybus.domain.session_commands import AcceptSession, LockInSession
from bendybus.errors import QuotaExceeded
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber, SessionId
from fix_examples import examples

START = Instant(1_700_000_000_000)
KEEP_S = 60


class Kept:
    """A partition that keeps completed messages, with a clock, and with what a store would have."""

    def __init__(self, **properties: object) -> None:
        self.description = QueueDescription(EntityPath("q"), **{"keep_completed_s": KEEP_S} | properties)  # type: ignore[arg-type]
        self.partition = Partition(PartitionNumber(0), self.description)
        self.now = START
        self.rows: dict[int, Message] = {}
        self.told: list[Effect] = []
        self._tokens = 0

    def apply(self, command: Command) -> Reply:
        reply, effects = self.partition.apply(command, self.now)
        for effect in effects:
            if isinstance(effect, StoreMessages):
                for message in effect.messages:
                    message.row_id = len(self.rows) + 1
                    self.rows[message.row_id] = copy(message)
            elif isinstance(effect, UpdateMessages):
                self.rows |= {message.row_id: copy(message) for message in effect.messages}
            elif isinstance(effect, RemoveMessages):
                for message in effect.messages:
                    del self.rows[message.row_id]
        if isinstance(reply, Enqueued) and reply.count:
            last = SequenceNumber(reply.first + reply.count - 1)
            _, self.told = self.partition.apply(Confirm(last), self.now)
        return reply

    def send(
        self, count: int = 1, session_id: str | None = None, ttl_s: float | None = None
    ) -> list[Message]:
        session = None if session_id is None else SessionId(session_id)
        until = None if ttl_s is None else Instant(self.now + int(ttl_s * 1000))
        messages = [Message(b"x", 10, until, session) for _ in range(count)]
        self.apply(Enqueue(messages))
        return messages

    def entropy(self, count: int) -> bytes:
        self._tokens += count
        return b"".join((self._tokens - each).to_bytes(14, "big") for each in range(count))

    def lock(self, count: int = 1) -> list[Message]:
        reply = self.apply(Lock(count, self.entropy(count)))
        return reply.messages  # type: ignore[union-attr]

    def complete(self, messages: Sequence[Message]) -> None:
        self.apply(Complete([message.lock_token for message in messages if message.lock_token]))

    def replay(self, count: int = 1000, **which: object) -> int:
        reply = self.apply(Replay(count, **which))  # type: ignore[arg-type]
        assert isinstance(reply, Enqueued | Replayable)
        return reply.count

    def later(self, seconds: float) -> None:
        self.now = Instant(self.now + int(seconds * 1000))

    @property
    def kept(self) -> int:
        return self.partition.counts(SubQueue.COMPLETED).active

    @property
    def active(self) -> int:
        return self.partition.counts().active


def completed_ones(count: int = 1, **properties: object) -> tuple[Kept, list[Message]]:
    queue = Kept(**properties)
    messages = queue.send(count)
    queue.complete(queue.lock(count))
    return queue, messages


def test_without_the_property_nothing_is_kept() -> None:
    queue, _ = completed_ones(3, keep_completed_s=0)
    assert (queue.kept, queue.rows) == (0, {})
    assert queue.replay() == 0


def test_a_message_that_is_put_back_is_new_but_for_what_it_says() -> None:
    queue = Kept()
    (message,) = queue.send(ttl_s=100)
    first = message.sequence_number
    (locked,) = queue.lock()
    queue.apply(Abandon([locked.lock_token], b"\xc1\x05\x02\xa1\x01a\x54\x01"))
    (locked,) = queue.lock()
    queue.complete([locked])
    assert (queue.active, queue.kept) == (0, 1)
    queue.later(30)
    assert queue.replay() == 1
    assert (queue.active, queue.kept) == (1, 0)
    (again,) = queue.lock()
    assert again is message
    assert again.sequence_number > first
    assert (again.delivery_count, again.enqueued_at) == (0, queue.now)
    assert again.expires_at == queue.now + 100_000
    assert again.amendment is not None
    assert (len(again.amendment.properties), again.amendment.completed_at) == (1, None)


@pytest.mark.parametrize(
    "how",
    ["complete", "receive and delete", "deferred", "deferred and deleted", "by range", "by number"],
)
def test_whatever_completes_a_message_keeps_it(how: str) -> None:
    queue = Kept()
    (message,) = queue.send()
    number = message.sequence_number
    match how:
        case "complete":
            queue.complete(queue.lock())
        case "receive and delete":
            queue.apply(Receive(1))
        case "by range":
            queue.apply(DiscardThrough(number, [message.state]))
        case "by number":
            queue.apply(Discard([number]))
        case _:
            queue.apply(Defer([queue.lock()[0].lock_token]))
            if how == "deferred":
                queue.apply(LockDeferred([number], queue.entropy(1)))
                queue.complete([message])
            else:
                queue.apply(ReceiveDeferred([number]))
    assert (queue.kept, queue.active) == (1, 0)
    assert queue.replay() == 1
    assert (queue.kept, queue.active) == (0, 1)


def test_what_a_receiver_deletes_is_given_as_it_was() -> None:
    queue = Kept()
    (message,) = queue.send()
    reply = queue.apply(Receive(1))
    (given_,) = reply.messages  # type: ignore[union-attr]
    assert given_ is not message
    assert (given_.subqueue, given_.amendment) == (SubQueue.MAIN, None)


def test_dead_letters_purged_and_expired_messages_are_not_kept() -> None:
    queue = Kept()
    queue.send(2)
    queue.apply(DeadLetter([queue.lock()[0].lock_token]))
    reply = queue.apply(Lock(1, queue.entropy(1), SubQueue.DEAD_LETTER))
    queue.complete(reply.messages)  # type: ignore[union-attr]
    queue.apply(Purge(10, [message.state for message in queue.rows.values()]))
    queue.send(ttl_s=1)
    queue.later(2)
    queue.apply(Tick())
    assert (queue.kept, queue.rows) == (0, {})


def test_times_sessions_and_numbers_choose_what_is_put_back() -> None:
    queue = Kept(keep_completed_s=3600)
    early = queue.send(2)
    queue.complete(queue.lock(2))
    queue.later(10)
    middle = queue.now
    queue.send(3)
    queue.later(10)
    queue.complete(queue.lock(3))
    assert queue.replay(dry_run=True) == 5
    assert queue.replay(dry_run=True, completed_before=middle) == 2
    assert queue.replay(dry_run=True, completed_from=middle) == 3
    assert queue.replay(dry_run=True, enqueued_from=middle, enqueued_before=Instant(middle + 1)) == 3
    assert queue.kept == 5, "a dry run moves nothing"
    number = early[1].sequence_number
    assert queue.replay(numbers=[number, number, SequenceNumber(99)]) == 1
    assert queue.replay(numbers=[number]) == 0, "a message is put back once"
    assert queue.replay(count=2) == 2
    assert (queue.kept, queue.active) == (2, 3)


def test_a_session_gets_its_messages_back_in_order_and_its_holder_is_told() -> None:
    queue = Kept(requires_session=True)
    sent = [queue.send(session_id=name)[0] for name in ("a", "b", "a")]
    for name in ("a", "b"):
        accepted = queue.apply(AcceptSession(SessionId(name), queue.entropy(1), True))
        reply = queue.apply(LockInSession(accepted.lock, 5, queue.entropy(5)))  # type: ignore[union-attr]
        for message in reply.messages:  # type: ignore[union-attr]
            queue.complete([message])
    assert queue.replay(session_id=SessionId("A")) == 2
    assert any(isinstance(effect, SessionsReady) for effect in queue.told)
    assert queue.kept == 1
    assert sent[1].sequence_number < sent[0].sequence_number < sent[2].sequence_number


def test_kept_messages_are_forgotten_when_their_time_is_over() -> None:
    queue, _ = completed_ones(2)
    queue.later(30)
    queue.send()
    queue.complete(queue.lock())
    queue.later(29)
    queue.apply(Tick())
    assert queue.kept == 3
    queue.later(2)
    assert queue.partition.next_deadline() <= queue.now  # type: ignore[operator]
    queue.apply(Tick())
    assert (queue.kept, len(queue.rows)) == (1, 1)
    queue.later(60)
    queue.apply(Tick())
    assert (queue.rows, queue.partition.next_deadline()) == ({}, None)


def test_a_message_that_is_put_back_again_and_again_takes_no_more_memory() -> None:
    queue, (message,) = completed_ones()
    for _ in range(3000):
        queue.later(0.001)
        assert queue.replay() == 1
        queue.complete(queue.lock())
    assert queue.kept == 1
    # Once for each time it was completed, if nothing forgets them.
    assert sys.getrefcount(message) < 2000


def test_a_shorter_time_holds_for_what_is_kept_already() -> None:
    queue, _ = completed_ones(2)
    queue.partition.description = QueueDescription(EntityPath("q"))
    queue.later(2)
    queue.apply(Tick())
    assert queue.kept == 0


def test_a_message_that_is_completed_again_is_kept_from_then_on() -> None:
    queue, _ = completed_ones()
    queue.later(40)
    assert queue.replay() == 1
    queue.complete(queue.lock())
    queue.later(40)
    queue.apply(Tick())
    assert queue.kept == 1
    queue.later(21)
    queue.apply(Tick())
    assert queue.kept == 0


def test_completed_messages_never_fill_the_queue_and_those_completed_first_make_room() -> None:
    queue = Kept()
    queue.partition._parts.completed.kept_max = 3
    messages = queue.send(5)
    for message in queue.lock(5):
        queue.complete([message])
    assert queue.kept == 3
    assert queue.partition.size_bytes == 0
    assert [each.subqueue for each in messages[:2]] == [SubQueue.COMPLETED] * 2
    assert set(queue.rows) == {3, 4, 5}
    assert queue.partition._parts.stock.tally.kept_too_short == 2


def test_kept_messages_have_no_more_room_than_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completed, "KEPT_BYTES_MAX", 25)
    queue, _ = completed_ones(3)
    assert (queue.kept, queue.partition.counts(SubQueue.COMPLETED).size_bytes) == (2, 20)


def test_a_full_queue_refuses_to_take_messages_back() -> None:
    queue = Kept(max_size_mb=1024)
    big = [Message(b"x", 600 << 20)]
    queue.apply(Enqueue(big))
    queue.complete(queue.lock())
    queue.apply(Enqueue([Message(b"x", 600 << 20)]))
    with pytest.raises(QuotaExceeded):
        queue.replay()
    assert queue.kept == 1


class Everything:
    """Every message is in one place, whatever is done, and a load finds what memory had."""

    def __init__(self) -> None:
        self.queue = Kept()
        self.sent = self.finished = 0

    def step(self, what: int, amount: int) -> None:
        queue = self.queue
        if what == 0:
            self.sent += len(queue.send(amount))
        elif what == 1:
            queue.complete(queue.lock(amount)[::-1])
        elif what == 2:
            queue.replay(amount)
        elif what == 3:
            queue.later(amount * 5)
            before = len(queue.rows)
            queue.apply(Tick())
            self.finished += before - len(queue.rows)
        elif what == 4:
            queue.apply(Receive(amount))
        else:
            self.load()
        assert queue.active + queue.kept == self.sent - self.finished == len(queue.rows)

    def load(self) -> None:
        queue = self.queue
        was = (queue.active, queue.kept, queue.partition.size_bytes)
        following = queue.partition.next_sequence_number
        queue.partition = Partition(PartitionNumber(0), queue.description, following)
        queue.partition.restore([row.unlocked() for row in queue.rows.values()])
        assert (queue.active, queue.kept, queue.partition.size_bytes) == was


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=40))
def test_nothing_is_lost_or_doubled_over_replays_and_loads(steps: list[tuple[int, int]]) -> None:
    everything = Everything()
    for what, amount in steps:
        everything.step(what, amount)
