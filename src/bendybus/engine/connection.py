"""One AMQP connection without a socket: bytes in, events out, bytes to send.

The driver calls `receive_data` with the bytes that arrived, acts on the events, and writes
`data_to_send` after every call into the engine. Time comes in as `now`, in seconds of any
monotonic clock; `tick` is due at `next_deadline`. Neither raises because of what a peer
does. A mistake costs the peer its link, its session or, with the event `ConnectionFailed`,
its connection.

Here: open and close, idle timeouts, and the loop over frames. Protocol headers and SASL:
handshake.py. The frames of an open connection: channels.py, which finds the session, and
session.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bendybus.amqp.conditions import (
    CONNECTION_FORCED,
    ILLEGAL_STATE,
    INVALID_FIELD,
)
from bendybus.amqp.frames import (
    AMQP,
    HEARTBEAT,
    Frame,
    FrameSplitter,
    decode_performative,
    encode_frame_start,
)
from bendybus.amqp.performatives import Close, Open, Performative
from bendybus.amqp.transfer_run import TransferRun
from bendybus.engine.accepted import AcceptedDeliveries
from bendybus.engine.channels import Channels
from bendybus.engine.config import FRAME_SIZE_MIN, ConnectionConfig
from bendybus.engine.eventlog import EventLog
from bendybus.engine.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Event,
)
from bendybus.engine.handshake import Handshake
from bendybus.engine.idle import IdleTimer
from bendybus.engine.link import wire_error
from bendybus.engine.session import Session
from bendybus.engine.states import CONNECTION, ConnectionInput, ConnectionState
from bendybus.engine.work import (
    BYTES_PER_WORK,
    FRAME_WORK,
    PERFORMATIVE_WORK,
    WORK_UNLIMITED,
    value_memory,
)
from bendybus.errors import BrokerError, ProtocolError

__all__ = ["Connection"]

# Frames of any size, for a peer that names none [AMQP 2.7.1].
FRAME_SIZE_MAX_DEFAULT: Final = 0xFFFFFFFF

# Looked at for every frame, and a member of an enum is slow to look up.
_OPENED: Final = ConnectionState.OPENED
_END: Final = ConnectionState.END


class Connection:
    """Made by `server` or `client`. After SASL there is no difference between the two."""

    __slots__ = (
        "_flow_owed",
        "_handshake",
        "_idle",
        "_unread",
        "accepted",
        "channels",
        "config",
        "events",
        "frame_bytes",
        "incomplete_bytes",
        "link_count",
        "links_max",
        "outgoing_frame_size",
        "output",
        "remote",
        "splitter",
        "state",
        "value_bytes",
        "waiting_bytes",
        "work",
    )

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self.state = ConnectionState.START
        self.remote: Open | None = None
        self.output: list[bytes | memoryview] = []
        # Settled, and not yet in `output`.
        self.accepted = AcceptedDeliveries()
        self.events = EventLog()
        # The number of links of all sessions.
        self.link_count = 0
        # The number of links that there may be. The application may lower it for a while.
        self.links_max = config.links_max
        self.channels = Channels(self)
        # Bytes of deliveries that are incomplete, and of those that wait for a session's window.
        self.incomplete_bytes = 0
        self.waiting_bytes = 0
        # The memory of large values that are kept: of the open, and of the attaches of all links.
        self.value_bytes = 0
        # The size of the performative that is being received.
        self.frame_bytes = 0
        # What it has cost to read the frames so far (work.py).
        self.work = 0
        # "Prior to any explicit negotiation, the maximum frame size is 512" [AMQP 2.3.1]
        self.outgoing_frame_size = FRAME_SIZE_MIN
        self.splitter = FrameSplitter(config.max_frame_size)
        self._handshake = Handshake(self)
        # The frames that the last call left unread, because it had reached its limit of work.
        self._unread: Iterator[Frame] | None = None
        self._flow_owed: list[Session] = []
        self._idle = IdleTimer(config.idle_timeout_s)

    @classmethod
    def server(cls, config: ConnectionConfig) -> Connection:
        """Waits for the peer to start."""
        connection = cls(config)
        connection._handshake.listen()
        return connection

    @classmethod
    def client(cls, config: ConnectionConfig) -> Connection:
        """Starts at once: `data_to_send` holds the first header. Call `begin` after `ConnectionOpened`."""
        connection = cls(config)
        connection._handshake.start()
        return connection

    # -- what the driver calls -----------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether nothing more is read or written. Flush `data_to_send`, then close the socket."""
        return self.state is ConnectionState.END

    @property
    def sessions(self) -> list[Session]:
        return self.channels.sessions

    @property
    def has_unread(self) -> bool:
        """Whether frames wait for `read_on`; until none do, `receive_data` may not be called."""
        return self._unread is not None

    @property
    def held_bytes(self) -> int:
        """Bytes held for the peer: parts of frames and deliveries, deliveries that wait, and large values."""
        return self.splitter.kept_bytes + self.incomplete_bytes + self.waiting_bytes + self.value_bytes

    def receive_data(self, data: bytes, now: float, work_max: int = WORK_UNLIMITED) -> list[Event]:
        """Takes bytes that have arrived, cut anywhere, and returns the events they cause.

        Stops after `work_max` units of work; `read_on` continues with the rest.
        """
        assert self._unread is None, "call read_on until has_unread is false"
        self._idle.heard(now)
        events = self.events.start()
        if not self.closed:
            self._read(self._frames_in(data), work_max)
        return events

    def read_on(self, work_max: int = WORK_UNLIMITED) -> list[Event]:
        """Continues with the frames that `receive_data` left unread."""
        events = self.events.start()
        unread, self._unread = self._unread, None
        if unread is not None and not self.closed:
            self._read(unread, work_max)
        return events

    def data_to_send(self) -> bytes:
        """The bytes to write now. Each byte is returned once."""
        return b"".join(self.pieces_to_send())

    def pieces_to_send(self) -> list[bytes | memoryview]:
        """`data_to_send`, not joined."""
        if self.accepted:
            self.output += self.accepted.take()
        pieces = self.output[:]
        if pieces:
            self.output.clear()
            self._idle.spoke()
        return pieces

    def sasl_outcome(self, ok: bool) -> list[Event]:
        """Server: answers `SaslInitReceived`. Returns the events of frames that came before this."""
        events = self.events.start()
        if self.closed or not self._handshake.awaits_outcome:
            return events
        held = self._handshake.decide(ok=ok)
        if ok:
            self._receive_frames(held)
        else:
            self._end()
        return events

    def begin(self) -> Session:
        """A new session; `SessionBegun` follows."""
        if self.state is not ConnectionState.OPENED:
            raise ProtocolError(ILLEGAL_STATE, f"no session on a connection that is {self.state.value}")
        session = self.channels.begin()
        session.send_begin()
        return session

    def close(self, error: BrokerError | None = None) -> None:
        """Closes the connection; `ConnectionClosed` follows when the peer has answered."""
        if self.state is ConnectionState.HEADERS_EXCHANGED:
            self.send_open()
        if (self.state, ConnectionInput.SEND_CLOSE) in CONNECTION:
            self._send_close(error)
            self.channels.drop()
        else:
            self._end()

    def next_deadline(self) -> float | None:
        """The latest time to call `tick`, if nothing arrives before."""
        return None if self.closed else self._idle.next_deadline()

    def tick(self, now: float) -> list[Event]:
        """Sends a heartbeat if one is due. Fails the connection if the peer has been silent too long."""
        events = self.events.start()
        if self.closed:
            return events
        silent, heartbeat_due = self._idle.tick(now)
        if silent:
            # Clients rebuild what was closed with this condition.
            text = f"nothing was heard for {self._idle.silence_max_s:g} seconds"
            self._fail(ProtocolError(CONNECTION_FORCED, text))
        elif heartbeat_due and self.state is ConnectionState.OPENED and not self.output:
            self.output.append(HEARTBEAT)
        return events

    # -- what sessions and links call ----------------------------------------------------

    def write(
        self, channel: int, performative: Performative, payload: Sequence[bytes | memoryview] = ()
    ) -> None:
        """Writes a frame. Its payload, in pieces, is not copied."""
        if self.accepted:
            self.output += self.accepted.take()
        self.output.append(encode_frame_start(channel, performative, sum(map(len, payload))))
        self.output += payload

    def owes_flow(self, session: Session) -> None:
        """The session's incoming window is half used: open it again after this call's frames are read."""
        if session not in self._flow_owed:
            self._flow_owed.append(session)

    def forget(self, session: Session) -> None:
        """Both sides have ended it: its channels are free."""
        self.channels.forget(session)
        self.link_count -= len(session.links)
        self.value_bytes -= sum([link.value_bytes for link in session.links])

    # -- the loop over frames ------------------------------------------------------------

    def _frames_in(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes, except series of plain transfers: those are received at once."""
        for frame in self.splitter.feed_runs(data):
            if not isinstance(frame, TransferRun):
                yield frame
            elif self.state is _OPENED and self.channels.receive_run(frame):
                self.work += FRAME_WORK
            else:
                run = frame.buffer[frame.start : frame.end]
                yield from FrameSplitter(self.splitter.max_frame_size).feed(run)

    def _read(self, frames: Iterator[Frame], work_max: int) -> None:
        if not self._receive_frames(frames, self.work + work_max):
            self._unread = frames

    def _receive_frames(self, frames: Iterable[Frame], work_end: int = WORK_UNLIMITED) -> bool:
        """Reads until all frames are read (True) or the limit of work is reached (False)."""
        complete = True
        receive = self.channels.receive
        try:
            for frame in frames:
                self.work += FRAME_WORK
                if frame[0] == AMQP and self.state is _OPENED:
                    receive(frame)
                else:
                    self._receive_unopened(frame)
                if self.state is _END:
                    return True
                if self.work >= work_end:
                    complete = False
                    break
        except BrokerError as error:
            self._fail(error)
            return True
        if self._flow_owed:
            for session in self._flow_owed:
                session.replenish()
            self._flow_owed.clear()
        return complete

    def _receive_unopened(self, frame: Frame) -> None:
        """A protocol header, a SASL frame, or a frame while the connection is not open."""
        frame_type, channel, buffer, start, end = frame
        self.work += PERFORMATIVE_WORK + (end - start) // BYTES_PER_WORK
        if frame_type != AMQP or self._handshake.awaits_outcome:
            self._handshake.receive(frame)
            return
        if start == end:
            return  # a heartbeat
        self.frame_bytes = end - start
        performative = decode_performative(buffer, start, end)[0]
        if isinstance(performative, Open):
            self.receive_open(performative)
        elif isinstance(performative, Close):
            self.receive_close(performative)
        elif self.state is not ConnectionState.CLOSE_SENT:
            # After our close "incoming frames are discarded". Before open no other frame is allowed.
            raise ProtocolError(
                ILLEGAL_STATE,
                f"{type(performative).__name__} on channel {channel}: the connection is {self.state.value}",
            )

    # -- open and close -------------------------------------------------------------

    def send_open(self) -> None:
        self.advance(ConnectionInput.SEND_OPEN)
        self.write(0, self.config.opening())

    def receive_open(self, remote: Open) -> None:
        self.advance(ConnectionInput.RECV_OPEN)
        self.remote = remote
        self.value_bytes += value_memory(self.frame_bytes)
        frame_size = FRAME_SIZE_MAX_DEFAULT if remote.max_frame_size is None else remote.max_frame_size
        if frame_size < FRAME_SIZE_MIN:
            raise ProtocolError(INVALID_FIELD, f"max-frame-size {frame_size} is below {FRAME_SIZE_MIN}")
        self.outgoing_frame_size = min(frame_size, self.config.max_frame_size)
        self._idle.peer_asks(remote.idle_time_out)
        if self.state is ConnectionState.OPEN_RECEIVED:
            self.send_open()
        if self.state is ConnectionState.OPENED:
            self.events.add(ConnectionOpened(remote))

    def receive_close(self, close: Close) -> None:
        self.advance(ConnectionInput.RECV_CLOSE)
        if self.state is ConnectionState.CLOSE_RECEIVED:
            self._send_close(None)
        self.events.add(ConnectionClosed(close.error))
        self._end()

    def _send_close(self, error: BrokerError | None) -> None:
        self.advance(ConnectionInput.SEND_CLOSE)
        self.write(0, Close(error=wire_error(error)))

    def _fail(self, error: BrokerError) -> None:
        """Ends the connection with an error. Before headers are exchanged no frame can carry the reason."""
        if self.state in (ConnectionState.HEADERS_EXCHANGED, ConnectionState.OPEN_RECEIVED):
            self.send_open()
        if (self.state, ConnectionInput.SEND_CLOSE) in CONNECTION:
            self._send_close(error)
        self.events.add(ConnectionFailed(error))
        self._end()

    def _end(self) -> None:
        self.state = ConnectionState.END
        self._handshake.drop()
        self._unread = None
        self._flow_owed.clear()
        self.accepted = AcceptedDeliveries()
        self.channels.drop()

    def advance(self, happening: ConnectionInput) -> None:
        try:
            self.state = CONNECTION[self.state, happening]
        except KeyError:
            raise ProtocolError(
                ILLEGAL_STATE, f"the connection is {self.state.value} and cannot take {happening.value}"
            ) from None
