"""What is sent over HTTP is an AMQP message like any other, and any AMQP message can be shown over HTTP."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.types import Array, Described, Int, Symbol, ULong
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Amendment, Message
from bendybus.envelope import admit, render
from bendybus.errors import ArgumentError, BrokerError, InvalidOperation, MessageSizeExceeded
from bendybus.names import EntityPath, Instant, LockToken, SequenceNumber
from bendybus.rest.messages import BATCH_TYPE, admit_request, message_id, show

AT = Instant(1_700_000_000_000)
QUEUE = QueueDescription(EntityPath("orders"))
BATCH = [(b"content-type", f"{BATCH_TYPE}; charset=utf-8".encode())]


def enqueued(message: Message) -> Message:
    message.sequence_number = SequenceNumber(7)
    message.enqueued_at = AT
    message.lock_token = LockToken(bytes(16))
    return message


def sent(headers=(), body=b"body", *, partitioned=True):
    return admit_request(headers, body, AT, QUEUE, partitioned=partitioned)


def amqp(message: Message):
    enqueued(message)
    assert message.payload is not None
    return decode_message(b"".join(render(message, message.payload, locked=True)))


def shown(**parts):
    message, _ = admit(encode_message(**parts), AT, QUEUE)
    enqueued(message)
    assert message.payload is not None
    return show(message, message.payload, locked=True)


def test_a_payload_is_one_data_section():
    (message,) = sent([(b"BrokerProperties", b'{"Label":"L"}'), (b"Priority", b'"High"')]).messages
    seen = amqp(message)
    assert (seen.data, seen.properties.subject) == ([b"body"], "L")
    assert seen.application_properties == {"Priority": "High"}


def test_a_lifetime_of_more_than_49_days_is_kept():
    days_60_s = 60 * 86_400
    (message,) = sent([(b"BrokerProperties", b'{"TimeToLive":%d}' % days_60_s)]).messages
    assert message.expires_at == AT + days_60_s * 1000
    enqueued(message).enqueued_at = Instant(AT + 5)
    told = dict(show(message, message.payload, locked=True).headers)[b"BrokerProperties"]
    assert json.loads(told)["TimeToLive"] == days_60_s


def test_a_message_needs_nothing_but_a_body():
    (message,) = sent(body=b"").messages
    seen = amqp(message)
    assert seen.data == [b""]
    assert seen.properties.message_id


def test_a_key_says_where_it_goes():
    assert sent([(b"brokerproperties", b'{"PartitionKey":"k"}')]).key == "k"
    assert sent([(b"brokerproperties", b'{"SessionId":"s"}')]).key == "s"


@pytest.mark.row("P-14")
def test_session_and_partition_key_must_agree():
    with pytest.raises(InvalidOperation, match="must be equal"):
        sent([(b"brokerproperties", b'{"SessionId":"s","PartitionKey":"k"}')])


def test_a_batch_has_properties_for_each_message():
    batch = [
        {"Body": "one", "BrokerProperties": {"Label": "a", "TimeToLiveTimeSpan": "00:00:40"}},
        {"Body": "Grüße", "UserProperties": {"n": 1, "f": 1.5, "b": True, "s": "x", "z": None}},
    ]
    first, second = map(amqp, sent(BATCH, json.dumps(batch).encode()).messages)
    assert (first.data, first.properties.subject, first.header.ttl) == ([b"one"], "a", 40_000)
    assert second.data == ["Grüße".encode()]
    assert second.application_properties == {"n": 1, "f": 1.5, "b": True, "s": "x", "z": None}


@pytest.mark.row("P-18")
def test_a_batch_with_two_keys_is_refused_where_keys_matter():
    batch = json.dumps([{"Body": "", "BrokerProperties": {"PartitionKey": key}} for key in "ab"]).encode()
    with pytest.raises(InvalidOperation, match="distinct SessionId or PartitionKey"):
        sent(BATCH, batch)
    assert len(sent(BATCH, batch, partitioned=False).messages) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"[1]",
        b'[{"Body": 1}]',
        b'[{"Body": "\\ud800"}]',
        b'[{"Body": "x", "BrokerProperties": 1}]',
        b'[{"Body": "x", "UserProperties": [1]}]',
        b'[{"Body": "x", "UserProperties": {"a": []}}]',
        b'[{"Body": "x", "UserProperties": {"\\ud800": 1}}]',
        b'[{"Body": "x", "UserProperties": {"a": 1' + b"0" * 400 + b"}}]",
        b"[" * 100_000,
    ],
    ids=lambda body: body[:40].decode(),
)
def test_a_batch_that_cannot_be_meant_is_refused(body):
    with pytest.raises(ArgumentError):
        sent(BATCH, body)


def test_properties_count_for_the_size_of_a_message():
    with pytest.raises(MessageSizeExceeded):
        sent([(b"big", b'"' + b"x" * 1000 + b'"')], bytes(256 * 1024 - 500))
    with pytest.raises(MessageSizeExceeded):
        sent(BATCH, json.dumps([{"Body": "x" * 100_000}] * 3).encode())


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ({"data": b"bytes"}, b"bytes"),
        ({"data": [b"two ", b"sections"]}, b"two sections"),
        ({"value": "Grüße"}, "Grüße".encode()),
        ({"value": b"bytes"}, b"bytes"),
        ({"value": None}, b""),
        ({"value": {"a": [Int(1), b"x", Symbol("s")]}}, b'{"a": [1, "x", "s"]}'),
        ({"value": Array(Int, [Int(1)])}, b"[1]"),
        ({"value": Described(ULong(5), "x")}, b'"x"'),
        ({"sequence": [1, "two"]}, b'[1, "two"]'),
        ({}, b""),
    ],
)
def test_a_body_of_any_kind_can_be_received(parts, body):
    assert shown(properties=Properties(message_id="m"), **parts).body == body


def test_a_message_shows_its_type_and_its_properties():
    headers = dict(
        shown(
            properties=Properties(message_id="m", content_type="text/plain"),
            application_properties={"Priority": "High"},
            data=b"",
        ).headers
    )
    assert (headers[b"Content-Type"], headers[b"Priority"]) == (b"text/plain", b'"High"')
    assert json.loads(headers[b"BrokerProperties"])["MessageId"] == "m"


def test_a_type_that_would_break_the_response_is_not_shown():
    seen = shown(properties=Properties(message_id="m", content_type="a\r\nb"), data=b"")
    assert b"Content-Type" not in dict(seen.headers)


def test_a_dead_letter_shows_why():
    message, _ = admit(encode_message(data=b"x"), AT, QUEUE)
    enqueued(message).amendment = Amendment(dead_letter_reason="Because")
    assert message.payload is not None
    assert dict(show(message, message.payload, locked=True).headers)[b"DeadLetterReason"] == b'"Because"'


def test_sections_that_cannot_be_read_are_shown_empty():
    """A message that could not be received would block those behind it."""
    # Application properties whose one value has no AMQP type, then the body.
    broken = b"\x00\x53\x74\xc1\x05\x02\xa1\x01a\x3f" + encode_message(data=b"body")
    message, _ = admit(encode_message(properties=Properties(message_id="m")) + broken, AT, QUEUE)
    enqueued(message)
    assert message.payload is not None
    seen = show(message, message.payload, locked=True)
    assert seen.body == b"body"
    assert [name for name, _ in seen.headers] == [b"BrokerProperties"]


def test_the_id_of_a_stored_message_can_be_compared():
    message, _ = admit(encode_message(properties=Properties(message_id=ULong(7)), data=b""), AT, QUEUE)
    enqueued(message)
    assert message.payload is not None
    assert message_id(message, message.payload) == "7"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("MessageId", "SessionId", "PartitionKey", "TimeToLive", "TimeToLiveTimeSpan", "ForcePersistence")
GIVEN = st.dictionaries(st.sampled_from((*NAMES, "ScheduledEnqueueTimeUtc", "Label")), JSON)


@given(
    st.one_of(st.binary(), GIVEN.map(lambda given: json.dumps(given).encode())),
    st.dictionaries(st.sampled_from([b"a", b"Content-Type", b"x-y"]), st.binary()),
    st.binary(),
)
def test_any_request_is_sent_or_refused(given, headers, body):
    try:
        admitted = sent([(b"BrokerProperties", given), *headers.items()], body)
    except BrokerError:
        return
    assert amqp(admitted.messages[0]).data == [body]


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"Body": JSON, "BrokerProperties": GIVEN, "UserProperties": JSON})
    )
)
def test_any_batch_is_sent_or_refused(batch):
    try:
        messages = sent(BATCH, json.dumps(batch).encode(), partitioned=False).messages
    except BrokerError:
        return
    assert len([amqp(message) for message in messages]) == len(batch)
