"""Bytes that are not AMQP, or not the AMQP that is due: the peer loses its connection, nobody else does."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bendybus.amqp.frames import AMQP_HEADER, SASL, SASL_HEADER, encode_frame
from bendybus.amqp.performatives import Attach, Begin, Open, SaslInit, SaslOutcome
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.sasl import plain_response
from fix_async import until
from fix_client import Endpoint
from fix_server import ServerProcess, namespace
from hostile.conftest import Target, UnderAttack
from hostile.stranger import BEGIN, Stranger, to_node

HALF_OPEN = 10_000
# Descriptors that this process and the server need besides.
DESCRIPTORS_SPARE = 500

FRAME = struct.Struct(">IBBH")

NESTED = b"\xc0\xff\x01" * 100
UNPARSABLE = {
    "no described type": b"\x42" * 20,
    "an unknown performative": b"\x00\x53\x99\x45",
    "a list that ends too soon": b"\x00\x53\x11\xc0\x7f\x04\x40",
    "a field of the wrong type": b"\x00\x53\x11\xc0\x06\x04\x41\x41\x41\x41\x41",
    "a mandatory field missing": b"\x00\x53\x12\x45",
    "a descriptor within a descriptor": b"\x00" * 200,
    "lists in lists in lists": b"\x00\x53\x10\xd0\x00\x00\x01\x30\x00\x00\x00\x01" + NESTED,
    "a map with a list as its key": b"\x00\x53\x10\xc0\x12\x0a\xa1\x01x"
    + b"\x40" * 8
    + b"\xc1\x03\x02\x45\x40",
    "an open on an open connection": b"\x00\x53\x10\xc0\x04\x01\xa1\x01x",
}


def framed(body: bytes, *, size: int | None = None, doff: int = 2, channel: int = 0) -> bytes:
    return FRAME.pack(8 + len(body) if size is None else size, doff, 0, channel) + body


@pytest.mark.parametrize("body", UNPARSABLE.values(), ids=UNPARSABLE.keys())
async def test_an_unparsable_frame_closes_the_connection_with_a_reason(
    under_attack: UnderAttack, endpoint: Endpoint, body: bytes
) -> None:
    async with under_attack(), await Stranger.open(endpoint) as stranger:
        stranger.write(framed(body))
        error = await stranger.farewell()
        assert error is not None
        assert error.condition in ("amqp:decode-error", "amqp:illegal-state", "amqp:not-implemented")


@pytest.mark.parametrize(
    ("head", "condition"),
    [
        (FRAME.pack(1 << 30, 2, 0, 0), "amqp:connection:framing-error"),
        (
            FRAME.pack(ConnectionConfig(container_id="").max_frame_size + 1, 2, 0, 0),
            "amqp:connection:framing-error",
        ),
        (FRAME.pack(0, 2, 0, 0), "amqp:decode-error"),
        (FRAME.pack(7, 2, 0, 0), "amqp:decode-error"),
        (FRAME.pack(8, 1, 0, 0), "amqp:decode-error"),
        (FRAME.pack(8, 255, 0, 0), "amqp:decode-error"),
    ],
    ids=["a gigabyte", "one byte too large", "size 0", "size 7", "body in the header", "body behind the end"],
)
async def test_an_impossible_frame_size_is_refused_before_any_byte_is_kept(
    under_attack: UnderAttack, endpoint: Endpoint, head: bytes, condition: str
) -> None:
    async with under_attack(), await Stranger.open(endpoint) as stranger:
        stranger.write(head)
        error = await stranger.farewell()
        assert error is not None and error.condition == condition


async def test_random_bytes_after_a_header_lose_the_connection(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack():
        noise = random.Random(7)
        for header in (SASL_HEADER, AMQP_HEADER) * 20:
            async with await Stranger.call(endpoint) as stranger:
                # No frame of this size is taken, so it need not be awaited.
                stranger.write(header + b"\xff" + noise.randbytes(2000))
                await stranger.hung_up()


async def test_random_bytes_in_well_formed_frames_lose_the_connection(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack():
        noise = random.Random(8)
        for _ in range(40):
            async with await Stranger.open(endpoint) as stranger:
                stranger.write(framed(b"\x00\x53" + noise.randbytes(100)))
                error = await stranger.farewell()
                assert error is not None


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x00\x09\x01", b"AMQP\x00\x01\x01\x00", b"AMQP\x02\x01\x00\x00"]
)
async def test_another_protocol_header_is_answered_with_the_one_that_is_served(
    under_attack: UnderAttack, endpoint: Endpoint, header: bytes
) -> None:
    async with under_attack(), await Stranger.call(endpoint) as stranger:
        stranger.write(header)
        # "the server MUST send a protocol header with a supported protocol version" [AMQP 2.2]
        assert await stranger.hung_up() == SASL_HEADER


@pytest.mark.parametrize(
    "init",
    [
        SaslInit("PLAIN", b"\x00RootManageSharedAccessKey\x00wrong"),
        SaslInit("PLAIN", b"no zeros at all"),
        SaslInit("PLAIN", b"\x00\xff\xfe\x00\xff"),
        SaslInit("SCRAM-SHA-256", b""),
    ],
    ids=["wrong key", "no zeros", "no text", "not offered"],
)
async def test_a_login_that_proves_nothing_is_refused(
    under_attack: UnderAttack, endpoint: Endpoint, init: SaslInit
) -> None:
    async with under_attack(), await Stranger.call(endpoint) as stranger:
        stranger.write(SASL_HEADER + encode_frame(0, init, frame_type=SASL))
        outcome = await stranger.expect(SaslOutcome)
        assert outcome.code == 1
        assert await stranger.farewell() is None


async def test_a_client_that_waits_for_no_answer_is_answered_all_the_same(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack():
        login = SaslInit("PLAIN", plain_response(endpoint.key_name, endpoint.key))
        async with await Stranger.call(endpoint) as stranger:
            stranger.write(
                SASL_HEADER
                + encode_frame(0, login, frame_type=SASL)
                + AMQP_HEADER
                + encode_frame(0, Open(container_id="stranger"))
                + encode_frame(0, BEGIN)
                + encode_frame(0, to_node("target"))
            )
            attached = await stranger.expect(Attach)
            assert attached.target is not None


async def test_frames_before_login_are_refused(under_attack: UnderAttack, endpoint: Endpoint) -> None:
    async with under_attack(), await Stranger.call(endpoint) as stranger:
        stranger.write(SASL_HEADER + encode_frame(0, BEGIN))
        await stranger.hung_up()


@pytest.mark.parametrize(
    "opening",
    [
        b"\x16\x03\x01\x00\x05hello",
        b"\x16" + b"\xff" * 500,
        b"\x16\x03\x01\xff\xff" + b"\x01" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST \x00\x01\x02\xff\r\n\r\n",
        b"GET /" + b"a" * 200_000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 64,
    ],
    ids=[
        "a short hello", "noise after a TLS byte", "a broken ClientHello", "HTTP/9.9", "a negative length",
        "a broken verb", "an endless path", "ssh", "zeros",
    ],
)  # fmt: skip
async def test_garbage_of_other_protocols_is_hung_up_on(
    under_attack: UnderAttack, endpoint: Endpoint, opening: bytes
) -> None:
    async with under_attack(), await Stranger.call(endpoint) as stranger:
        stranger.write(opening)
        said = await stranger.hung_up()
        assert b"500" not in said[:20]


async def test_a_client_that_vanishes_in_the_middle_of_anything_is_forgotten(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack():
        conversation = (
            SASL_HEADER
            + encode_frame(0, SaslInit("ANONYMOUS"), frame_type=SASL)
            + AMQP_HEADER
            + encode_frame(0, Open(container_id="stranger"))
            + encode_frame(0, BEGIN)
            + encode_frame(0, to_node("target"))
        )
        before = target.descriptors
        for length in range(0, len(conversation), 3):
            async with await Stranger.call(endpoint) as stranger:
                stranger.write(conversation[:length])
        await until(lambda: target.descriptors <= before)


# -- those who never come to the point -------------------------------------------------


class HurriedServer(ServerProcess):
    """Gives connections one second to open instead of twenty."""

    def command(self) -> list[str]:
        program = (
            "import sys\n"
            "from pathlib import Path\n"
            "from bendybus.server.process import run\n"
            "from bendybus.server.settings import Settings\n"
            "run(Settings(data=Path(sys.argv[1]), port=0, admin_port=0, handshake_timeout_s=1.0))\n"
        )
        return [sys.executable, "-c", program, str(self.data)]


@pytest.fixture
def hurried(tmp_path: Path) -> Iterator[ServerProcess]:
    process = HurriedServer(tmp_path, namespace({}))
    process.start()
    yield process
    process.stop()
    process.refuse_trouble()


LOGIN = SASL_HEADER + encode_frame(0, SaslInit("ANONYMOUS"), frame_type=SASL)
# How each begins, and what it goes on with, byte by byte, and never gets to the end of.
SLOW = {
    "silence": (b"", b""),
    "half a header": (b"AMQP", b""),
    "a header": (SASL_HEADER, b"\x00\x00\x01\x00\x02\x01" + b"\x00" * 250),
    "a login": (LOGIN, b""),
    "two headers": (LOGIN + AMQP_HEADER, b"\x00\x00\x10\x00\x02" + b"\x00" * 5000),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 500),
    "HTTP": (b"GET / HTTP/1.1\r\n", b"X-Header: slow\r\n" * 500),
}


async def test_who_never_comes_to_the_point_is_hung_up_on(hurried: ServerProcess) -> None:
    async def slow(opening: bytes, more: bytes) -> None:
        async with await Stranger.call(Endpoint.parse(hurried.connection_string)) as stranger:
            stranger.write(opening)
            listening = asyncio.ensure_future(stranger.hung_up())
            for byte in more:
                if listening.done():
                    break
                stranger.write(bytes((byte,)))
                await asyncio.wait((listening,), timeout=0.02)
            await listening

    await asyncio.gather(*(slow(*words) for words in SLOW.values()))


async def test_a_client_that_has_logged_in_may_open_its_connection_later(hurried: ServerProcess) -> None:
    """Qpid JMS logs in when a connection is made, and opens it when the application first uses it."""
    endpoint = Endpoint.parse(hurried.connection_string)
    async with await Stranger.call(endpoint) as late:
        response = plain_response(endpoint.key_name, endpoint.key)
        late.write(SASL_HEADER + encode_frame(0, SaslInit("PLAIN", response), frame_type=SASL))
        # Each of these is given the time that a handshake may take.
        for _ in range(2):
            async with await Stranger.call(endpoint) as stranger:
                await stranger.hung_up()
        late.write(AMQP_HEADER + encode_frame(0, Open(container_id="late")))
        await late.expect(Open)


async def test_ten_thousand_silent_connections_keep_nobody_out(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The machine's hard limit may not allow so many; then as many as it does.
    number = min(HALF_OPEN, hard - DESCRIPTORS_SPARE)
    if number < HALF_OPEN:
        sys.stderr.write(f"only {number} connections: RLIMIT_NOFILE is {hard}\n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    silent: list[socket.socket] = []

    async def call(index: int) -> None:
        caller = socket.socket()
        silent.append(caller)
        caller.setblocking(False)
        # Spread over source addresses: each has ports of its own.
        caller.bind((f"127.0.0.{2 + index % 8}", 0))
        await asyncio.get_running_loop().sock_connect(caller, (endpoint.host, endpoint.port))

    try:
        async with under_attack():
            for start in range(0, number, 500):
                await asyncio.gather(*map(call, range(start, min(start + 500, number))))
            await until(lambda: target.descriptors >= number)
            async with await Stranger.begin(endpoint):
                pass

    finally:
        for caller in silent:
            caller.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_connection_that_opens_and_attaches_nothing_costs_only_itself(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack():
        idle = [await Stranger.begin(endpoint) for _ in range(200)]
        for stranger in idle:
            stranger.send(1, BEGIN)
            await stranger.expect(Begin)
        for stranger in idle:
            await stranger.__aexit__()
