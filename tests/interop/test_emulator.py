"""In the place of the vendor's emulator: its Config.json, its key and connection string, its health check."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from bendybus.server.settings import Settings
from fix_server import ServerProcess

# Every field that the emulator's own file has for a queue, with values beyond the emulator's caps where
# it has any: an hour to live, ten deliveries, fifty entities.
PROPERTIES: Final[dict[str, Any]] = {
    "DeadLetteringOnMessageExpiration": False,
    "DefaultMessageTimeToLive": "P14D",
    "DuplicateDetectionHistoryTimeWindow": "PT20S",
    "ForwardDeadLetteredMessagesTo": "",
    "ForwardTo": "",
    "LockDuration": "PT1M",
    "MaxDeliveryCount": 100,
    "RequiresDuplicateDetection": False,
    "RequiresSession": False,
}
QUEUES: Final = [{"Name": f"queue.{number}", "Properties": PROPERTIES} for number in range(1, 61)]
CONFIG: Final = {
    "UserConfig": {
        "Namespaces": [{"Name": "sbemulatorns", "Queues": QUEUES, "Topics": []}],
        "Logging": {"Type": "File"},
    }
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("emulator"), CONFIG, ["--emulator"])
    server.start()
    yield server
    assert server.stop() == os.EX_OK
    server.refuse_trouble()


def connection_string(server: ServerProcess) -> str:
    """The emulator's own, to the letter, but for the port: here it is a free one."""
    return (
        f"Endpoint=sb://localhost:{server.port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )


def test_a_message_goes_through_as_the_emulators_sample_sends_it(emulator: ServerProcess) -> None:
    with ServiceBusClient.from_connection_string(conn_str=connection_string(emulator)) as client:
        with client.get_queue_sender(queue_name="queue.60") as sender:
            sender.send_messages(ServiceBusMessage("Hello"))
        with client.get_queue_receiver(queue_name="queue.60") as receiver:
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=20)
            assert str(message) == "Hello"
            receiver.complete_message(message)


def test_more_clients_than_the_emulator_takes_are_served(emulator: ServerProcess) -> None:
    clients = [ServiceBusClient.from_connection_string(connection_string(emulator)) for _ in range(12)]
    senders = [client.get_queue_sender("queue.1", keep_alive=0) for client in clients]
    for number, sender in enumerate(senders):
        sender.send_messages(ServiceBusMessage(str(number)))
    for sender, client in zip(senders, clients, strict=True):
        sender.close()
        client.close()


def test_health_is_told_in_the_emulators_words(emulator: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://localhost:{emulator.port}/health") as answer:
        assert answer.status == 200
        assert json.load(answer)["status"] == "healthy"


def test_the_ports_are_the_emulators() -> None:
    assert [port for _, port in Settings().addresses] == [5672, 5300]
