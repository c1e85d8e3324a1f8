"""A whole AMQP connection without its socket: login, sessions, links, deliveries (`engine/`).

The engine raises nothing for what a peer sends. What it answers must be AMQP.
"""

from __future__ import annotations

from bendybus.amqp.frames import AMQP_HEADER, PROTOCOL_HEADER, SASL_HEADER, FrameSplitter, decode_performative
from bendybus.amqp.performatives import ACCEPTED
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.engine.events import (
    DeliveriesReceived,
    Event,
    LinkAttached,
    LinkFlow,
    OutcomesReceived,
    SaslInitReceived,
)
from bendybus.engine.receiving import ReceivingLink
from fuzz.target import Target

CONFIG = ConnectionConfig(
    container_id="fuzz", max_frame_size=4096, channel_max=3, handle_max=7, links_max=10, idle_timeout_s=60.0
)
MESSAGE = b"\x00\x53\x75\xa0\x03abc"

# Much less than a real connection gets in one turn, so that inputs are read in slices.
SLICE = 64


def check(data: bytes) -> None:
    engine = Connection.server(CONFIG)
    answers = FrameSplitter(1 << 20)
    now = 0.0
    size = len(data) // 3 + 1
    for start in range(0, len(data), size):
        now += 1.0
        _act(engine, engine.receive_data(data[start : start + size], now, SLICE))
        while engine.has_unread:
            _act(engine, engine.read_on(SLICE))
        _read_answers(engine, answers)
    _act(engine, engine.tick(now + 50.0))
    engine.close()
    _read_answers(engine, answers)
    assert answers.kept_bytes == 0, "an answer ends in the middle of a frame"


def _act(engine: Connection, events: list[Event]) -> None:
    """What the gateway does, in short: let everybody in, take and give every message."""
    waiting = list(events)
    while waiting:
        match waiting.pop(0):
            case SaslInitReceived():
                waiting += engine.sasl_outcome(ok=True)
            case LinkAttached(link):
                link.accept()
                if isinstance(link, ReceivingLink):
                    link.grant(5)
            case DeliveriesReceived(link, deliveries):
                link.settle(deliveries, ACCEPTED)
            case LinkFlow(link):
                link.send([(b"tag", b"", MESSAGE)] * min(link.credit, 3))
                if link.drain:
                    link.drained()
            case OutcomesReceived(link, deliveries, state, settled):
                if not settled:
                    link.settle(deliveries, state)


def _read_answers(engine: Connection, answers: FrameSplitter) -> None:
    for kind, _, buffer, start, end in answers.feed(engine.data_to_send()):
        if kind == PROTOCOL_HEADER:
            assert buffer[start:end] in (AMQP_HEADER, SASL_HEADER)
        elif start < end:
            decode_performative(buffer, start, end)


TARGET = Target(
    name="connection",
    parses="the AMQP engine: login, sessions, links, deliveries",
    check=check,
    may_raise=(),
    share=40,
    length_max=2048,
    words=(
        AMQP_HEADER,
        SASL_HEADER,
        *(bytes((0x00, 0x53, code, 0xC0)) for code in (*range(0x10, 0x19), *range(0x40, 0x45))),
    ),
)
