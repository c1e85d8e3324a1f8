"""Peeking: everything is seen, in order, and nothing changes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage

from fix_server import Kind
from interop.sdk import SdkQueue

PARTITION_SHIFT = 48


def browse(sdk_queue: SdkQueue, page: int) -> list[ServiceBusReceivedMessage]:
    """All messages, peeked page by page until nothing comes."""
    seen: list[ServiceBusReceivedMessage] = []
    start = 1
    while messages := sdk_queue.receiver.peek_messages(page, sequence_number=start):
        seen += messages
        last = messages[-1].sequence_number
        assert last is not None
        start = last + 1
    return seen


def fill(sdk_queue: SdkQueue, count: int, size: int = 10) -> list[str]:
    """Spread messages over all partitions by their keys."""
    contents = [str(number).ljust(size) for number in range(count)]
    for content in contents:
        sdk_queue.send(content, partition_key=content.strip())
    return contents


def empty(sdk_queue: SdkQueue, count: int) -> None:
    sdk_queue.complete(*sdk_queue.receive(count))


@pytest.mark.row("P-30", "P-31")
@pytest.mark.parametrize("page", [7, 100])
def test_repeated_peeks_reach_everything_exactly_once(sdk_queue: SdkQueue, kind: Kind, page: int) -> None:
    contents = fill(sdk_queue, 60)
    seen = browse(sdk_queue, page)
    numbers = [message.sequence_number or 0 for message in seen]
    assert sorted(str(message) for message in seen) == sorted(contents)
    assert numbers == sorted(set(numbers))
    partitions = {number >> PARTITION_SHIFT for number in numbers}
    assert partitions == (set(range(16)) if kind is Kind.PARTITIONED else {0})
    empty(sdk_queue, 60)


def test_peeks_without_a_number_go_on_where_the_last_one_ended(sdk_queue: SdkQueue) -> None:
    contents = fill(sdk_queue, 20)
    seen = [str(message) for message in sdk_queue.receiver.peek_messages(1, sequence_number=1)]
    while messages := sdk_queue.receiver.peek_messages(6):
        seen += map(str, messages)
    assert sorted(seen) == sorted(contents)
    empty(sdk_queue, 20)


@pytest.mark.row("P-30")
def test_an_answer_ends_at_256_kb_and_the_next_goes_on(sdk_queue: SdkQueue) -> None:
    contents = fill(sdk_queue, 5, size=100_000)
    first = sdk_queue.receiver.peek_messages(5, sequence_number=1)
    assert 1 <= len(first) < 5
    assert sorted(str(message) for message in browse(sdk_queue, 5)) == sorted(contents)
    empty(sdk_queue, 5)


def test_a_peeked_message_is_neither_locked_nor_counted(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("look", message_id="m", application_properties={"p": 1})
    (peeked,) = sdk_queue.receiver.peek_messages(sequence_number=1)
    assert (str(peeked), peeked.message_id, peeked.delivery_count) == ("look", "m", 0)
    # A message that nobody has locked shows a lock that ended long ago.
    assert (peeked.state, peeked.locked_until_utc) == (
        ServiceBusMessageState.ACTIVE,
        datetime(1970, 1, 1, tzinfo=UTC),
    )
    message = sdk_queue.receive_one()
    assert message.delivery_count == 0
    assert message.sequence_number == peeked.sequence_number
    sdk_queue.complete(message)


def test_locked_messages_are_seen_too(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("locked")
    message = sdk_queue.receive_one()
    (peeked,) = sdk_queue.receiver.peek_messages(10, sequence_number=1)
    assert peeked.sequence_number == message.sequence_number
    sdk_queue.complete(message)


def test_an_empty_queue_has_nothing_to_peek(sdk_queue: SdkQueue) -> None:
    assert sdk_queue.receiver.peek_messages(10) == []
