"""One client connection: bytes to the engine, its events to the nodes of the links, bytes back.

An `asyncio.Protocol`, which TCP, TLS and WebSockets feed in the same way. The bytes of a socket
read are handled in turns (turns.py): usually all of them before anything is written, otherwise
slice by slice, and meanwhile the socket is not read. The results of all commits in one turn of
the event loop are written together. Nothing that a peer sends can raise here: the engine turns
bad bytes into an event, and a refused request is an answer.

The links: links.py. Who the client is: client_identity.py. How much it holds: holdings.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final, cast

from bendybus import audit
from bendybus.amqp.conditions import CONNECTION_FORCED
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.domain.session_commands import SessionLock
from bendybus.engine.connection import Connection
from bendybus.engine.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Event,
    SaslInitReceived,
    SessionEnded,
)
from bendybus.errors import BrokerError, ProtocolError
from bendybus.gateway.client_identity import ClientIdentity
from bendybus.gateway.holdings import Holdings
from bendybus.gateway.holds import when_ended
from bendybus.gateway.incoming import Incoming
from bendybus.gateway.joined_outcomes import JoinedOutcomes
from bendybus.gateway.links import Links
from bendybus.gateway.probation import Probation
from bendybus.gateway.ready_sessions import ReadySessions
from bendybus.gateway.transactions import Transactions
from bendybus.names import SessionId, SessionKey

if TYPE_CHECKING:
    from bendybus.gateway.gateway import Gateway

__all__ = ["AmqpConnection"]

logger = logging.getLogger(__name__)

# How long the last bytes, such as the reason for closing, may take to be sent.
CLOSE_GRACE_S: Final = 5.0

# Bytes collected for one write: enough to be worth a system call, and few next to a socket's own buffer.
WRITE_CHUNK_BYTES: Final = 256 * 1024

# Pieces that are larger than this on average are written as they are: then a copy takes longer.
JOINED_BYTES_MAX: Final = 4096


class AmqpConnection(asyncio.Protocol):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.observer = gateway.observer
        self.transactions = Transactions()
        self.joined_outcomes = JoinedOutcomes()
        self._engine = Connection.server(gateway.engine_config)
        self.holdings = Holdings(self._engine, gateway.budget.open(self))
        self.session_locks: dict[tuple[Queue, SessionKey], SessionLock] = {}
        """The sessions that links of this connection hold."""
        self.session_links: dict[tuple[Queue, str], SessionId] = {}
        """The same, by the names of the links."""
        self.ready_sessions = ReadySessions(self)
        self.links = Links(self)
        self._incoming = Incoming(self.links, self.joined_outcomes.submit, self._handle)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._made_at = self._loop.time()
        self._probation = Probation(self._engine, self._made_at)
        self.client = ClientIdentity(gateway.namespaces, self._probation)
        self._unread: deque[bytes] = deque()
        """Read from the socket, and not yet passed to the engine."""
        self.number = ""
        """The id by which an operator names the connection."""
        self.since = now()
        self._opened = False
        self._flushing = False
        self._hung_up_at: float | None = None
        self._answering: asyncio.Task[None] | None = None
        """The client has closed the connection, and is answered soon."""
        self._unwritten_bytes = 0

    # -- the transport's side -----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.holdings.transport = cast(asyncio.Transport, transport)
        self._gateway.joined(self)

    def data_received(self, data: bytes) -> None:
        idle = not self.busy
        self._unread.append(data)
        self.holdings.input_bytes += len(data)
        # If older input is waiting, this connection already waits for a turn.
        if idle:
            self._gateway.turns.take(self)

    def pause_writing(self) -> None:
        self.holdings.unread = True

    def resume_writing(self) -> None:
        self.holdings.unread = False
        self._go_on()

    def _go_on(self) -> None:
        """Continue: perhaps the client can be sent more again."""
        self.holdings.read_or_wait()
        self.links.go_on()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self.holdings.transport = None
        self._let_go()
        self._gateway.left(self)

    def tick(self) -> None:
        """About once a second: heartbeats, silent peers, expired tokens."""
        at = self._loop.time()
        if self._answering is not None:
            return
        if self._hung_up_at is not None:
            if at - self._hung_up_at > CLOSE_GRACE_S and self._transport is not None:
                self._transport.abort()
            return
        limit_s = self._gateway.handshake_timeout_s
        # Qpid JMS logs in when its connection is made, and opens it when the application first uses it.
        if not self._opened and not self.authenticated and at - self._made_at > limit_s:
            audit.record("connection-refused", self.actor(), reason="slow-handshake")
            self.shut_down(f"The connection was not opened within {limit_s:g} seconds.")
            return
        try:
            self._probation.check_time(at)
        except ProtocolError as refusal:
            self._refuse(refusal, "no-token")
            return
        self._incoming.handle_all(self._engine.tick(at))
        self.transactions.tick(now())
        self.links.tick(self.client.claims)
        self._flush()
        self.holdings.account()

    def shut_down(self, reason: str) -> None:
        """Close the connection from our side, and tell the client the reason."""
        self._fail(ProtocolError(CONNECTION_FORCED, reason))

    def actor(self) -> audit.Actor:
        """Who the client is, for the audit log."""
        return self.client.actor(self.peer)

    def _refuse(self, refusal: ProtocolError, reason: str) -> None:
        """The client has exceeded the limits of probation, or means two namespaces."""
        audit.record("connection-refused", self.actor(), reason=reason)
        logger.info("connection from %s refused: %s", self.peer, refusal.description)
        self._fail(refusal)

    def _fail(self, reason: BrokerError) -> None:
        self._engine.close(reason)
        self._hang_up()

    # -- the memory budget's side -------------------------------------------------

    def hold_back(self, held_back: bool) -> None:
        self.holdings.held_back = held_back
        if held_back:
            self.holdings.read_or_wait()
        else:
            self._loop.call_soon(self._go_on)

    def evict(self, reason: BrokerError) -> None:
        audit.record("connection-refused", self.actor(), reason="memory")
        logger.warning("connection from %s disconnected: %s", self.peer, reason.description)
        self._loop.call_soon(self._fail, reason)

    # -- turns --------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether input waits to be handled."""
        return bool(self._unread) or bool(self._incoming.unhandled) or self._engine.has_unread

    @property
    def authenticated(self) -> bool:
        return self._probation.over

    @property
    def slowed(self) -> bool:
        return self._probation.slowed

    def work(self, work_max: int) -> int:
        """Handle a slice of the input. Returns the units of work."""
        before = self._engine.work
        events = self._incoming.take_unhandled() or self._read(work_max)
        request_work = self._incoming.handle(events)
        self._flush()
        if not self.busy:
            self.holdings.input_bytes = 0
        self.holdings.account()
        work = self._engine.work - before + request_work
        if not self._probation.over and self._hung_up_at is None:
            try:
                self._probation.charge(work)
            except ProtocolError as refusal:
                self._refuse(refusal, "flood")
        return work

    def wait_for_turn(self, waits: bool) -> None:
        if waits is not self.holdings.waits_for_turn:
            self.holdings.waits_for_turn = waits
            self.holdings.read_or_wait()

    def _read(self, work_max: int) -> list[Event]:
        if self._engine.has_unread:
            return self._engine.read_on(work_max)
        if self._unread:
            return self._engine.receive_data(self._unread.popleft(), self._loop.time(), work_max)
        return []

    # -- the nodes' side ----------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether the client can be sent more."""
        return self.holdings.writable

    def sent(self, size: int) -> None:
        """Count bytes that were sent. A full chunk is written at once, so that `writable` is up to date."""
        self._unwritten_bytes += size
        if self._unwritten_bytes >= WRITE_CHUNK_BYTES:
            self._flush()

    def flush_soon(self) -> None:
        """Write at the end of this turn of the event loop, together with everything else of this turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine that is cancelled when the connection ends."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    # -- events -------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        """Handle an event of the connection itself. Those of its links: incoming.py."""
        match event:
            case SaslInitReceived():
                # A client that did not wait for the outcome has sent frames that are read only now.
                accepted = self.client.log_in(event, self._transport, self.peer)
                self._incoming.handle_all(self._engine.sasl_outcome(accepted))
                if self._engine.closed:
                    self._hang_up()
            case ConnectionOpened(remote):
                self._opened = True
                try:
                    self.client.enter(remote, self._transport)
                except ProtocolError as refusal:
                    self._refuse(refusal, "other-namespace")
            case SessionEnded(session):
                self.transactions.session_ended(session)
            case ConnectionFailed(error):
                logger.info("connection from %s failed: %s", self.peer, error.description)
                self._hang_up()
            case ConnectionClosed():
                # The answer waits for the end of entities that end with the connection.
                self._answering = when_ended(self._let_go(), self._hang_up)

    # -- the end ------------------------------------------------------------------

    @property
    def peer(self) -> str:
        known = None if self._transport is None else self._transport.get_extra_info("peername")
        return audit.peer_name(known)

    def _flush(self) -> None:
        self._flushing = False
        if self._answering is not None:
            return
        self.ready_sessions.deliver()
        payload_bytes, self._unwritten_bytes = self._unwritten_bytes, 0
        pieces = self._engine.pieces_to_send()
        if pieces and self._transport is not None:
            if payload_bytes > JOINED_BYTES_MAX * len(pieces):
                self._transport.writelines(pieces)
            else:
                self._transport.write(b"".join(pieces))
            if self.holdings.unread:
                self.holdings.read_or_wait()
                self.holdings.account()

    def _hang_up(self) -> None:
        self._answering = None
        self._flush()
        self._let_go()
        self._hung_up_at = self._loop.time()
        if self._transport is not None:
            self._transport.close()

    def _let_go(self) -> list[asyncio.Task[BrokerError | None]]:
        """Returns what a client that has closed the connection waits for."""
        self._unread.clear()
        self._incoming.unhandled.clear()
        endings = self.links.close()
        for task in tuple(self._tasks):
            task.cancel()
        self.holdings.leave()
        return endings
