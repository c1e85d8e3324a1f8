"""Commands carry all their inputs: a log of them gives the same partition again.

For queues and sessions the state machines replay every run: test_partition_machine.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bendybus.domain.commands import (
    CancelScheduled,
    Confirm,
    Enqueue,
    Lock,
    MoveLockEnds,
    Publish,
    Reserve,
    Tick,
)
from bendybus.domain.effects import ActivateMessages
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message
from bendybus.domain.partition import Partition
from bendybus.domain.schedule import postpone
from bendybus.domain.topic import TopicPartition
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import QuotaExceeded, RequestError
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber
from fix_command_log import CommandLog, state_of
from fix_examples import examples

AT = Instant(1_700_000_000_000)
FULL = 1024 << 20


def topic_partition() -> TopicPartition:
    description = TopicDescription(
        EntityPath("news"), requires_duplicate_detection=True, duplicate_detection_window_s=20
    )
    return TopicPartition(PartitionNumber(0), description)


def message(at: Instant, delay_ms: int) -> Message:
    made = Message(b"x", size=1)
    if delay_ms:
        postpone(made, at, Instant(at + delay_ms))
    return made


class Recorded:
    """A topic's partition whose due messages are published at once, and the log of all that was asked."""

    def __init__(self) -> None:
        self.partition = topic_partition()
        self.log = CommandLog()

    def apply(self, command, at: Instant) -> None:
        self.log.command(command, at)
        try:
            _, effects = self.partition.apply(command, at)
        except RequestError:
            return
        for effect in effects:
            if isinstance(effect, ActivateMessages):
                self.apply(Publish(effect.messages), at)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "schedule", "reserve", "confirm", "cancel", "tick"]),
        st.integers(1, 5),
        st.sampled_from([0, 0, 10, FULL]),
    ),
    max_size=40,
)


@settings(max_examples=examples(100))
@given(STEPS)
def test_a_log_of_commands_gives_the_same_partition_of_a_topic(steps) -> None:
    recorded, at = Recorded(), AT
    for step, amount, held_elsewhere in steps:
        at = Instant(at + 1000 * amount)
        if step in ("send", "schedule"):
            messages = [message(at, 3000 * amount if step == "schedule" else 0) for _ in range(amount)]
            identities = [f"{step}-{number}" for number in range(amount)]
            recorded.apply(Enqueue(messages, identities, held_elsewhere=held_elsewhere), at)
        elif step == "reserve":
            first = recorded.partition.next_sequence_number
            recorded.apply(Reserve(amount), at)
            numbered = [message(at, 5000) for _ in range(amount)]
            for number, each in enumerate(numbered, first):
                each.sequence_number = SequenceNumber(number)
            recorded.apply(Enqueue(numbered, numbered=True, held_elsewhere=held_elsewhere), at)
        elif step == "confirm":
            recorded.apply(Confirm(SequenceNumber(recorded.partition.next_sequence_number - 1)), at)
        elif step == "cancel":
            recorded.apply(CancelScheduled([SequenceNumber(amount)]), at)
        else:
            recorded.apply(Tick(), at)
    fresh = topic_partition()
    recorded.log.replay(fresh)
    assert state_of(fresh) == state_of(recorded.partition)


def test_the_size_of_the_subscriptions_is_in_the_command() -> None:
    partition = topic_partition()
    with pytest.raises(QuotaExceeded):
        partition.apply(Enqueue([message(AT, 0)], held_elsewhere=FULL), AT)
    with pytest.raises(QuotaExceeded):
        partition.check([Enqueue([message(AT, 0)], held_elsewhere=FULL)])
    assert partition.next_sequence_number == 1
    # The refusal left nothing behind: what the next command says holds for it alone.
    partition.apply(Enqueue([message(AT, 0)]), AT)
    assert partition.next_sequence_number == 2


def test_a_clock_that_was_set_back_is_in_the_log() -> None:
    description = QueueDescription(EntityPath("orders"), lock_duration_s=60)
    log = CommandLog()
    partition, again = (Partition(PartitionNumber(0), description) for _ in range(2))
    for command in (
        Enqueue([message(AT, 0)]),
        Confirm(SequenceNumber(1)),
        Lock(1, bytes(14)),
        MoveLockEnds(by_ms=3_600_000),
    ):
        log.command(command, AT)
        partition.apply(command, AT)
    log.replay(again)
    assert [each.locked_until for each in again.confirmed()] == [AT + 60_000 - 3_600_000]
    assert state_of(again) == state_of(partition)
