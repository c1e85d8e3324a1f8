"""Flood a real server without a key, and measure what a bystander notices.

    python tests/faults/flood_check.py --seconds 6

Each flood comes from a process of its own. Meanwhile a client with a key sends and receives one message after
another. What must hold for every flood (exit code 1 otherwise):

    the bystander   p99 of a round trip of at most 250 ms
    memory          the server's peak of at most 300 MB
    the log         at most 1 MB more than before
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bendybus.amqp.frames import AMQP_HEADER, SASL, SASL_HEADER, encode_frame
from bendybus.amqp.message import encode_message
from bendybus.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Detach,
    End,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from fix_client import Client, Endpoint
from fix_server import ServerProcess, namespace

P99_MS_MAX: Final = 250.0
PEAK_MB_MAX: Final = 300.0
LOG_MB_MAX: Final = 1.0

# Between two round trips of the bystander; so it takes no part of the load itself.
PAUSE_S: Final = 0.01

# As the floods that were first seen: one connection's worth.
PIPELINED_BYTES: Final = 75_000_000
HALF_DELIVERIES: Final = 4_980
LINKS_PER_SESSION: Final = 249
HALF_BYTES: Final = 900_000

BEGIN: Final = Begin(next_outgoing_id=0, incoming_window=5000, outgoing_window=5000)


# -- what the strangers send -------------------------------------------------------------------


def _hello() -> bytes:
    """As far as a connection gets that has no token: opened, with a session."""
    init = encode_frame(0, SaslInit("ANONYMOUS", b"", "localhost"), frame_type=SASL)
    opened = encode_frame(0, Open(container_id="flood", hostname="localhost", max_frame_size=1 << 20))
    return SASL_HEADER + init + AMQP_HEADER + opened + encode_frame(0, BEGIN)


def _to(address: str, handle: int, channel: int = 0) -> bytes:
    name = f"to-{address}-{handle}".ljust(100, "x")
    target = Target(address=address)
    attach = Attach(name=name, handle=handle, role=SENDER, target=target, initial_delivery_count=0)
    return encode_frame(channel, attach)


def _from(address: str, handle: int) -> bytes:
    source = Source(address=address)
    return encode_frame(0, Attach(name=f"from-{address}", handle=handle, role=RECEIVER, source=source))


def _upgrade() -> bytes:
    return (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\n"
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )


def _repeated(piece: bytes) -> Iterator[bytes]:
    return itertools.repeat(piece * (1 + 65_536 // len(piece)))


def _pipelined() -> Iterator[bytes]:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    piece = request * 1600
    return itertools.repeat(piece, PIPELINED_BYTES // len(piece))


def _half_deliveries() -> Iterator[bytes]:
    for number in range(HALF_DELIVERIES):
        channel, handle = divmod(number, LINKS_PER_SESSION)
        begin = encode_frame(channel, BEGIN) if handle == 0 and channel else b""
        piece = b"x" * 225_000
        first = Transfer(handle=handle, delivery_id=number, delivery_tag=b"t", more=True)
        parts = [encode_frame(channel, first, piece)]
        parts += [encode_frame(channel, Transfer(handle=handle, more=True), piece)] * (
            HALF_BYTES // 225_000 - 1
        )
        yield begin + _to("$cbs", handle, channel) + b"".join(parts)


def _refused_attaches() -> Iterator[bytes]:
    return _repeated(_to("bystander", 0) + encode_frame(0, Detach(handle=0, closed=True)))


def _sessions() -> Iterator[bytes]:
    return _repeated(encode_frame(1, BEGIN) + encode_frame(1, End()))


def _bad_tokens() -> Iterator[bytes]:
    properties = {
        "operation": "put-token",
        "type": "servicebus.windows.net:sastoken",
        "name": "sb://localhost/q",
    }
    token = "SharedAccessSignature sr=sb%3A%2F%2Fh%2Fq&sig=AAAA&se=99999999999&skn=RootManageSharedAccessKey"
    message = encode_message(application_properties=properties, value=token)
    put = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, settled=True)
    return _repeated(encode_frame(0, put, message))


def _flows() -> Iterator[bytes]:
    flow = Flow(next_incoming_id=0, incoming_window=5000, next_outgoing_id=0, outgoing_window=5000, echo=True)
    return _repeated(encode_frame(0, flow))


@dataclass(frozen=True, slots=True)
class Flood:
    hello: Callable[[], bytes]
    pieces: Callable[[], Iterator[bytes]]
    connections: int = 4
    again: bool = True
    """Whether a connection that the server drops is made again."""


FLOODS: Final = {
    # For comparison: what the machine alone makes of the bystander.
    "none": Flood(lambda: b"", lambda: iter(()), connections=0),
    "pipelined requests": Flood(lambda: b"", _pipelined, connections=1, again=False),
    "half deliveries": Flood(_hello, _half_deliveries, connections=1, again=False),
    "empty WebSocket messages": Flood(_upgrade, lambda: _repeated(b"\x82\x80\0\0\0\0")),
    "WebSocket pings": Flood(_upgrade, lambda: _repeated(b"\x89\x80\0\0\0\0")),
    "refused attaches": Flood(_hello, _refused_attaches),
    "begin and end": Flood(_hello, _sessions),
    "bad tokens": Flood(lambda: _hello() + _from("$cbs", 1) + _to("$cbs", 0), _bad_tokens),
    "flows": Flood(_hello, _flows),
}


# -- the strangers: a process of their own -----------------------------------------------------


class Stranger(threading.Thread):
    """One connection after the other; sends as fast as the server reads."""

    def __init__(self, flood: Flood, port: int, until: float) -> None:
        super().__init__(daemon=True)
        self._flood = flood
        self._port = port
        self._until = until
        self.dropped = 0

    def run(self) -> None:
        while time.monotonic() < self._until:
            with suppress(OSError):
                self._attack()
            self.dropped += 1
            if not self._flood.again:
                return
            # A refused stranger comes back, but as one that has to make a new connection.
            time.sleep(0.01)

    def _attack(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
            if hello := self._flood.hello():
                connection.sendall(hello)
                connection.recv(65_536)
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()
            for piece in self._flood.pieces():
                self._send(connection, piece)
            # A flood of a certain size: it stays until its answers have come, or until the time is over.
            while time.monotonic() < self._until:
                time.sleep(0.1)

    def _send(self, connection: socket.socket, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            if time.monotonic() >= self._until:
                raise TimeoutError
            with suppress(TimeoutError):
                rest = rest[connection.send(rest) :]

    def _listen(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with suppress(TimeoutError):
                    if not connection.recv(1 << 20):
                        connection.shutdown(socket.SHUT_RDWR)
                        return


def attack(name: str, port: int, seconds: float) -> None:
    flood = FLOODS[name]
    until = time.monotonic() + seconds
    strangers = [Stranger(flood, port, until) for _ in range(flood.connections)]
    for stranger in strangers:
        stranger.start()
    for stranger in strangers:
        stranger.join(max(0.0, until - time.monotonic()) + 6)
    time.sleep(max(0.0, until - time.monotonic()))
    sys.stdout.write(f"{sum(stranger.dropped for stranger in strangers)}\n")


# -- the bystander ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    flood: str
    p50_ms: float
    p99_ms: float
    worst_ms: float
    peak_mb: float
    log_mb: float
    dropped: int

    @property
    def held(self) -> bool:
        return self.p99_ms <= P99_MS_MAX and self.peak_mb <= PEAK_MB_MAX and self.log_mb <= LOG_MB_MAX


async def measure(name: str, server: ServerProcess, seconds: float) -> Result:
    """Run one flood, and the bystander until it has been over for a moment."""
    endpoint = Endpoint.parse(server.connection_string)
    log_before = server.log.stat().st_size
    _forget_peak(server.pid)
    times_ms: list[float] = []
    async with await Client.connect(endpoint) as client:
        sender = await client.sender("bystander")
        receiver = await client.receiver("bystander")
        flooding = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--attack", name),
            *("--port", str(endpoint.port), "--seconds", str(seconds)),
            stdout=subprocess.PIPE,
        )
        told = asyncio.ensure_future(flooding.communicate())
        while not told.done():
            times_ms.append(await _round_trip(sender, receiver))
            await asyncio.sleep(PAUSE_S)
        # What the strangers left to do is theirs as well.
        times_ms.append(await _round_trip(sender, receiver))
        dropped = int((await told)[0])
    cuts = quantiles(times_ms, n=100, method="inclusive")
    log_mb = (server.log.stat().st_size - log_before) / 1e6
    return Result(name, cuts[49], cuts[98], max(times_ms), _peak_mb(server.pid), log_mb, dropped)


async def _round_trip(sender, receiver) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    async with asyncio.timeout(120):
        sending = asyncio.ensure_future(sender.send(encode_message(data=b"x")))
        receiver.grant(1)
        outcomes = await sending
        assert outcomes == [Accepted()], outcomes
        deliveries = await receiver.receive(1)
        assert await receiver.settled_as(deliveries) == [Accepted()]
    return (time.perf_counter() - began) * 1000


def _peak_mb(pid: int) -> float:
    found = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def _forget_peak(pid: int) -> None:
    """The peak of resident memory starts anew [proc(5), clear_refs]."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def check(names: list[str], seconds: float) -> bool:
    sys.stdout.write(
        f"{'flood':26}{'p50 ms':>9}{'p99 ms':>9}{'worst':>9}{'peak MB':>9}{'log MB':>8}{'dropped':>9}\n"
    )
    held = True
    for name in names:
        # Each gets a server of its own, so that none is charged for what another left behind.
        folder = Path(tempfile.mkdtemp(prefix="bendybus-flood-"))
        server = ServerProcess(folder, namespace({"bystander": {"EnablePartitioning": True}}))
        server.start()
        try:
            result = asyncio.run(measure(name, server, seconds))
        finally:
            server.kill()
            shutil.rmtree(folder)
        held &= result.held
        sys.stdout.write(
            f"{name:26}{result.p50_ms:9.1f}{result.p99_ms:9.1f}{result.worst_ms:9.1f}{result.peak_mb:9.0f}"
            f"{result.log_mb:9.2f}{result.dropped:9}{'' if result.held else '   too much'}\n"
        )
        sys.stdout.flush()
    return held


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each flood lasts")
    parser.add_argument("--only", action="append", choices=FLOODS, help="this flood; may be repeated")
    parser.add_argument("--attack", choices=FLOODS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        attack(options.attack, options.port, options.seconds)
        return 0
    return 0 if check(options.only or list(FLOODS), options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
