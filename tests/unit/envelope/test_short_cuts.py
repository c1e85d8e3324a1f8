"""The short ways in and out of the stored form say the same as the long ones, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.message import Header, Properties, encode_message
from bendybus.amqp.types import Symbol, UInt
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Amendment, Message, Origin
from bendybus.domain.routing import KEY_LENGTH_MAX
from bendybus.envelope import admit, admit_plain, render, render_locked
from bendybus.errors import BrokerError
from bendybus.names import EntityPath, Instant, LockToken, SequenceNumber

AT = Instant(1_700_000_000_000)
QUEUE = QueueDescription(EntityPath("orders"))

texts = st.text(max_size=200)
payloads = st.builds(
    encode_message,
    header=st.none()
    | st.builds(
        Header,
        durable=st.booleans(),
        ttl=st.none() | st.integers(0, 3).map(UInt),
        first_acquirer=st.none() | st.booleans(),
    ),
    delivery_annotations=st.none() | st.just({Symbol("x-delivery"): 1}),
    message_annotations=st.none() | st.just({Symbol("x-mine"): 1}),
    properties=st.builds(Properties, message_id=st.none() | texts, group_id=st.none() | st.just("s")),
    application_properties=st.none() | st.dictionaries(texts, texts, max_size=3),
    data=st.binary(max_size=400),
)


def is_admitted(payload: bytes) -> bool:
    try:
        admit(payload, AT, QUEUE)
    except BrokerError:
        return False
    return True


# -- in -------------------------------------------------------------------------------


@given(payloads)
def test_a_plain_message_is_admitted_as_the_long_way_admits_it(payload: bytes) -> None:
    if not is_admitted(payload):
        assert admit_plain(payload, AT) is None
        return
    plain = admit_plain(payload, AT)
    if plain is not None:
        message, key = admit(payload, AT, QUEUE)
        assert key is None
        for name in Message.__slots__:
            assert getattr(plain, name) == getattr(message, name), name


def test_a_message_whose_header_was_met_before_goes_the_short_way() -> None:
    payload = encode_message(
        header=Header(durable=True, ttl=UInt(5000)), properties=Properties(message_id="m"), data=b"body"
    )
    admit(payload, AT, QUEUE)
    plain = admit_plain(payload, AT)
    assert plain is not None and plain.expires_at == AT + 5000


@pytest.mark.parametrize(
    "parts",
    [
        {"properties": Properties(message_id="m" * (KEY_LENGTH_MAX + 1))},
        {"application_properties": {"a": "x" * 40_000}},
        {"properties": Properties(message_id="m", group_id="session")},
        {"message_annotations": {Symbol("x-opt-partition-key"): "key"}},
    ],
)
def test_what_is_refused_or_has_a_key_does_not_go_the_short_way(parts: dict[str, object]) -> None:
    admit(encode_message(properties=Properties(message_id="m"), data=b""), AT, QUEUE)
    payload = encode_message(**{"properties": Properties(message_id="m"), "data": b"body", **parts})
    assert admit_plain(payload, AT) is None


# -- out ------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            payloads.filter(is_admitted),
            st.integers(0, 1),
            st.none() | st.just(Amendment(dead_letter_reason="late")),
            st.none() | st.just(Origin(SequenceNumber(77))),
        ),
        max_size=5,
    )
)
def test_messages_under_lock_are_rendered_together_as_each_alone(drawn: list[tuple[bytes, int, ...]]) -> None:
    messages = []
    for number, (payload, failures, amendment, origin) in enumerate(drawn, 3 << 48 | 1):
        message, _ = admit(payload, AT, QUEUE)
        message.sequence_number, message.enqueued_at = SequenceNumber(number), Instant(AT + number)
        message.lock_token, message.locked_until = LockToken(number.to_bytes(16, "big")), Instant(AT + 60_000)
        message.delivery_count, message.amendment, message.origin = failures, amendment, origin
        messages.append(message)
    alone = [(message.lock_token, *render(message, message.payload, locked=True)) for message in messages]
    # Twice: what the first time is learnt from the long way is what the second time goes by.
    for _ in range(2):
        assert render_locked(messages, [message.payload for message in messages]) == alone
