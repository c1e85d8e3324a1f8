"""The largest message and many connections, with what they cost the server."""

from __future__ import annotations

import asyncio
import hashlib
import re
import resource
from pathlib import Path
from typing import Final

import pytest

from bendybus.amqp.message import decode_message
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import MessageSizeExceeded
from fix_client import Client, Endpoint
from fix_server import ServerProcess, StartServer
from hostile.stranger import Stranger

MEGABYTE: Final = 1 << 20

# An idle server has 60 MiB. A large message is in memory as it arrives, as it is stored and as it is sent.
LARGE_MESSAGE_MIB_MAX: Final = 700

# As many as Azure allows to a namespace, and 20 kB for each.
CONNECTIONS: Final = 5000
CONNECTIONS_MIB_MAX: Final = 200
# Descriptors for them, on either side, and for everything else.
DESCRIPTORS: Final = CONNECTIONS + 1000
# So many log in at a time: more would wait for the server's turn longer than it waits for them.
AT_ONCE: Final = 100


def peak_mib(server: ServerProcess) -> float:
    """The most memory that the server has had."""
    found = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def test_a_message_of_100_mb_is_stored_and_received_whole(start_server: StartServer) -> None:
    server = start_server({"big": {"MaxMessageSizeInKilobytes": 102_400}}, None, "--tier", "premium")
    # Less a little for the sections around the body.
    body = bytes(range(256)) * (100 * MEGABYTE // 256 - 4)
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        client.sender("big").send([encode(body)])
        with pytest.raises(MessageSizeExceeded):
            client.sender("big").send([encode(body + bytes(2048))])
    sending = peak_mib(server)
    # What is received has been read from the store.
    server.kill()
    server.start()
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        receiver = client.receiver("big")
        (message,) = receiver.receive(1, timeout_s=60)
        received = b"".join(decode_message(message.payload).data)
        assert hashlib.sha256(received).digest() == hashlib.sha256(body).digest()
        receiver.complete([message])
    assert max(sending, peak_mib(server)) < LARGE_MESSAGE_MIB_MAX


async def test_5000_connections_are_served_at_once(start_server: StartServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
            pytest.skip(f"this machine allows {hard} open files to a process")
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    server = start_server({"q": {}})
    endpoint = Endpoint.parse(server.connection_string)
    turns = asyncio.Semaphore(AT_ONCE)

    async def connect() -> Stranger:
        async with turns:
            return await Stranger.open(endpoint)

    connected = await asyncio.gather(*(connect() for _ in range(CONNECTIONS)))
    async with await Client.connect(endpoint) as client:
        await client.sender("q")
    assert peak_mib(server) < CONNECTIONS_MIB_MAX
    for each in connected:
        each.writer.transport.abort()
