"""Duplicate detection with the official SDK, on both kinds of queue (P-05, P-15)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from fix_server import Kind, NewQueue, ServerProcess, Shape, StartServer
from interop.conftest import Connect
from interop.sdk import BREAKS_CONNECTIONS, CROSSWISE, Sdk, SdkQueue, open_all

PARTITION_SHIFT = 48


@pytest.fixture
def once(
    sdk: Sdk, kind: Kind, server: ServerProcess, new_queue: NewQueue, pool: ThreadPoolExecutor
) -> Iterator[SdkQueue]:
    """A queue with duplicate detection."""
    sdk_queue = SdkQueue(sdk, sdk.client(server.connection_string), new_queue(kind, Shape.ONCE))
    open_all(pool, sdk_queue)
    yield sdk_queue
    sdk_queue.close_with(pool)


def waiting(sdk_queue: SdkQueue) -> list[str]:
    return sorted(str(each) for each in sdk_queue.receiver.peek_messages(100, sequence_number=1))


def message(content: str, message_id: str | None = None, **properties: Any) -> ServiceBusMessage:
    made = ServiceBusMessage(content, **properties)
    # Also when there is to be none: the SDK gives every message an id while it makes it.
    made.message_id = message_id
    return made


def test_a_duplicate_is_accepted_and_dropped(once: SdkQueue) -> None:
    once.send("first", message_id="m")
    once.send("again", message_id="m")
    once.send("other", message_id="n")
    assert waiting(once) == ["first", "other"]
    once.complete(*once.receive(2))
    once.send("still known", message_id="m")
    assert waiting(once) == []


def test_a_batch_with_duplicates_keeps_the_first_of_each(once: SdkQueue) -> None:
    once.send("known", message_id="1", partition_key="k")
    ids = ["1", "2", "3", "2", "4", "1"]
    once.sender.send_messages(
        [message(f"{place}", each, partition_key="k") for place, each in enumerate(ids)]
    )
    assert waiting(once) == ["1", "2", "4", "known"]


def test_scheduled_messages_take_part(once: SdkQueue) -> None:
    due = datetime.now(UTC) + timedelta(minutes=5)
    numbers = once.sender.schedule_messages([message("scheduled", "m")], due)
    assert once.sender.schedule_messages([message("again", "m")], due) == [0]
    once.send("sent", message_id="m")
    assert waiting(once) == ["scheduled"]
    once.sender.cancel_scheduled_messages(numbers)


@pytest.mark.parametrize("kind", [Kind.UNPARTITIONED], indirect=True)
def test_messages_without_an_id_are_all_kept(once: SdkQueue) -> None:
    for _ in range(3):
        once.sender.send_messages(message("x"))
    assert waiting(once) == ["x"] * 3


@pytest.mark.row("P-15")
@pytest.mark.parametrize("kind", [Kind.PARTITIONED], indirect=True)
def test_the_message_id_chooses_the_partition_where_copies_meet(once: SdkQueue) -> None:
    ids = [str(number) for number in range(40)]
    for each in (*ids, *ids):
        once.send(each, message_id=each)
    messages = once.receive(40)
    assert sorted(map(str, messages), key=int) == ids
    assert len({(each.sequence_number or 0) >> PARTITION_SHIFT for each in messages}) > 8
    once.complete(*messages)
    assert waiting(once) == []


@pytest.mark.parametrize("kind", [Kind.PARTITIONED], indirect=True)
def test_the_partition_key_is_part_of_what_a_message_is_known_by(once: SdkQueue) -> None:
    for content, key in (("a", "a"), ("b", "b"), ("again", "a")):
        once.send(content, message_id="m", partition_key=key)
    assert waiting(once) == ["a", "b"]


@pytest.mark.parametrize("kind", [Kind.PARTITIONED], indirect=True)
def test_a_message_with_neither_id_nor_key_is_refused(once: SdkQueue) -> None:
    with pytest.raises(ServiceBusError, match="must have either PartitionKey or MessageId"):
        once.sender.send_messages(message("unknown"))
    once.sender.send_messages(message("keyed", partition_key="k"))
    assert waiting(once) == ["keyed"]


@pytest.mark.row("B-08")
@CROSSWISE
@BREAKS_CONNECTIONS
def test_a_crash_does_not_make_the_queue_forget(
    start_server: StartServer, kind: Kind, connect: Connect
) -> None:
    partitioned = kind is Kind.PARTITIONED
    server = start_server({"q": {"EnablePartitioning": partitioned, "RequiresDuplicateDetection": True}})
    connect(server.connection_string, "q").send("first", message_id="m")
    server.kill()
    server.start()
    sdk_queue = connect(server.connection_string, "q")
    sdk_queue.send("again", message_id="m")
    assert waiting(sdk_queue) == ["first"]
