"""ForwardTo and ForwardDeadLetteredMessagesTo through the SDK, between every mix of queues (P-34)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from fix_server import ServerProcess, StartServer
from interop.sdk import receive

PREMIUM = ("--tier", "premium")  # two partitions each

MIXES = pytest.mark.parametrize(
    ("source", "target", "options"),
    [(False, False, ()), (False, True, ()), (True, False, ()), (True, True, ()), (True, True, PREMIUM)],
    ids=["1 to 1", "1 to 16", "16 to 1", "16 to 16", "2 to 2"],
)


def client(server: ServerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(server.connection_string, retry_total=3)


def queues(source: bool, target: bool, **properties: object) -> Mapping[str, Mapping[str, object]]:
    # The source stands first: what it forwards to need not.
    return {
        "source": {"EnablePartitioning": source, **properties},
        "target": {"EnablePartitioning": target},
    }


@pytest.mark.row("P-12", "P-34")
@MIXES
def test_messages_arrive_once_in_order_per_key_with_their_first_number(
    start_server: StartServer, source: bool, target: bool, options: tuple[str, ...]
) -> None:
    server = start_server(queues(source, target, ForwardTo="target"), None, *options)
    with client(server) as sdk, sdk.get_queue_sender("source", keep_alive=0) as sender:
        for number in range(60):
            key = f"key-{number % 3}"
            properties = {"number": number}
            sender.send_messages(ServiceBusMessage("x", partition_key=key, application_properties=properties))
        with sdk.get_queue_receiver("target", max_wait_time=1) as receiver:
            messages = receive(receiver, 60)
            for message in messages:
                receiver.complete_message(message)
            assert receiver.receive_messages(1, max_wait_time=0.5) == []
        order: dict[str | None, list[object]] = {}
        for message in messages:
            assert message.enqueued_sequence_number is not None and message.sequence_number is not None
            order.setdefault(message.partition_key, []).append(
                (message.application_properties or {})[b"number"]
            )
        assert len(messages) == 60
        # One key lives in one partition on both sides, so its order is kept.
        assert order == {f"key-{rest}": list(range(rest, 60, 3)) for rest in range(3)}


@pytest.mark.row("P-34")
@MIXES
def test_dead_letters_are_forwarded_with_their_reason_and_source(
    start_server: StartServer, source: bool, target: bool, options: tuple[str, ...]
) -> None:
    server = start_server(queues(source, target, ForwardDeadLetteredMessagesTo="target"), None, *options)
    with client(server) as sdk:
        with sdk.get_queue_sender("source", keep_alive=0) as sender:
            sender.send_messages(ServiceBusMessage("bad", application_properties={"kept": 1}))
        with sdk.get_queue_receiver("source") as receiver:
            (message,) = receive(receiver, 1)
            receiver.dead_letter_message(message, reason="Broken", error_description="beyond repair")
        with sdk.get_queue_receiver("target") as receiver:
            (letter,) = receive(receiver, 1)
            assert (letter.dead_letter_reason, letter.dead_letter_error_description) == (
                "Broken",
                "beyond repair",
            )
            assert letter.dead_letter_source == "source"
            assert (letter.application_properties or {})[b"kept"] == 1
            assert letter.enqueued_sequence_number == message.sequence_number
            receiver.complete_message(letter)


def test_nobody_receives_from_a_queue_that_forwards_but_its_dead_letters_can_be_read(
    start_server: StartServer,
) -> None:
    server = start_server(queues(False, False, ForwardTo="target"))
    with client(server) as sdk:
        with pytest.raises(ServiceBusError, match="forwards its messages to 'target'"):
            sdk.get_queue_receiver("source").receive_messages(max_wait_time=10)
        with sdk.get_queue_receiver("source", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            assert receiver.receive_messages(max_wait_time=0.2) == []


@pytest.mark.row("B-08", "P-34")
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_kill_in_the_middle_neither_loses_nor_doubles(start_server: StartServer, partitioned: bool) -> None:
    server = start_server(queues(partitioned, True, ForwardTo="target"))
    with client(server) as sdk, sdk.get_queue_sender("source", keep_alive=0) as sender:
        for start in range(0, 2000, 500):
            sender.send_messages([ServiceBusMessage(str(start + number)) for number in range(500)])
    server.kill()
    server.start()
    # Deleted as they are received: to complete so many one by one takes ten seconds.
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client(server) as sdk, sdk.get_queue_receiver("target", receive_mode=mode) as receiver:
        seen: list[str] = []
        while batch := receiver.receive_messages(500, max_wait_time=2):
            seen += map(str, batch)
    assert sorted(map(int, seen)) == list(range(2000))
