"""Vacant numbers: those under which no reader of the main queue misses a message, and no others (S-03)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain import vacant
from bendybus.domain.commands import (
    CancelScheduled,
    Confirm,
    DeadLetter,
    Done,
    Enqueue,
    Enqueued,
    Lock,
    Post,
    Reassign,
    Receive,
    Reply,
    Reserve,
    Tick,
)
from bendybus.domain.deadletter import Cause, mark
from bendybus.domain.effects import RemoveMessages, StoreMessages, UpdateMessages
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.range_commands import Purge, Replay, Survey, Surveyed
from bendybus.domain.schedule import postpone
from bendybus.domain.vacant import VacantNumbers
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber

ELSEWHERE = EntityPath("elsewhere")
START = Instant(1_700_000_000_000)


def new_message(due_s: float | None = None, at: Instant = START) -> Message:
    message = Message(b"x", size=1)
    if due_s is not None:
        postpone(message, at, Instant(at + int(due_s * 1000)))
    return message


# -- the runs ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=20), st.integers(1, 50))
def test_runs_are_joined_however_they_come(added: list[tuple[int, int]], number: int) -> None:
    numbers, known = VacantNumbers(), set()
    for first, count in added:
        if count % 2:
            numbers.add(first, count)
        else:
            numbers.add_each(reversed(range(first, first + count)))
        known |= {*range(first, first + count)}
    lowest = number
    while lowest - 1 in known:
        lowest -= 1
    assert numbers.lowest_below(SequenceNumber(number)) == lowest
    assert len(numbers) == sum(each - 1 not in known for each in known)
    numbers.forget_below(SequenceNumber(lowest))
    assert numbers.lowest_below(SequenceNumber(number)) == lowest


def test_the_newest_runs_are_kept_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacant, "RUNS_MAX", 10)
    numbers = VacantNumbers()
    for number in range(1, 100, 2):
        numbers.add(number, 1)
    assert len(numbers) <= 10
    assert numbers.lowest_below(SequenceNumber(100)) == 99
    assert numbers.lowest_below(SequenceNumber(2)) == 2


# -- which numbers they are -------------------------------------------------------------------


def vacant_from(driver) -> tuple[int, int]:
    """The lowest vacant number below the oldest message, and the number of that message."""
    reply = driver.apply(Survey())
    assert isinstance(reply, Surveyed)
    assert reply.vacant_from is not None
    return reply.vacant_from, reply.first


def lose_one(driver) -> None:
    driver.send(1)
    driver.receive(1)


def test_a_number_that_a_receiver_has_taken_is_not_vacant(driver):
    lose_one(driver)
    assert vacant_from(driver) == (2, 2)


def test_the_number_of_a_message_that_became_due_is_vacant(driver):
    lose_one(driver)
    message = new_message(1)
    driver.apply(Enqueue([message]))
    driver.apply(Confirm(message.sequence_number))
    assert vacant_from(driver) == (2, 2)
    driver.later(2)
    driver.apply(Tick())
    assert vacant_from(driver) == (2, 3)
    driver.apply(Confirm(message.sequence_number))
    assert vacant_from(driver) == (2, 3)
    driver.receive(1)
    assert vacant_from(driver) == (4, 4), "the message itself is lost"


@pytest.mark.parametrize("purged", [False, True])
def test_the_number_of_a_scheduled_message_that_was_cancelled_is_vacant(driver, purged):
    lose_one(driver)
    message = new_message(1)
    driver.apply(Enqueue([message]))
    driver.apply(Confirm(message.sequence_number))
    driver.apply(Purge(9, [MessageState.SCHEDULED]) if purged else CancelScheduled([message.sequence_number]))
    assert vacant_from(driver) == (2, 3)


def test_numbers_that_a_transaction_reserves_to_schedule_messages_are_vacant(driver):
    lose_one(driver)
    driver.apply(Reserve(2))
    assert vacant_from(driver) == (2, 4)
    message = new_message(1)
    message.sequence_number = SequenceNumber(2)
    driver.apply(Enqueue([message], numbered=True))
    driver.apply(Confirm(SequenceNumber(4)))
    driver.apply(CancelScheduled([SequenceNumber(2)]))
    assert vacant_from(driver) == (2, 5)


def test_the_number_of_a_message_that_a_transaction_sends_through_the_queue_is_vacant(driver):
    lose_one(driver)
    driver.apply(Enqueue([new_message()], destination=ELSEWHERE))
    driver.apply(Confirm(SequenceNumber(2)))
    driver.apply(Reassign([SequenceNumber(2)], PartitionNumber(1)))
    assert vacant_from(driver) == (2, 4)


def test_a_message_that_is_forwarded_is_missing_here_under_its_own_number(driver):
    lose_one(driver)
    driver.send(1)
    driver.apply(Post(1, ELSEWHERE, SubQueue.MAIN))
    assert vacant_from(driver) == (3, 4)


def test_the_number_of_a_message_that_arrives_as_a_dead_letter_is_vacant(driver):
    lose_one(driver)
    dead, alive = new_message(), new_message()
    dead.subqueue = SubQueue.DEAD_LETTER
    mark(dead, Cause("Bad", None))
    driver.apply(Enqueue([dead, alive], shelved=True))
    driver.apply(Confirm(alive.sequence_number))
    assert vacant_from(driver) == (2, 3)


def test_the_numbers_of_a_sub_queue_are_not_explained(driver):
    message = new_message(1)
    driver.apply(Enqueue([message]))
    driver.apply(Confirm(message.sequence_number))
    driver.apply(CancelScheduled([message.sequence_number]))
    reply = driver.apply(Survey(SubQueue.DEAD_LETTER))
    assert isinstance(reply, Surveyed)
    assert reply.vacant_from == reply.first


# -- against a model --------------------------------------------------------------------------


@dataclass
class Model:
    """A partition that keeps completed messages, its store, and the numbers that a reader misses."""

    now: Instant = START
    rows: dict[int, Message] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    is_sure: bool = True
    """Whether the partition must know all that is vacant: it has not been loaded again."""

    def __post_init__(self) -> None:
        self.description = QueueDescription(EntityPath("q"), keep_completed_s=3600)
        self.partition = Partition(PartitionNumber(0), self.description)

    def apply(self, command) -> Reply:
        reply, effects = self.partition.apply(command, self.now)
        for effect in effects:
            if isinstance(effect, StoreMessages):
                for message in effect.messages:
                    message.row_id = len(self.rows) + 1
                    self.rows[message.row_id] = copy(message)
            elif isinstance(effect, UpdateMessages):
                self.rows |= {message.row_id: message.unlocked() for message in effect.messages}
            elif isinstance(effect, RemoveMessages):
                for message in effect.messages:
                    self.rows[message.row_id].size = -1
        if isinstance(reply, Enqueued):
            self.partition.apply(Confirm(SequenceNumber(reply.first + reply.count - 1)), self.now)
        return reply

    def stored(self, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
        return [each for each in self.rows.values() if each.size > 0 and each.subqueue is subqueue]

    def numbers(self, state: MessageState) -> list[SequenceNumber]:
        return sorted(each.sequence_number for each in self.stored() if each.state is state)

    def step(self, name: str) -> None:
        active, waiting = self.numbers(MessageState.ACTIVE), self.numbers(MessageState.SCHEDULED)
        match name:
            case "send":
                self.apply(Enqueue([new_message()]))
            case "schedule":
                self.apply(Enqueue([new_message(), new_message(1, self.now), new_message(2, self.now)]))
            case "reserve":
                self.apply(Reserve(1))
            case "cancel" if waiting:
                self.apply(CancelScheduled(waiting[-1:]))
            case "tick":
                self.now = Instant(self.now + 1000)
                self.apply(Tick())
            case "complete" if active:
                self.apply(Receive(1))
                self.lost.add(active[0])
            case "bury" if active:
                given_out = self.apply(Lock(1, bytes(16)))
                self.apply(DeadLetter([given_out.messages[0].lock_token]))
                self.lost.add(active[0])
            case "replay":
                # The partition forgets what is below a number that counts as lost, and is not any more.
                self.is_sure = False
                kept = {each.sequence_number for each in self.stored(SubQueue.COMPLETED)}
                self.apply(Replay(100))
                self.lost -= kept
            case "load":
                self.is_sure = False
                following = self.partition.next_sequence_number
                self.partition = Partition(PartitionNumber(0), self.description, following)
                rows = [copy(each) for each in self.rows.values() if each.size > 0]
                self.partition.restore(sorted(rows, key=lambda each: each.sequence_number))

    def check(self) -> None:
        reply, effects = self.partition.apply(Survey(), self.now)
        assert isinstance(reply, Surveyed)
        assert effects == []
        here = {each.sequence_number for each in self.stored()}
        assert reply.first == min(here, default=self.partition.next_sequence_number)
        lowest = reply.first
        while lowest > 1 and lowest - 1 not in self.lost:
            lowest -= 1
        assert reply.vacant_from is not None
        if self.is_sure:
            assert reply.vacant_from == lowest
        else:
            assert lowest <= reply.vacant_from <= reply.first


STEPS = ["send", "schedule", "reserve", "cancel", "tick", "complete", "bury", "replay", "load"]


@pytest.mark.row("S-03")
@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_a_number_is_vacant_unless_its_message_is_lost(steps: list[str]) -> None:
    model = Model()
    for step in steps:
        model.step(step)
        model.check()


@given(st.lists(st.sampled_from(["send", "schedule", "tick", "complete", "bury", "load"]), max_size=40))
def test_a_load_forgets_nothing_about_messages_that_became_due(steps: list[str]) -> None:
    model = Model()
    for step in steps:
        model.step(step)
        model.is_sure = True
        model.check()


def test_nothing_is_left_to_do() -> None:
    """The model's own commands do what they say."""
    model = Model()
    for step in ("send", "schedule", "complete", "tick", "tick", "cancel"):
        model.step(step)
    assert model.lost == {1}
    assert model.numbers(MessageState.ACTIVE) == [2, 5, 6]
    assert model.apply(Tick()) == Done()
