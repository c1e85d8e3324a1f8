"""Faults of entities that an application has to live with, seen by the Azure SDK."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)

from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import ArgumentError, ConnectionLost, InvalidOperation
from bendybus.names import PARTITION_SHIFT
from bendybus.testing import Namespace, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def namespace(server: Server) -> Iterator[Namespace]:
    queues = {"orders": {"enable_partitioning": True}, "talks": {"requires_session": True}}
    with server.namespace(queues=queues, topics={"news": {"all": {}}}) as namespace:
        yield namespace


def send(namespace: Namespace, *, queue: str = "orders", timeout: float = 10, **properties: object) -> None:
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        # Without the thread that keeps an idle link alive: closing would wait for it.
        client.get_queue_sender(queue, keep_alive=0) as sender,
    ):
        sender.send_messages(ServiceBusMessage("hello", **properties), timeout=timeout)


def receive_one(receiver: ServiceBusReceiver):
    (message,) = receiver.receive_messages(1, max_wait_time=10)
    return message


@pytest.mark.row("B-09")
def test_a_busy_entity_refuses_until_it_is_healed(namespace: Namespace) -> None:
    namespace.make_faulty("orders", busy_share=1.0)
    with pytest.raises(ServiceBusServerBusyError, match="busy, because a test has asked for it"):
        send(namespace)
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        client.get_queue_receiver("orders") as receiver,
        pytest.raises(ServiceBusServerBusyError),
    ):
        receiver.peek_messages()
    send(namespace, queue="talks", session_id="ada")
    namespace.heal("orders")
    send(namespace)
    assert len(namespace.messages("orders")) == 1


@pytest.mark.row("B-09")
def test_a_slow_entity_answers_too_late(namespace: Namespace) -> None:
    namespace.make_faulty("orders", latency_s=3600)
    with pytest.raises(OperationTimeoutError):
        send(namespace, timeout=1)
    assert namespace.messages("orders") == []
    namespace.reset()
    send(namespace)
    assert len(namespace.messages("orders")) == 1


@pytest.mark.row("B-09")
def test_a_throttled_partition_refuses_its_keys_and_others_take_the_rest(namespace: Namespace) -> None:
    send(namespace, partition_key="ada")
    (first,) = namespace.messages("orders")
    partition = first.sequence_number >> PARTITION_SHIFT
    namespace.make_faulty("orders", throttled={partition})
    with pytest.raises(ServiceBusServerBusyError, match=f"Partition {partition} of 'orders' is throttled"):
        send(namespace, partition_key="ada")
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender("orders", keep_alive=0) as sender,
    ):
        # One by one: what is sent together goes to one partition.
        for _ in range(16):
            sender.send_messages(ServiceBusMessage("hello"))
    later = [each.sequence_number >> PARTITION_SHIFT for each in namespace.messages("orders")]
    assert later.count(partition) == 1
    assert len(later) == 17


@pytest.mark.row("B-09")
def test_links_are_detached_and_the_sdk_attaches_again(namespace: Namespace) -> None:
    settings = ClientSettings.from_connection_string(namespace.connection_string)
    with (
        BusClient(replace(settings, retries=0)) as ours,
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        mine = ours.sender("orders")
        mine.check()
        namespace.detach_links("orders")
        with pytest.raises(ConnectionLost, match="is detached, because a test has asked for it"):
            mine.post([encode(b"refused")])
            mine.flush()
        sender.send_messages(ServiceBusMessage("after"))
        assert {str(receive_one(receiver)), str(receive_one(receiver))} == {"before", "after"}


@pytest.mark.row("B-09")
def test_locks_of_messages_and_sessions_are_lost(namespace: Namespace) -> None:
    send(namespace)
    send(namespace, queue="talks", session_id="ada")
    with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
        with client.get_queue_receiver("orders") as receiver:
            message = receive_one(receiver)
            namespace.lose_locks("orders")
            with pytest.raises(MessageLockLostError):
                receiver.complete_message(message)
            again = receive_one(receiver)
            assert again.delivery_count == 1
            receiver.complete_message(again)
        with client.get_queue_receiver("talks", session_id="ada") as receiver:
            message = receive_one(receiver)
            namespace.lose_locks("talks")
            with pytest.raises(SessionLockLostError):
                receiver.complete_message(message)


def test_what_makes_no_sense_is_refused(namespace: Namespace) -> None:
    with pytest.raises(ArgumentError, match="'orders' has no partition 16; it has 16"):
        namespace.make_faulty("orders", throttled=[16])
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        namespace.make_faulty("orders", busy_share=1.5)
    with pytest.raises(ArgumentError, match="The latency is between"):
        namespace.make_faulty("orders", latency_s=-1)
    with pytest.raises(InvalidOperation, match="'news' is a topic"):
        namespace.lose_locks("news")
