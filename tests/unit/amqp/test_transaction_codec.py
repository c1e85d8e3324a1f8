"""What is said about a transaction in its usual form is read and written as the general codec does it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.codec import encode
from bendybus.amqp.composite import composed, decode_composite
from bendybus.amqp.frames import decode_disposition, decode_performative, decode_transfer, encode_frame
from bendybus.amqp.message import decode_message, encode_message
from bendybus.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Declare,
    Declared,
    Discharge,
    Disposition,
    Modified,
    Received,
    Rejected,
    TransactionalState,
    Transfer,
)
from bendybus.amqp.transaction_codec import encode_transactional, read_request, read_transactional
from bendybus.errors import WireError

ids = st.binary(max_size=300)
outcomes = st.sampled_from([None, ACCEPTED, RELEASED, Rejected(), Modified(), Received(1, 2)])
states = st.builds(TransactionalState, ids, outcomes)
requests = st.builds(Declare) | st.builds(Discharge, ids, st.none() | st.booleans())


def wide(state: TransactionalState) -> bytes:
    """The state with its list in the long form, as Qpid Proton writes it."""
    narrow = encode(state)
    assert narrow[3] == 0xC0
    return (
        narrow[:3] + b"\xd0" + (narrow[4] + 3).to_bytes(4, "big") + narrow[5].to_bytes(4, "big") + narrow[6:]
    )


@given(states)
def test_a_state_is_read_as_the_general_codec_reads_it(state):
    written = encode(state)
    read = read_transactional(b"\x00" * 7 + written + b"more", 8)
    assert read in (None, (state, 7 + len(written)))


@pytest.mark.parametrize("outcome", [None, ACCEPTED], ids=str)
@pytest.mark.parametrize("size", [0, 1, 8, 32])
def test_what_clients_say_in_a_transaction_is_usual(size, outcome):
    state = TransactionalState(b"t" * size, outcome)
    short = b"\x00\x53\x34\xc0" + bytes((size + 3, 1, 0xA0, size)) + b"t" * size
    for written in (encode(state), wide(state), *([short] if outcome is None else [])):
        assert read_transactional(written, 1) == (state, len(written))


def decoded(body: bytes) -> object:
    """What the general codec makes of a frame's body; None if it is malformed."""
    try:
        return decode_composite(body, 0)[0]
    except WireError:
        return None


@given(states.filter(lambda state: len(state.txn_id) < 200), st.booleans(), st.data())
def test_damaged_states_are_read_as_the_general_codec_reads_them(state, in_long_form, data):
    written = wide(state) if in_long_form else encode(state)
    at = data.draw(st.integers(0, len(written) - 1))
    damaged = written[:at] + bytes((data.draw(st.integers(0, 255)),)) + written[at + 1 :]
    # With the id alone, the outcome left out.
    alone = b"\x00\x53\x34\xc0" + bytes((len(state.txn_id) + 3, 1, 0xA0, len(state.txn_id))) + state.txn_id
    for body in (damaged, written[:at], alone[:at]):
        read = read_transactional(body, 1)
        if body[:1] == b"\x00" and read is not None:
            assert read == decode_composite(body, 0)


@given(states, st.none() | st.booleans())
def test_frames_with_a_transaction_say_what_was_written(state, settled):
    frame = encode_frame(0, Disposition(role=True, first=3, settled=settled, state=state))
    assert decode_disposition(frame, 8, len(frame)) == (True, 3, 3, settled is True, state)
    transfer = Transfer(handle=1, delivery_id=2, delivery_tag=b"t", settled=settled, state=state)
    frame = encode_frame(0, transfer, b"payload")
    found = decode_transfer(frame, 8, len(frame))
    assert (found[0], found[7], frame[found[9] :]) == (1, state, b"payload")
    assert decode_performative(frame, 8, len(frame))[0] == transfer


@given(requests)
def test_a_request_is_read_as_the_general_codec_reads_it(request):
    message = encode_message(value=request)
    assert read_request(message) in (None, request)
    assert composed(decode_message(message).value) == request


@pytest.mark.parametrize(
    "request_", [Declare(), Discharge(b"12345678", False), Discharge(b"1", None)], ids=str
)
def test_the_requests_of_clients_are_usual(request_):
    assert read_request(encode_message(value=request_)) == request_


def test_an_empty_declare_is_usual():
    assert read_request(b"\x00\x53\x77\x00\x53\x31\x45") == Declare()


@given(st.builds(Discharge, st.binary(max_size=20), st.none() | st.booleans()), st.data())
def test_a_damaged_request_is_read_as_the_general_codec_reads_it(request, data):
    message = encode_message(value=request)
    at = data.draw(st.integers(0, len(message) - 1))
    damaged = message[:at] + bytes((data.draw(st.integers(0, 255)),)) + message[at + 1 :]
    for body in (damaged, message[:at]):
        found = read_request(body)
        if found is not None:
            assert found == composed(decode_message(body).value)


@given(states | st.builds(Declared, ids))
def test_states_are_written_as_the_general_codec_writes_them(state):
    assert encode_transactional(state) in (None, encode(state))


@pytest.mark.parametrize("state", [Declared(b"12345678"), TransactionalState(b"12345678", ACCEPTED)], ids=str)
def test_what_is_answered_in_a_transaction_is_usual(state):
    assert encode_transactional(state) == encode(state)
