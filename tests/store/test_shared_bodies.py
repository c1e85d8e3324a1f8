"""Copies of a message in several partitions share one body, in every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bendybus.domain.messages import Message, Origin
from bendybus.names import (
    EntityPath,
    Instant,
    PartitionNumber,
    SequenceNumber,
    SessionId,
)
from bendybus.store.protocol import PartitionChanges
from store.conftest import as_kept

Bench = Any  # the Workbench of conftest.py
MakeMessage = Callable[..., Message]


# -- copies that share a body -------------------------------------------------------


def copies(make_message: MakeMessage, *numbers: int, body: bytes = b"shared") -> list[Message]:
    """One message as a topic hands it to several subscriptions."""
    origin = Origin(SequenceNumber(77))
    made = [make_message(number, body) for number in numbers]
    for message in made:
        message.origin = origin
    return made


@pytest.mark.row("P-05")
def test_copies_in_several_partitions_share_one_body(bench: Bench, make_message: MakeMessage) -> None:
    first, second, third = copies(make_message, 1, 2, 3)
    alone = make_message(4, b"alone")
    bench.commit_all([[first, alone], [second, third]])
    assert first.body_row_id == second.body_row_id == third.body_row_id != alone.body_row_id
    bench.reopen()
    loaded = [*bench.loaded(0), *bench.loaded(1)]
    assert [as_kept(each) for each in loaded] == [as_kept(each) for each in (first, alone, second, third)]
    assert bench.store.read([each.body_row_id for each in loaded]) == [
        b"shared",
        b"alone",
        b"shared",
        b"shared",
    ]


def test_a_shared_body_stays_until_its_last_copy_goes(bench: Bench, make_message: MakeMessage) -> None:
    first, second = copies(make_message, 1, 2)
    bench.commit_all([[first], [second]])
    bench.commit(removed=[first])
    assert bench.store.read([second.body_row_id]) == [b"shared"]
    bench.commit(removed=[second], partition=1)
    assert bench.store.read([second.body_row_id]) == [None]


def test_a_copy_may_join_a_body_stored_earlier(bench: Bench, make_message: MakeMessage) -> None:
    (scheduled,) = copies(make_message, 1)
    bench.commit([scheduled])
    late = make_message(2, None)
    late.origin = scheduled.origin
    changes = [PartitionChanges(bench.keys[0], SequenceNumber(9), removed=[scheduled]),
               PartitionChanges(bench.keys[1], SequenceNumber(9), stored=[late])]  # fmt: skip
    bench.store.commit(changes)
    assert bench.store.read([late.body_row_id]) == [b"shared"]
    bench.commit(removed=[late], partition=1)
    assert bench.store.read([late.body_row_id]) == [None]


def test_a_copy_stored_and_removed_in_one_commit_leaves_nothing(
    bench: Bench, make_message: MakeMessage
) -> None:
    first, second = copies(make_message, 1, 2)
    bench.commit([first, second], removed=[first, second])
    bench.reopen()
    assert bench.numbers() == []
    assert bench.store.read([first.body_row_id]) == [None]


def test_dropping_one_owner_of_a_body_leaves_it_to_the_others(
    bench: Bench, make_message: MakeMessage
) -> None:
    entity = EntityPath("news/subscriptions/all")
    (record,) = bench.store.create_partitions(entity, [PartitionNumber(0)])
    first, second = copies(make_message, 1, 2)
    bench.store.commit([PartitionChanges(bench.keys[0], SequenceNumber(9), stored=[first]),
                        PartitionChanges(record.key, SequenceNumber(9), stored=[second])])  # fmt: skip
    bench.store.drop_partitions(entity)
    while bench.store.tidy():
        pass
    assert bench.store.read([first.body_row_id]) == [b"shared"]
    bench.commit(removed=[first])
    assert bench.store.read([first.body_row_id]) == [None]


def test_subscriptions_that_take_different_copies_find_each_as_it_was(
    bench: Bench, make_message: MakeMessage
) -> None:
    """However evenly or unevenly the copies of a send are spread, and whatever they differ in."""
    origins = [Origin(SequenceNumber(70 + number)) for number in range(12)]
    origins[8].hops = 1

    def taken(*numbers: int) -> list[Message]:
        made = [make_message(index + 1, b"%d" % number) for index, number in enumerate(numbers)]
        for message, number in zip(made, numbers, strict=True):
            message.origin = origins[number]
        return made

    all_of_them, some = taken(*range(12)), taken(2, 3, 5, 7, 8, 11)
    all_of_them[4].session_id = SessionId("s")
    all_of_them[9].enqueued_at = Instant(all_of_them[9].enqueued_at + 1)
    all_of_them[10].expires_at = Instant(10_000_000)
    some[4].delivery_count = 3
    some[1].sequence_number, some[2].sequence_number = SequenceNumber(30), SequenceNumber(31)
    bench.commit_all([all_of_them, some])
    again = taken(3, 4, 5)
    for index, message in enumerate(again):
        message.sequence_number = SequenceNumber(50 + index)
    bench.commit(again, partition=1)
    bench.reopen()
    for partition, stored in ((0, all_of_them), (1, [*some, *again])):
        loaded = bench.loaded(partition)
        in_order = sorted(stored, key=lambda message: message.sequence_number)
        assert [as_kept(each) for each in loaded] == [as_kept(each) for each in in_order]
        bodies = [each.payload for each in in_order]
        assert bench.store.read([each.body_row_id for each in loaded]) == bodies
