"""The short ways in and out of the stored form say the same as the long ones, or nothing."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bendybus.amqp.message import Header, Properties, encode_message
from bendybus.amqp.types import Symbol, Timestamp, UInt
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Amendment, Origin
from bendybus.domain.routing import routing_key
from bendybus.envelope import admit, admit_together, render, render_locked
from bendybus.envelope.admission import take_apart, take_apart_ordinary
from bendybus.errors import ArgumentError, BrokerError
from bendybus.names import EntityPath, Instant, LockToken, SequenceNumber

AT = Instant(1_700_000_000_000)
QUEUE = QueueDescription(EntityPath("orders"))
# Its messages never take the fast path of `admit`.
DETECTS_DUPLICATES = QueueDescription(EntityPath("orders"), requires_duplicate_detection=True)

NAMES = [
    Symbol("x-mine"),
    Symbol("x-opt-partition-key"),
    Symbol("x-opt-via-partition-key"),
    Symbol("x-opt-scheduled-enqueue-time"),
    # Set by the broker. A message that is sent on has it from its last receiver.
    Symbol("x-opt-sequence-number"),
]

texts = st.text(max_size=200)
values = st.sampled_from(["key", "KEY", "", b"key", b"\xff", 1, None, Timestamp(AT - 1), Timestamp(AT + 1)])
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
    message_annotations=st.none() | st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
    properties=st.builds(
        Properties,
        message_id=st.none() | texts,
        content_type=st.none() | st.just(Symbol("text/plain")),
        creation_time=st.none() | st.just(Timestamp(AT)),
        group_id=st.none() | st.sampled_from(["", "s", "key", "s" * 200]),
    ),
    application_properties=st.none() | st.dictionaries(texts, texts, max_size=3),
    # A large body is not copied where a small one is.
    data=st.binary(max_size=400) | st.just(bytes(20_000)),
)


def is_admitted(payload: bytes) -> bool:
    try:
        admit(payload, AT, QUEUE)
    except BrokerError:
        return False
    return True


# -- in -------------------------------------------------------------------------------


@given(payloads)
def test_the_short_way_in_says_what_the_long_way_says(payload: bytes) -> None:
    try:
        expected = take_apart(payload)
    except ArgumentError:
        expected = None
    if expected is None:
        with contextlib.suppress(ArgumentError):
            assert take_apart_ordinary(payload) is None
        return
    # Twice: what the first time is read from the message is what the second time comes from the cache.
    for _ in range(2):
        found = take_apart_ordinary(payload)
        assert found is None or found == expected


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"header": Header(durable=True, ttl=UInt(5000))},
        {"properties": Properties(message_id="m", group_id="session")},
        {"message_annotations": {Symbol("x-opt-partition-key"): "key"}},
        {"message_annotations": {Symbol("x-mine"): 1, Symbol("x-opt-via-partition-key"): "key"}},
        {"application_properties": {f"property {number}": number for number in range(10)}},
    ],
)
def test_messages_with_keys_sessions_properties_and_lifetimes_go_the_short_way(
    parts: dict[str, object],
) -> None:
    payload = encode_message(**{"properties": Properties(message_id="m"), "data": b"body", **parts})
    assert take_apart_ordinary(payload) == take_apart(payload)


@given(payloads.filter(is_admitted))
def test_a_plain_message_is_admitted_as_any_other(payload: bytes) -> None:
    _, message_id, session_id, front = take_apart(payload)
    assume(message_id is not None)  # otherwise each gets an id of its own
    message, key = admit(payload, AT, QUEUE)
    other, _ = admit(payload, AT, DETECTS_DUPLICATES)
    for field in ("payload", "size", "expires_at", "session_id", "state", "enqueued_at"):
        assert getattr(message, field) == getattr(other, field)
    assert key == routing_key(session_id or None, front.partition_key, message_id, front.via_key)


# -- out ------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            payloads.filter(is_admitted),
            st.integers(0, 1),
            st.sampled_from(
                [None, Amendment(dead_letter_reason="late"), Amendment(earlier_number=SequenceNumber(7))]
            ),
            st.none() | st.just(Origin(SequenceNumber(77))),
            st.sampled_from([0, 3]),
        ),
        max_size=5,
    )
)
def test_messages_under_lock_are_rendered_together_as_each_alone(drawn: list[tuple[bytes, int, ...]]) -> None:
    messages = []
    for count, (payload, failures, amendment, origin, partition) in enumerate(drawn, 1):
        number = partition << 48 | count
        message, _ = admit(payload, AT, QUEUE)
        message.sequence_number, message.enqueued_at = SequenceNumber(number), Instant(AT + number)
        message.lock_token, message.locked_until = LockToken(number.to_bytes(16, "big")), Instant(AT + 60_000)
        message.delivery_count, message.amendment, message.origin = failures, amendment, origin
        messages.append(message)
    alone = [(message.lock_token, *render(message, message.payload, locked=True)) for message in messages]
    # Twice: what the first time is learnt from the long way is what the second time goes by.
    for _ in range(2):
        assert render_locked(messages, [message.payload for message in messages]) == alone


EXACT = QueueDescription(EntityPath("orders"), exact_keys=True)
WITH_SESSIONS = QueueDescription(EntityPath("orders"), requires_session=True)


@given(
    st.lists(payloads, min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from([QUEUE, EXACT, WITH_SESSIONS]),
)
def test_messages_are_admitted_together_as_each_is_admitted_alone(
    different: list[bytes], times: int, queue: QueueDescription
) -> None:
    sent = [payload for payload in different for _ in range(times)]
    admitted, keys = admit_together(sent, AT, queue)
    assert len(keys) in (0, len(admitted))
    for message, key, payload in zip(admitted, keys or [None] * len(admitted), sent, strict=False):
        alone, own_key = admit(payload, AT, queue)
        assert key == own_key
        for field in ("payload", "size", "expires_at", "session_id", "state", "enqueued_at"):
            assert getattr(message, field) == getattr(alone, field)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"header": Header(durable=True, ttl=UInt(5000))},
        {"properties": Properties(message_id="m", group_id="session")},
        {"message_annotations": {Symbol("x-opt-partition-key"): "key"}},
        {"message_annotations": {Symbol("x-opt-via-partition-key"): "key"}},
        {
            "message_annotations": {Symbol("x-opt-partition-key"): "session"},
            "properties": Properties(message_id="m", group_id="session"),
        },
    ],
)
def test_messages_of_the_frequent_kinds_are_admitted_together(parts: dict[str, object]) -> None:
    payload = encode_message(**{"properties": Properties(message_id="m"), "data": b"x", **parts})
    assert len(admit_together([payload] * 3, AT, QUEUE)[0]) == 3


@pytest.mark.parametrize(
    "parts",
    [
        {"message_annotations": {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(AT + 1)}},
        {"message_annotations": {Symbol("x-opt-partition-key"): "k" * 129}},
        {"message_annotations": {Symbol("x-opt-partition-key"): 1}},
        {"properties": Properties(message_id="m" * 129)},
        {
            "message_annotations": {Symbol("x-opt-partition-key"): "another"},
            "properties": Properties(message_id="m", group_id="session"),
        },
        {"data": bytes(40_000)},
    ],
)
def test_a_message_that_may_have_to_be_refused_is_admitted_alone(parts: dict[str, object]) -> None:
    usual = encode_message(properties=Properties(message_id="m"), data=b"x")
    other = encode_message(**{"properties": Properties(message_id="m"), "data": b"x", **parts})
    admitted, _ = admit_together([usual, other, usual], AT, QUEUE)
    assert len(admitted) == 1
