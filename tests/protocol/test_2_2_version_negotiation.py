"""AMQP 2.2: protocol headers, before any frame."""

from __future__ import annotations

import pytest

from bendybus.amqp.frames import AMQP_HEADER, SASL_HEADER, TLS_HEADER
from bendybus.amqp.performatives import Open
from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.engine.events import ConnectionFailed, ConnectionOpened
from bendybus.errors import ProtocolError, WireError
from fix_engine import OPEN, RawPeer


@pytest.mark.parametrize(
    "header", [AMQP_HEADER, TLS_HEADER, b"AMQP\x00\x00\x09\x01", b"AMQP\x07\x01\x00\x00"]
)
def test_any_other_header_than_sasl_is_answered_with_the_sasl_header_and_the_end(header: bytes) -> None:
    peer = RawPeer()
    (failed,) = peer.give(header)
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, ProtocolError)
    assert peer.answers() == [SASL_HEADER]
    assert peer.server.closed


def test_a_server_that_does_not_insist_on_sasl_starts_with_amqp() -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", require_sasl=False))
    (opened,) = peer.give(AMQP_HEADER, OPEN)
    assert isinstance(opened, ConnectionOpened)
    header, answer = peer.answers()
    assert header == AMQP_HEADER
    assert isinstance(answer, Open)


def test_a_server_that_does_not_insist_on_sasl_still_answers_tls_with_a_header_it_speaks() -> None:
    peer = RawPeer(ConnectionConfig(container_id="server", require_sasl=False))
    (failed,) = peer.give(TLS_HEADER)
    assert isinstance(failed, ConnectionFailed)
    assert peer.answers() == [AMQP_HEADER]


def test_bytes_that_are_no_amqp_at_all_end_the_connection_without_an_answer() -> None:
    peer = RawPeer()
    (failed,) = peer.give(b"GET / HTTP/1.1\r\n\r\n")
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, WireError)
    assert peer.server.data_to_send() == b""


def test_a_client_refuses_a_server_that_answers_with_another_header() -> None:
    client = Connection.client(ConnectionConfig(container_id="client"))
    assert client.data_to_send() == SASL_HEADER
    (failed,) = client.receive_data(AMQP_HEADER, 0.0)
    assert isinstance(failed, ConnectionFailed)
    assert client.closed


def test_a_client_without_sasl_sends_header_and_open_at_once() -> None:
    client = Connection.client(ConnectionConfig(container_id="client", sasl_mechanism=None))
    assert client.data_to_send().startswith(AMQP_HEADER + b"\x00\x00\x00")


def test_a_second_header_breaks_the_connection_off() -> None:
    peer = RawPeer().open()
    (failed,) = peer.give(AMQP_HEADER)
    assert isinstance(failed, ConnectionFailed)
