"""A blocking client for Service Bus namespaces, Bendybus's and Azure's, on our own AMQP engine.

    settings = ClientSettings.from_connection_string(text, entity="orders")
    with BusClient(settings) as client:
        client.sender().send([encode(b"hello", message_id="1")])
        receiver = client.receiver()
        messages = receiver.receive(10, timeout_s=5)
        receiver.complete(messages)
        client.management().request("com.microsoft:peek-message", {...})

One thread uses a client at a time, and none is started: a connection is served
while one of its calls runs, and one that has been idle for too long is made anew
by the next call. Settings can be pickled, and no key of theirs is ever printed.
Failures are those of `bendybus.errors`, told apart by the condition on the wire.
"""

from bendybus.client.client import BusClient
from bendybus.client.management import Management
from bendybus.client.messages import ReceivedMessage, encode
from bendybus.client.receiver import Receiver
from bendybus.client.sender import Sender
from bendybus.client.settings import ClientSettings

__all__ = ["BusClient", "ClientSettings", "Management", "ReceivedMessage", "Receiver", "Sender", "encode"]
