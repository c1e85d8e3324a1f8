"""A blocking client for Service Bus namespaces, Bendybus's and Azure's, on the engine of the broker.

    settings = ClientSettings.from_connection_string(text, entity="orders")
    with BusClient(settings) as client:
        client.sender().send([encode(b"hello", message_id="1")])
        receiver = client.receiver()
        messages = receiver.receive(10, timeout_s=5)
        receiver.complete(messages)
        client.management().request("com.microsoft:peek-message", {...})

Only one thread may use a client at a time. The client starts no threads: it serves a connection while one of
its calls runs. The next call replaces a connection that was closed because it was idle. Settings can be
pickled, and their keys are never printed. Errors are those of `bendybus.errors`, according to the condition
on the wire.
"""

from bendybus.client.client import BusClient
from bendybus.client.management import Management
from bendybus.client.messages import ReceivedMessage, encode
from bendybus.client.receiver import Receiver
from bendybus.client.sender import Sender
from bendybus.client.settings import ClientSettings

__all__ = ["BusClient", "ClientSettings", "Management", "ReceivedMessage", "Receiver", "Sender", "encode"]
