"""One open connection: a socket, our engine in the client's role, and the wait for answers.

`wait` is the only place where time passes: it moves bytes both ways until its condition holds, keeps
heartbeats and tokens fresh, and raises `ConnectionLost` or `OperationTimeout`. The node of a link handles its
events (sender.py, receiver.py, requests.py). A channel that has failed is not used again; client.py makes
another.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import ssl
import time
import uuid
from collections.abc import Callable
from typing import Final, Protocol, cast

from bendybus.amqp.performatives import Error
from bendybus.client.refusals import connection_lost, refusal
from bendybus.client.settings import ClientSettings
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.engine.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    DeliveriesReceived,
    DeliveriesSettled,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    OutcomesReceived,
    SessionBegun,
)
from bendybus.engine.link import Link
from bendybus.engine.session import Session
from bendybus.errors import BrokerError, OperationTimeout, Unauthorized

__all__ = ["Channel", "LinkNode", "ended", "was_accepted"]

# As much as one read of the socket takes: some hundred messages of 1 KB, so that they are handled as one.
READ_BYTES: Final = 512 * 1024

# A range of messages comes as one answer (docs/reference/extensions.md); Premium has messages of 100 MB.
MESSAGE_BYTES_MAX: Final = 128 * 1024 * 1024

# Azure closes a connection that was silent for 240 s; a heartbeat is due at half of what is agreed.
IDLE_TIMEOUT_S: Final = 120.0


class LinkNode(Protocol):
    """The receiver of a link's events: set as its `context`."""

    def heard(self, event: Event) -> None: ...


