"""Decrypted bytes of all connections pass through one buffer, and each connection gets its own."""

from __future__ import annotations

import asyncio
import random

from bendybus.server.tls_reading import DecryptedReading, ReadBuffer

HEADER = b"AMQP\x03\x01\x00\x00"


async def test_much_from_several_clients_at_once_arrives_unchanged(run_listener, client_tls) -> None:
    def sent(client: int) -> bytes:
        return HEADER + random.Random(client).randbytes(600_000)

    async def echoed(client: int) -> bytes:
        reader, writer = await running.call(client_tls)
        writer.write(sent(client))
        return await reader.readexactly(4 + len(sent(client)))

    async with run_listener() as running:
        answers = await asyncio.gather(*map(echoed, range(4)))
        assert [answer == b"amqp" + sent(client) for client, answer in enumerate(answers)] == [True] * 4


class Noting(asyncio.Protocol):
    def __init__(self) -> None:
        self.noted: list[object] = []

    def data_received(self, data: bytes) -> None:
        self.noted.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.noted.append(exc)

    def eof_received(self) -> bool | None:
        self.noted.append("eof")
        return None

    def pause_writing(self) -> None:
        self.noted.append("pause")

    def resume_writing(self) -> None:
        self.noted.append("resume")


def test_the_protocol_is_told_everything_and_keeps_what_it_was_given() -> None:
    protocol, lost = Noting(), OSError("gone")
    reading = DecryptedReading(protocol, ReadBuffer(8))
    for data in (b"first", b"2nd"):
        reading.get_buffer(100)[: len(data)] = data
        reading.buffer_updated(len(data))
    reading.pause_writing()
    reading.resume_writing()
    reading.eof_received()
    reading.connection_lost(lost)
    assert protocol.noted == [b"first", b"2nd", "pause", "resume", "eof", lost]
