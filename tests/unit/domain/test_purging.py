"""Purging a partition: what passes goes, what is locked stays and is counted, and nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain.commands import Confirm, Defer, Enqueue, Enqueued, Lock
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.range_commands import Purge, Purged
from bendybus.domain.schedule import postpone
from bendybus.errors import InvalidOperation
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber, SessionId

ALL = tuple(MessageState)
AT = Instant(1_000_000)


def partition_of(messages: list[Message], **properties: object) -> Partition:
    partition = Partition(PartitionNumber(0), QueueDescription(EntityPath("q"), **properties))
    reply, _ = partition.apply(Enqueue(messages), AT)
    assert isinstance(reply, Enqueued)
    partition.apply(Confirm(SequenceNumber(reply.first + reply.count - 1)), AT)
    return partition


def plain(count: int, session_id: str | None = None) -> list[Message]:
    made = [Message(b"x", size=1) for _ in range(count)]
    for message in made:
        message.session_id = None if session_id is None else SessionId(session_id)
    return made


def purge(
    partition: Partition, count: int = 1000, states: tuple[MessageState, ...] = ALL, **how: object
) -> Purged:
    reply, _ = partition.apply(Purge(count, states, **how), AT)
    assert isinstance(reply, Purged)
    return reply


def test_every_state_is_purged_or_those_that_are_named() -> None:
    scheduled = plain(1)
    postpone(scheduled[0], AT, Instant(AT + 60_000))
    partition = partition_of([*plain(4), *scheduled])
    given_, _ = partition.apply(Lock(1, bytes(14)), AT)
    partition.apply(Defer([given_.messages[0].lock_token]), AT)
    assert purge(partition, states=(MessageState.DEFERRED,)).count == 1
    assert purge(partition, states=(MessageState.SCHEDULED,)).count == 1
    counts = partition.counts()
    assert (counts.active, counts.deferred, counts.scheduled) == (3, 0, 0)
    assert purge(partition) == Purged(3, 0, more=False)
    assert partition.size_bytes == 0


def test_what_is_locked_stays_and_is_counted() -> None:
    partition = partition_of(plain(5))
    partition.apply(Lock(2, bytes(range(28))), AT)
    assert purge(partition) == Purged(3, 2, more=False)
    assert partition.counts().locked == 2


def test_no_more_are_taken_than_the_command_allows() -> None:
    partition = partition_of(plain(5))
    assert purge(partition, count=3) == Purged(3, 0, more=True)
    assert [message.sequence_number for message in partition.confirmed()] == [4, 5]


@pytest.mark.parametrize("requires_session", [False, True])
def test_one_session_is_purged_whatever_its_case(requires_session: bool) -> None:
    messages = [*plain(2, "a"), *plain(3, "b")]
    partition = partition_of(messages, requires_session=requires_session)
    assert purge(partition, session_id=SessionId("A")).count == 2
    assert {message.session_id for message in partition.confirmed()} == {"b"}


@given(st.sets(st.integers(1, 40)), st.integers(1, 45))
def test_named_messages_go_and_the_others_keep_their_order(wanted: set[int], count: int) -> None:
    partition = partition_of(plain(30))
    done = purge(partition, count, numbers=[SequenceNumber(each) for each in wanted])
    gone = sorted(each for each in wanted if each <= 30)
    left = [message.sequence_number for message in partition.confirmed()]
    assert done.count <= min(count, len(gone))
    assert set(left) >= set(range(1, 31)) - wanted
    assert left == sorted(left) and len(left) + done.count == 30
    if count >= len(wanted):
        assert done.count == len(gone)


def test_times_bound_what_is_purged() -> None:
    partition = partition_of(plain(3))
    assert purge(partition, enqueued_before=AT).count == 0
    assert purge(partition, enqueued_from=Instant(AT + 1)).count == 0
    assert purge(partition, enqueued_from=AT, enqueued_before=Instant(AT + 1)).count == 3


def test_messages_are_dead_lettered_instead() -> None:
    partition = partition_of(plain(3))
    states = (MessageState.ACTIVE, MessageState.DEFERRED)
    assert purge(partition, states=states, dead_letters=True, reason="Why").count == 3
    assert partition.counts(SubQueue.DEAD_LETTER).active == 3
    assert {message.amendment.dead_letter_reason for message in partition.confirmed()} == {"Why"}
    with pytest.raises(InvalidOperation):
        purge(partition, states=states, subqueue=SubQueue.DEAD_LETTER, dead_letters=True)
    assert purge(partition, subqueue=SubQueue.DEAD_LETTER).count == 3
