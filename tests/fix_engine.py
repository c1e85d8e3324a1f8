"""Two engines wired back to back: a client and a server with memory for a network.

`WiredPair` carries bytes between them until both are quiet, cut as the test
likes, and collects the events of either side. `RawPeer` is a server engine to which a test gives its own
frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from bendybus.amqp.frames import (
    AMQP_HEADER,
    SASL,
    SASL_HEADER,
    FrameSplitter,
    decode_performative,
    encode_frame,
)
from bendybus.amqp.performatives import (
    SENDER,
    Attach,
    Begin,
    Open,
    Performative,
    SaslInit,
    Source,
    Target,
)
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.engine.deliveries import Delivery, Outgoing
from bendybus.engine.events import (
    DeliveriesReceived,
    Event,
    LinkAttached,
    SaslInitReceived,
    SessionBegun,
)
from bendybus.engine.link import Link
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.engine.session import Session

EventType = TypeVar("EventType")
Cut = Callable[[bytes], Iterable[bytes]]


def whole(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]


@dataclass
class WiredPair:
    """Opened lazily: `open`, `begin` and `link` do what comes before them."""

    client_config: ConnectionConfig = field(default_factory=lambda: ConnectionConfig(container_id="client"))
    server_config: ConnectionConfig = field(default_factory=lambda: ConnectionConfig(container_id="server"))
    cut: Cut = whole
    now: float = 0.0
    accept_sasl: bool = True
    sent_by_client: bytearray = field(default_factory=bytearray)
    sent_by_server: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.client = Connection.client(self.client_config)
        self.server = Connection.server(self.server_config)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []

    def pump(self) -> None:
        """Carries bytes until neither side has any."""
        while True:
            to_server, to_client = self.client.data_to_send(), self.server.data_to_send()
            if not to_server and not to_client:
                return
            self.sent_by_client += to_server
            self.sent_by_server += to_client
            for piece in self.cut(to_server):
                self._server_takes(self.server.receive_data(piece, self.now))
            for piece in self.cut(to_client):
                self.client_events += self.client.receive_data(piece, self.now)

    def _server_takes(self, events: list[Event]) -> None:
        self.server_events += events
        if any(isinstance(event, SaslInitReceived) for event in events):
            self._server_takes(self.server.sasl_outcome(self.accept_sasl))

    def client_saw(self, kind: type[EventType]) -> list[EventType]:
        """Takes this kind of event out of what the client has seen since."""
        return _take(self.client_events, kind)

    def server_saw(self, kind: type[EventType]) -> list[EventType]:
        return _take(self.server_events, kind)

    def open(self) -> None:
        self.pump()
        assert self.client.remote is not None, self.client_events

    def begin(self) -> tuple[Session, Session]:
        """A session, the client's end and the server's."""
        if self.client.remote is None:
            self.open()
        session = self.client.begin()
        self.pump()
        self.client_saw(SessionBegun)
        (begun,) = self.server_saw(SessionBegun)
        return session, begun.session

    def ask_link(
        self,
        role: bool,
        name: str = "link",
        *,
        session: Session | None = None,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
        max_message_size: int | None = None,
    ) -> tuple[Link, Link]:
        """A link the client has asked for and the server has not answered; `role` is the client's."""
        session = session or self.begin()[0]
        asked = session.attach(
            name,
            role,
            source=Source(address="source"),
            target=Target(address="target"),
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            max_message_size=max_message_size,
        )
        self.pump()
        (attached,) = self.server_saw(LinkAttached)
        return asked, attached.link

    def sender(
        self, name: str = "sender", *, credit: int = 100, **how: object
    ) -> tuple[SendingLink, ReceivingLink]:
        """A link on which the client sends, with credit."""
        asked, answering = self.ask_link(SENDER, name, **how)
        assert isinstance(asked, SendingLink) and isinstance(answering, ReceivingLink)
        answering.accept()
        if credit:
            answering.grant(credit)
        self.pump()
        self.client_events.clear()
        return asked, answering

    def receiver(
        self, name: str = "receiver", *, credit: int = 100, **how: object
    ) -> tuple[ReceivingLink, SendingLink]:
        """A link on which the server sends, with credit."""
        asked, answering = self.ask_link(not SENDER, name, **how)
        assert isinstance(asked, ReceivingLink) and isinstance(answering, SendingLink)
        answering.accept()
        self.pump()
        self.client_events.clear()
        if credit:
            asked.grant(credit)
            self.pump()
        self.server_events.clear()
        return asked, answering


