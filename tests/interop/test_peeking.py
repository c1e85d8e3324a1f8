"""Peeking: everything is seen, in order, and nothing changes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage

from fix_server import Kind
from interop.sdk import Desk

PARTITION_SHIFT = 48


def browse(desk: Desk, page: int) -> list[ServiceBusReceivedMessage]:
    """All messages, peeked page by page until nothing comes."""
    seen: list[ServiceBusReceivedMessage] = []
    start = 1
    while messages := desk.receiver.peek_messages(page, sequence_number=start):
        seen += messages
        last = messages[-1].sequence_number
        assert last is not None
        start = last + 1
    return seen


def fill(desk: Desk, count: int, size: int = 10) -> list[str]:
    """Spread messages over all partitions by their keys."""
    contents = [str(number).ljust(size) for number in range(count)]
    for content in contents:
        desk.send(content, partition_key=content.strip())
    return contents


def empty(desk: Desk, count: int) -> None:
    desk.complete(*desk.receive(count))


@pytest.mark.parametrize("page", [7, 100])
def test_repeated_peeks_reach_everything_exactly_once(desk: Desk, kind: Kind, page: int) -> None:
    contents = fill(desk, 60)
    seen = browse(desk, page)
    numbers = [message.sequence_number or 0 for message in seen]
    assert sorted(str(message) for message in seen) == sorted(contents)  # P-30
    assert numbers == sorted(set(numbers))
    partitions = {number >> PARTITION_SHIFT for number in numbers}
    assert partitions == (set(range(16)) if kind is Kind.PARTITIONED else {0})  # P-31
    empty(desk, 60)


def test_peeks_without_a_number_go_on_where_the_last_one_ended(desk: Desk) -> None:
    contents = fill(desk, 20)
    seen = [str(message) for message in desk.receiver.peek_messages(1, sequence_number=1)]
    while messages := desk.receiver.peek_messages(6):
        seen += map(str, messages)
    assert sorted(seen) == sorted(contents)
    empty(desk, 20)


def test_an_answer_ends_at_256_kb_and_the_next_goes_on(desk: Desk) -> None:
    contents = fill(desk, 5, size=100_000)
    first = desk.receiver.peek_messages(5, sequence_number=1)
    assert 1 <= len(first) < 5  # P-30
    assert sorted(str(message) for message in browse(desk, 5)) == sorted(contents)
    empty(desk, 5)


def test_a_peeked_message_is_neither_locked_nor_counted(desk: Desk) -> None:
    desk.send("look", message_id="m", application_properties={"p": 1})
    (peeked,) = desk.receiver.peek_messages(sequence_number=1)
    assert (str(peeked), peeked.message_id, peeked.delivery_count) == ("look", "m", 0)
    # A message that nobody has locked shows a lock that ended long ago.
    assert (peeked.state, peeked.locked_until_utc) == (
        ServiceBusMessageState.ACTIVE,
        datetime(1970, 1, 1, tzinfo=UTC),
    )
    message = desk.receive_one()
    assert message.delivery_count == 0
    assert message.sequence_number == peeked.sequence_number
    desk.complete(message)


def test_locked_messages_are_seen_too(desk: Desk) -> None:
    desk.send("locked")
    message = desk.receive_one()
    (peeked,) = desk.receiver.peek_messages(10, sequence_number=1)
    assert peeked.sequence_number == message.sequence_number
    desk.complete(message)


def test_an_empty_queue_has_nothing_to_peek(desk: Desk) -> None:
    assert desk.receiver.peek_messages(10) == []
