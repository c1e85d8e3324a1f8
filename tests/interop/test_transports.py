"""One port for everything (B-10): AMQP, TLS, WebSockets and HTTP."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import Any

import pytest
from azure.servicebus import TransportType

from fix_server import Kind, NewQueue, ServerProcess
from interop.conftest import Connect
from interop.sdk import CROSSWISE


def over_tls(server: ServerProcess, transport: TransportType) -> tuple[str, dict[str, Any]]:
    """A connection string as Azure's own, and the options that lead it to our port."""
    return server.connection_string.removesuffix(";UseDevelopmentEmulator=true"), {
        "transport_type": transport,
        "custom_endpoint_address": f"sb://127.0.0.1:{server.port}",
        "connection_verify": str(server.certificate),
    }


@CROSSWISE
@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
def test_messages_travel_over_tls(
    server: ServerProcess, connect: Connect, new_queue: NewQueue, kind: Kind, transport: TransportType
) -> None:
    connection_string, options = over_tls(server, transport)
    sdk_queue = connect(connection_string, new_queue(kind), **options)
    # Larger than a record of TLS (16 KB) and than one of our WebSocket messages (32 KB).
    sdk_queue.send("small", "large" * 20_000, partition_key="k")
    messages = sdk_queue.receive(2)
    sdk_queue.complete(*messages)
    assert [len(str(message)) for message in messages] == [5, 100_000]
    assert sdk_queue.is_empty()


@CROSSWISE
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # the SDK's way of asking aiohttp for no TLS
def test_messages_travel_over_a_websocket_without_tls(
    server: ServerProcess, connect: Connect, new_queue: NewQueue, kind: Kind
) -> None:
    options = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://127.0.0.1:{server.port}",
    }
    sdk_queue = connect(server.connection_string, new_queue(kind), **options)
    sdk_queue.send("small")
    sdk_queue.complete(sdk_queue.receive_one())
    assert sdk_queue.is_empty()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_health_and_metrics_are_on_the_same_port(server: ServerProcess, scheme: str) -> None:
    trust = ssl.create_default_context(cafile=server.certificate)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust))
    address = f"{scheme}://127.0.0.1:{server.port}"
    with opener.open(f"{address}/health") as answer:
        assert answer.status == 200
        assert isinstance(json.load(answer), dict)
    with opener.open(f"{address}/metrics") as answer:
        text = answer.read().decode()
    assert "# TYPE bendybus_messages gauge" in text
    assert 'bendybus_partitions{entity="usual-partitioned-0",namespace="interop"} 16' in text
