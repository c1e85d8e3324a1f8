"""Which partition a message goes to; seen in its sequence number, whose topmost 16 bits say it (P-31)."""

from __future__ import annotations

from collections import Counter

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import ServiceBusError

from fix_server import Kind
from interop.sdk import CROSSWISE, SdkQueue


def partition_of(message: ServiceBusReceivedMessage) -> int:
    assert message.sequence_number is not None
    return message.sequence_number >> 48


def take(sdk_queue: SdkQueue, count: int) -> list[ServiceBusReceivedMessage]:
    messages = sdk_queue.receive(count)
    sdk_queue.complete(*messages)
    return messages


@pytest.mark.row("P-12", "P-26")
def test_equal_keys_share_a_partition_and_keep_their_order(sdk_queue: SdkQueue, kind: Kind) -> None:
    keys = [f"key-{number}" for number in range(12)]
    for turn in range(3):
        for key in keys:
            sdk_queue.send(str(turn), partition_key=key)
    places: dict[str, set[int]] = {}
    turns: dict[str, list[str]] = {}
    for message in take(sdk_queue, 36):
        assert message.partition_key is not None
        places.setdefault(message.partition_key, set()).add(partition_of(message))
        turns.setdefault(message.partition_key, []).append(str(message))
    assert [len(where) for where in places.values()] == [1] * 12
    assert turns == {key: ["0", "1", "2"] for key in keys}
    distinct = {next(iter(where)) for where in places.values()}
    assert len(distinct) > 4 if kind is Kind.PARTITIONED else distinct == {0}


@pytest.mark.row("P-13", "P-14")
def test_a_session_id_is_a_key(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("by session", session_id="cart")
    sdk_queue.send("by both", session_id="cart", partition_key="cart")
    sdk_queue.send("by key", partition_key="cart")
    assert len({partition_of(message) for message in take(sdk_queue, 3)}) == 1


@pytest.mark.row("P-16")
def test_messages_without_a_key_go_round(sdk_queue: SdkQueue, kind: Kind) -> None:
    sdk_queue.send(*map(str, range(32)))
    shares = Counter(map(partition_of, take(sdk_queue, 32)))
    # P-16: each of them sent, and so read, alone.
    assert shares == (dict.fromkeys(range(16), 2) if kind is Kind.PARTITIONED else {0: 32})


@pytest.mark.row("P-15")
def test_a_message_id_is_no_key_without_duplicate_detection(sdk_queue: SdkQueue, kind: Kind) -> None:
    for _ in range(16):
        sdk_queue.send("x", message_id="always the same")
    partitions = set(map(partition_of, take(sdk_queue, 16)))
    assert partitions == (set(range(16)) if kind is Kind.PARTITIONED else {0})


@pytest.mark.row("P-14")
@CROSSWISE
def test_a_session_id_and_another_partition_key_are_refused(sdk_queue: SdkQueue) -> None:
    message = ServiceBusMessage("x", session_id="one")
    # The SDK itself refuses the pair in its constructor, so it is put together behind its back.
    raw = message.raw_amqp_message
    raw.annotations = {**(raw.annotations or {}), b"x-opt-partition-key": "two"}
    with pytest.raises(ServiceBusError, match="SessionId is 'one' but PartitionKey is 'two'"):
        sdk_queue.sender.send_messages(message)
    assert sdk_queue.is_empty()


@pytest.mark.row("P-18")
def test_a_batch_without_keys_is_stored_in_one_partition(sdk_queue: SdkQueue) -> None:
    sdk_queue.sender.send_messages([ServiceBusMessage(str(number)) for number in range(20)])
    messages = take(sdk_queue, 20)
    assert len(set(map(partition_of, messages))) == 1
    numbers = sorted(message.sequence_number or 0 for message in messages)
    assert numbers == list(range(numbers[0], numbers[0] + 20))


@pytest.mark.row("P-12", "P-18")
def test_a_batch_with_one_key_is_stored_where_the_key_says(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("alone", partition_key="k")
    sdk_queue.sender.send_messages([ServiceBusMessage(str(number), partition_key="k") for number in range(5)])
    assert len(set(map(partition_of, take(sdk_queue, 6)))) == 1


@pytest.mark.row("P-18")
@CROSSWISE
def test_a_batch_with_two_keys_is_refused_whole_where_there_are_partitions(
    sdk_queue: SdkQueue, kind: Kind
) -> None:
    messages = [ServiceBusMessage(key, partition_key=key) for key in ("one", "two")]
    if kind is Kind.UNPARTITIONED:
        sdk_queue.sender.send_messages(messages)
        take(sdk_queue, 2)
    else:
        with pytest.raises(ServiceBusError, match="distinct SessionId or PartitionKey"):
            sdk_queue.sender.send_messages(messages)
        assert sdk_queue.is_empty()


@pytest.mark.row("P-18")
@CROSSWISE
def test_a_batch_with_and_without_a_key_is_refused_whole_where_there_are_partitions(
    sdk_queue: SdkQueue, kind: Kind
) -> None:
    messages = [ServiceBusMessage("keyed", partition_key="k"), ServiceBusMessage("keyless")]
    if kind is Kind.UNPARTITIONED:
        sdk_queue.sender.send_messages(messages)
        take(sdk_queue, 2)
    else:
        with pytest.raises(ServiceBusError, match="distinct SessionId or PartitionKey"):
            sdk_queue.sender.send_messages(messages)
        assert sdk_queue.is_empty()


@CROSSWISE
@pytest.mark.parametrize("length", [128, 129])
def test_a_key_has_at_most_128_characters(sdk_queue: SdkQueue, length: int) -> None:
    message = ServiceBusMessage("x")
    message.raw_amqp_message.annotations = {b"x-opt-partition-key": "k" * length}
    if length <= 128:
        sdk_queue.sender.send_messages(message)
        take(sdk_queue, 1)
    else:
        with pytest.raises(ServiceBusError, match="at most 128"):
            sdk_queue.sender.send_messages(message)
