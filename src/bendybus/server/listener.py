"""The one-port listener: accepts connections, finds out their protocol, and passes them on.

A connection that has sent nothing is one `Arrival` and one registration with the event loop:
no task, no transport, no buffer. So thousands of them cost almost nothing. The first byte is
read with MSG_PEEK, to recognise TLS. Then the connection gets a transport whose protocol is
the arrival itself, until protocol_sniffing.py recognises the bytes and `set_protocol` sets
the real protocol.

All arrivals have the same time to send something, so they expire in the order in which they
came, and one coarse timer is enough. Works on asyncio's own loops and on uvloop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from bendybus import audit
from bendybus.server.accept_turns import AcceptTurns
from bendybus.server.farewell import LINGER_S, FarewellTransport
from bendybus.server.protocol_sniffing import (
    SNIFF_LENGTH_MAX,
    SUPPORTED_AMQP_HEADER,
    TLS_HANDSHAKE,
    SniffedProtocol,
    sniff,
)
from bendybus.server.sockets import bind, descriptor_limit, prepare_accepted
from bendybus.server.tls_reading import DecryptedReading, ReadBuffer

__all__ = ["Listener", "ListenerCounts", "ProtocolFactory"]

logger = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.Protocol]

# Service Bus wants a token within 20 s of connecting. A client that has sent nothing by then never will.
HANDSHAKE_TIMEOUT_S: Final = 20.0

# Service Bus allows 5,000 AMQP connections in a namespace. This is three times that, and some for HTTP.
CONNECTIONS_MAX: Final = 16_384

# Connections that are accepted or dropped at a time, before others are served: one or two ms of work.
ACCEPTS_PER_TURN: Final = 32
DROPS_PER_TURN: Final = 64
# How long a process leaves connections to another one that has fewer.
STEP_BACK_S: Final = 0.05

# Descriptors that are reserved for messaging stores, logs and the event loop.
DESCRIPTORS_RESERVED: Final = 256

# How long accepting is suspended when there is no room. New connections wait in the kernel's backlog.
ACCEPT_PAUSE_S: Final = 0.1

# The coarse timer's longest step: how late a silent connection may be dropped.
TICK_MAX_S: Final = 1.0

# How often a closing listener checks whether the last bytes have been sent.
FLUSH_CHECK_S: Final = 0.01

# accept(2): no descriptors left in the process or the system, no memory for a socket.
OUT_OF_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(slots=True)
class ListenerCounts:
    """What has happened since the start, for the metrics."""

    accepted: int = 0
    tls: int = 0
    timed_out: int = 0
    """Dropped because they sent nothing recognisable in time."""
    refused: int = 0
    """Dropped because they use an unknown protocol."""
    crowded_out: int = 0
    """Silent ones dropped to make room for others."""
    pauses: int = 0
    """How often accepting was suspended because there was no room."""


class Arrival(asyncio.Protocol):
    """One connection, from accept until its own protocol takes over."""

    __slots__ = ("_head", "_listener", "deadline", "descriptor", "sock", "task", "transport")

    def __init__(self, listener: Listener, sock: socket.socket, deadline: float) -> None:
        self._listener = listener
        self._head = b""
        self.sock = sock
        self.descriptor = sock.fileno()
        self.deadline = deadline
        self.task: asyncio.Task[object] | None = None
        """Runs while a transport is made: for a TLS connection, during its handshake."""
        self.transport: asyncio.Transport | None = None

    @property
    def gone(self) -> bool:
        """Both kinds of event loop leave a closed connection's socket without a descriptor."""
        return self.sock.fileno() == -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # `Transport` on asyncio, a type of its own on uvloop.
        self.transport = cast(asyncio.Transport, transport)
        # uvloop makes the transport even if it is cancelled in the middle.
        if not self._listener.awaits(self):
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        if self.transport.is_closing():
            return
        self._head += data
        sniffed = sniff(self._head[:SNIFF_LENGTH_MAX])
        if sniffed is not SniffedProtocol.UNDECIDED:
            head, self._head = self._head, b""
            self._listener.opened(self, sniffed, head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.left(self)


class Listener:
    """Accepts on any number of addresses and serves AMQP and HTTP, with or without TLS, on each."""

    def __init__(
        self,
        *,
        http: ProtocolFactory,
        amqp: ProtocolFactory | None = None,
        plain_amqp: ProtocolFactory | None = None,
        tls: ssl.SSLContext | None = None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        connections_max: int = CONNECTIONS_MAX,
        linger_s: float = LINGER_S,
    ) -> None:
        self._protocols: dict[SniffedProtocol, ProtocolFactory] = {SniffedProtocol.HTTP: http}
        if amqp is not None:
            self._protocols[SniffedProtocol.AMQP] = amqp
        self._plain_amqp = plain_amqp
        """Serves AMQP without TLS, if that differs from AMQP with TLS."""
        self._tls = tls
        self._decrypted = ReadBuffer()
        self._handshake_timeout_s = handshake_timeout_s
        self._linger_s = linger_s
        # At least half, where a small limit leaves no room for the reserve.
        descriptors = descriptor_limit()
        self._connections_max = min(
            connections_max, max(descriptors - DESCRIPTORS_RESERVED, descriptors // 2)
        )
        self._tick_s = min(TICK_MAX_S, handshake_timeout_s / 4)
        self._loop: asyncio.AbstractEventLoop
        self._listening: list[socket.socket] = []
        self._arrivals: dict[int, Arrival] = {}
        """By descriptor, oldest first: connections whose protocol is not known yet."""
        self._open: dict[int, Arrival] = {}
        """Connections that were passed on. Closed ones are removed at the next tick."""
        self._ticker: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._turns: AcceptTurns | None = None
        """Shared with other processes that accept on the same sockets."""
        self._stepped_back = False
        """Whether the others had time to take what is waiting."""
        self._in_vain = 0
        """How often that was so, and they did not."""
        self.counts = ListenerCounts()

    # -- the owner's side -----------------------------------------------------

    async def listen(self, host: str, port: int) -> int:
        """Accept on one more address too; port 0 picks a free one. Returns the port."""
        return self.listen_on(bind(host, port))

    def listen_on(self, sockets: Sequence[socket.socket], turns: AcceptTurns | None = None) -> int:
        """Accept on sockets of one port that listen already. With `turns`, other processes do so too."""
        self._loop = asyncio.get_running_loop()
        self._turns = turns
        self._listening += sockets
        for listening in sockets:
            self._loop.add_reader(listening, self._accept, listening)
        if self._ticker is None:
            self._ticker = self._loop.call_later(self._tick_s, self._tick)
        return cast(int, sockets[0].getsockname()[1])

    @property
    def half_open(self) -> int:
        """Connections whose protocol is not known yet."""
        return len(self._arrivals)

    @property
    def open_connections(self) -> int:
        """Connections that were passed on and are not closed."""
        return sum(not connection.gone for connection in self._open.values())

    def stop_accepting(self) -> None:
        """Stop accepting: the first step of draining. Existing connections continue."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._turns is not None:
            self._turns.leave()
            self._turns = None
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        self._listening.clear()
        for arrival in list(self._arrivals.values()):
            self._drop(arrival)

    async def close(self, grace_s: float = 5.0) -> None:
        """Close all connections. Written bytes have `grace_s` to be sent; then connections are aborted."""
        self.stop_accepting()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for connection in self._open.values():
            assert connection.transport is not None
            connection.transport.close()
        deadline = asyncio.get_running_loop().time() + grace_s
        while self.open_connections:
            if asyncio.get_running_loop().time() >= deadline:
                for connection in self._open.values():
                    assert connection.transport is not None
                    connection.transport.abort()
                break
            await asyncio.sleep(FLUSH_CHECK_S)
        self._open.clear()
        # Aborted transports inform their protocols in the next turns of the event loop.
        await asyncio.sleep(0)

    # -- accepting ------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for turn in range(ACCEPTS_PER_TURN if self._turns is None else self._share(self._turns)):
            if len(self._arrivals) + len(self._open) >= self._connections_max:
                # After the first turn nothing may be waiting any more. If something is, the loop calls again.
                if turn:
                    return
                # When the limit is reached, idle connections are closed first.
                if not self._crowd_out():
                    self._pause_accepting()
                    return
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_ROOM:
                    self._crowd_out()
                    self._pause_accepting()
                    return
                # Anything else concerns the one connection that died in the queue [accept(2)].
                continue
            self._arrive(accepted)

    def _arrive(self, accepted: socket.socket) -> None:
        prepare_accepted(accepted)
        arrival = Arrival(self, accepted, self._loop.time() + self._handshake_timeout_s)
        self._arrivals[arrival.descriptor] = arrival
        self._loop.add_reader(accepted, self._first_byte, arrival)
        self.counts.accepted += 1
        self._note_connections()

    def _share(self, turns: AcceptTurns) -> int:
        """How many connections to accept now; none if a process with fewer should take them."""
        if turns.is_anothers:
            # Some of ours may be closed.
            self._forget_closed()
        if not turns.is_anothers:
            self._stepped_back, self._in_vain = False, 0
            return 1
        if not self._stepped_back:
            self._stepped_back = True
            self._look_away(STEP_BACK_S)
            return 0
        # The others are busy, or gone. The longer that lasts, the more are taken at a time.
        self._stepped_back = False
        self._in_vain += 1
        return min(1 << self._in_vain, ACCEPTS_PER_TURN)

    def _note_connections(self) -> None:
        if self._turns is not None:
            self._turns.note(len(self._arrivals) + len(self._open))

    def _crowd_out(self) -> bool:
        """Drop the connection that has been silent longest, if there is one."""
        oldest = next(iter(self._arrivals.values()), None)
        if oldest is None:
            return False
        self.counts.crowded_out += 1
        _record_refused(oldest, "too-many-connections")
        self._drop(oldest)
        return True

    def _pause_accepting(self) -> None:
        """Ignore the listening sockets for a moment, so that a full server does not become a busy loop."""
        if self._pause is not None:
            return
        self.counts.pauses += 1
        audit.record("connection-refused", audit.Actor(""), reason="too-many-connections")
        self._look_away(ACCEPT_PAUSE_S)

    def _look_away(self, for_s: float) -> None:
        for listening in self._listening:
            self._loop.remove_reader(listening)
        self._pause = self._loop.call_later(for_s, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._pause = None
        self._forget_closed()
        for listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    # -- from the first byte to a protocol ------------------------------------

    def _first_byte(self, arrival: Arrival) -> None:
        try:
            head = arrival.sock.recv(SNIFF_LENGTH_MAX, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            head = b""
        if not head:
            self._drop(arrival)
            return
        context = self._tls if head[0] == TLS_HANDSHAKE else None
        if context is None and sniff(head) is SniffedProtocol.UNKNOWN:
            self._refuse(arrival)
            return
        self.counts.tls += context is not None
        self._loop.remove_reader(arrival.sock)
        # Makes a transport of the socket; with TLS the task lasts until the handshake is done.
        arrival.task = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: arrival,
                arrival.sock,
                ssl=context,
                # The arrival's own deadline comes first; asyncio needs some value here.
                ssl_handshake_timeout=2 * self._handshake_timeout_s if context else None,
            )
        )
        arrival.task.add_done_callback(lambda task: self._adopted(arrival, task))

    def _adopted(self, arrival: Arrival, task: asyncio.Task[object]) -> None:
        arrival.task = None
        if task.cancelled():
            arrival.sock.close()
        elif (error := task.exception()) is not None:
            # A failed handshake, or a peer that disconnected: it concerns this connection only.
            logger.debug("connection given up before it began: %s", error)
            _record_refused(arrival, "tls-failed")
            self.counts.refused += 1
            self._forget_arrival(arrival)
            arrival.sock.close()

    def awaits(self, arrival: Arrival) -> bool:
        """Whether this arrival has not been dropped."""
        return self._arrivals.get(arrival.descriptor) is arrival

    def opened(self, arrival: Arrival, sniffed: SniffedProtocol, head: bytes) -> None:
        """The protocol of an arrival is known: pass the connection to it."""
        transport = arrival.transport
        assert transport is not None
        factory = self._protocols.get(sniffed)
        if self._plain_amqp is not None and sniffed is SniffedProtocol.AMQP and _is_plain(transport):
            factory = self._plain_amqp
        if factory is None:
            if sniffed is SniffedProtocol.AMQP_UNSUPPORTED:
                # "If the requested protocol version is not supported, the server MUST send a protocol
                # header with a supported protocol version and then close the socket." [AMQP 2.2]
                transport.write(SUPPORTED_AMQP_HEADER)
            self.counts.refused += 1
            _record_refused(arrival, "unknown-protocol")
            self._leaving_gently(transport).close()
            return
        self._arrivals.pop(arrival.descriptor, None)
        self._open[arrival.descriptor] = arrival
        protocol = factory()
        is_decrypted = sniffed is SniffedProtocol.AMQP and not _is_plain(transport)
        transport.set_protocol(DecryptedReading(protocol, self._decrypted) if is_decrypted else protocol)
        protocol.connection_made(self._leaving_gently(transport))
        if not transport.is_closing():
            protocol.data_received(head)

    def _leaving_gently(self, transport: asyncio.Transport) -> asyncio.Transport:
        return cast(asyncio.Transport, FarewellTransport(transport, self._linger_s))

    def left(self, arrival: Arrival) -> None:
        """The connection ended before its protocol was known."""
        self._forget_arrival(arrival)

    # -- leaving --------------------------------------------------------------

    def _refuse(self, arrival: Arrival) -> None:
        self.counts.refused += 1
        _record_refused(arrival, "unknown-protocol")
        self._drop(arrival)

    def _drop(self, arrival: Arrival) -> None:
        """End a connection that has not been passed on."""
        self._forget_arrival(arrival)
        if arrival.transport is not None:
            arrival.transport.abort()
        elif arrival.task is not None:
            arrival.task.cancel()
        else:
            self._loop.remove_reader(arrival.sock)
            arrival.sock.close()

    def _forget_arrival(self, arrival: Arrival) -> None:
        # Its descriptor may already belong to a newer one.
        if self.awaits(arrival):
            del self._arrivals[arrival.descriptor]

    def _forget_closed(self) -> None:
        for descriptor in [descriptor for descriptor, connection in self._open.items() if connection.gone]:
            del self._open[descriptor]
        self._note_connections()

    def _tick(self) -> None:
        now = self._loop.time()
        for _ in range(DROPS_PER_TURN):
            oldest = next(iter(self._arrivals.values()), None)
            if oldest is None or oldest.deadline > now:
                self._forget_closed()
                self._ticker = self._loop.call_later(self._tick_s, self._tick)
                return
            self.counts.timed_out += 1
            _record_refused(oldest, "slow-handshake")
            self._drop(oldest)
        # Many are dropped in portions, and others are served in between.
        self._ticker = self._loop.call_later(0, self._tick)


def _record_refused(arrival: Arrival, reason: str) -> None:
    try:
        peer = audit.peer_name(arrival.sock.getpeername())
    except OSError:
        # It is gone already.
        peer = ""
    audit.record("connection-refused", audit.Actor("", peer), reason=reason)


def _is_plain(transport: asyncio.Transport) -> bool:
    return transport.get_extra_info("ssl_object") is None
