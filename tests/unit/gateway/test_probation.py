"""Probation: the limits of a client that has not proved who it is, and their end."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.amqp.frames import (
    AMQP_HEADER,
    HEARTBEAT,
    SASL,
    SASL_HEADER,
    FrameSplitter,
    decode_performative,
    encode_frame,
)
from bendybus.amqp.performatives import Close, Open, SaslInit
from bendybus.auth.claims import Claim
from bendybus.auth.rights import Right
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.errors import ProtocolError
from bendybus.gateway.connection import AmqpConnection
from bendybus.gateway.gateway import Gateway
from bendybus.gateway.probation import (
    LINKS_MAX,
    SESSIONS_MAX,
    SLOW_WORK,
    TOKEN_TIMEOUT_S,
    WORK_MAX,
    Probation,
)
from bendybus.namespaces import Namespaces

CONFIG = ConnectionConfig(container_id="test")
ALL = Claim("", Right.MANAGE)


def test_the_ordinary_limits_hold_from_its_end_on() -> None:
    engine = Connection.server(CONFIG)
    probation = Probation(engine, 0.0)
    assert (engine.channels.sessions_max, engine.links_max) == (SESSIONS_MAX, LINKS_MAX)
    probation.end()
    assert (engine.channels.sessions_max, engine.links_max) == (CONFIG.channel_max + 1, CONFIG.links_max)
    probation.charge(10 * WORK_MAX)
    probation.check_time(10 * TOKEN_TIMEOUT_S)


def test_a_client_is_slowed_down_before_it_is_dropped() -> None:
    probation = Probation(Connection.server(CONFIG), 0.0)
    probation.charge(SLOW_WORK)
    assert not probation.slowed
    probation.charge(1)
    assert probation.slowed
    with pytest.raises(ProtocolError) as dropped:
        probation.charge(WORK_MAX)
    assert dropped.value.condition == "amqp:resource-limit-exceeded"


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close_error(self):
        frames = FrameSplitter(1 << 20).feed(self.written)
        bodies = [decode_performative(frame[2], frame[3], frame[4])[0] for frame in frames if frame[0] >= 0]
        (close,) = [body for body in bodies if isinstance(body, Close)]
        return close.error


def opened() -> tuple[AmqpConnection, FakeTransport]:
    """A connection that has said everything but who it is."""
    connection = Gateway(Namespaces()).protocol()
    transport = FakeTransport()
    connection.connection_made(transport)
    init = encode_frame(0, SaslInit("ANONYMOUS", b"", "localhost"), frame_type=SASL)
    hello = encode_frame(0, Open(container_id="client", hostname="localhost"))
    connection.data_received(SASL_HEADER + init + AMQP_HEADER + hello)
    return connection, transport


async def test_without_a_token_a_connection_ends_after_thirty_seconds() -> None:
    loop = asyncio.get_running_loop()
    connection, transport = opened()
    stranger, refused = opened()
    connection.client.accept_claim(ALL)
    at = loop.time()
    loop.time = lambda: at + 29.0  # type: ignore[method-assign]
    stranger.tick()
    assert not refused.closed
    loop.time = lambda: at + 31.0  # type: ignore[method-assign]
    connection.tick()
    stranger.tick()
    assert not transport.closed
    assert refused.closed
    assert refused.close_error().condition == "amqp:connection:forced"
    assert "No token was accepted within 30 seconds" in refused.close_error().description
    del loop.time


async def test_what_waits_is_forgotten_when_the_connection_ends() -> None:
    connection, transport = opened()
    # A second open ends the connection.
    connection.data_received(encode_frame(0, Open(container_id="again")) + HEARTBEAT * 10_000)
    assert transport.closed
    assert not connection.busy


async def test_heartbeats_without_end_are_read_in_turns_and_then_no_more(monkeypatch) -> None:
    monkeypatch.setattr("bendybus.gateway.turns.STRANGER_PAUSE_S", 0.0)

    connection, transport = opened()
    for _ in range(100):
        connection.data_received(HEARTBEAT * 10_000)
        assert connection.busy is not transport.reading or transport.closed
        while connection.busy:
            assert not transport.reading
            await asyncio.sleep(0.001)
        if transport.closed:
            break
    assert transport.close_error().condition == "amqp:resource-limit-exceeded"
