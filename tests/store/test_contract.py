"""What every messaging store promises, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bendybus.domain.messages import Amendment, Message, MessageState, Posting, SubQueue
from bendybus.errors import PartitionMoved, StoreError
from bendybus.names import (
    PARTITION_SHIFT,
    EntityPath,
    Instant,
    PartitionNumber,
    SequenceNumber,
)
from bendybus.store.protocol import PartitionChanges
from fix_examples import examples
from store.conftest import as_kept

Bench = Any  # the Workbench of conftest.py
MakeMessage = Callable[..., Message]


@pytest.mark.row("B-08")
@pytest.mark.parametrize("state", MessageState)
@pytest.mark.parametrize("subqueue", SubQueue)
def test_a_message_comes_back_as_it_was_stored(
    bench: Bench, make_message: MakeMessage, state: MessageState, subqueue: SubQueue
) -> None:
    message = make_message(7, session="s-1")
    message.state, message.subqueue = state, subqueue
    message.delivery_count, message.expires_at = 3, Instant(1_800_000_000_000)
    message.amendment = Amendment((b"\x00\xff", b"later"), "TooOld", "it\x00was")
    bench.commit([message])
    bench.reopen()
    (loaded,) = bench.loaded()
    assert as_kept(loaded) == as_kept(message)
    assert loaded.state is state and loaded.subqueue is subqueue
    assert bench.store.read([loaded.row_id]) == [message.payload]


@pytest.mark.row("B-07")
def test_when_a_kept_message_was_completed_comes_back(bench: Bench, make_message: MakeMessage) -> None:
    message = make_message(7)
    message.subqueue = SubQueue.COMPLETED
    message.amendment = Amendment((b"added",), completed_at=Instant(1_800_000_000_000))
    bench.commit([message])
    bench.reopen()
    (loaded,) = bench.loaded()
    assert as_kept(loaded) == as_kept(message)


@pytest.mark.row("S-03")
@pytest.mark.parametrize("completed_at", [None, Instant(1_800_000_000_000)])
def test_the_number_that_a_message_had_before_comes_back(
    bench: Bench, make_message: MakeMessage, completed_at: Instant | None
) -> None:
    message = make_message(7)
    bench.commit([message])
    message.sequence_number = SequenceNumber(8)
    message.amendment = Amendment(completed_at=completed_at, earlier_number=SequenceNumber(7))
    bench.commit(updated=[message])
    bench.reopen()
    (loaded,) = bench.loaded()
    assert as_kept(loaded) == as_kept(message)


@pytest.mark.row("P-16", "P-34")
@pytest.mark.parametrize("partition", [None, PartitionNumber(0), PartitionNumber(15)])
def test_where_a_posted_message_goes_comes_back(
    bench: Bench, make_message: MakeMessage, partition: PartitionNumber | None
) -> None:
    message = make_message(7)
    message.subqueue = SubQueue.OUTBOX
    posting = Posting(EntityPath("next"), SequenceNumber(3), SubQueue.DEAD_LETTER, partition)
    message.amendment = Amendment(posting=posting)
    bench.commit([message])
    bench.reopen()
    (loaded,) = bench.loaded()
    assert as_kept(loaded) == as_kept(message)


def test_loading_leaves_payloads_and_locks_behind(bench: Bench, make_message: MakeMessage) -> None:
    message = make_message(1)
    message.lock_token, message.locked_until = b"t" * 16, Instant(5)
    bench.commit([message])
    (loaded,) = bench.loaded()
    assert loaded is not message
    assert (loaded.payload, loaded.lock_token, loaded.locked_until) == (None, None, 0)


@pytest.mark.row("P-13")
@pytest.mark.parametrize("session", ["", "plain", "a\x00b", 'quote " and \\ and \u00e9\U0001f68c', None])
def test_any_session_id_survives(bench: Bench, make_message: MakeMessage, session: str | None) -> None:
    bench.commit([make_message(1, session=session)])
    bench.reopen()
    assert bench.loaded()[0].session_id == session


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\x00a\x00", "\u00e9\U0001f68c".encode(), b"\xff\xfe\x80", b"x" * 100_000]
)
def test_any_payload_survives_alone_and_among_others(
    bench: Bench, make_message: MakeMessage, payload: bytes
) -> None:
    bench.commit([make_message(1, payload)])
    bench.commit([make_message(2, b"before"), make_message(3, payload), make_message(4, b"after")])
    bench.reopen()
    first, *others = [message.row_id for message in bench.loaded()]
    assert bench.store.read([first]) == [payload]
    assert bench.store.read(others) == [b"before", payload, b"after"]


def test_payloads_are_read_in_the_order_asked_and_as_often(bench: Bench, make_message: MakeMessage) -> None:
    first, second = make_message(1, b"first"), make_message(2, b"second")
    bench.commit([first, second])
    row_ids = [second.row_id, first.row_id, second.row_id]
    assert bench.store.read(row_ids) == [b"second", b"first", b"second"]
    assert bench.store.read([]) == []


def test_payloads_that_are_at_hand_are_those_that_would_be_read(
    bench: Bench, make_message: MakeMessage
) -> None:
    first, second = make_message(1, b"first"), make_message(2, b"second")
    bench.commit([first, second])
    row_ids = [second.row_id, first.row_id]
    assert bench.store.at_hand(row_ids) in (None, [b"second", b"first"])
    assert bench.store.at_hand([first.row_id, 10_000]) is None


def test_reading_a_payload_that_is_not_there_gives_nothing(bench: Bench, make_message: MakeMessage) -> None:
    message = make_message(1, b"here")
    bench.commit([message])
    assert bench.store.read([4711, message.row_id]) == [None, b"here"]


def test_messages_load_in_order_of_sequence_number(bench: Bench, make_message: MakeMessage) -> None:
    bench.commit([make_message(5)])
    bench.commit([make_message(2), make_message(9)])
    assert bench.numbers() == [2, 5, 9]


def test_more_messages_than_a_page_load_exactly_once(bench: Bench, make_message: MakeMessage) -> None:
    bench.commit([make_message(number) for number in range(1, 4002)])
    assert bench.numbers() == list(range(1, 4002))


def test_payloads_can_be_read_between_the_pages_of_a_load(bench: Bench, make_message: MakeMessage) -> None:
    messages = [make_message(n) for n in range(1, 2502)]
    bench.commit(messages)
    read: list[list[bytes | None]] = []

    def between_pages() -> None:
        read.append(bench.store.read([messages[0].row_id, messages[-1].row_id]))

    snapshot = bench.store.load(bench.keys[0], between_pages)
    assert len(snapshot.messages) == len(messages)
    assert read and read == [[messages[0].payload, messages[-1].payload]] * len(read)


def test_an_update_replaces_what_may_change(bench: Bench, make_message: MakeMessage) -> None:
    message, other = make_message(1), make_message(2)
    bench.commit([message, other])
    message.delivery_count, message.subqueue = 4, SubQueue.DEAD_LETTER
    message.state, message.expires_at = MessageState.DEFERRED, Instant(99)
    message.amendment = Amendment(dead_letter_reason="why")
    bench.commit(updated=[message])
    bench.reopen()
    assert list(map(as_kept, bench.loaded())) == [as_kept(message), as_kept(other)]
    message.amendment = None
    message.expires_at = None
    bench.commit(updated=[message])
    assert as_kept(bench.loaded()[0]) == as_kept(message)


@pytest.mark.row("B-08")
def test_an_update_may_give_a_message_another_number(bench: Bench, make_message: MakeMessage) -> None:
    message, other = make_message(1, b"was scheduled"), make_message(2)
    message.state = MessageState.SCHEDULED
    bench.commit([message, other])
    bench.reopen()
    loaded, _ = bench.loaded()
    assert loaded.payload is None
    loaded.state = MessageState.ACTIVE
    loaded.sequence_number, loaded.enqueued_at = SequenceNumber(3), Instant(1_800_000_000_000)
    bench.commit(updated=[loaded], next_sequence_number=4)
    bench.reopen()
    assert list(map(as_kept, bench.loaded())) == [as_kept(other), as_kept(loaded)]
    assert bench.store.read([loaded.row_id]) == [b"was scheduled"]
    bench.commit(removed=[loaded])
    assert bench.numbers() == [2]
    assert bench.store.read([loaded.row_id]) == [None]


def remember(bench: Bench, at: int, *digests: bytes, partition: int = 0, through: int | None = None) -> None:
    changes = PartitionChanges(bench.keys[partition], SequenceNumber(1000))
    changes.remembered = [(Instant(at), list(digests))]
    changes.forgotten_through = None if through is None else Instant(through)
    bench.store.commit([changes])


def remembered(bench: Bench, partition: int = 0) -> list[tuple[int, bytes]]:
    entries: list[tuple[int, bytes]] = bench.store.load(bench.keys[partition]).identities
    return entries


@pytest.mark.row("B-08")
def test_what_duplicate_detection_remembers_comes_back_oldest_first(bench: Bench) -> None:
    late, early, other = b"\xff" * 16, b"\x00" * 16, b"\x7f" * 16
    remember(bench, 20, late, early)
    remember(bench, 10, other)
    remember(bench, 30, other, partition=1)
    bench.reopen()
    assert remembered(bench) == [(10, other), (20, early), (20, late)]
    assert remembered(bench, 1) == [(30, other)]


def test_what_has_aged_is_forgotten_in_its_own_partition(bench: Bench) -> None:
    first, second = b"1" * 16, b"2" * 16
    for partition in (0, 1):
        remember(bench, 10, first, partition=partition)
        remember(bench, 20, second, partition=partition)
    remember(bench, 30, first, through=10)
    bench.reopen()
    assert remembered(bench) == [(20, second), (30, first)]
    assert remembered(bench, 1) == [(10, first), (20, second)]


@pytest.mark.row("B-08")
def test_one_commit_remembers_for_several_partitions_and_several_times(bench: Bench) -> None:
    first, second = b"1" * 16, b"2" * 16
    changes = [PartitionChanges(key, SequenceNumber(1000)) for key in bench.keys[:2]]
    changes[0].remembered = [(Instant(10), [first, second]), (Instant(10), [second]), (Instant(20), [first])]
    changes[1].remembered = [(Instant(10), [first])]
    bench.store.commit(changes)
    bench.reopen()
    assert remembered(bench) == [(10, first), (10, second), (20, first)]
    assert remembered(bench, 1) == [(10, first)]


def test_what_a_commit_remembers_it_does_not_forget(bench: Bench) -> None:
    old, new = b"1" * 16, b"2" * 16
    remember(bench, 10, old)
    remember(bench, 10, new, through=10)
    assert remembered(bench) == [(10, new)]


def test_a_commit_of_an_earlier_owner_remembers_nothing(bench: Bench) -> None:
    bench.store.claim(bench.keys)
    with pytest.raises(PartitionMoved):
        remember(bench, 10, b"1" * 16)
    assert remembered(bench) == []


def test_more_is_remembered_than_a_page_holds(bench: Bench) -> None:
    digests = [number.to_bytes(16, "big") for number in range(4001)]
    remember(bench, 10, *digests)
    remember(bench, 11, *digests[:5])
    assert remembered(bench) == [(10, digest) for digest in digests] + [
        (11, digest) for digest in digests[:5]
    ]


def test_a_commit_that_fails_remembers_nothing(bench: Bench, make_message: MakeMessage) -> None:
    broken = make_message(1)
    broken.payload = None
    changes = PartitionChanges(bench.keys[0], SequenceNumber(2), [broken])
    changes.remembered = [(Instant(1), [b"1" * 16])]
    with pytest.raises(ValueError, match="without its payload"):
        bench.store.commit([changes])
    bench.reopen()
    assert remembered(bench) == []


def test_a_dropped_partition_leaves_no_memory_of_duplicates(bench: Bench) -> None:
    remember(bench, 10, *[number.to_bytes(16, "big") for number in range(4001)])
    bench.store.drop_partitions(EntityPath("orders"))
    while bench.store.tidy():
        pass
    (record,) = bench.store.create_partitions(EntityPath("orders"), [PartitionNumber(0)])
    assert bench.store.load(record.key).identities == []


def test_a_removed_message_is_gone_with_its_payload(bench: Bench, make_message: MakeMessage) -> None:
    messages = [make_message(number) for number in range(1, 6)]
    bench.commit(messages)
    bench.commit(removed=[messages[0], messages[1], messages[3]])
    bench.reopen()
    assert bench.numbers() == [3, 5]
    assert bench.store.read([messages[1].row_id]) == [None]


def test_a_loaded_message_can_be_updated_and_removed(bench: Bench, make_message: MakeMessage) -> None:
    bench.commit([make_message(1), make_message(2)])
    bench.reopen()
    one, two = bench.loaded()
    two.delivery_count = 1
    bench.commit(updated=[two], removed=[one])
    assert [(message.sequence_number, message.delivery_count) for message in bench.loaded()] == [(2, 1)]


def test_one_commit_may_store_update_and_remove_the_same_message(
    bench: Bench, make_message: MakeMessage
) -> None:
    stays, goes = make_message(1), make_message(2)
    stays.delivery_count = 1
    bench.commit([stays, goes], updated=[stays, goes], removed=[goes])
    assert list(map(as_kept, bench.loaded())) == [as_kept(stays)]
    assert stays.row_id != goes.row_id


def test_places_differ_between_partitions_and_are_not_given_twice(
    bench: Bench, make_message: MakeMessage
) -> None:
    messages = [make_message(1), make_message(2)]
    bench.commit([messages[0]], partition=0)
    bench.commit([messages[1]], partition=1)
    bench.commit(removed=[messages[1]], partition=1)
    later = make_message(3)
    bench.commit([later])
    assert len({message.row_id for message in [*messages, later]}) == 3


def test_partitions_of_one_commit_keep_their_messages_apart(bench: Bench, make_message: MakeMessage) -> None:
    bench.store.commit(
        [
            PartitionChanges(bench.keys[0], SequenceNumber(2), [make_message(1, b"zero")]),
            PartitionChanges(bench.keys[1], SequenceNumber(12), [make_message(11, b"one")]),
        ]
    )
    for partition, payload in enumerate([b"zero", b"one"]):
        (message,) = bench.loaded(partition)
        assert bench.store.read([message.row_id]) == [payload]


@pytest.mark.row("P-31")
def test_a_new_partition_counts_from_one_below_its_number(bench: Bench) -> None:
    assert bench.store.load(bench.keys[0]).next_sequence_number == 1
    assert bench.store.load(bench.keys[1]).next_sequence_number == (1 << PARTITION_SHIFT) + 1


def test_the_counter_survives_though_every_message_is_gone(bench: Bench, make_message: MakeMessage) -> None:
    message = make_message(41)
    bench.commit([message], next_sequence_number=42)
    bench.commit(removed=[message], next_sequence_number=42)
    bench.reopen()
    assert bench.store.load(bench.keys[0]).next_sequence_number == 42


@pytest.mark.row("P-18")
def test_a_commit_that_fails_half_way_leaves_nothing(bench: Bench, make_message: MakeMessage) -> None:
    kept = make_message(1)
    bench.commit([kept], next_sequence_number=2)
    kept.delivery_count = 9
    broken = make_message(3)
    broken.payload = None
    with pytest.raises(ValueError, match="without its payload"):
        bench.store.commit(
            [
                PartitionChanges(bench.keys[1], SequenceNumber(8), [make_message(7)]),
                PartitionChanges(bench.keys[0], SequenceNumber(4), [make_message(2), broken], [kept], [kept]),
            ]
        )
    bench.reopen()
    assert [(message.sequence_number, message.delivery_count) for message in bench.loaded(0)] == [(1, 0)]
    assert bench.loaded(1) == []
    assert bench.store.load(bench.keys[0]).next_sequence_number == 2


def test_text_that_cannot_be_encoded_leaves_nothing(bench: Bench, make_message: MakeMessage) -> None:
    with pytest.raises(UnicodeEncodeError):
        bench.commit([make_message(1), make_message(2, session="\ud800")])
    assert bench.loaded() == []


def test_a_message_that_was_never_stored_cannot_be_removed(bench: Bench, make_message: MakeMessage) -> None:
    with pytest.raises(ValueError, match="never stored"):
        bench.commit([make_message(1)], removed=[make_message(2)])
    assert bench.loaded() == []


@pytest.mark.row("P-32")
def test_creating_partitions_again_returns_those_that_are_there(
    bench: Bench, make_message: MakeMessage
) -> None:
    bench.commit([make_message(1)])
    numbers = [PartitionNumber(1), PartitionNumber(0), PartitionNumber(5)]
    records = bench.store.create_partitions(EntityPath("orders"), numbers)
    assert [record.number for record in records] == [0, 1, 5]
    assert [record.key for record in records[:2]] == bench.keys
    assert bench.numbers() == [1]
    only = bench.store.create_partitions(EntityPath("orders"), [PartitionNumber(1)])
    assert [record.key for record in only] == [bench.keys[1]]


def test_partitions_are_listed_after_reopening(bench: Bench) -> None:
    before = bench.store.partitions()
    bench.reopen()
    assert bench.store.partitions() == before
    assert [(record.entity, record.number) for record in before] == [("orders", 0), ("orders", 1)]


def test_dropping_an_entity_takes_its_messages_and_no_others(bench: Bench, make_message: MakeMessage) -> None:
    (bills,) = bench.store.create_partitions(EntityPath("bills"), [PartitionNumber(0)])
    other = make_message(1, b"bill")
    bench.store.commit([PartitionChanges(bills.key, SequenceNumber(2), [other])])
    bench.commit([make_message(1)])
    bench.store.drop_partitions(EntityPath("orders"))
    bench.store.drop_partitions(EntityPath("never was"))
    for reopen in (False, True):
        if reopen:
            bench.reopen()
        assert bench.store.partitions() == [bills]
        assert bench.store.read([other.row_id]) == [b"bill"]
        with pytest.raises(StoreError, match="no partition"):
            bench.store.load(bench.keys[0])
    while bench.store.tidy():
        pass
    assert [message.sequence_number for message in bench.store.load(bills.key).messages] == [1]


def test_an_entity_made_anew_starts_empty_under_new_keys(bench: Bench, make_message: MakeMessage) -> None:
    bench.commit([make_message(1)])
    seen = set(bench.keys)
    for _ in range(2):
        bench.store.drop_partitions(EntityPath("orders"))
        (record,) = bench.store.create_partitions(EntityPath("orders"), [PartitionNumber(0)])
        assert record.key not in seen
        assert bench.store.load(record.key).messages == []
        seen.add(record.key)
        # Not even when nothing is left of the old partition.
        bench.store.drop_partitions(EntityPath("orders"))
        while bench.store.tidy():
            pass


def test_a_commit_to_a_dropped_partition_is_refused_whole(bench: Bench, make_message: MakeMessage) -> None:
    (bills,) = bench.store.create_partitions(EntityPath("bills"), [PartitionNumber(0)])
    bench.store.drop_partitions(EntityPath("orders"))
    with pytest.raises(StoreError, match="no partition"):
        bench.store.commit(
            [
                PartitionChanges(bills.key, SequenceNumber(2), [make_message(1)]),
                PartitionChanges(bench.keys[0], SequenceNumber(2), [make_message(1)]),
            ]
        )
    assert bench.store.load(bills.key).messages == []


# -- random histories against a dictionary ------------------------------------


@dataclass
class Step:
    """Numbers pick from the messages there are, whatever their count then."""

    stored: list[tuple[int, bytes, str | None]] = field(default_factory=list)
    updated: list[tuple[int, int, MessageState, SubQueue, Amendment | None]] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    reopen: bool = False


amendments = st.builds(
    Amendment,
    st.lists(st.binary(max_size=8), max_size=2).map(tuple),
    st.none() | st.text(max_size=5),
    st.none() | st.text(max_size=5),
)
session_ids = st.none() | st.text(st.characters(codec="utf-8"), max_size=6)
picks = st.integers(0, 1000)
steps = st.builds(
    Step,
    st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=40), session_ids), max_size=6),
    st.lists(
        st.tuples(
            picks,
            st.integers(0, 2**31),
            st.sampled_from(MessageState),
            st.sampled_from(SubQueue),
            st.none() | amendments,
        ),
        max_size=4,
    ),
    st.lists(picks, max_size=6),
    st.booleans(),
)


@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=st.lists(steps, max_size=8))
def test_any_history_leaves_what_a_dictionary_would_hold(
    make_bench: Callable[[], Bench], make_message: MakeMessage, history: list[Step]
) -> None:
    bench = make_bench()
    live: dict[int, tuple[int, Message, bytes]] = {}
    sequence = 0
    for step in history:
        changes = [PartitionChanges(key, SequenceNumber(0)) for key in bench.keys]
        for partition, payload, session in step.stored:
            sequence += 1
            message = make_message(sequence, payload, session)
            live[sequence] = partition, message, payload
            changes[partition].stored.append(message)
        for pick, delivery_count, state, subqueue, amendment in step.updated if live else ():
            partition, message, _ = live[sorted(live)[pick % len(live)]]
            message.delivery_count, message.amendment = delivery_count, amendment
            message.state, message.subqueue = state, subqueue
            changes[partition].updated.append(message)
        for pick in step.removed:
            if live:
                partition, message, _ = live.pop(sorted(live)[pick % len(live)])
                changes[partition].removed.append(message)
        for change in changes:
            change.next_sequence_number = SequenceNumber(sequence + 1)
        bench.store.commit(changes)
        if step.reopen:
            bench.reopen()
        for partition, key in enumerate(bench.keys):
            expected = [entry for _, entry in sorted(live.items()) if entry[0] == partition]
            snapshot = bench.store.load(key)
            assert snapshot.next_sequence_number == sequence + 1
            assert list(map(as_kept, snapshot.messages)) == [as_kept(message) for _, message, _ in expected]
            row_ids = [message.row_id for message in snapshot.messages]
            assert bench.store.read(row_ids) == [payload for _, _, payload in expected]
    bench.store.close()
