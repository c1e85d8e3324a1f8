"""A server in the test's process: its namespaces, what can be seen in them, and their end."""

from __future__ import annotations

import gc
import json
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.errors import ArgumentError, ConfigError, EntityExists, EntityNotFound
from bendybus.testing import Namespace, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def connect(namespace: Namespace) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)


def send(namespace: Namespace, queue: str, *texts: str, **properties: object) -> None:
    with connect(namespace) as client, client.get_queue_sender(queue, keep_alive=0) as sender:
        sender.send_messages([ServiceBusMessage(text, **properties) for text in texts])


def test_namespaces_know_nothing_of_each_other(server: Server) -> None:
    with server.namespace(queues=["orders"]) as one, server.namespace(queues=["orders"]) as other:
        send(one, "orders", "for one", subject="greeting", application_properties={"n": 1})
        assert other.messages("orders") == []
        (message,) = one.messages("orders")
        assert (str(message), message.body, message.subject) == ("for one", b"for one", "greeting")
        assert message.application_properties == {"n": 1} and message.state == "active"
        assert (message.sequence_number, message.delivery_count, message.locked_until) == (1, 0, None)


def test_queues_are_made_with_properties_and_taken_away(server: Server) -> None:
    with server.namespace(queues={"orders": {"enable_partitioning": True}}) as namespace:
        namespace.create_queue("brief", lock_duration_s=5)
        assert namespace.queues() == ["brief", "orders"]
        with pytest.raises(EntityExists):
            namespace.create_queue("BRIEF")
        namespace.delete_queue("brief")
        with pytest.raises(EntityNotFound):
            namespace.messages("brief")
        with pytest.raises(TypeError, match="lock_time"):
            namespace.create_queue("other", lock_time=5)


