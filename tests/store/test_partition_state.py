"""What a partition keeps beside messages, whose it is, and how it is dropped, in every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bendybus.domain.messages import Message, Origin
from bendybus.errors import PartitionMoved, StoreError
from bendybus.names import (
    EntityPath,
    Instant,
    PartitionNumber,
    SequenceNumber,
    SessionId,
)
from bendybus.store.protocol import PartitionChanges, PartitionKey, SessionRecord, SessionState

Bench = Any  # the Workbench of conftest.py
MakeMessage = Callable[..., Message]


# -- sessions, outboxes, owners -----------------------------------------------------


def save(bench: Bench, session: str, state: bytes | None, at: int = 5) -> None:
    change = PartitionChanges(bench.keys[0], SequenceNumber(1))
    change.session_states.append(SessionState(SessionId(session), state, Instant(at)))
    bench.store.commit([change])


@pytest.mark.row("P-13")
@pytest.mark.parametrize("session", ["", "plain", "a\x00b", "\u00e9\U0001f68c"])
@pytest.mark.parametrize("state", [b"", b"\x00\xff", b"x" * 300_000])
def test_the_state_of_a_session_survives(bench: Bench, session: str, state: bytes) -> None:
    save(bench, session, state, at=42)
    bench.reopen()
    assert bench.store.read_session_state(bench.keys[0], session) == state
    assert bench.store.read_session_state(bench.keys[1], session) is None
    assert bench.store.load(bench.keys[0]).sessions == [
        SessionRecord(SessionId(session), len(state), Instant(42))
    ]


def test_a_state_is_replaced_and_forgotten(bench: Bench) -> None:
    save(bench, "s", b"first")
    save(bench, "s", b"second", at=6)
    assert bench.store.read_session_state(bench.keys[0], "s") == b"second"
    save(bench, "s", None)
    assert bench.store.read_session_state(bench.keys[0], "s") is None
    assert bench.store.load(bench.keys[0]).sessions == []


@pytest.mark.row("P-34")
def test_what_has_arrived_from_an_outbox_is_marked(bench: Bench) -> None:
    for number in (3, 8):
        change = PartitionChanges(bench.keys[0], SequenceNumber(1))
        change.transferred["source/0"] = SequenceNumber(number)
        bench.store.commit([change])
    bench.reopen()
    assert bench.store.load(bench.keys[0]).transferred == {"source/0": 8}
    assert bench.store.load(bench.keys[1]).transferred == {}


@pytest.mark.row("P-02")
def test_a_commit_under_an_earlier_claim_is_refused_whole(bench: Bench, make_message: MakeMessage) -> None:
    """P-02: a broker that stalled while another took over can never write again."""
    (epoch,) = bench.store.claim([bench.keys[0]])
    stale = [
        PartitionChanges(bench.keys[1], SequenceNumber(9), stored=[make_message(1)]),
        PartitionChanges(bench.keys[0], SequenceNumber(9), stored=[make_message(2)]),
    ]
    with pytest.raises(PartitionMoved):
        bench.store.commit(stale)
    assert bench.numbers(0) == bench.numbers(1) == []
    mine = PartitionChanges(bench.keys[0], SequenceNumber(9), stored=[make_message(2)], epoch=epoch)
    bench.store.commit([mine])
    assert bench.numbers(0) == [2]


def test_each_claim_gives_a_later_epoch_and_survives(bench: Bench) -> None:
    first = bench.store.claim(bench.keys)
    bench.reopen()
    assert bench.store.claim(bench.keys) == [epoch + 1 for epoch in first]
    with pytest.raises(StoreError):
        bench.store.claim([4711])


def test_a_dropped_partition_takes_its_sessions_and_marks_along(bench: Bench) -> None:
    save(bench, "s", b"state")
    bench.store.drop_partitions(EntityPath("orders"))
    (record, _) = bench.store.create_partitions(
        EntityPath("orders"), [PartitionNumber(0), PartitionNumber(1)]
    )
    assert bench.store.load(record.key).sessions == []
    while bench.store.tidy():
        pass


# -- whose a store is ---------------------------------------------------------------


def test_a_store_belongs_to_the_first_namespace_that_opens_it(bench: Bench) -> None:
    bench.store.namespace = "ours"
    bench.reopen()
    bench.store.close()
    bench.store.namespace = "theirs"
    for refused in (bench.store.examine, bench.store.open):
        with pytest.raises(StoreError, match="belongs to another namespace"):
            refused()
    bench.store.namespace = "ours"
    bench.store.examine()
    bench.store.open()
    assert len(bench.store.partitions()) == 2


def test_stores_are_told_apart_before_and_after_they_are_made(
    make_bench: Callable[[], Bench], make_store: Callable[[], Any]
) -> None:
    one, other, new = make_bench().store, make_bench().store, make_store()
    assert one.examine() == one.examine()
    assert new.examine() == new.examine()
    assert len({one.examine(), other.examine(), new.examine()}) == 3


# -- single partitions are dropped ----------------------------------------------------


def test_discarding_one_partition_leaves_the_others_of_its_entity(
    bench: Bench, make_message: MakeMessage
) -> None:
    bench.commit_all([[make_message(1, b"goes")], [make_message(2, b"stays")]])
    gone = bench.loaded()[0].row_id
    bench.store.discard([bench.keys[0]])
    for _ in range(2):
        assert [record.number for record in bench.store.partitions()] == [1]
        assert bench.store.read([gone, bench.loaded(1)[0].row_id])[1] == b"stays"
        with pytest.raises(StoreError):
            bench.store.load(bench.keys[0])
        with pytest.raises(StoreError):
            bench.commit([make_message(3)])
        while bench.store.tidy():
            pass
        assert bench.store.read([gone]) == [None]
        bench.reopen()


def test_a_discarded_partition_can_be_made_anew_and_is_empty(bench: Bench, make_message: MakeMessage) -> None:
    bench.commit([make_message(1)])
    bench.store.discard([bench.keys[0]])
    (made,) = bench.store.create_partitions(EntityPath("orders"), [PartitionNumber(0)])
    assert made.key != bench.keys[0]
    assert bench.store.load(made.key).messages == []


@pytest.mark.row("P-04")
def test_discarding_leaves_a_body_to_the_copy_in_another_partition(
    bench: Bench, make_message: MakeMessage
) -> None:
    origin = Origin(SequenceNumber(5))
    one, other = make_message(1, b"shared"), make_message(2, b"shared")
    one.origin = other.origin = origin
    bench.commit_all([[one], [other]])
    bench.store.discard([bench.keys[0]])
    while bench.store.tidy():
        pass
    assert bench.store.read([origin.body]) == [b"shared"]
    bench.commit(removed=[other], partition=1)
    assert bench.store.read([origin.body]) == [None]


def test_discarding_what_is_not_there_is_no_error(bench: Bench) -> None:
    bench.store.discard([])
    bench.store.discard([bench.keys[0], PartitionKey(4711)])
    bench.store.discard([bench.keys[0]])
    assert [record.number for record in bench.store.partitions()] == [1]


def test_a_store_says_of_what_kind_it_is(bench: Bench) -> None:
    assert bench.store.kind in ("memory", "sqlite", "postgresql")
