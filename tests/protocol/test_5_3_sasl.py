"""AMQP 5.3: the SASL exchange before AMQP."""

from __future__ import annotations

import pytest

from bendybus.amqp.frames import AMQP_HEADER, HEARTBEAT, SASL, SASL_HEADER, encode_frame
from bendybus.amqp.performatives import (
    SASL_AUTH,
    SASL_OK,
    Open,
    SaslChallenge,
    SaslInit,
    SaslOutcome,
    SaslResponse,
)
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.events import (
    ConnectionFailed,
    ConnectionOpened,
    SaslInitReceived,
    SessionBegun,
)
from bendybus.engine.sasl import plain_credentials, plain_response
from bendybus.errors import Unauthorized
from fix_engine import OPEN, SASL_START, RawPeer, WiredPair, begin_frame


def sasl_frame(performative: SaslInit | SaslResponse | SaslOutcome) -> bytes:
    return encode_frame(0, performative, frame_type=SASL)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("ANONYMOUS", b"\x00RootManageSharedAccessKey"),  # what js sends
        ("MSSBCBS", b""),
        ("EXTERNAL", b""),
        ("PLAIN", plain_response("rule", "key=")),
    ],
)
def test_each_mechanism_leads_to_an_open_connection(mechanism: str, response: bytes) -> None:
    config = ConnectionConfig(
        container_id="client", hostname="ns.example", sasl_mechanism=mechanism, sasl_response=response
    )
    pair = WiredPair(client_config=config)
    pair.pump()
    assert pair.server_saw(SaslInitReceived) == [SaslInitReceived(mechanism, response, "ns.example")]
    assert len(pair.server_saw(ConnectionOpened)) == len(pair.client_saw(ConnectionOpened)) == 1


def test_mechanisms_are_offered_as_an_array_of_symbols() -> None:
    # py tests for membership in an array.
    peer = RawPeer()
    peer.give(SASL_HEADER)
    data = peer.server.data_to_send()
    assert data.startswith(SASL_HEADER)
    # array8, its size, four elements of type sym8
    assert b"\xe0\x23\x04\xa3\x07MSSBCBS\x05PLAIN\x09ANONYMOUS\x08EXTERNAL" in data


def test_bad_credentials_get_outcome_auth_and_nothing_after() -> None:
    pair = WiredPair(accept_sasl=False)
    pair.pump()
    (failed,) = pair.client_saw(ConnectionFailed)
    assert isinstance(failed.error, Unauthorized)
    assert pair.server.closed and pair.client.closed
    assert bytes(pair.sent_by_server).endswith(sasl_frame(SaslOutcome(SASL_AUTH)))
    assert pair.server.receive_data(AMQP_HEADER + OPEN, 0.0) == []


def test_a_mechanism_that_was_not_offered_fails() -> None:
    peer = RawPeer()
    (failed,) = peer.give(SASL_HEADER, sasl_frame(SaslInit("SCRAM-SHA-256")))
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, Unauthorized)
    assert peer.answers()[-1] == SaslOutcome(SASL_AUTH)


def test_a_client_whose_mechanism_is_not_offered_gives_up() -> None:
    pair = WiredPair(server_config=ConnectionConfig(container_id="server", sasl_mechanisms=("EXTERNAL",)))
    pair.pump()
    (failed,) = pair.client_saw(ConnectionFailed)
    assert isinstance(failed.error, Unauthorized)


def test_plain_without_a_response_is_asked_for_one() -> None:
    peer = RawPeer()
    assert peer.give(SASL_HEADER, sasl_frame(SaslInit("PLAIN", hostname="h"))) == []
    assert peer.answers()[-1] == SaslChallenge(b"")
    (init,) = peer.server.receive_data(sasl_frame(SaslResponse(b"\x00u\x00p")), 0.0)
    assert init == SaslInitReceived("PLAIN", b"\x00u\x00p", "h")


def test_what_a_client_pipelines_before_the_outcome_is_answered_in_order_after_it() -> None:
    # py sends header, open and begin without waiting.
    peer = RawPeer()
    events = peer.server.receive_data(SASL_START + AMQP_HEADER + OPEN + begin_frame(1), 0.0)
    assert [type(event) for event in events] == [SaslInitReceived]
    events = peer.server.sasl_outcome(True)
    assert [type(event) for event in events] == [ConnectionOpened, SessionBegun]
    kinds = [answer if isinstance(answer, bytes) else type(answer).__name__ for answer in peer.answers()]
    assert kinds == [SASL_HEADER, "SaslMechanisms", "SaslOutcome", AMQP_HEADER, "Open", "Begin"]


def test_what_is_pipelined_before_the_outcome_is_bounded() -> None:
    peer = RawPeer()
    peer.server.receive_data(SASL_START, 0.0)
    events = peer.server.receive_data(AMQP_HEADER + HEARTBEAT * 100, 0.0)
    assert [type(event) for event in events] == [ConnectionFailed]


def test_large_frames_are_not_taken_before_the_outcome() -> None:
    peer = RawPeer()
    (failed,) = peer.give(SASL_HEADER, sasl_frame(SaslInit("PLAIN", b"x" * 10_000)))
    assert isinstance(failed, ConnectionFailed)


def test_amqp_may_not_start_before_sasl_is_done() -> None:
    peer = RawPeer()
    peer.give(SASL_HEADER)
    (failed,) = peer.give(AMQP_HEADER)
    assert isinstance(failed, ConnectionFailed)


@pytest.mark.parametrize(
    "frame",
    [
        sasl_frame(SaslOutcome(SASL_OK)),
        sasl_frame(SaslResponse(b"")),
        encode_frame(0, Open(container_id="x")),
    ],
)
def test_frames_out_of_turn_break_the_exchange_off(frame: bytes) -> None:
    peer = RawPeer()
    (failed,) = peer.give(SASL_HEADER, frame)
    assert isinstance(failed, ConnectionFailed)
    assert peer.server.closed


def test_a_sasl_frame_after_amqp_has_started_closes_the_connection() -> None:
    peer = RawPeer().open()
    (failed,) = peer.give(sasl_frame(SaslInit("ANONYMOUS")))
    assert isinstance(failed, ConnectionFailed)


def test_an_outcome_nobody_waits_for_is_ignored() -> None:
    peer = RawPeer()
    assert peer.server.sasl_outcome(True) == []
    assert peer.server.data_to_send() == b""


def test_plain_credentials_round_trip() -> None:
    assert plain_credentials(plain_response("rule", "k/y=")) == ("rule", "k/y=")
    for malformed in (b"", b"\x00only", b"\x00a\x00b\x00c", b"\x00\xff\x00p"):
        with pytest.raises(Unauthorized):
            plain_credentials(malformed)
