"""A session: begin and end, the incoming window, dispositions.

Which link is at which handle: handles.py. The sending half, with the peer's window:
outgoing.py. If the peer makes a mistake, the session ends (`ProtocolError` of scope
"session") or one link is detached (scope "link"); the connection stays open. After we
have sent an end, the peer's frames are discarded until its end arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from bendybus.amqp.conditions import (
    ILLEGAL_STATE,
    NOT_ALLOWED,
    WINDOW_VIOLATION,
)
from bendybus.amqp.frames import DispositionFields, TransferFields
from bendybus.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    DeliveryState,
    Detach,
    End,
    Error,
    Flow,
    Performative,
    Terminus,
)
from bendybus.amqp.serial import SERIAL_MAX
from bendybus.amqp.transfer_run import TransferRun
from bendybus.engine.deliveries import Delivery, id_ranges
from bendybus.engine.events import DeliveriesAnswered, DeliveriesSettled, SessionBegun, SessionEnded
from bendybus.engine.handles import Handles
from bendybus.engine.link import Link, wire_error
from bendybus.engine.outgoing import OutgoingTransfers
from bendybus.engine.packing import pack_dispositions
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.states import SESSION, LinkState, SessionInput, SessionState
from bendybus.engine.work import OUTCOMES_PER_WORK
from bendybus.errors import BrokerError, ProtocolError

if TYPE_CHECKING:
    from bendybus.engine.connection import Connection

__all__ = ["Session"]

# What we announce. The peer's incoming-window is the limit that matters.
OUTGOING_WINDOW: Final = 0x7FFFFFFF

# Looked at for every frame, and a member of an enum is slow to look up.
_MAPPED: Final = SessionState.MAPPED


class Session:
    __slots__ = (
        "_next_incoming_id",
        "_window_left",
        "_window_low",
        "channel",
        "connection",
        "context",
        "handles",
        "outgoing",
        "proposed",
        "remote_channel",
        "reported",
        "state",
    )

    def __init__(self, connection: Connection, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.state = SessionState.UNMAPPED
        self.handles = Handles(self)
        self.outgoing = OutgoingTransfers(self)
        # Received deliveries whose outcome we have named and which the sender has not settled yet.
        self.proposed: dict[int, tuple[ReceivingLink, Delivery]] = {}
        # For the application; the engine does not use it.
        self.context: object = None
        self.reported = False
        self._next_incoming_id: int | None = None
        self._window_left = connection.config.incoming_window
        self._window_low = connection.config.incoming_window // 2

    def __repr__(self) -> str:
        return f"<Session {self.channel} {self.state.value}>"

    # -- what the application calls ----------------------------------------------------

    @property
    def links(self) -> list[Link]:
        return self.handles.links

    def attach(
        self,
        name: str,
        role: bool,
        *,
        source: Terminus | None = None,
        target: Terminus | None = None,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
        properties: dict[str, object] | None = None,
        max_message_size: int | None = None,
        desired_capabilities: Sequence[str] = (),
    ) -> Link:
        """Attaches a link with `role` on our side: a `SendingLink` or a `ReceivingLink`."""
        if self.state is not SessionState.MAPPED or self.handles.has(name, role):
            raise ProtocolError(
                ILLEGAL_STATE, f"link '{name}' cannot be attached on {self!r}", scope="session"
            )
        link = self.handles.new_link(name, role)
        if max_message_size is None and isinstance(link, ReceivingLink):
            max_message_size = link.max_message_size
        link.max_message_size = max_message_size or 0
        link.request(
            Attach(
                name=name,
                handle=link.handle,
                role=role,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if role is SENDER else None,
                max_message_size=max_message_size,
                desired_capabilities=list(desired_capabilities) or None,
                properties=properties,
            )
        )
        return link

    def end(self, error: BrokerError | None = None) -> None:
        """Ends the session and its links. They are reported when the peer has answered."""
        if self.state in (SessionState.MAPPED, SessionState.BEGIN_SENT):
            self._send_end(wire_error(error))

    # -- lifecycle ---------------------------------------------------------------------

    def send_begin(self) -> None:
        self._advance(SessionInput.SEND_BEGIN)
        config = self.connection.config
        self.write(
            Begin(
                remote_channel=self.remote_channel,
                next_outgoing_id=self.outgoing.next_transfer_id,
                incoming_window=config.incoming_window,
                outgoing_window=OUTGOING_WINDOW,
                handle_max=config.handle_max,
            )
        )

    def receive_begin(self, channel: int, begin: Begin) -> None:
        self._advance(SessionInput.RECV_BEGIN)
        self.remote_channel = channel
        self._next_incoming_id = begin.next_outgoing_id
        self.outgoing.window = begin.incoming_window
        if begin.handle_max is not None:
            self.handles.remote_handle_max = begin.handle_max
        if self.state is SessionState.BEGIN_RECEIVED:
            self.send_begin()
        if self.state is SessionState.MAPPED:
            self.connection.events.add(SessionBegun(self))

    def receive_end(self, end: End) -> None:
        self._advance(SessionInput.RECV_END)
        if self.state is SessionState.END_RECEIVED:
            self._send_end(None)
        self.connection.forget(self)
        self._report_ended(end.error)

    def fail(self, error: ProtocolError) -> None:
        """Ends the session because of the peer's mistake, and reports that at once."""
        if self.state is SessionState.MAPPED:
            self._send_end(wire_error(error))
            self._report_ended(wire_error(error))

    def drop(self) -> None:
        """The connection has ended, and this session with it; no frame is sent."""
        self.state = SessionState.UNMAPPED
        self.handles.drop()

    def _send_end(self, error: Error | None) -> None:
        self._advance(SessionInput.SEND_END)
        self.handles.drop()
        self.write(End(error=error))

    def _report_ended(self, error: Error | None) -> None:
        if self.reported:
            return
        self.reported = True
        for link in self.handles.links:
            # "the links are implicitly detached" [AMQP 2.5.6]: whatever a close would destroy stays.
            link.report_gone(error, closed=False)
        self.connection.events.add(SessionEnded(self, error))

    def _advance(self, happening: SessionInput) -> None:
        try:
            self.state = SESSION[self.state, happening]
        except KeyError:
            raise ProtocolError(
                ILLEGAL_STATE,
                f"session on channel {self.channel} is {self.state.value} and cannot take {happening.value}",
            ) from None

    # -- frames ------------------------------------------------------------------------

    def discards(self) -> bool:
        """Whether frames are discarded, because we have ended this session."""
        if self.state is _MAPPED:
            return False
        self._advance(SessionInput.RECV_FRAME)
        return True

    def receive(self, performative: Performative) -> None:
        """Any frame for a mapped session except transfer and disposition, which have their own methods."""
        if self.discards():
            return
        match performative:
            case Flow():
                self._receive_flow(performative)
            case Attach():
                self.handles.receive_attach(performative)
            case Detach():
                self.handles.at(performative.handle).receive_detach(performative)
            case _:
                raise ProtocolError(NOT_ALLOWED, f"{type(performative).__name__} has no place in a session")

    def _receive_flow(self, flow: Flow) -> None:
        self.outgoing.open_window(flow)
        if flow.handle is None:
            if flow.echo:
                self.write_flow()
            return
        link = self.handles.at(flow.handle)
        if link.state in (LinkState.ATTACHED, LinkState.ATTACH_RECEIVED):
            link.receive_flow(flow)

    def receive_run(self, run: TransferRun) -> bool:
        """Takes a series of transfers if window and link allow all of it. False: nothing was changed."""
        link = self.handles.by_remote_handle.get(run.handle)
        count = len(run.transfers)
        if self._window_left < count or type(link) is not ReceivingLink:
            return False
        if not link.receive_run(run.transfers):
            return False
        assert self._next_incoming_id is not None, "a mapped session has seen the peer's begin"
        self._next_incoming_id = (self._next_incoming_id + count) & SERIAL_MAX
        self._window_left -= count
        if self._window_left <= self._window_low:
            self.connection.owes_flow(self)
        return True

    def receive_transfer(self, fields: TransferFields, buffer: bytes, end: int) -> None:
        """Every frame counts in the window, even if it is refused."""
        assert self._next_incoming_id is not None, "a mapped session has seen the peer's begin"
        self._next_incoming_id = (self._next_incoming_id + 1) & SERIAL_MAX
        self._window_left -= 1
        if self._window_left <= self._window_low:
            if self._window_left < 0:
                raise ProtocolError(
                    WINDOW_VIOLATION,
                    f"transfer on channel {self.channel} beyond the incoming window",
                    scope="session",
                )
            self.connection.owes_flow(self)
        link = self.handles.by_remote_handle.get(fields[0])
        if link is None:
            raise self.handles.unattached(fields[0])
        try:
            link.receive_transfer(fields, buffer[fields[9] : end])
        except ProtocolError as error:
            if error.scope != "link":
                raise
            link.fail(error)

    def receive_disposition(self, fields: DispositionFields) -> None:
        role, first, last, settled, state = fields
        if role is RECEIVER:
            deliveries = self.outgoing.select(first, last)
            if deliveries:
                self.connection.work += len(deliveries) // OUTCOMES_PER_WORK
                if settled:
                    self.outgoing.forget(deliveries)
                self.connection.events.add_outcomes(deliveries, state, settled)
        elif self.proposed:
            self._answer_proposed(first, last, state, settled)

    def _answer_proposed(self, first: int, last: int, state: DeliveryState | None, settled: bool) -> None:
        span = (last - first) & SERIAL_MAX
        answered_ids = [number for number in self.proposed if (number - first) & SERIAL_MAX <= span]
        by_link: dict[ReceivingLink, list[Delivery]] = {}
        for number in answered_ids:
            link, delivery = self.proposed.pop(number) if settled else self.proposed[number]
            by_link.setdefault(link, []).append(delivery)
        for link, deliveries in by_link.items():
            self.connection.events.add(
                (DeliveriesSettled if settled else DeliveriesAnswered)(link, deliveries, state)
            )

    # -- what links call ---------------------------------------------------------------

    def write(self, performative: Performative, payload: Sequence[bytes | memoryview] = ()) -> None:
        self.connection.write(self.channel, performative, payload)

    def write_flow(
        self,
        *,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        drain: bool | None = None,
    ) -> None:
        """Sends our flow state. Every flow opens the incoming window fully."""
        self._window_left = self.connection.config.incoming_window
        self.write(
            Flow(
                next_incoming_id=self._next_incoming_id,
                incoming_window=self._window_left,
                next_outgoing_id=self.outgoing.next_transfer_id,
                outgoing_window=OUTGOING_WINDOW,
                handle=handle,
                delivery_count=delivery_count,
                link_credit=link_credit,
                drain=drain,
            )
        )

    def replenish(self) -> None:
        """Opens the incoming window if it still needs opening."""
        if self.state is _MAPPED and self._window_left <= self._window_low:
            self.write_flow()

    def write_dispositions(
        self, role: bool, delivery_ids: Iterable[int], *, settled: bool, state: DeliveryState | None
    ) -> None:
        if settled and type(state) is Accepted:
            self.connection.accepted.add(self.channel, role, delivery_ids)
            return
        self.connection.output += pack_dispositions(
            self.channel, role, id_ranges(delivery_ids), settled, state
        )