def test_a_config_json_says_what_is_there(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    described = [{"Name": "first", "Queues": [{"Name": "a"}]}, {"Name": "second", "Queues": [{"Name": "b"}]}]
    file.write_text(json.dumps({"UserConfig": {"Namespaces": described}}))
    with server.namespace(config=file, queues=["c"]) as namespace:
        assert namespace.queues() == ["a", "c"]
    with server.namespace("Second", config=file) as namespace:
        assert namespace.queues() == ["b"]


# The SDK leaves a broken connection's socket to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_closed_namespace_is_gone_with_its_clients(server: Server) -> None:
    namespace = server.namespace("brief", queues=["orders"])
    with connect(namespace) as client, client.get_queue_receiver("orders") as receiver:
        assert receiver.peek_messages() == []
        namespace.close()
        with pytest.raises(ServiceBusError):
            receiver.peek_messages()
    del client, receiver
    gc.collect()
    namespace.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        namespace.queues()
    with server.namespace("brief") as again:
        assert again.queues() == []
        with pytest.raises(ConfigError, match="'Brief' already"):
            server.namespace("Brief")


def test_a_namespace_that_cannot_be_made_leaves_nothing_behind(server: Server) -> None:
    threads = threading.active_count()
    with pytest.raises(Exception, match="MaxMessageSizeInKilobytes"):
        server.namespace("odd", queues={"large": {"max_message_size_kb": 100_000}})
    assert threading.active_count() <= threads
    server.namespace("odd").close()


@pytest.mark.row("B-08")
@pytest.mark.parametrize("durable", [False, True])
def test_messages_survive_a_restart_and_locks_do_not(server: Server, durable: bool) -> None:
    with server.namespace(queues=["orders"], durable=durable, stores=2) as namespace:
        namespace.create_queue("parts", enable_partitioning=True)
        send(namespace, "orders", "kept")
        with connect(namespace) as client, client.get_queue_receiver("orders") as receiver:
            assert len(receiver.receive_messages(max_wait_time=20)) == 1
        assert namespace.messages("orders")[0].locked_until is not None
        namespace.restart()
        (message,) = namespace.messages("orders")
        assert str(message) == "kept" and message.locked_until is None
        assert namespace.queues() == ["orders", "parts"]


@pytest.mark.row("P-09")
def test_a_namespace_of_the_premium_tier_has_the_partitions_that_it_was_made_with(
    server: Server,
) -> None:
    with server.namespace(queues=["orders"], tier="premium", premium_partitions=4) as namespace:
        for number in range(8):
            send(namespace, "orders", str(number))
        assert {message.sequence_number >> 48 for message in namespace.messages("orders")} == {0, 1, 2, 3}
        with pytest.raises(ArgumentError, match="premiumMessagingPartitions 4"):
            namespace.create_queue("plain", enable_partitioning=False)
        namespace.restart()
        namespace.reset()
        assert namespace.queues() == ["orders"]


def test_a_reset_makes_a_queue_unpartitioned_again(server: Server) -> None:
    with server.namespace(queues=["orders"]) as namespace:
        namespace.delete_queue("orders")
        namespace.create_queue("orders", enable_partitioning=True)
        namespace.reset()
        for number in range(4):
            send(namespace, "orders", str(number))
        assert {message.sequence_number >> 48 for message in namespace.messages("orders")} == {0}


@pytest.mark.row("B-08")
@pytest.mark.parametrize("durable", [False, True])
def test_a_reset_leaves_what_there_was_at_first_and_nothing_in_it(server: Server, durable: bool) -> None:
    first = {"orders": {"enable_partitioning": True, "lock_duration_s": 30}, "other": {}}
    with server.namespace(queues=first, durable=durable) as namespace:
        namespace.create_queue("later")
        namespace.delete_queue("other")
        namespace.create_queue("other", requires_duplicate_detection=True)
        send(namespace, "orders", *map(str, range(20)))
        send(namespace, "other", "unique")
        namespace.clock.advance(86_400)
        with (
            connect(namespace) as client,
            client.get_queue_receiver("orders") as receiver,
            client.get_queue_sender("orders", keep_alive=0) as sender,
        ):
            (locked,) = receiver.receive_messages(1, max_wait_time=20)
            namespace.reset()
            assert namespace.queues() == ["orders", "other"]
            assert namespace.messages("orders") == namespace.messages("other") == []
            # Whoever was connected goes on, and finds an empty queue.
            assert receiver.peek_messages(100, sequence_number=1) == []
            sender.send_messages(ServiceBusMessage("after", partition_key="k"))
            with pytest.raises(ServiceBusError):
                receiver.complete_message(locked)
            (after,) = receiver.receive_messages(1, max_wait_time=20)
            assert str(after) == "after"
            assert after.sequence_number & 0xFFFF_FFFF == 1
        namespace.restart()
        assert [str(message) for message in namespace.messages("orders")] == ["after"]
        # At the real time again.
        enqueued_at = namespace.messages("orders")[0].enqueued_at
        assert abs((namespace.clock.now() - enqueued_at).total_seconds()) < 3600


def test_http_and_the_administration_client_find_the_namespace(server: Server) -> None:
    with server.namespace() as namespace, server.namespace():
        admin = ServiceBusAdministrationClient.from_connection_string(
            namespace.connection_string, connection_verify=str(server.certificate)
        )
        with admin:
            admin.create_queue("made-by-the-sdk")
        assert namespace.queues() == ["made-by-the-sdk"]
    trust = ssl.create_default_context(cafile=server.certificate)
    with urllib.request.urlopen(f"https://localhost:{server.port}/health", context=trust) as answer:
        assert json.load(answer)["status"] == "healthy"


def test_a_server_that_is_not_running_says_so() -> None:
    server = Server()
    with pytest.raises(RuntimeError, match="with Server"):
        server.namespace()
    with server:
        namespace = server.namespace(queues=["orders"])
        with pytest.raises(RuntimeError, match="started already"):
            server.start()
    assert namespace.closed
    server.stop()
    with pytest.raises(RuntimeError, match="has been closed"):
        namespace.create_queue("late")
