from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain.routing import RoundRobin, batch_key, key_of, partition_of, routing_key
from bendybus.errors import ArgumentError, InvalidOperation
from bendybus.names import PartitionNumber


@pytest.mark.row("P-13")
def test_the_session_id_is_the_key() -> None:
    assert routing_key("s", None, "m", duplicate_detection=True) == "s"
    assert routing_key("s", "s", None, duplicate_detection=False) == "s"


@pytest.mark.row("P-14")
def test_the_partition_key_is_the_key_without_a_session_id() -> None:
    assert routing_key(None, "p", "m", duplicate_detection=True) == "p"


@pytest.mark.row("P-14")
def test_a_session_id_and_another_partition_key_are_refused() -> None:
    with pytest.raises(InvalidOperation, match=r"'s'.*'p'"):
        routing_key("s", "p", None, duplicate_detection=False)


@pytest.mark.row("P-15")
def test_the_message_id_is_a_key_with_duplicate_detection_only() -> None:
    assert routing_key(None, None, "m", duplicate_detection=True) == "m"
    assert routing_key(None, None, "m", duplicate_detection=False) is None
    assert routing_key(None, None, None, duplicate_detection=True) is None


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_id_has_at_most_128_characters(position: int) -> None:
    def key_with(length: int) -> str | None:
        ids: list[str | None] = [None, None, None]
        ids[position] = "é" * length
        return routing_key(*ids, duplicate_detection=True)

    assert key_with(128) == "é" * 128
    with pytest.raises(ArgumentError, match="129"):
        key_with(129)


@pytest.mark.row("P-12")
@pytest.mark.parametrize(
    ("key", "of_16", "of_4", "of_2"),
    [
        # Written down once; a change would tear the messages of stored keys apart.
        ("", 0, 0, 0),
        ("a", 15, 3, 1),
        ("order-1", 3, 0, 0),
        ("order-2", 9, 2, 1),
        ("Ünïcödé", 8, 2, 1),
        ("k" * 128, 14, 3, 1),
    ],
)
def test_a_key_keeps_its_partition_for_ever(key: str, of_16: int, of_4: int, of_2: int) -> None:
    assert [partition_of(key, count) for count in (16, 4, 2, 1)] == [of_16, of_4, of_2, 0]


@pytest.mark.row("P-12", "P-13")
def test_case_does_not_count_in_a_key_whatever_it_comes_from() -> None:
    keys = {
        routing_key("Order-7", None, None, duplicate_detection=False),
        routing_key("ORDER-7", "order-7", "m", duplicate_detection=True),
        routing_key(None, "oRDER-7", "m", duplicate_detection=True),
        routing_key(None, None, "Order-7", duplicate_detection=True),
    }
    assert keys == {"order-7"}
    assert batch_key([key_of("K"), key_of("k")], duplicate_detection=False) == "k"


@pytest.mark.row("P-12")
def test_on_an_entity_older_than_that_case_counts_as_it_did() -> None:
    assert routing_key("Order-7", "Order-7", None, duplicate_detection=False, exact=True) == "Order-7"
    assert routing_key(None, "Order-7", None, duplicate_detection=False, exact=True) == "Order-7"
    assert routing_key(None, None, "Order-7", duplicate_detection=True, exact=True) == "Order-7"
    with pytest.raises(InvalidOperation, match="must be equal"):
        routing_key("Order-7", "ORDER-7", None, duplicate_detection=False, exact=True)


@pytest.mark.row("P-12")
@given(st.text(max_size=128), st.integers(min_value=1, max_value=64))
def test_every_key_has_one_partition_within_the_count(key: str, count: int) -> None:
    assert 0 <= partition_of(key, count) < count
    assert partition_of(key, count) == partition_of(key, count)


@pytest.mark.parametrize("pattern", ["{}", "device-{}", "order-{:06}", "{:x}", "{}@example.org"])
@pytest.mark.parametrize("count", [2, 4, 16])
def test_common_kinds_of_keys_spread_evenly(pattern: str, count: int) -> None:
    shares = Counter(partition_of(pattern.format(each), count) for each in range(1600))
    fair = 1600 / count
    assert len(shares) == count
    assert all(0.6 * fair < share < 1.4 * fair for share in shares.values())


@pytest.mark.row("P-18")
def test_a_batch_has_one_key() -> None:
    assert batch_key(["k", "k"], duplicate_detection=False) == "k"
    assert batch_key([None, None], duplicate_detection=False) is None
    assert batch_key([], duplicate_detection=False) is None


@pytest.mark.row("P-18")
@pytest.mark.parametrize("keys", [["a", "b"], ["a", None]])
def test_a_batch_with_distinct_keys_is_refused(keys: list[str | None]) -> None:
    with pytest.raises(InvalidOperation) as raised:
        batch_key(keys, duplicate_detection=False)
    assert str(raised.value) == (
        "Batching brokered messages with distinct SessionId or PartitionKey is not supported "
        "for an entity with partitioning enabled."
    )
    with pytest.raises(InvalidOperation) as raised:
        batch_key(keys, duplicate_detection=True)
    assert str(raised.value) == (
        "Batching brokered messages with distinct SessionId, PartitionKey, or MessageId is not supported "
        "for an entity with partitioning and duplicate detection enabled."
    )


def partitions(*numbers: int) -> set[PartitionNumber]:
    return {PartitionNumber(number) for number in numbers}


@pytest.mark.row("P-16")
def test_keyless_messages_go_round_all_partitions() -> None:
    turns = RoundRobin([PartitionNumber(number) for number in (0, 2, 1)])
    assert [turns.next(partitions(0, 1, 2)) for _ in range(7)] == [0, 2, 1, 0, 2, 1, 0]


@pytest.mark.row("P-16")
def test_a_partition_that_is_away_loses_its_turn_only() -> None:
    turns = RoundRobin([PartitionNumber(number) for number in (1, 2, 3, 0)])
    assert [turns.next(partitions(0, 2, 3)) for _ in range(4)] == [2, 3, 0, 2]
    assert turns.next(partitions(0, 1, 2, 3)) == 3
    assert turns.next(partitions()) is None
    assert turns.next(partitions(0, 1, 2, 3)) == 0
