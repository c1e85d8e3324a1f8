"""A broker inside a test: a namespace of its own within milliseconds, with a clock that can be moved.

    with bendybus.testing.Server() as server, server.namespace(queues=["orders"]) as namespace:
        client = ServiceBusClient.from_connection_string(namespace.connection_string)

With pytest, the fixture `servicebus` is such a namespace (pytest_plugin.py). The
guide: docs/guides/testing.md.
"""

from bendybus.testing.clock import TimeMachine
from bendybus.testing.namespace import Namespace
from bendybus.testing.seen_messages import SeenMessage
from bendybus.testing.server import Server

__all__ = ["Namespace", "SeenMessage", "Server", "TimeMachine"]
