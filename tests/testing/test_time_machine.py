"""The time machine: what falls due has happened when `advance` returns; nothing is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import MessageLockLostError

from bendybus.testing import Namespace, Server

KINDS = pytest.mark.parametrize("partitioned", [False, True], ids=["unpartitioned", "partitioned"])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def partitioned() -> bool:
    return False


@pytest.fixture
def namespace(server: Server, partitioned: bool) -> Iterator[Namespace]:
    properties = {
        "enable_partitioning": partitioned,
        "lock_duration_s": 60,
        "max_delivery_count": 2,
        "dead_letter_on_expiry": True,
    }
    with server.namespace(queues={"orders": properties}) as namespace:
        yield namespace


@pytest.fixture
def client(namespace: Namespace) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
        yield client


@pytest.fixture
def sender(client: ServiceBusClient) -> Iterator[ServiceBusSender]:
    with client.get_queue_sender("orders", keep_alive=0) as sender:
        yield sender


@pytest.fixture
def receiver(client: ServiceBusClient) -> Iterator[ServiceBusReceiver]:
    with client.get_queue_receiver("orders") as receiver:
        yield receiver


@pytest.mark.row("P-28")
@KINDS
def test_a_lock_ends(namespace: Namespace, sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    sender.send_messages(ServiceBusMessage("locked"))
    (message,) = receiver.receive_messages(max_wait_time=20)
    namespace.clock.advance(50)
    assert namespace.messages("orders")[0].locked_until == message.locked_until_utc
    renewed = receiver.renew_message_lock(message)
    assert renewed - namespace.clock.now() > timedelta(seconds=50)
    namespace.clock.advance(timedelta(seconds=50))
    assert namespace.messages("orders")[0].locked_until is not None
    namespace.clock.advance(10)
    (seen,) = namespace.messages("orders")
    assert (seen.locked_until, seen.delivery_count) == (None, 1)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(message)
    (again,) = receiver.receive_messages(max_wait_time=20)
    assert again.delivery_count == 1
    assert again.locked_until_utc > namespace.clock.now()
    namespace.clock.advance(61)
    assert [seen.dead_letter_reason for seen in namespace.dead_letters("orders")] == [
        "MaxDeliveryCountExceeded"
    ]


@KINDS
def test_messages_expire_into_the_dead_letter_queue(namespace: Namespace, sender: ServiceBusSender) -> None:
    for number in range(20):
        lifetime = timedelta(seconds=1) if number % 2 else timedelta(days=30)
        sender.send_messages(ServiceBusMessage(str(number), time_to_live=lifetime, partition_key=str(number)))
    namespace.clock.advance(1)
    assert sorted(int(str(seen)) for seen in namespace.messages("orders")) == list(range(0, 20, 2))
    assert {seen.dead_letter_reason for seen in namespace.dead_letters("orders")} == {"TTLExpiredException"}
    namespace.clock.advance(timedelta(days=30))
    assert namespace.messages("orders") == []
    assert len(namespace.dead_letters("orders")) == 20


@KINDS
def test_scheduled_messages_are_enqueued_and_a_waiting_receiver_gets_one(
    namespace: Namespace, sender: ServiceBusSender, receiver: ServiceBusReceiver
) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    sender.schedule_messages([ServiceBusMessage("later", partition_key="k")], due)
    sender.schedule_messages([ServiceBusMessage("never", partition_key="k")], due + timedelta(days=1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receiver.receive_messages, max_wait_time=20)
        namespace.clock.travel_to(due)
        (message,) = waiting.result()
    assert str(message) == "later"
    assert message.enqueued_time_utc >= due - timedelta(milliseconds=1)
    assert [(str(seen), seen.state) for seen in namespace.messages("orders")] == [
        ("never", "scheduled"),
        ("later", "active"),
    ]


def test_thousands_of_messages_fall_due_at_once(namespace: Namespace, sender: ServiceBusSender) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    for _ in range(6):
        sender.schedule_messages([ServiceBusMessage("later") for _ in range(1000)], due)
    namespace.clock.travel_to(due)
    assert {seen.state for seen in namespace.messages("orders")} == {"active"}


def test_expired_messages_have_been_forwarded_and_idle_queues_are_gone(
    namespace: Namespace, client: ServiceBusClient
) -> None:
    namespace.create_queue("graveyard")
    namespace.create_queue("idle", auto_delete_on_idle_s=300)
    namespace.create_queue("brief", forward_dead_lettered_to="graveyard", dead_letter_on_expiry=True)
    with client.get_queue_sender("brief", keep_alive=0) as brief:
        brief.send_messages(
            [ServiceBusMessage(str(number), time_to_live=timedelta(minutes=1)) for number in range(50)]
        )
    namespace.clock.advance(301)
    assert [str(message) for message in namespace.messages("graveyard")] == list(map(str, range(50)))
    assert namespace.dead_letters("brief") == []
    assert "idle" not in namespace.queues()


def test_the_lifetime_of_a_message_starts_again_when_it_is_forwarded(
    namespace: Namespace, client: ServiceBusClient
) -> None:
    namespace.create_queue("graveyard")
    namespace.create_queue("brief", forward_dead_lettered_to="graveyard")
    with client.get_queue_sender("brief") as brief:
        brief.send_messages(ServiceBusMessage("x", time_to_live=timedelta(minutes=1)))
    namespace.clock.advance(40)
    with client.get_queue_receiver("brief", max_wait_time=10) as receiver:
        receiver.dead_letter_message(next(receiver))
    namespace.clock.advance(40)
    assert [str(message) for message in namespace.messages("graveyard")] == ["x"]
    namespace.clock.advance(21)
    assert namespace.messages("graveyard") == []


def test_namespaces_have_clocks_of_their_own(server: Server, namespace: Namespace) -> None:
    with server.namespace() as other:
        namespace.clock.advance(timedelta(days=365))
        assert namespace.clock.now() - other.clock.now() > timedelta(days=364)


def test_tokens_hold_by_the_real_time(namespace: Namespace, sender: ServiceBusSender) -> None:
    namespace.clock.advance(timedelta(days=365))
    sender.send_messages(ServiceBusMessage("still allowed"))
    assert namespace.messages("orders")[0].enqueued_at > datetime.now(UTC) + timedelta(days=364)


def test_time_does_not_run_backwards(namespace: Namespace) -> None:
    with pytest.raises(ValueError, match="moved back"):
        namespace.clock.advance(-1)
    with pytest.raises(ValueError, match="moved back"):
        namespace.clock.travel_to(datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(ValueError, match="no time zone"):
        namespace.clock.travel_to(datetime(2100, 1, 1))