class Channel:
    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.failure: BrokerError | None = None
        """Why this channel is of no more use."""
        self.keep_fresh: Callable[[], None] = lambda: None
        """Called before and during every wait: cbs.py renews tokens here."""
        self._names = itertools.count()
        self._opened = False
        self._begun: set[Session] = set()
        self._engine = Connection.client(
            ConnectionConfig(
                container_id=f"bendybus-client-{uuid.uuid4().hex[:12]}",
                hostname=settings.host,
                max_message_size=MESSAGE_BYTES_MAX,
                idle_timeout_s=IDLE_TIMEOUT_S,
                sasl_mechanism="ANONYMOUS",
            )
        )
        self._unsent = bytearray()
        deadline = time.monotonic() + settings.timeout_s
        self._socket = _connect(settings)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        try:
            self._wait_until(lambda: self._opened, deadline, f"connecting to {settings.host}")
        except BrokerError:
            self.drop()
            raise

    # -- sessions, links ---------------------------------------------------------------

    def begin(self) -> Session:
        session = self._engine.begin()
        self.wait(lambda: session in self._begun, "beginning a session")
        return session

    def new_name(self, what: str) -> str:
        """For a link; unique on this connection."""
        return f"{what}-{next(self._names)}"

    def attached(self, link: Link, node: LinkNode, what: str) -> None:
        """Wait for the answer to an attach. A refusal has reached the node as `LinkDetached` by then."""
        link.context = node
        self.wait(lambda: link.reported or (link.attached and was_accepted(link)), what)

    # -- waiting -----------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Serve the connection until `ready()`. `what` is for the error when that takes too long."""
        self.keep_fresh()
        seconds = self.settings.timeout_s if timeout_s is None else timeout_s
        self._wait_until(ready, time.monotonic() + seconds, what)

    def serve(self, timeout_s: float) -> None:
        """Move what can be moved now, and wait up to `timeout_s` for something to arrive."""
        self.keep_fresh()
        self._turn(time.monotonic() + timeout_s)
        self.refuse_failed()

    def refuse_failed(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _wait_until(self, ready: Callable[[], bool], deadline: float, what: str) -> None:
        while True:
            self.refuse_failed()
            if ready():
                self._write()
                return
            if time.monotonic() >= deadline:
                raise OperationTimeout(f"{what}: no answer from {self.settings.host} in time.")
            self._turn(deadline)

    def _turn(self, deadline: float) -> None:
        """One round: write, wait for the socket, read, handle."""
        self._write()
        engine = self._engine
        now = time.monotonic()
        due = engine.next_deadline()
        until = deadline if due is None else min(deadline, due)
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._socket, wanted)
        if pending or self._selector.select(max(0.0, until - now)):
            self._read()
        now = time.monotonic()
        if due is not None and now >= due:
            for event in engine.tick(now):
                self._handle(event)
        self._write()

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._fail(connection_lost(f"{self.settings.host}: {error}"))
            return
        if not data:
            self._fail(connection_lost(f"{self.settings.host} has closed the connection."))
            return
        for event in self._engine.receive_data(data, time.monotonic()):
            self._handle(event)

    def _write(self) -> None:
        self._unsent += self._engine.data_to_send()
        try:
            while self._unsent:
                # A part at a time: what the socket does not take must be copied.
                with memoryview(self._unsent) as view:
                    sent = self._socket.send(view[:READ_BYTES])
                del self._unsent[:sent]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._fail(connection_lost(f"{self.settings.host}: {error}"))

    # -- events ------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case (
                DeliveriesReceived(link=link)
                | OutcomesReceived(link=link)
                | LinkFlow(link=link)
                | LinkAttached(link=link)
                | LinkDetached(link=link)
                | LinkDrained(link=link)
                | DeliveriesSettled(link=link)
            ):
                if link.context is not None:
                    cast(LinkNode, link.context).heard(event)
            case SessionBegun(session):
                self._begun.add(session)
            case ConnectionOpened():
                self._opened = True
            case ConnectionClosed(error):
                self._fail(self._closed(error))
            case ConnectionFailed(error):
                self._fail(_why_failed(error, opened=self._opened))

    def _closed(self, error: Error | None) -> BrokerError:
        return refusal(error, f"the connection to {self.settings.host}")

    def _fail(self, failure: BrokerError) -> None:
        if self.failure is None:
            self.failure = failure

    # -- the end -----------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection, with a close frame if the server still reads."""
        if self.failure is None:
            self._engine.close()
            with contextlib.suppress(BrokerError):
                self._wait_until(lambda: self._engine.closed, time.monotonic() + 1.0, "closing")
        self.drop()

    def drop(self) -> None:
        self._fail(connection_lost(f"the connection to {self.settings.host} is closed."))
        self._selector.close()
        self._socket.close()


def was_accepted(link: Link) -> bool:
    """An attach with null termini announces a refusal: the reason follows in a detach."""
    remote = link.remote
    return remote is not None and remote.source is not None and remote.target is not None


def ended(link: Link, error: Error | None, what: str) -> BrokerError:
    """Why a link has ended. An accepted link that ends for lack of a claim has an expired token."""
    reason = refusal(error, what)
    if isinstance(reason, Unauthorized) and was_accepted(link):
        return connection_lost(str(reason))
    return reason


def _why_failed(error: BrokerError, *, opened: bool) -> BrokerError:
    """Our engine has closed the connection: the server was silent, refused the login, or sent bad bytes."""
    if not opened and error.condition == Unauthorized.condition:
        return error
    return connection_lost(f"the connection was broken off: {error}")


def _connect(settings: ClientSettings) -> socket.socket:
    address = settings.connect_address or (settings.host, settings.port)
    try:
        connected = socket.create_connection(address, settings.timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not settings.tls:
            return connected
        context = ssl.create_default_context()
        if settings.certificate is not None:
            context.load_verify_locations(settings.certificate)
        return context.wrap_socket(connected, server_hostname=settings.host)
    except ssl.SSLCertVerificationError as error:
        raise Unauthorized(
            f"The certificate of {settings.host} is not trusted: {error.verify_message}."
        ) from None
    except OSError as error:
        raise connection_lost(f"{address[0]}:{address[1]} cannot be reached: {error}") from error
