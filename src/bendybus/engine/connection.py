"""One AMQP connection without a socket: bytes in, events out, bytes to send.

The driver calls `receive_data` for what arrived, acts on the events, and writes
`data_to_send` after every call into the engine. Time comes in as `now`, seconds
of any monotonic clock; `tick` is due at `next_deadline`. Neither raises for what
a peer does: a mistake costs the peer its link, its session or, as the event
`ConnectionFailed`, its connection.

Here: headers, open and close, idle time-outs, and the loop over frames. Which session
is where: channels.py. Everything inside a channel: session.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from bendybus.amqp.conditions import (
    CONNECTION_FORCED,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
)
from bendybus.amqp.frames import (
    AMQP,
    AMQP_HEADER,
    DISPOSITION_CODE,
    HEARTBEAT,
    PROTOCOL_HEADER,
    SASL_HEADER,
    TRANSFER_CODE,
    Frame,
    FrameSplitter,
    decode_disposition,
    decode_performative,
    decode_transfer,
    encode_frame,
    performative_code,
)
from bendybus.amqp.performatives import Begin, Close, Detach, End, Open, Performative
from bendybus.amqp.transfer_run import TransferRun
from bendybus.engine.channels import Channels
from bendybus.engine.config import FRAME_SIZE_MIN, ConnectionConfig
from bendybus.engine.eventlog import EventLog
from bendybus.engine.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Event,
)
from bendybus.engine.idle import IdleTimer
from bendybus.engine.link import wire_error
from bendybus.engine.sasl import SASL_FRAME_SIZE_MAX, SaslClient, SaslServer
from bendybus.engine.session import Session
from bendybus.engine.states import CONNECTION, ConnectionInput, ConnectionState, SaslState
from bendybus.errors import BrokerError, ProtocolError

__all__ = ["FRAME_WORK", "PERFORMATIVE_WORK", "Connection"]

# What a client may send ahead while the application thinks about its credentials.
HELD_FRAMES_MAX: Final = 64
# Frames of any size, for a peer that names none [AMQP 2.7.1].
FRAME_SIZE_MAX_DEFAULT: Final = 0xFFFFFFFF

# What a frame costs, in units of work. Transfers and dispositions come by the thousand and are joined into
# batches; every other frame is decoded into an object and answered, which takes some 16 times as long.
FRAME_WORK: Final = 1
PERFORMATIVE_WORK: Final = 16
# More than any call has to do.
WORK_UNLIMITED: Final = 1 << 62

# Looked at for every frame, and a member of an enum is slow to look up.
_OPENED: Final = ConnectionState.OPENED
_END: Final = ConnectionState.END


class Connection:
    """Made by `server` or `client`; which of the two it is matters for nothing after SASL."""

    __slots__ = (
        "_flow_owed",
        "_held",
        "_idle",
        "_sasl",
        "_splitter",
        "_unread",
        "channels",
        "config",
        "events",
        "incomplete_bytes",
        "link_count",
        "links_max",
        "outgoing_frame_size",
        "output",
        "remote",
        "state",
        "waiting_bytes",
        "work",
    )

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self.state = ConnectionState.START
        self.remote: Open | None = None
        self.output: list[bytes | memoryview] = []
        self.events = EventLog()
        # How many links all sessions have together.
        self.link_count = 0
        # How many there may be; the application may allow less for a while.
        self.links_max = config.links_max
        self.channels = Channels(self)
        # Of deliveries whose last frame is still to come, and of those that wait for a session's window.
        self.incomplete_bytes = 0
        self.waiting_bytes = 0
        # What the frames read so far have cost.
        self.work = 0
        # "Prior to any explicit negotiation, the maximum frame size is 512" [AMQP 2.3.1]
        self.outgoing_frame_size = FRAME_SIZE_MIN
        self._splitter = FrameSplitter(config.max_frame_size)
        self._sasl: SaslServer | SaslClient | None = None
        self._held: list[Frame] = []
        # The frames that the last call left unread, because its work was done.
        self._unread: Iterator[Frame] | None = None
        self._flow_owed: list[Session] = []
        self._idle = IdleTimer(config.idle_timeout_s)

    @classmethod
    def server(cls, config: ConnectionConfig) -> Connection:
        """Waits for the peer to start."""
        connection = cls(config)
        connection._sasl = SaslServer(config, connection.output)
        connection._splitter.max_frame_size = min(config.max_frame_size, SASL_FRAME_SIZE_MAX)
        return connection

    @classmethod
    def client(cls, config: ConnectionConfig) -> Connection:
        """Starts at once: `data_to_send` holds the first header. Call `begin` after `ConnectionOpened`."""
        connection = cls(config)
        if config.sasl_mechanism is None:
            connection._start_amqp()
        else:
            connection._sasl = sasl = SaslClient(config, connection.output)
            sasl.start()
        return connection

    # -- what the driver calls -----------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Nothing more is read or written; flush `data_to_send` and close the socket."""
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
        """What the peer makes us keep: parts of frames and deliveries, and what its windows hold up."""
        return self._splitter.kept_bytes + self.incomplete_bytes + self.waiting_bytes

    def receive_data(self, data: bytes, now: float, work_max: int = WORK_UNLIMITED) -> list[Event]:
        """Takes what has arrived, cut in any way, and says what it means.

        Stops after `work_max` units of work; `read_on` goes on with the rest.
        """
        assert self._unread is None, "the frames that came before have not been read"
        self._idle.heard(now)
        events = self.events.start()
        if not self.closed:
            self._read(self._frames_in(data), work_max)
        return events

    def read_on(self, work_max: int = WORK_UNLIMITED) -> list[Event]:
        """Goes on with what `receive_data` left unread."""
        events = self.events.start()
        unread, self._unread = self._unread, None
        if unread is not None and not self.closed:
            self._read(unread, work_max)
        return events

    def data_to_send(self) -> bytes:
        """What is to be written now; each byte is given once."""
        if not self.output:
            return b""
        data = b"".join(self.output)
        self.output.clear()
        self._idle.spoke()
        return data

    def sasl_outcome(self, ok: bool) -> list[Event]:
        """Server: answers `SaslInitReceived`. A client may have sent frames ahead: these are their events."""
        events = self.events.start()
        sasl = self._sasl
        if self.closed or not isinstance(sasl, SaslServer) or sasl.state is not SaslState.INIT_RECEIVED:
            return events
        sasl.decide(ok=ok)
        if not ok:
            self._end()
            return events
        held, self._held = self._held, []
        self._receive_frames(held)
        return events

    def begin(self) -> Session:
        """A new session; `SessionBegun` follows."""
        if self.state is not ConnectionState.OPENED:
            raise ProtocolError(ILLEGAL_STATE, f"no session on a connection that is {self.state.value}")
        session = self.channels.begin()
        session.send_begin()
        return session

    def close(self, error: BrokerError | None = None) -> None:
        """Leaves; `ConnectionClosed` follows when the peer has answered."""
        if self.state is ConnectionState.HEADERS_EXCHANGED:
            self._send_open()
        if (self.state, ConnectionInput.SEND_CLOSE) in CONNECTION:
            self._send_close(error)
            self.channels.drop()
        else:
            self._end()

    def next_deadline(self) -> float | None:
        """When `tick` should be called at the latest, if nothing arrives before."""
        return None if self.closed else self._idle.next_deadline()

    def tick(self, now: float) -> list[Event]:
        """Sends the heartbeat that is due; breaks off with a peer that has been silent too long."""
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

    def write(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        self.output.append(encode_frame(channel, performative, payload))

    def owes_flow(self, session: Session) -> None:
        """The session's incoming window is half used: it is opened once this call's frames are read."""
        if session not in self._flow_owed:
            self._flow_owed.append(session)

    def forget(self, session: Session) -> None:
        """Both sides have ended it; its channels are free."""
        self.channels.forget(session)
        self.link_count -= len(session.links)

    # -- the loop over frames ------------------------------------------------------------

    def _frames_in(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes, but for series of plain transfers: those are received at once."""
        for frame in self._splitter.feed_runs(data):
            if not isinstance(frame, TransferRun):
                yield frame
            elif self._receive_run(frame):
                self.work += FRAME_WORK
            else:
                run = frame.buffer[frame.start : frame.end]
                yield from FrameSplitter(self._splitter.max_frame_size).feed(run)

    def _receive_run(self, run: TransferRun) -> bool:
        """Takes a series of transfers on one link; False where this is not the time to take them at once."""
        session = self.channels.by_remote_channel.get(run.channel)
        return self.state is _OPENED and session is not None and session.receive_run(run)

    def _read(self, frames: Iterator[Frame], work_max: int) -> None:
        if not self._receive_frames(frames, self.work + work_max):
            self._unread = frames

    def _receive_frames(self, frames: Iterable[Frame], work_end: int = WORK_UNLIMITED) -> bool:
        """Reads until the frames are through (True) or the work has reached its end (False)."""
        complete = True
        try:
            for frame in frames:
                self.work += FRAME_WORK
                if frame[0] == AMQP and self.state is _OPENED:
                    self._receive_in_channel(frame)
                else:
                    self._receive_outside_channel(frame)
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

    def _receive_in_channel(self, frame: Frame) -> None:
        """A frame of an open connection."""
        _, channel, buffer, start, end = frame
        if start == end:
            return  # a heartbeat
        code = performative_code(buffer, start)
        session = self.channels.by_remote_channel.get(channel)
        if session is None or not TRANSFER_CODE <= code <= DISPOSITION_CODE:
            self._receive_performative(channel, session, decode_performative(buffer, start, end)[0])
            return
        try:
            if code == TRANSFER_CODE:
                transfer = decode_transfer(buffer, start, end)
                if not session.discards():
                    session.receive_transfer(transfer, buffer, end)
            else:
                disposition = decode_disposition(buffer, start, end)
                if not session.discards():
                    session.receive_disposition(disposition)
        except ProtocolError as error:
            if error.scope == "connection":
                raise
            session.fail(error)

    def _receive_performative(
        self, channel: int, session: Session | None, performative: Performative
    ) -> None:
        self.work += PERFORMATIVE_WORK
        match performative:
            case Close():
                self._receive_close(performative)
            case Begin():
                self.channels.receive_begin(channel, performative)
            case Open():
                self._receive_open(performative)
            case Detach() if session is None:
                # The Python SDK ends its session first and then detaches its links: nothing is left to do.
                pass
            case _ if session is None:
                raise ProtocolError(
                    NOT_ALLOWED, f"{type(performative).__name__} on channel {channel}, where no session is"
                )
            case End():
                session.receive_end(performative)
            case _:
                try:
                    session.receive(performative)
                except ProtocolError as error:
                    if error.scope == "connection":
                        raise
                    session.fail(error)

    def _receive_outside_channel(self, frame: Frame) -> None:
        """A protocol header, a SASL frame, or a frame while the connection is not open."""
        frame_type, _, buffer, start, end = frame
        self.work += PERFORMATIVE_WORK
        sasl = self._sasl
        if sasl is not None and sasl.state is SaslState.INIT_RECEIVED:
            self._hold(frame)
        elif frame_type == PROTOCOL_HEADER:
            self._receive_header(buffer[start:end])
        elif frame_type == AMQP:
            self._receive_unopened(frame)
        elif sasl is None:
            raise ProtocolError(ILLEGAL_STATE, "a SASL frame after AMQP has started")
        else:
            event = sasl.receive(decode_performative(buffer, start, end)[0])
            if event is not None:
                self.events.add(event)
            elif isinstance(sasl, SaslClient) and sasl.state is SaslState.DONE:
                self._start_amqp()

    def _hold(self, frame: Frame) -> None:
        """Keeps what a client sends before it knows the outcome of SASL."""
        if len(self._held) == HELD_FRAMES_MAX:
            raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, "too much was sent before the outcome of SASL")
        frame_type, channel, buffer, start, end = frame
        self._held.append((frame_type, channel, buffer[start:end], 0, end - start))

    def _receive_unopened(self, frame: Frame) -> None:
        _, channel, buffer, start, end = frame
        if start == end:
            return  # a heartbeat
        performative = decode_performative(buffer, start, end)[0]
        if isinstance(performative, Open):
            self._receive_open(performative)
        elif isinstance(performative, Close):
            self._receive_close(performative)
        elif self.state is not ConnectionState.CLOSE_SENT:
            # After our close "incoming frames are discarded"; before open there may be none.
            raise ProtocolError(
                ILLEGAL_STATE,
                f"{type(performative).__name__} on channel {channel}: the connection is {self.state.value}",
            )

    # -- headers, open, close ------------------------------------------------------------

    def _receive_header(self, header: bytes) -> None:
        sasl = self._sasl
        if header == SASL_HEADER and sasl is not None:
            sasl.receive_header()
            return
        sasl_first = sasl is not None and sasl.state is not SaslState.DONE
        if sasl is not None and sasl.state is SaslState.START and not self.config.require_sasl:
            sasl_first = False
        if header != AMQP_HEADER or sasl_first:
            # "it MUST send a protocol header with a supported protocol id and close" [AMQP 2.2]
            wanted = SASL_HEADER if sasl_first else AMQP_HEADER
            if self.state is ConnectionState.START and isinstance(sasl, SaslServer):
                self.output.append(wanted)
            raise ProtocolError(
                NOT_IMPLEMENTED, f"protocol header {header.hex(' ')} came where {wanted.hex(' ')} is due"
            )
        self._advance(ConnectionInput.RECV_HEADER)
        self._sasl = None
        self._splitter.max_frame_size = self.config.max_frame_size
        if self.state is ConnectionState.HEADER_RECEIVED:
            self.output.append(AMQP_HEADER)
            self._advance(ConnectionInput.SEND_HEADER)

    def _start_amqp(self) -> None:
        """Client: header and open in one go; the answers come when they come."""
        self.output.append(AMQP_HEADER)
        self._advance(ConnectionInput.SEND_HEADER)
        self._send_open()

    def _send_open(self) -> None:
        self._advance(ConnectionInput.SEND_OPEN)
        self.write(0, self.config.opening())

    def _receive_open(self, remote: Open) -> None:
        self._advance(ConnectionInput.RECV_OPEN)
        self.remote = remote
        frame_size = FRAME_SIZE_MAX_DEFAULT if remote.max_frame_size is None else remote.max_frame_size
        if frame_size < FRAME_SIZE_MIN:
            raise ProtocolError(INVALID_FIELD, f"max-frame-size {frame_size} is below {FRAME_SIZE_MIN}")
        self.outgoing_frame_size = min(frame_size, self.config.max_frame_size)
        self._idle.peer_asks(remote.idle_time_out)
        if self.state is ConnectionState.OPEN_RECEIVED:
            self._send_open()
        if self.state is ConnectionState.OPENED:
            self.events.add(ConnectionOpened(remote))

    def _receive_close(self, close: Close) -> None:
        self._advance(ConnectionInput.RECV_CLOSE)
        if self.state is ConnectionState.CLOSE_RECEIVED:
            self._send_close(None)
        self.events.add(ConnectionClosed(close.error))
        self._end()

    def _send_close(self, error: BrokerError | None) -> None:
        self._advance(ConnectionInput.SEND_CLOSE)
        self.write(0, Close(error=wire_error(error)))

    def _fail(self, error: BrokerError) -> None:
        """Breaks the connection off. Before the headers are exchanged there is no frame to say why."""
        if self.state in (ConnectionState.HEADERS_EXCHANGED, ConnectionState.OPEN_RECEIVED):
            self._send_open()
        if (self.state, ConnectionInput.SEND_CLOSE) in CONNECTION:
            self._send_close(error)
        self.events.add(ConnectionFailed(error))
        self._end()

    def _end(self) -> None:
        self.state = ConnectionState.END
        self._held.clear()
        self._unread = None
        self._flow_owed.clear()
        self.channels.drop()

    def _advance(self, happening: ConnectionInput) -> None:
        try:
            self.state = CONNECTION[self.state, happening]
        except KeyError:
            raise ProtocolError(
                ILLEGAL_STATE, f"the connection is {self.state.value} and cannot take {happening.value}"
            ) from None
