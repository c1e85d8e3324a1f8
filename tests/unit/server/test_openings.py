"""What first bytes mean, one byte at a time and all at once."""

from __future__ import annotations

import pytest

from bendybus.server.openings import OPENING_LENGTH_MAX, Opening, opening_of

DECIDED = [
    (b"AMQP\x00\x01\x00\x00", Opening.AMQP),
    (b"AMQP\x03\x01\x00\x00\x00\x00", Opening.AMQP),
    (b"AMQP\x02\x01\x00\x00", Opening.AMQP_UNSUPPORTED),
    (b"AMQP\x01\x01\x00\x09", Opening.AMQP_UNSUPPORTED),
    (b"GET / HTTP/1.1", Opening.HTTP),
    (b"DELETE /q/messages/head HTTP/1.1", Opening.HTTP),
    (b"OPTIONS ", Opening.HTTP),
    (b"PRI * HTTP/2.0", Opening.UNKNOWN),
    (b"CONNECT host:443", Opening.UNKNOWN),
    (b"GETAWAY ", Opening.UNKNOWN),
    (b"get / ", Opening.UNKNOWN),
    (b"\x00", Opening.UNKNOWN),
    (b"SSH-2.0-x", Opening.UNKNOWN),
]


@pytest.mark.parametrize(("head", "meant"), DECIDED)
def test_a_whole_opening_is_decided(head: bytes, meant: Opening) -> None:
    assert opening_of(head) is meant


@pytest.mark.parametrize(("head", "meant"), DECIDED)
def test_fewer_bytes_are_undecided_or_the_same_answer(head: bytes, meant: Opening) -> None:
    answers = [opening_of(head[:length]) for length in range(1, len(head) + 1)]
    decided = answers.index(meant)
    assert set(answers[:decided]) <= {Opening.UNDECIDED}
    assert set(answers[decided:]) == {meant}
    assert opening_of(head[:OPENING_LENGTH_MAX]) is meant
