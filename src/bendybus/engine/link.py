"""What both kinds of link share: attaching, being refused, detaching.

*Our* role decides whether a link is a `SendingLink` (sending.py) or a `ReceivingLink`
(receiving.py). Calls on a detached link do nothing: the application may not have seen
its `LinkDetached` yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from bendybus.amqp.conditions import ILLEGAL_STATE, NOT_ALLOWED
from bendybus.amqp.frames import TransferFields
from bendybus.amqp.performatives import (
    RCV_FIRST,
    SENDER,
    SND_MIXED,
    Attach,
    Detach,
    Error,
    Flow,
    Source,
    Target,
    Terminus,
)
from bendybus.engine.events import LinkAttached, LinkDetached
from bendybus.engine.states import LINK, LinkInput, LinkState
from bendybus.engine.work import value_memory
from bendybus.errors import BrokerError, ProtocolError

if TYPE_CHECKING:
    from bendybus.engine.session import Session

__all__ = ["Link", "wire_error"]


def wire_error(error: BrokerError | None) -> Error | None:
    """One of our errors, as a close, end or detach carries it."""
    return None if error is None else Error(error.condition, error.description)


class Link:
    """One end of a link. Kept by its session under the name, the role and two handles."""

    role: ClassVar[bool]

    __slots__ = (
        "_closing",
        "answers_later",
        "context",
        "handle",
        "max_message_size",
        "name",
        "properties",
        "rcv_settle_mode",
        "remote",
        "remote_handle",
        "reported",
        "session",
        "snd_settle_mode",
        "source",
        "state",
        "target",
        "value_bytes",
    )

    def __init__(self, session: Session, name: str, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        self.remote_handle: int | None = None
        self.state = LinkState.DETACHED
        self.remote: Attach | None = None
        # As the peer asked for them (or answered, when we attached first).
        self.source: Terminus | None = None
        self.target: Terminus | None = None
        self.properties: dict[str, object] = {}
        self.snd_settle_mode = SND_MIXED
        self.rcv_settle_mode = RCV_FIRST
        self.max_message_size = 0
        # The memory of large values in the peer's attach.
        self.value_bytes = 0
        # For the application; the engine does not use it.
        self.context: object = None
        # Whether the application has been told that this link is gone.
        self.reported = False
        # Whether the application answers the peer's detach itself, by `answer_detach`.
        self.answers_later = False
        self._closing = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.state.value}>"

    @property
    def attached(self) -> bool:
        return self.state is LinkState.ATTACHED

    # -- what the application calls ----------------------------------------------------

    def accept(
        self,
        *,
        source: Terminus | None = None,
        target: Terminus | None = None,
        properties: dict[str, object] | None = None,
        max_message_size: int | None = None,
        offered_capabilities: Sequence[str] = (),
    ) -> None:
        """Accepts the peer's attach. What is not given is echoed from it, except for capabilities and for the
        mode in which we settle what we receive.

        The peer may have granted credit in the meantime, so look at a sending
        link's `credit` after this.
        """
        if self.state is not LinkState.ATTACH_RECEIVED:
            return
        self._send_attach(
            source=source or self._addressed_source(),
            target=target or self._addressed_target(),
            properties=properties,
            max_message_size=max_message_size,
            offered_capabilities=offered_capabilities,
        )

    def refuse(self, error: BrokerError) -> None:
        """Refuses the peer's attach: answers with null termini, and a detach with the reason follows."""
        if self.state is LinkState.ATTACH_RECEIVED:
            self.detach(error)

    def detach(self, error: BrokerError | None = None, *, closed: bool = True) -> None:
        """Detaches; `LinkDetached` follows when the peer has answered."""
        if self.state is LinkState.ATTACH_RECEIVED:
            # A detach must follow an attach: send one with null termini.
            self._send_attach()
        if self.state in (LinkState.ATTACHED, LinkState.ATTACH_SENT):
            self._send_detach(closed, wire_error(error))
            self._release()

    def answer_detach(self, error: BrokerError | None = None) -> None:
        """Answers the peer's detach, after `LinkDetached` on a link with `answers_later`."""
        if self.state is LinkState.DETACH_RECEIVED:
            self._send_detach(self._closing, wire_error(error))
            self.session.handles.forget(self)

    # -- what the session calls --------------------------------------------------------

    def request(self, attach: Attach) -> None:
        """Attaches from our side."""
        self.source, self.target = attach.source, attach.target
        if attach.snd_settle_mode is not None:
            self.snd_settle_mode = attach.snd_settle_mode
        if attach.rcv_settle_mode is not None:
            self.rcv_settle_mode = attach.rcv_settle_mode
        self._advance(LinkInput.SEND_ATTACH)
        self.session.write(attach)

    def receive_attach(self, attach: Attach) -> None:
        self._advance(LinkInput.RECV_ATTACH)
        self.remote = attach
        self.remote_handle = attach.handle
        connection = self.session.connection
        self.value_bytes = value_memory(connection.frame_bytes)
        connection.value_bytes += self.value_bytes
        if self.state is LinkState.DETACH_SENT:
            return
        self.source, self.target = attach.source, attach.target
        self.properties = attach.properties or {}
        if attach.snd_settle_mode is not None:
            self.snd_settle_mode = attach.snd_settle_mode
        if attach.rcv_settle_mode is not None:
            self.rcv_settle_mode = attach.rcv_settle_mode
        self._adopt(attach)
        self.session.connection.events.add(LinkAttached(self))

    def receive_detach(self, detach: Detach) -> None:
        if self.state is LinkState.ATTACH_RECEIVED:
            # The peer has detached before our answer. It still expects an attach before the detach.
            self._send_attach()
        self._advance(LinkInput.RECV_DETACH)
        closed = self._closing = bool(detach.closed)
        if self.state is LinkState.DETACH_RECEIVED:
            self._release()
            # The peer has given up its handle, and may use it again before our answer.
            self.session.handles.free_remote(self)
            if not self.answers_later:
                self._send_detach(closed, None)
        if self.state is LinkState.DETACHED:
            self.session.handles.forget(self)
        self.report_gone(detach.error, closed)

    def receive_flow(self, flow: Flow) -> None:
        """The two roles take it differently: sending.py, receiving.py."""
        raise NotImplementedError

    def receive_transfer(self, fields: TransferFields, payload: bytes) -> None:
        raise ProtocolError(
            NOT_ALLOWED, f"transfer on link '{self.name}', whose sender is this side", scope="link"
        )

    def fail(self, error: ProtocolError) -> None:
        """Detaches because of the peer's mistake, and reports that at once."""
        self.detach(error)
        self.report_gone(wire_error(error), closed=False)

    def drop(self) -> None:
        """The session has ended, and this link with it; no frame is sent."""
        if self.state is not LinkState.DETACHED:
            self._release()
            self.state = LinkState.DETACHED

    def report_gone(self, error: Error | None, closed: bool) -> None:
        if not self.reported:
            self.reported = True
            self.session.connection.events.add(LinkDetached(self, error, closed))

    # -- inside ------------------------------------------------------------------------

    def _adopt(self, attach: Attach) -> None:
        """Takes from the peer's attach what only one kind of link needs."""

    def _answered_rcv_settle_mode(self, asked: Attach) -> int | None:
        """The peer is the receiver, and its mode is its own choice."""
        return asked.rcv_settle_mode

    def _release(self) -> None:
        """Drops its deliveries; the link sends and accepts nothing more."""

    def _advance(self, happening: LinkInput) -> None:
        try:
            self.state = LINK[self.state, happening]
        except KeyError:
            raise ProtocolError(
                ILLEGAL_STATE,
                f"link '{self.name}' is {self.state.value} and cannot take {happening.value}",
                scope="session",
            ) from None

    def _send_attach(
        self,
        *,
        source: Terminus | None = None,
        target: Terminus | None = None,
        properties: dict[str, object] | None = None,
        max_message_size: int | None = None,
        offered_capabilities: Sequence[str] = (),
    ) -> None:
        assert self.remote is not None, "only the peer's attach is answered"
        self._advance(LinkInput.SEND_ATTACH)
        self.session.write(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                snd_settle_mode=self.remote.snd_settle_mode,
                rcv_settle_mode=self._answered_rcv_settle_mode(self.remote),
                source=source,
                target=target,
                # "MUST NOT be null if role is sender" [AMQP 2.7.3]
                initial_delivery_count=0 if self.role is SENDER else None,
                max_message_size=max_message_size,
                offered_capabilities=list(offered_capabilities) or None,
                properties=properties,
            )
        )

    def _send_detach(self, closed: bool, error: Error | None) -> None:
        self._advance(LinkInput.SEND_DETACH)
        self.session.write(Detach(handle=self.handle, closed=closed, error=error))

    # js leaves the terminus on its own side empty, and py drops a link that is answered with an
    # empty one. So the name of the link is used as its address.

    def _addressed_source(self) -> Terminus:
        if self.source is None:
            return Source(address=self.name)
        if isinstance(self.source, Source) and self.source.address is None:
            return replace(self.source, address=self.name)
        return self.source

    def _addressed_target(self) -> Terminus:
        if self.target is None:
            return Target(address=self.name)
        if isinstance(self.target, Target) and self.target.address is None:
            target = self.target
            return Target(
                self.name,
                target.durable,
                target.expiry_policy,
                target.timeout,
                target.dynamic,
                target.dynamic_node_properties,
                target.capabilities,
            )
        return self.target
