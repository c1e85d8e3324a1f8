"""The Premium tier: partitions by the namespace's word, and large messages."""

from __future__ import annotations

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from fix_server import StartServer

MEGABYTE = 1 << 20


def test_every_queue_is_partitioned_and_takes_large_messages(start_server: StartServer) -> None:  # P-09
    server = start_server({"big": {"MaxMessageSizeInKilobytes": 102_400}}, None, "--tier", "premium")
    body = bytes(range(256)) * (20 * MEGABYTE // 256)
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        with client.get_queue_sender("big") as sender:
            sender.send_messages(ServiceBusMessage(body))
            sender.send_messages(ServiceBusMessage(b"small"))
        with client.get_queue_receiver("big", max_wait_time=10) as receiver:
            received = {message.sequence_number >> 48: message for message in receiver.receive_messages(1)}
            received |= {message.sequence_number >> 48: message for message in receiver.receive_messages(1)}
            assert set(received) == {0, 1}
            bodies = sorted((b"".join(message.body) for message in received.values()), key=len)
            assert bodies == [b"small", body]
            for message in received.values():
                receiver.complete_message(message)
