"""What first bytes mean, one byte at a time and all at once."""

from __future__ import annotations

import pytest

from bendybus.server.protocol_sniffing import SNIFF_LENGTH_MAX, SniffedProtocol, sniff

DECIDED = [
    (b"AMQP\x00\x01\x00\x00", SniffedProtocol.AMQP),
    (b"AMQP\x03\x01\x00\x00\x00\x00", SniffedProtocol.AMQP),
    (b"AMQP\x02\x01\x00\x00", SniffedProtocol.AMQP_UNSUPPORTED),
    (b"AMQP\x01\x01\x00\x09", SniffedProtocol.AMQP_UNSUPPORTED),
    (b"GET / HTTP/1.1", SniffedProtocol.HTTP),
    (b"DELETE /q/messages/head HTTP/1.1", SniffedProtocol.HTTP),
    (b"OPTIONS ", SniffedProtocol.HTTP),
    (b"PRI * HTTP/2.0", SniffedProtocol.UNKNOWN),
    (b"CONNECT host:443", SniffedProtocol.UNKNOWN),
    (b"GETAWAY ", SniffedProtocol.UNKNOWN),
    (b"get / ", SniffedProtocol.UNKNOWN),
    (b"\x00", SniffedProtocol.UNKNOWN),
    (b"SSH-2.0-x", SniffedProtocol.UNKNOWN),
]


@pytest.mark.parametrize(("head", "meant"), DECIDED)
def test_a_whole_opening_is_decided(head: bytes, meant: SniffedProtocol) -> None:
    assert sniff(head) is meant


@pytest.mark.parametrize(("head", "meant"), DECIDED)
def test_fewer_bytes_are_undecided_or_the_same_answer(head: bytes, meant: SniffedProtocol) -> None:
    answers = [sniff(head[:length]) for length in range(1, len(head) + 1)]
    decided = answers.index(meant)
    assert set(answers[:decided]) <= {SniffedProtocol.UNDECIDED}
    assert set(answers[decided:]) == {meant}
    assert sniff(head[:SNIFF_LENGTH_MAX]) is meant