def _take(events: list[Event], kind: type[EventType]) -> list[EventType]:
    taken: list[EventType] = [event for event in events if isinstance(event, kind)]
    events[:] = [event for event in events if not isinstance(event, kind)]
    return taken


# -- raw bytes against a server ---------------------------------------------------------

SASL_START = SASL_HEADER + encode_frame(0, SaslInit("ANONYMOUS"), frame_type=SASL)
OPEN = encode_frame(0, Open(container_id="raw", max_frame_size=65536))


def begin_frame(channel: int = 0) -> bytes:
    return encode_frame(channel, Begin(next_outgoing_id=0, incoming_window=5000, outgoing_window=5000))


class RawPeer:
    """A server engine and whatever bytes a test wants to give it."""

    def __init__(self, config: ConnectionConfig | None = None) -> None:
        self.server = Connection.server(config or ConnectionConfig(container_id="server"))
        self._splitter = FrameSplitter(1_048_576)

    def give(self, *frames: bytes, now: float = 0.0) -> list[Event]:
        events = self.server.receive_data(b"".join(frames), now)
        if any(isinstance(event, SaslInitReceived) for event in events):
            events = events + self.server.sasl_outcome(True)
        return events

    def send(self, channel: int, performative: Performative, payload: bytes = b"") -> list[Event]:
        return self.give(encode_frame(channel, performative, payload))

    def open(self) -> RawPeer:
        self.give(SASL_START)
        self.give(AMQP_HEADER, OPEN)
        self.server.data_to_send()
        return self

    def begin(self, channel: int = 0) -> Session:
        (begun,) = self.give(begin_frame(channel))
        assert isinstance(begun, SessionBegun)
        self.server.data_to_send()
        return begun.session

    def answers(self) -> list[Performative | bytes]:
        """What the server has written since: performatives, and headers as bytes."""
        answers: list[Performative | bytes] = []
        for frame_type, _, buffer, start, end in self._splitter.feed(self.server.data_to_send()):
            if frame_type < 0:
                answers.append(buffer[start:end])
            elif start < end:
                answers.append(decode_performative(buffer, start, end)[0])
            else:
                answers.append(b"")
        return answers


@pytest.fixture
def pair() -> WiredPair:
    return WiredPair()


@pytest.fixture
def peer() -> RawPeer:
    return RawPeer().open()


def messages(count: int, size: int = 10) -> list[Outgoing]:
    return [(bytes([number]) * 16, b"head", bytes([number]) * size) for number in range(count)]


def delivered(pair: WiredPair) -> list[Delivery]:
    return [delivery for event in pair.server_saw(DeliveriesReceived) for delivery in event.deliveries]


def received_by_client(pair: WiredPair) -> list[Delivery]:
    return [delivery for event in pair.client_saw(DeliveriesReceived) for delivery in event.deliveries]


def receiving_link(peer: RawPeer, *, max_message_size: int | None = None) -> ReceivingLink:
    peer.begin()
    (attached,) = peer.send(
        0, Attach(name="l", handle=0, role=SENDER, source=Source(address="s"), target=Target(address="t"))
    )
    assert isinstance(attached, LinkAttached)
    assert isinstance(attached.link, ReceivingLink)
    attached.link.accept(max_message_size=max_message_size)
    attached.link.grant(100)
    peer.answers()
    return attached.link
