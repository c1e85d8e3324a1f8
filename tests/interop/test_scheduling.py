"""Scheduled messages: seen, cancelled or received when due, on both kinds of queue (P-05, P-35)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from fix_kinds import SdkBus, on_each_kind
from fix_server import Kind, ServerProcess, StartServer
from interop.conftest import Connect
from interop.sdk import BREAKS_CONNECTIONS, CROSSWISE, SdkQueue

PARTITION_SHIFT = 48


def after(seconds: float) -> datetime:
    """A time from now on, to the millisecond as AMQP has it."""
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    return due.replace(microsecond=due.microsecond // 1000 * 1000)


def schedule(sdk_queue: SdkQueue, due: datetime, *contents: str, **properties: Any) -> list[int]:
    messages = [ServiceBusMessage(content, **properties) for content in contents]
    return sdk_queue.sender.schedule_messages(messages, due)


def peek(sdk_queue: SdkQueue) -> list[tuple[str, ServiceBusMessageState | None]]:
    return [(str(each), each.state) for each in sdk_queue.receiver.peek_messages(100, sequence_number=1)]


def test_a_scheduled_message_is_peeked_until_it_is_due_and_then_received(sdk_queue: SdkQueue) -> None:
    due = after(1.5)
    (number,) = schedule(sdk_queue, due, "later", time_to_live=timedelta(minutes=1))
    (peeked,) = sdk_queue.receiver.peek_messages(sequence_number=number)
    assert peeked.state is ServiceBusMessageState.SCHEDULED
    assert (peeked.sequence_number, peeked.scheduled_enqueue_time_utc) == (number, due)
    assert peeked.enqueued_time_utc == due
    message = sdk_queue.receive_one()
    assert str(message) == "later"
    assert datetime.now(UTC) >= due
    assert message.sequence_number is not None and message.sequence_number > number
    assert message.sequence_number >> PARTITION_SHIFT == number >> PARTITION_SHIFT
    assert message.enqueued_time_utc is not None and message.enqueued_time_utc >= due
    assert message.expires_at_utc == message.enqueued_time_utc + timedelta(minutes=1)
    assert message.scheduled_enqueue_time_utc == due
    assert message.state is ServiceBusMessageState.SCHEDULED
    # The number was good only as long as the message waited.
    with pytest.raises(MessageNotFoundError):
        sdk_queue.sender.cancel_scheduled_messages(number)
    sdk_queue.complete(message)


def test_a_plain_send_with_a_scheduled_time_waits_too(sdk_queue: SdkQueue) -> None:
    due = after(1.5)
    sdk_queue.send("later", scheduled_enqueue_time_utc=due)
    sdk_queue.send("now")
    now, later = sdk_queue.receive(1) + sdk_queue.receive(1)
    assert (str(now), str(later)) == ("now", "later")
    assert later.enqueued_time_utc is not None and later.enqueued_time_utc >= due
    sdk_queue.complete(now, later)


def test_a_time_in_the_past_does_not_hold_a_message_up(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("sent", scheduled_enqueue_time_utc=after(-60))
    schedule(sdk_queue, after(-60), "scheduled")
    messages = sdk_queue.receive(2)
    assert sorted(map(str, messages)) == ["scheduled", "sent"]
    assert {message.state for message in messages} == {ServiceBusMessageState.ACTIVE}
    sdk_queue.complete(*messages)


@on_each_kind
def test_a_message_that_was_scheduled_says_so_when_it_is_received(bus: SdkBus) -> None:
    queue, topic = bus.queue(), bus.topic("s")
    due = after(5)
    bus.sender(queue).send_messages(ServiceBusMessage("sent", scheduled_enqueue_time_utc=due))
    bus.sender(queue).schedule_messages(ServiceBusMessage("scheduled", partition_key="k"), due)
    bus.topic_sender(topic).schedule_messages(ServiceBusMessage("published"), due)
    receiver = bus.receiver(queue)
    deleting = bus.receiver(topic, "s", receive_mode="receiveanddelete")
    messages = bus.receive(receiver, 2)
    for message in (*messages, *bus.receive(deleting, 1)):
        assert message.state is ServiceBusMessageState.SCHEDULED
    # A peek says what a message is now.
    peeked = receiver.peek_messages(2, sequence_number=1)
    assert {message.state for message in peeked} == {ServiceBusMessageState.ACTIVE}
    for message in messages:
        receiver.defer_message(message)
        assert message.sequence_number is not None
        (deferred,) = receiver.receive_deferred_messages(message.sequence_number)
        assert deferred.state is ServiceBusMessageState.DEFERRED
        receiver.complete_message(deferred)


def test_cancelled_messages_never_come(sdk_queue: SdkQueue) -> None:
    numbers = schedule(sdk_queue, after(1.2), "one", "two", "three")
    assert len(set(numbers)) == 3
    sdk_queue.sender.cancel_scheduled_messages([numbers[0], numbers[2]])
    assert peek(sdk_queue) == [("two", ServiceBusMessageState.SCHEDULED)]
    with pytest.raises(MessageNotFoundError):
        sdk_queue.sender.cancel_scheduled_messages(numbers[0])
    message = sdk_queue.receive_one()
    assert str(message) == "two"
    sdk_queue.complete(message)
    assert peek(sdk_queue) == []


def test_cancelling_a_number_that_never_was_is_refused(sdk_queue: SdkQueue) -> None:
    for number in (4711, 77 << PARTITION_SHIFT | 1):
        with pytest.raises(MessageNotFoundError):
            sdk_queue.sender.cancel_scheduled_messages(number)


@pytest.mark.row("P-12")
def test_a_list_is_scheduled_in_one_partition_and_in_its_order(sdk_queue: SdkQueue) -> None:
    contents = [str(number) for number in range(20)]
    numbers = schedule(sdk_queue, after(60), *contents)
    assert numbers == list(range(numbers[0], numbers[0] + 20))  # one partition, gap-free
    keyed = [schedule(sdk_queue, after(60), "keyed", partition_key="k")[0] for _ in range(3)]
    assert len({number >> PARTITION_SHIFT for number in keyed}) == 1
    sdk_queue.sender.cancel_scheduled_messages(numbers)
    sdk_queue.sender.cancel_scheduled_messages(keyed)


@pytest.mark.row("P-18")
@pytest.mark.parametrize("kind", [Kind.PARTITIONED], indirect=True)
def test_a_list_with_distinct_keys_is_refused_whole(sdk_queue: SdkQueue) -> None:
    messages = [ServiceBusMessage(key, partition_key=key) for key in "ab"]
    with pytest.raises(ServiceBusError, match="distinct"):
        sdk_queue.sender.schedule_messages(messages, after(60))
    assert peek(sdk_queue) == []


@pytest.mark.parametrize("kind", [Kind.PARTITIONED], indirect=True)
def test_messages_wait_in_every_partition(sdk_queue: SdkQueue) -> None:
    due = after(2)
    numbers = [schedule(sdk_queue, due, key, partition_key=key)[0] for key in map(str, range(60))]
    assert {number >> PARTITION_SHIFT for number in numbers} == set(range(16))
    messages = sdk_queue.receive(60)
    assert sorted(map(str, messages), key=int) == [str(number) for number in range(60)]
    sdk_queue.complete(*messages)


def test_who_may_only_listen_can_neither_schedule_nor_cancel(
    server: ServerProcess, connect: Connect, sdk_queue: SdkQueue
) -> None:
    (number,) = schedule(sdk_queue, after(60), "mine")
    root = f"SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={server.key}"
    listens = server.connection_string.replace(
        root, "SharedAccessKeyName=Listens;SharedAccessKey=key-of-those-who-listen"
    )
    other = connect(listens, sdk_queue.name)
    with pytest.raises(ServiceBusError):
        schedule(other, after(60), "not mine")
    with pytest.raises(ServiceBusError):
        other.sender.cancel_scheduled_messages(number)
    assert peek(sdk_queue) == [("mine", ServiceBusMessageState.SCHEDULED)]
    sdk_queue.sender.cancel_scheduled_messages(number)


@pytest.mark.row("B-08")
@CROSSWISE
@BREAKS_CONNECTIONS
def test_a_restart_forgets_no_schedule_and_makes_up_for_what_it_slept_through(
    start_server: StartServer, kind: Kind, connect: Connect
) -> None:
    server = start_server({"q": {"EnablePartitioning": kind is Kind.PARTITIONED}})
    sdk_queue = connect(server.connection_string, "q")
    cancelled, waiting = schedule(sdk_queue, after(600), "cancelled", "waiting", partition_key="k")
    sdk_queue.sender.cancel_scheduled_messages(cancelled)
    due = after(1)
    (missed,) = schedule(sdk_queue, due, "missed", partition_key="k")
    server.kill()
    time.sleep(max(0.0, (due - after(0)).total_seconds()))  # nobody is there to see it
    server.start()
    sdk_queue = connect(server.connection_string, "q")
    message = sdk_queue.receive_one()
    assert str(message) == "missed"
    assert message.sequence_number is not None and message.sequence_number > missed
    sdk_queue.complete(message)
    # Its new number is durable: another crash does not send it a second time.
    server.kill()
    server.start()
    sdk_queue = connect(server.connection_string, "q")
    assert peek(sdk_queue) == [("waiting", ServiceBusMessageState.SCHEDULED)]
    sdk_queue.sender.cancel_scheduled_messages(waiting)
    assert peek(sdk_queue) == []
