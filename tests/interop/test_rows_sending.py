"""What the contract says of sending, on 16, on 2 and on 1 partition (fix_kinds.py)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import SqlRuleAction, TrueRuleFilter

from bendybus.domain.routing import partition_of as partition_of_key
from fix_kinds import SdkBus, on_each_kind, on_partitioned_kinds, partition_of

KEYS = [f"key-{number}" for number in range(40)]


@pytest.mark.row("P-12", "P-26", "P-31")
@on_each_kind
def test_a_key_stays_in_its_partition_and_in_order(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    for round_ in range(3):
        for key in KEYS[:8]:
            sender.send_messages(ServiceBusMessage(str(round_), partition_key=key))
    messages = bus.take(bus.receiver(queue), 24)
    for key in KEYS[:8]:
        mine = [message for message in messages if message.partition_key == key]
        assert [str(message) for message in mine] == ["0", "1", "2"]
        assert {partition_of(message) for message in mine} == {partition_of_key(key, bus.partitions)}


@pytest.mark.row("P-12", "P-31")
@on_each_kind
def test_keys_reach_every_partition(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    keys = [*KEYS, *(f"more-{number}" for number in range(80))]
    for key in keys:
        sender.send_messages(ServiceBusMessage("x", partition_key=key))
    messages = bus.take(bus.receiver(queue), len(keys))
    assert {partition_of(message) for message in messages} == set(range(bus.partitions))


@pytest.mark.row("P-13")
@on_each_kind
def test_a_session_is_the_key_and_has_one_state(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True)
    sender = bus.sender(queue)
    for number in range(5):
        for session in ("ada", "bob", "cleo"):
            sender.send_messages(ServiceBusMessage(f"{session} {number}", session_id=session))
    with bus.client.get_queue_receiver(queue, session_id="bob") as receiver:
        messages = bus.take(receiver, 5)
        assert [str(message) for message in messages] == [f"bob {number}" for number in range(5)]
        assert {partition_of(message) for message in messages} == {partition_of_key("bob", bus.partitions)}
        receiver.session.set_state(b"five")
    with bus.client.get_queue_receiver(queue, session_id="bob") as receiver:
        assert receiver.session.get_state() == b"five"
    with bus.client.get_queue_receiver(queue, session_id="ada") as receiver:
        assert receiver.session.get_state() is None
        assert len(bus.take(receiver, 5)) == 5


@pytest.mark.row("P-14")
@on_each_kind
def test_a_session_and_another_key_are_refused_and_the_sender_goes_on(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    # The SDK itself refuses to make such a message; one made in two steps passes it.
    message = ServiceBusMessage("both", session_id="a")
    message._raw_amqp_message.annotations = {"x-opt-partition-key": "b"}
    with pytest.raises(ServiceBusError, match="SessionId"):
        sender.send_messages(message)
    sender.send_messages(ServiceBusMessage("equal", session_id="a", partition_key="a"))
    (received,) = bus.take(bus.receiver(queue), 1)
    assert (str(received), received.session_id) == ("equal", "a")


@pytest.mark.row("P-15")
@on_each_kind
def test_copies_meet_in_the_partition_of_their_id_and_one_is_kept(bus: SdkBus) -> None:
    queue = bus.queue(requires_duplicate_detection=True)
    sender = bus.sender(queue)
    for _ in range(3):
        for number in range(6):
            sender.send_messages(ServiceBusMessage("x", message_id=f"id-{number}"))
    receiver = bus.receiver(queue)
    messages = bus.take(receiver, 6)
    assert {message.message_id for message in messages} == {f"id-{number}" for number in range(6)}
    for message in messages:
        assert partition_of(message) == partition_of_key(str(message.message_id), bus.partitions)
    # Also after it was completed, and nothing else is left.
    sender.send_messages(ServiceBusMessage("x", message_id="id-0"))
    assert receiver.peek_messages(1, sequence_number=1) == []


@pytest.mark.row("P-15", "P-16")
@on_partitioned_kinds
def test_an_id_is_no_key_without_duplicate_detection(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    for _ in range(bus.partitions * 2):
        sender.send_messages(ServiceBusMessage("x", message_id="the same"))
    messages = bus.take(bus.receiver(queue), bus.partitions * 2)
    assert {partition_of(message) for message in messages} == set(range(bus.partitions))


@pytest.mark.row("P-18")
@on_each_kind
def test_a_batch_is_stored_whole_in_one_partition_or_not_at_all(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    receiver = bus.receiver(queue)
    sender.send_messages([ServiceBusMessage(str(number)) for number in range(10)])
    messages = bus.take(receiver, 10)
    assert [str(message) for message in messages] == [str(number) for number in range(10)]
    assert len({partition_of(message) for message in messages}) == 1
    mixed = [ServiceBusMessage("1", partition_key="a"), ServiceBusMessage("2", partition_key="b")]
    if bus.partitioned:
        with pytest.raises(ServiceBusError):
            sender.send_messages(mixed)
        assert receiver.peek_messages(1, sequence_number=1) == []
    else:
        sender.send_messages(mixed)
        assert len(bus.take(receiver, 2)) == 2


@pytest.mark.row("P-05", "P-35")
@on_each_kind
def test_scheduled_messages_wait_come_and_can_be_cancelled(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    receiver = bus.receiver(queue)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    late = [ServiceBusMessage("late", partition_key=key) for key in KEYS[:6]]
    (first, *others) = [sender.schedule_messages(each, soon + timedelta(days=1))[0] for each in late]
    sender.schedule_messages(ServiceBusMessage("soon"), soon)
    sender.cancel_scheduled_messages(others)
    assert [message.sequence_number for message in receiver.peek_messages(10) if str(message) == "late"] == [
        first
    ]
    (message,) = bus.take(receiver, 1)
    assert str(message) == "soon"
    assert message.enqueued_time_utc is not None
    assert message.enqueued_time_utc >= soon.replace(microsecond=soon.microsecond // 1000 * 1000)
    sender.cancel_scheduled_messages(first)
    assert receiver.peek_messages(1, sequence_number=1) == []


@pytest.mark.row("P-13", "P-14")
@on_each_kind
def test_a_session_that_a_rule_sets_is_one_session_in_one_partition(bus: SdkBus) -> None:
    topic = bus.topic()
    bus.admin.create_subscription(topic, "all", requires_session=True)
    bus.admin.delete_rule(topic, "all", "$Default")
    action = SqlRuleAction("SET sys.SessionId = customer")
    bus.admin.create_rule(topic, "all", "by-customer", filter=TrueRuleFilter(), action=action)
    sender = bus.topic_sender(topic)
    for number in range(32):
        customer = "ada" if number % 2 else "bob"
        sender.send_messages(ServiceBusMessage(str(number), application_properties={"customer": customer}))
    conflict = ServiceBusMessage("x", partition_key="other", application_properties={"customer": "ada"})
    sender.send_messages(conflict)
    for customer, first in (("ada", 1), ("bob", 0)):
        receiver = bus.receiver(topic, "all", session_id=customer)
        messages = bus.take(receiver, 16)
        assert {message.session_id for message in messages} == {customer}
        assert sorted(int(str(message)) for message in messages) == list(range(first, 32, 2))
        assert {partition_of(each) for each in messages} == {partition_of_key(customer, bus.partitions)}
    (dead,) = bus.take(bus.receiver(topic, "all", sub_queue="deadletter"), 1)
    assert (str(dead), dead.dead_letter_reason) == ("x", "RuleActionException")
