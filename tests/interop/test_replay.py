"""Completed messages are kept and put back, on entities of 16, 2 and 1 partition (B-07)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, SUBSCRIPTION, new_elements
from bendybus.operations.peeking import peeked
from bendybus.operations.replaying import Replaying
from fix_kinds import SdkBus, keys_for, on_each_kind
from fix_rows import use_entity
from fix_server import Kind, ServerProcess, StartServer
from interop.sdk import BREAKS_CONNECTIONS


@contextmanager
def own_client(server: ServerProcess) -> Iterator[BusClient]:
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        yield client


def keeping_queue(bus: SdkBus, **properties: object) -> str:
    """A queue that keeps completed messages for an hour."""
    name = f"kept-{uuid.uuid4().hex[:8]}"
    described: dict[str, object] = {"KeepCompleted": "PT1H", **properties}
    if bus.partitions != 2:
        described["EnablePartitioning"] = bus.partitioned
    with ManagementClient(ConnectionString.parse(bus.server.connection_string)) as management:
        management.create(name, QUEUE.element, new_elements(QUEUE, described))
    bus.queues.append(name)
    use_entity(bus.server, name)
    return name


def bodies(bus: SdkBus, receiver: ServiceBusReceiver, count: int) -> list[str]:
    return [str(message) for message in bus.take(receiver, count)]


@pytest.mark.row("B-07")
@on_each_kind
def test_completed_messages_are_put_back_by_key_by_number_and_by_time_each_once(bus: SdkBus) -> None:
    queue, keys = keeping_queue(bus), keys_for(bus.partitions)
    with bus.sender(queue) as sender:
        for number in range(32):
            sender.send_messages(ServiceBusMessage(str(number), partition_key=keys[number % len(keys)]))
    receiver = bus.receiver(queue)
    bus.take(receiver, 32)
    with own_client(bus.server) as client:
        of_key = Replaying(client, queue, key=keys[0].upper())
        wanted = [str(number) for number in range(0, 32, len(keys))]
        assert of_key.count() == len(wanted)
        assert sum(of_key.run()) == len(wanted)
        first = bus.take(receiver, len(wanted))
        assert [str(message) for message in first] == wanted, "a key's messages come in their order"
        number = first[0].sequence_number
        assert number is not None
        for done in (1, 0):
            assert sum(Replaying(client, queue, numbers=[number]).run()) == done
        (again,) = bus.take(receiver, 1)
        assert str(again) == str(first[0])
        assert again.sequence_number is not None and again.sequence_number > number
        assert (again.delivery_count, again.message_id) == (0, first[0].message_id)
        assert again.enqueued_time_utc and first[0].enqueued_time_utc
        assert again.enqueued_time_utc >= first[0].enqueued_time_utc
        long_ago = Replaying(client, queue, completed_before_ms=round(time.time() * 1000) - 3_600_000)
        assert sum(long_ago.run()) == 0
        everything = Replaying(client, queue, completed_from_ms=round(time.time() * 1000) - 3_600_000)
        assert everything.count() == 32
        assert sum(everything.run()) == 32
        assert sorted(map(int, bodies(bus, receiver, 32))) == [*range(32)]
        assert sum(everything.run()) == 0, "what was completed since the replay began stays out"
        assert len(list(peeked(client.management(f"{queue}/$completed")))) == 32


@pytest.mark.row("B-07")
@on_each_kind
def test_kept_messages_are_counted_apart_and_nobody_receives_them(bus: SdkBus) -> None:
    queue = keeping_queue(bus)
    bus.sender(queue).send_messages([ServiceBusMessage("x" * 1000, partition_key="k") for _ in range(10)])
    deleting = bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert len(bus.receive(deleting, 10)) == 10
    runtime = bus.admin.get_queue_runtime_properties(queue)
    assert (runtime.total_message_count, runtime.active_message_count, runtime.size_in_bytes) == (0, 0, 0)
    with pytest.raises(ServiceBusError, match="put them back"):
        bus.receiver(f"{queue}/$completed").receive_messages(1, max_wait_time=1)
    with own_client(bus.server) as client:
        assert sum(Replaying(client, queue).run()) == 10
    assert bus.admin.get_queue_runtime_properties(queue).active_message_count == 10


@pytest.mark.row("B-07")
@on_each_kind
def test_a_session_gets_back_what_its_holder_completed(bus: SdkBus) -> None:
    queue = keeping_queue(bus, RequiresSession=True)
    with bus.sender(queue) as sender:
        for session in ("a", "b"):
            sender.send_messages([ServiceBusMessage(f"{session}{n}", session_id=session) for n in range(3)])
    holders = {session: bus.receiver(queue, session_id=session) for session in ("a", "b")}
    for holder in holders.values():
        bus.take(holder, 3)
    with own_client(bus.server) as client:
        assert sum(Replaying(client, queue, session_id="A").run()) == 3
    assert bodies(bus, holders["a"], 3) == ["a0", "a1", "a2"]


@pytest.mark.row("B-07")
@on_each_kind
def test_a_subscription_gets_its_own_copies_back(bus: SdkBus) -> None:
    topic = bus.topic("other")
    with ManagementClient(ConnectionString.parse(bus.server.connection_string)) as management:
        described = new_elements(SUBSCRIPTION, {"KeepCompleted": "PT1H"})
        management.create(f"{topic}/Subscriptions/kept", SUBSCRIPTION.element, described)
    bus.topic_sender(topic).send_messages([ServiceBusMessage(str(n), partition_key="k") for n in range(3)])
    for name in ("other", "kept"):
        bus.take(bus.receiver(topic, name), 3)
    with own_client(bus.server) as client:
        assert sum(Replaying(client, f"{topic}/Subscriptions/kept").run()) == 3
        assert bodies(bus, bus.receiver(topic, "kept"), 3) == ["0", "1", "2"]
        assert list(peeked(client.management(f"{topic}/Subscriptions/other"))) == []


@BREAKS_CONNECTIONS
@pytest.mark.row("B-07")
def test_kept_and_replayed_messages_survive_a_kill_and_none_is_doubled(
    start_server: StartServer, kind: Kind
) -> None:
    server = start_server({"q": {"EnablePartitioning": kind is Kind.PARTITIONED, "KeepCompleted": "PT1H"}})
    with own_client(server) as client:
        client.sender("q").send([encode(b"%d" % number) for number in range(40)])
        receiver = client.receiver("q")
        taken = 0
        while taken < 40:
            messages = receiver.receive(40, timeout_s=20)
            receiver.complete(messages)
            taken += len(messages)
        numbers = [each.sequence_number for each in peeked(client.management("q/$completed"))]
        assert len(numbers) == 40
        assert sum(Replaying(client, "q", numbers=numbers[:10]).run()) == 10
    server.kill()
    server.start()
    with own_client(server) as client:
        assert len(list(peeked(client.management("q")))) == 10
        assert sum(Replaying(client, "q", numbers=numbers).run()) == 30
        found = sorted(int(message.body) for message in peeked(client.management("q")))
        assert found == [*range(40)]
