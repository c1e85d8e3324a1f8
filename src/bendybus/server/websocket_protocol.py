"""uvicorn's WebSocket protocol, with bounds on what one connection may cost.

A socket read holds up to 40,000 empty messages or pings. They are parsed a few at a time. Other connections
are served in between, and the application must first take the messages before them. The socket is not read
meanwhile. A peer that sends little but frames without content is closed with code 1008.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto import events
from wsproto.utilities import LocalProtocolError

from bendybus.errors import BrokerError
from bendybus.gateway.memory_budget import MemoryAccount, MemoryBudget

__all__ = ["BoundedWebSocket"]

# Parsed in one turn of the event loop: about one ms if they are small.
EVENTS_PER_TURN: Final = 32

# The limits for pings, pongs and empty messages: at once, and per second on average. Libraries send a ping
# every few seconds, and no SDK sends an empty message.
EMPTY_FRAMES_MAX: Final = 100
EMPTY_FRAMES_PER_S: Final = 10.0

# What is read after our close, while the peer's is awaited: what was under way when it was sent.
LATE_BYTES_MAX: Final = 1024 * 1024

# "a message that violates its policy" [RFC 6455 7.4.1]
POLICY_VIOLATION: Final = 1008
# "a user can connect to a different IP (when there are multiple for the target) or reconnect to the same IP
# upon user action" [the registry of RFC 6455's codes]
TRY_AGAIN_LATER: Final = 1013


class BoundedWebSocket(WSProtocol):
    """A WebSocket whose peer gets a fair share of the event loop, whatever it sends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unparsed = False
        """Whether frames that were read wait for their turn."""
        self._turn: asyncio.Handle | None = None
        """Set while the next turn is scheduled."""
        self._refused = False
        """Closed because of too many empty frames: nothing more is parsed."""
        self._late_bytes = 0
        self._account: MemoryAccount | None = None
        self._held_back = False
        """By the memory budget."""
        self._empty_frames = 0.0
        self._empty_at = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self.close_sent:
            self._late_bytes += len(data)
            if self._late_bytes > LATE_BYTES_MAX:
                self.transport.abort()
                return
        if not self._refused:
            super().data_received(data)
        if self._account is not None:
            self._account.update(self.buffer.length)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._account is not None:
            self._account.close()
            self._account.update(0)
        super().connection_lost(exc)

    # -- the memory budget's side -------------------------------------------------

    def open_account(self, budget: MemoryBudget) -> None:
        """Count the message that is under way: the AMQP connection sees it only when it is whole."""
        self._account = budget.open(self)

    def hold_back(self, held_back: bool) -> None:
        self._held_back = held_back
        if held_back:
            self._pause()
        else:
            self._read_on()

    def evict(self, reason: BrokerError) -> None:
        self.logger.warning("WebSocket from %s closed: %s", self.client, reason.description)
        self.loop.call_soon(self._refuse, TRY_AGAIN_LATER, "The server's memory for connections is used up.")

    # -- events -------------------------------------------------------------------

    def handle_events(self) -> None:
        """Take the next few events apart; if some wait already, these have joined them."""
        if not self._unparsed:
            self._take_events()
        elif self.close_sent:
            # Messages are no longer delivered; only the peer's close matters.
            self._call_for_turn()

    def _call_for_turn(self) -> None:
        if self._turn is None:
            self._turn = self.loop.call_soon(self._take_events)

    def _take_events(self) -> None:
        self._turn = None
        self._unparsed = False
        incoming = self.conn.events()
        for _ in range(EVENTS_PER_TURN):
            if self._refused or self.transport.is_closing():
                return
            event = next(incoming, None)
            if event is None:
                self._read_on()
                return
            self._take_event(event)
        self._unparsed = True
        self._pause()
        if self._idle:
            self._call_for_turn()

    @property
    def _idle(self) -> bool:
        """Whether the application has taken everything, or takes nothing any more."""
        return self.queue.empty() or self.close_sent

    def _take_event(self, event: events.Event) -> None:
        if not self.close_sent and self._is_empty(event) and self._too_many_empty_frames():
            self._close_for_empty_frames()
        elif self.close_sent:
            if isinstance(event, events.CloseConnection):
                self.handle_close(event)
        elif isinstance(event, events.Request):
            self.handle_connect(event)
        elif isinstance(event, events.TextMessage | events.BytesMessage):
            self.handle_message(event)
        elif isinstance(event, events.CloseConnection):
            self.handle_close(event)
        elif isinstance(event, events.Ping):
            self.handle_ping(event)
        elif isinstance(event, events.Pong):
            self.handle_pong(event)

    async def receive(self) -> Any:
        message = await self.queue.get()
        if self._idle:
            if self._unparsed:
                self._call_for_turn()
            else:
                self._read_on()
        return message

    def _pause(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Read from the socket again, unless messages wait for the application."""
        if self.read_paused and self._idle and not self._held_back and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    # -- frames without content ---------------------------------------------------

    def _is_empty(self, event: events.Event) -> bool:
        """Whether the frame costs work and carries nothing for the application."""
        if isinstance(event, events.TextMessage | events.BytesMessage):
            # Some libraries end a message of several frames with an empty one.
            return not event.data and not (event.message_finished and self.buffer.length)
        return isinstance(event, events.Ping | events.Pong)

    def _too_many_empty_frames(self) -> bool:
        at = self.loop.time()
        self._empty_frames = max(0.0, self._empty_frames - (at - self._empty_at) * EMPTY_FRAMES_PER_S) + 1
        self._empty_at = at
        return self._empty_frames > EMPTY_FRAMES_MAX

    def _close_for_empty_frames(self) -> None:
        reason = f"More than {EMPTY_FRAMES_MAX} pings and empty messages."
        self.logger.info("WebSocket from %s closed: %s", self.client, reason)
        self._refuse(POLICY_VIOLATION, reason)

    def _refuse(self, code: int, reason: str) -> None:
        """Close, and take nothing more from the peer."""
        if self.close_sent or self.transport.is_closing():
            return
        self._refused = self.close_sent = True
        self._held_back = False
        self.buffer.clear()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        try:
            goodbye = self.conn.send(events.CloseConnection(code=code, reason=reason))
        except LocalProtocolError:
            goodbye = b""
        self.transport.write(goodbye)
        # The peer has a moment to read this: a socket that is closed with bytes unread is reset.
        self._read_on()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
