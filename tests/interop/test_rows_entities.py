"""What the contract says of entities and their management, on 16, on 2 and on 1 partition (fix_kinds.py)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

from bendybus.domain.routing import partition_of as partition_of_key
from fix_kinds import PATIENCE_S, SdkBus, on_each_kind, partition_of
from fix_transactions import OwnEntities, request_all, transaction_client

KEYS = [f"key-{number}" for number in range(40)]


@pytest.mark.row("P-01", "P-05", "P-24")
@on_each_kind
def test_a_topic_holds_subscriptions_and_they_hold_rules(bus: SdkBus) -> None:
    topic = bus.topic("all", "some")
    admin = bus.admin
    admin.create_rule(topic, "some", "sql", filter=SqlRuleFilter("n > 30"), action=SqlRuleAction("SET n = 0"))
    admin.create_rule(topic, "some", "label", filter=CorrelationRuleFilter(label="wanted"))
    admin.delete_rule(topic, "some", "$Default")
    assert {rule.name for rule in admin.list_rules(topic, "some")} == {"sql", "label"}
    sender = bus.topic_sender(topic)
    for number, key in enumerate(KEYS):
        properties: dict[str | bytes, object] = {"n": number}
        subject = "wanted" if number == 3 else None
        sender.send_messages(
            ServiceBusMessage(key, partition_key=key, application_properties=properties, subject=subject)
        )
    everything = bus.take(bus.receiver(topic, "all"), len(KEYS))
    assert {str(message) for message in everything} == set(KEYS)
    partitions = {partition_of(message) for message in everything}
    assert partitions == {partition_of_key(key, bus.partitions) for key in KEYS}
    chosen = bus.take(bus.receiver(topic, "some"), 10)
    assert sorted(map(str, chosen)) == sorted([KEYS[3], *KEYS[31:]])
    changed = {(message.application_properties or {})[b"n"] for message in chosen}
    assert changed == {0, 3}  # by the action of the rule that chose them


@pytest.mark.row("P-07")
@on_each_kind
def test_partitioning_is_fixed_at_creation(bus: SdkBus) -> None:
    queue = bus.admin.get_queue(bus.queue())
    assert queue.enable_partitioning is bus.partitioned
    queue.enable_partitioning = not bus.partitioned
    with pytest.raises(HttpResponseError, match="EnablePartitioning"):
        bus.admin.update_queue(queue)
    assert bus.admin.get_queue(queue.name).enable_partitioning is bus.partitioned
    bus.works(queue.name)


@pytest.mark.row("P-08")
@on_each_kind
def test_the_effective_size_is_shown(bus: SdkBus) -> None:
    shown = bus.admin.get_queue(bus.queue(max_size_in_megabytes=5120))
    assert shown.max_size_in_megabytes == 5120 * (16 if bus.partitions == 16 else 1)
    topic = bus.admin.get_topic(bus.topic(max_size_in_megabytes=2048))
    assert topic.max_size_in_megabytes == 2048 * (16 if bus.partitions == 16 else 1)


@pytest.mark.row("P-33")
@on_each_kind
def test_counts_and_sizes_are_summed_over_the_partitions(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    for key in KEYS:
        sender.send_messages(ServiceBusMessage(b"x" * 1000, partition_key=key))
    receiver = bus.receiver(queue)
    (dead,) = bus.receive(receiver, 1)
    receiver.dead_letter_message(dead)
    runtime = bus.admin.get_queue_runtime_properties(queue)
    assert (runtime.active_message_count, runtime.dead_letter_message_count) == (len(KEYS) - 1, 1)
    assert runtime.total_message_count == len(KEYS)
    assert runtime.size_in_bytes is not None and runtime.size_in_bytes > 1000 * len(KEYS)
    assert bus.admin.get_queue(queue).availability_status == "Available"


@pytest.mark.row("P-32")
@on_each_kind
def test_deleting_and_making_anew_leaves_nothing_in_any_partition(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    for key in KEYS:
        sender.send_messages(ServiceBusMessage("old", partition_key=key))
    bus.admin.delete_queue(queue)
    with pytest.raises(ResourceNotFoundError):
        bus.admin.get_queue(queue)
    with pytest.raises(ServiceBusAuthenticationError):
        bus.client.get_queue_receiver(queue).receive_messages(max_wait_time=PATIENCE_S)
    options = {} if bus.partitions == 2 else {"enable_partitioning": bus.partitioned}
    bus.admin.create_queue(queue, **options)
    assert bus.admin.get_queue_runtime_properties(queue).total_message_count == 0
    bus.works(queue)


@pytest.mark.row("P-12", "P-34")
@on_each_kind
def test_forwarding_keeps_the_key_and_with_it_the_order(bus: SdkBus) -> None:
    target = bus.queue()
    topic = bus.topic()
    bus.admin.create_subscription(topic, "on", forward_to=target)
    source = bus.queue(forward_to=target)
    queue_sender, topic_sender = bus.sender(source), bus.topic_sender(topic)
    for number in range(10):
        for key in KEYS[:3]:
            queue_sender.send_messages(ServiceBusMessage(f"q{number}", partition_key=key))
            topic_sender.send_messages(ServiceBusMessage(f"t{number}", partition_key=key))
    messages = bus.take(bus.receiver(target), 60)
    for key in KEYS[:3]:
        mine = [message for message in messages if message.partition_key == key]
        assert len({partition_of(message) for message in mine}) == 1
        for way in ("q", "t"):
            came = [str(message) for message in mine if str(message).startswith(way)]
            assert came == [f"{way}{number}" for number in range(10)]


@pytest.mark.row("P-34")
@on_each_kind
def test_dead_letters_are_forwarded_with_their_reason(bus: SdkBus) -> None:
    target = bus.queue()
    source = bus.queue(forward_dead_lettered_messages_to=target)
    bus.sender(source).send_messages(ServiceBusMessage("bad", partition_key="k"))
    receiver = bus.receiver(source)
    (message,) = bus.receive(receiver, 1)
    receiver.dead_letter_message(message, reason="Broken")
    (letter,) = bus.take(bus.receiver(target), 1)
    assert (letter.dead_letter_reason, letter.dead_letter_source) == ("Broken", source)
    dead = bus.receiver(source, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert dead.peek_messages(1, sequence_number=1) == []


@pytest.mark.row("P-35")
@on_each_kind
def test_the_amqp_operations_of_a_queue_and_its_sessions(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True)
    sender = bus.sender(queue)
    sessions = [f"s{number}" for number in range(20)]
    for session in sessions:
        sender.send_messages([ServiceBusMessage(text, session_id=session) for text in ("x", "y")])
    assert sorted(bus.client.list_queue_sessions(queue)) == sorted(sessions)
    with bus.client.get_queue_receiver(queue, session_id="s7") as receiver:
        until = receiver.session.locked_until_utc
        assert until is not None and receiver.session.renew_lock() >= until
        receiver.session.set_state("kept")
        assert receiver.session.get_state() == b"kept"
        assert [str(message) for message in receiver.peek_messages(5)] == ["x", "y"]
        messages = bus.receive(receiver, 2)
        receiver.defer_message(messages[0])
        (deferred,) = receiver.receive_deferred_messages([messages[0].sequence_number])
        receiver.complete_message(deferred)
        receiver.complete_message(messages[1])
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None
    plain = bus.queue()
    due = datetime.now(UTC) + timedelta(hours=1)
    numbers = bus.sender(plain).schedule_messages(
        [ServiceBusMessage(text, partition_key="k") for text in ("never", "now")], due
    )
    bus.sender(plain).cancel_scheduled_messages(numbers)
    bus.sender(plain).send_messages([ServiceBusMessage(str(number)) for number in range(3)])
    receiver = bus.receiver(plain)
    messages = bus.receive(receiver, 3)
    end = messages[0].locked_until_utc
    assert end is not None and receiver.renew_message_lock(messages[0]) >= end
    for message in messages:
        receiver.complete_message(message)
    assert receiver.peek_messages(1, sequence_number=1) == []


@pytest.mark.row("P-24", "P-35")
@on_each_kind
async def test_rules_are_added_and_removed_over_amqp(bus: SdkBus) -> None:
    topic = bus.topic("s")
    red = {"sql-filter": {"expression": "colour = 'red'"}, "sql-rule-action": None}
    async with transaction_client(OwnEntities(bus.server)) as tx:
        requester = await tx.client.requester(f"{topic}/Subscriptions/s/$management")
        changes = (
            ("add-rule", {"rule-name": "red", "rule-description": red}),
            ("remove-rule", {"rule-name": "$Default"}),
        )
        assert await request_all(requester, None, *changes) == [None, None]
    for colour in ("red", "blue"):
        bus.topic_sender(topic).send_messages(
            ServiceBusMessage(colour, application_properties={"colour": colour})
        )
    receiver = bus.receiver(topic, "s")
    assert [str(message) for message in bus.take(receiver, 1)] == ["red"]
    assert receiver.peek_messages(1, sequence_number=1) == []


@on_each_kind
def test_the_entitys_time_to_live_shows_on_each_message(bus: SdkBus) -> None:
    """The smaller of the message's and the entity's; a subscription's is its own."""
    queue = bus.queue(default_message_time_to_live=timedelta(minutes=5))
    topic = bus.topic()
    bus.admin.create_subscription(topic, "s", default_message_time_to_live=timedelta(minutes=5))
    asked = (None, timedelta(minutes=1), timedelta(minutes=9))
    messages = [ServiceBusMessage("m", time_to_live=each, partition_key="k") for each in asked]
    for send, receiver in (
        (bus.sender(queue).send_messages, bus.receiver(queue)),
        (bus.topic_sender(topic).send_messages, bus.receiver(topic, "s")),
    ):
        for message in messages:
            send(message)
        peeked = receiver.peek_messages(3)
        for seen in (peeked, bus.take(receiver, 3)):
            assert [message.time_to_live for message in seen] == [
                timedelta(minutes=5),
                timedelta(minutes=1),
                timedelta(minutes=5),
            ]
            for message in seen:
                properties = message.raw_amqp_message.properties
                lifetime_ms = message.time_to_live / timedelta(milliseconds=1)
                if properties.absolute_expiry_time is not None:
                    assert properties.absolute_expiry_time - properties.creation_time == lifetime_ms
            assert seen[0].raw_amqp_message.properties.absolute_expiry_time is not None


@pytest.mark.row("P-34")
@on_each_kind
def test_a_dead_letter_says_whence_it_came_in_lower_case(bus: SdkBus) -> None:
    target = bus.queue()
    options = {} if bus.partitions == 2 else {"enable_partitioning": bus.partitioned}
    source = f"Mixed-Case-{target}"
    bus.admin.create_queue(source, forward_dead_lettered_messages_to=target, **options)
    bus.sender(source).send_messages(ServiceBusMessage("m"))
    receiver = bus.receiver(source)
    receiver.dead_letter_message(bus.receive(receiver, 1)[0], reason="Broken")
    (letter,) = bus.take(bus.receiver(target), 1)
    assert letter.dead_letter_source == source.lower()
