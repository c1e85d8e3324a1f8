"""Every limit, from its far side: the error that the SDK makes of it, and the entity goes on working."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

from bendybus.amqp.types import ULong
from bendybus.build import is_compiled
from bendybus.client import BusClient
from bendybus.client.settings import ClientSettings
from bendybus.domain.routing import partition_of as partition_of_key
from fix_kinds import KINDS, PATIENCE_S, SdkBus, close_bus, make_bus, on_each_kind
from fix_rows import on_kind
from fix_server import ServerProcess, StartServer, namespace
from fix_several_brokers import not_with_several
from set_ups import BROKERS, ONE_BROKER

KILOBYTE = 1024

# Of a server whose megabytes are kilobytes: a queue of a gigabyte would take a minute to fill.
SMALL_UNITS = (
    "import bendybus.domain.intake; bendybus.domain.intake._MEBIBYTE = 1024; "
    "from bendybus.cli.main import app; app()"
)


def largest(bus: SdkBus) -> int:
    """The size of a message that a queue takes unless it says otherwise."""
    return (1024 if bus.partitions == 2 else 256) * KILOBYTE


# -- messages ------------------------------------------------------------------------------


@on_each_kind
def test_a_message_too_large_is_refused(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * (largest(bus) + 1)))
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages([ServiceBusMessage(b"x" * (largest(bus) // 2)) for _ in range(3)])
    batch = sender.create_message_batch()
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * (largest(bus) + 1)))
    sender.send_messages(ServiceBusMessage(b"x" * (largest(bus) - KILOBYTE)))
    (message,) = bus.take(bus.receiver(queue), 1)
    assert len(b"".join(message.body)) == largest(bus) - KILOBYTE


@on_each_kind
def test_properties_too_large_are_refused(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    for properties in (
        {"one": "v" * (32 * KILOBYTE + 1)},
        {f"p{number}": "v" * 1000 for number in range(70)},
        {"n" * (64 * KILOBYTE): 1},
    ):
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage("x", application_properties=properties))
    within = {f"p{number}": "v" * 1000 for number in range(55)}
    sender.send_messages(ServiceBusMessage("x", application_properties=within))
    (message,) = bus.take(bus.receiver(queue), 1)
    assert len(message.application_properties or {}) == 55


@on_each_kind
def test_ids_and_keys_beyond_128_characters_are_refused(bus: SdkBus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    longest = "ä" * 128
    for annotation, properties in (
        ("x-opt-partition-key", {}),
        (None, {"message_id": longest + "ä"}),
        (None, {"session_id": longest + "ä"}),
    ):
        # The SDK refuses most of this itself, where it is told; so tell it later.
        message = ServiceBusMessage("x")
        if annotation is not None:
            message._raw_amqp_message.annotations = {annotation: longest + "ä"}
        raw = message._raw_amqp_message.properties
        raw.message_id = properties.get("message_id", raw.message_id)
        raw.group_id = properties.get("session_id")
        with pytest.raises(ServiceBusError, match="128"):
            sender.send_messages(message)
    sender.send_messages(ServiceBusMessage("x", message_id=longest, session_id=longest))
    (message,) = bus.take(bus.receiver(queue), 1)
    assert (message.message_id, message.session_id) == (longest, longest)


@on_each_kind
def test_a_dead_letter_reason_beyond_4096_characters_is_refused_and_the_message_stays(
    bus: SdkBus,
) -> None:
    queue = bus.queue()
    bus.sender(queue).send_messages(ServiceBusMessage("x"))
    receiver = bus.receiver(queue)
    (message,) = bus.receive(receiver, 1)
    with pytest.raises(ServiceBusError, match="4096"):
        receiver.dead_letter_message(message, reason="r" * 4097)
    # With that the SDK has closed its receiver; the lock it leaves behind runs out by itself.
    (there,) = bus.receiver(queue).peek_messages(5)
    assert there.sequence_number == message.sequence_number
    bus.works(queue)


@on_each_kind
def test_a_session_state_too_large_is_refused_and_the_old_one_stays(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True)
    with bus.client.get_queue_receiver(queue, session_id="s") as receiver:
        receiver.session.set_state(b"small")
        with pytest.raises(ServiceBusError):
            receiver.session.set_state(b"x" * (largest(bus) + 1))
        assert receiver.session.get_state() == b"small"


@on_each_kind
def test_a_message_without_a_session_is_refused_where_sessions_are_required(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True)
    sender = bus.sender(queue)
    with pytest.raises(ServiceBusError, match=r"[Ss]ession"):
        sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(ServiceBusError, match=r"[Ss]ession"):
        bus.client.get_queue_receiver(queue).receive_messages(max_wait_time=PATIENCE_S)
    sender.send_messages(ServiceBusMessage("x", session_id="s"))
    with bus.client.get_queue_receiver(queue, session_id="s") as receiver:
        assert len(bus.take(receiver, 1)) == 1


# -- quotas --------------------------------------------------------------------------------


class SmallServer(ServerProcess):
    program = (sys.executable, "-c", SMALL_UNITS)


@pytest.fixture(scope="module")
def small_buses(tmp_path_factory: pytest.TempPathFactory, _closing: Any) -> Iterator[dict[int, SdkBus]]:
    if BROKERS:
        # The processes that it starts have units of the usual size.
        not_with_several(ONE_BROKER["process"])
    if is_compiled():
        pytest.skip("compiled code has units of the usual size, and to fill them takes minutes")

    def start(folder: Path, *options: str) -> ServerProcess:
        server = SmallServer(folder, namespace({}), options)
        server.start()
        return server

    standard = start(tmp_path_factory.mktemp("standard"))
    premium = start(tmp_path_factory.mktemp("premium"), "--tier", "premium")
    buses = {kind: make_bus(kind, premium if kind == 2 else standard) for kind in (16, 2, 1)}
    yield buses
    for bus in buses.values():
        close_bus(bus, _closing)
    for server in (standard, premium):
        server.stop()
        server.refuse_trouble()


@pytest.mark.row("P-08", "P-12")
@pytest.mark.parametrize("kind", [on_kind(kind, kind) for kind in KINDS])
def test_a_hot_key_fills_its_partition_and_the_others_take_messages(
    small_buses: dict[int, SdkBus], kind: int
) -> None:
    bus = small_buses[kind]
    queue = bus.queue()
    sender = bus.sender(queue)
    body = b"x" * 200_000
    with pytest.raises(ServiceBusQuotaExceededError, match="exceed its size"):
        for _ in range(7):
            sender.send_messages(ServiceBusMessage(body, partition_key="hot"))
    hot = partition_of_key("hot", kind)
    cold = next((key for key in map(str, range(100)) if partition_of_key(key, kind) != hot), None)
    if cold is None:
        with pytest.raises(ServiceBusQuotaExceededError):
            sender.send_messages(ServiceBusMessage(body, partition_key="cold"))
    else:
        sender.send_messages(ServiceBusMessage(body, partition_key=cold))
    # Where there is room again, messages are taken again.
    receiver = bus.receiver(queue)
    while bus.admin.get_queue_runtime_properties(queue).active_message_count:
        bus.take(receiver, 1)
    sender.send_messages(ServiceBusMessage(body, partition_key="hot"))
    assert len(bus.take(receiver, 1)) == 1


@pytest.mark.parametrize("kind", [on_kind(kind, kind) for kind in KINDS])
def test_a_topic_is_full_when_its_subscriptions_are(small_buses: dict[int, SdkBus], kind: int) -> None:
    bus = small_buses[kind]
    topic = bus.topic("one", "two")
    sender = bus.topic_sender(topic)
    body = b"x" * 200_000
    with pytest.raises(ServiceBusQuotaExceededError):
        for _ in range(12):
            sender.send_messages(ServiceBusMessage(body, partition_key="hot"))
    for subscription in ("one", "two"):
        runtime = bus.admin.get_subscription_runtime_properties(topic, subscription)
        assert runtime.active_message_count
        bus.take(bus.receiver(topic, subscription), runtime.active_message_count)
    sender.send_messages(ServiceBusMessage(body, partition_key="hot"))
    assert len(bus.take(bus.receiver(topic, "one"), 1)) == 1


@on_each_kind
def test_senders_are_told_the_largest_batch_beside_the_largest_message(bus: SdkBus) -> None:
    queues = {bus.queue(): (1024 if bus.partitions == 2 else 256, 1024 if bus.partitions == 2 else 256)}
    if bus.partitions == 2:
        queues[bus.queue(max_message_size_in_kilobytes=102_400)] = (102_400, 1024)
    for queue, (message_kb, batch_kb) in queues.items():
        settings = ClientSettings.from_connection_string(bus.server.connection_string, entity=queue)
        with BusClient(settings) as client:
            _, link = client.sender()._attached()
            assert link.max_message_size == message_kb * 1024
            assert link.properties["com.microsoft:max-message-batch-size"] == ULong(batch_kb * 1024)
            assert isinstance(link.properties["com.microsoft:max-message-batch-size"], ULong)


# -- entities ------------------------------------------------------------------------------


@on_each_kind
def test_a_description_beyond_its_limits_is_refused(bus: SdkBus) -> None:
    queue = bus.queue()
    described = bus.admin.get_queue(queue)
    for field, value in {
        "lock_duration": timedelta(minutes=5, seconds=1),
        "max_delivery_count": 0,
        "default_message_time_to_live": timedelta(milliseconds=10),
        "auto_delete_on_idle": timedelta(minutes=4),
        "duplicate_detection_history_time_window": timedelta(days=8),
        "user_metadata": "m" * 1025,
        "max_size_in_megabytes": 1000,
    }.items():
        wrong = bus.admin.get_queue(queue)
        setattr(wrong, field, value)
        with pytest.raises(HttpResponseError) as refused:
            bus.admin.update_queue(wrong)
        assert refused.value.status_code == 400, field
    assert dict(bus.admin.get_queue(queue)) == dict(described)
    described.lock_duration = timedelta(minutes=5)
    bus.admin.update_queue(described)
    bus.works(queue)


@on_each_kind
def test_a_message_may_be_delivered_two_billion_times(bus: SdkBus) -> None:
    """NServiceBus creates its queues so: it counts the attempts itself."""
    queue, topic = bus.queue(max_delivery_count=2_147_483_647), bus.topic()
    bus.admin.create_subscription(topic, "s", max_delivery_count=2_147_483_647)
    assert bus.admin.get_queue(queue).max_delivery_count == 2_147_483_647
    assert bus.admin.get_subscription(topic, "s").max_delivery_count == 2_147_483_647
    bus.works(queue)
    described = bus.admin.get_queue(queue)
    described.max_delivery_count = 2_147_483_648
    with pytest.raises(HttpResponseError, match="from 1 to 2147483647"):
        bus.admin.update_queue(described)


@on_each_kind
def test_names_beyond_their_limits_are_refused(bus: SdkBus) -> None:
    topic = bus.topic("s")
    for make in (
        lambda: bus.admin.create_queue("q" * 261),
        lambda: bus.admin.create_topic("t" * 261),
        lambda: bus.admin.create_subscription(topic, "s" * 51),
        lambda: bus.admin.create_rule(topic, "s", "r" * 51),
        lambda: bus.admin.create_subscription(topic, "no spaces"),
    ):
        with pytest.raises((HttpResponseError, ValueError)) as refused:
            make()
        assert getattr(refused.value, "status_code", 400) in (400, 404), refused.value
    bus.admin.create_subscription(topic, "s" * 50)
    bus.admin.create_rule(topic, "s", "r" * 50)
    assert {each.name for each in bus.admin.list_subscriptions(topic)} == {"s", "s" * 50}


@on_each_kind
def test_rules_beyond_their_limits_are_refused(bus: SdkBus) -> None:
    topic = bus.topic("s")
    text = "a = 1 OR " * 120 + "a = 2"
    assert len(text) > 1024
    for rule_filter, action in (
        (SqlRuleFilter(text), None),
        (SqlRuleFilter("a ="), None),
        (SqlRuleFilter("a = 1"), SqlRuleAction("SET a = 1;" * 120)),
        (SqlRuleFilter("a = 1"), SqlRuleAction("; ".join(f"SET a{n} = {n}" for n in range(33)))),
    ):
        with pytest.raises(HttpResponseError) as refused:
            bus.admin.create_rule(topic, "s", "r", filter=rule_filter, action=action)
        assert refused.value.status_code == 400
    assert [rule.name for rule in bus.admin.list_rules(topic, "s")] == ["$Default"]
    bus.admin.create_rule(topic, "s", "r", filter=CorrelationRuleFilter(label="x"))
    bus.topic_sender(topic).send_messages(ServiceBusMessage("y", subject="x"))
    # By both rules, of which neither has an action: once.
    assert len(bus.take(bus.receiver(topic, "s"), 1)) == 1


def test_a_topic_has_2000_sql_rules_and_no_more(start_server: StartServer) -> None:
    rules = [
        {"Name": f"r{n}", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": f"n = {n}"}}}
        for n in range(2000)
    ]
    properties = {"EnablePartitioning": True}
    ruled = {"Name": "ruled", "Properties": properties, "Subscriptions": [{"Name": "s", "Rules": rules}]}
    bus = make_bus(16, start_server({}, topics=[ruled]))
    with bus.admin as admin:
        with pytest.raises(HttpResponseError) as refused:
            admin.create_rule("ruled", "s", "one-more", filter=SqlRuleFilter("n = 2000"))
        assert refused.value.status_code == 403
        # Of the other kind there may be more, and where one is taken away there is room.
        admin.create_rule("ruled", "s", "another", filter=CorrelationRuleFilter(label="x"))
        admin.delete_rule("ruled", "s", "r7")
        admin.create_rule("ruled", "s", "one-more", filter=SqlRuleFilter("n = 2000"))
    sender = bus.topic_sender("ruled")
    for number in (7, 2000):
        sender.send_messages(ServiceBusMessage(str(number), application_properties={"n": number}))
    (message,) = bus.take(bus.receiver("ruled", "s"), 1)
    assert str(message) == "2000"
    for handle in bus.handles:
        handle.close()


@on_each_kind
def test_disabled_for_sending_or_receiving_says_so_until_it_is_enabled(bus: SdkBus) -> None:
    queue = bus.queue()
    bus.sender(queue).send_messages(ServiceBusMessage("x"))
    described = bus.admin.get_queue(queue)

    def send() -> None:
        with bus.client.get_queue_sender(queue, keep_alive=0) as sender:
            sender.send_messages(ServiceBusMessage("x"))

    def receive() -> None:
        with bus.client.get_queue_receiver(queue) as receiver:
            bus.take(receiver, 1)

    for status, refused, allowed in (
        ("SendDisabled", [send], [receive]),
        ("ReceiveDisabled", [receive], [send]),
        ("Disabled", [send, receive], []),
    ):
        described.status = status
        bus.admin.update_queue(described)
        for operation in refused:
            with pytest.raises(MessagingEntityDisabledError):
                operation()
        for operation in allowed:
            operation()
    described.status = "Active"
    bus.admin.update_queue(described)
    send()
    receive()


@on_each_kind
def test_what_is_not_there_is_not_found(bus: SdkBus) -> None:
    topic = bus.topic("s")
    for open_it in (
        lambda: bus.client.get_queue_sender("nowhere").send_messages(ServiceBusMessage("x")),
        lambda: bus.client.get_queue_receiver("nowhere").receive_messages(max_wait_time=PATIENCE_S),
        lambda: bus.client.get_subscription_receiver(topic, "none").receive_messages(
            max_wait_time=PATIENCE_S
        ),
    ):
        with pytest.raises((MessagingEntityNotFoundError, ServiceBusAuthenticationError)):
            open_it()
    bus.topic_sender(topic).send_messages(ServiceBusMessage("x"))
    assert len(bus.take(bus.receiver(topic, "s"), 1)) == 1
